"""The contents of a checkpoint as a run describes them: its configuration and leaves by path."""

import json
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from experiments.core.config import changes


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Return one line for each dotted name that differs.

    >>> differences({"k": 1, "b1": 0.9}, {"k": 2, "b1": 0.9, "b2": 0.99})
    ['k: 1 in the checkpoint, 2 in this run', 'b2: absent in the checkpoint, 0.99 in this run']
    """
    return [
        "{}: {} in the checkpoint, {} in this run".format(
            name, *("absent" if value is MISSING else value for value in values)
        )
        for name, values in changes(theirs, ours).items()
    ]


def as_json(value: Any) -> Any:
    """Return what a reader of the file would find, as a copy that nobody changes."""
    return json.loads(json.dumps(value))


def named_leaves(tree: Any) -> dict[str, Any]:
    """Return leaves by their paths, in the tree's order.

    Raises:
      TypeError: If a leaf is not a JAX array, or would be restored as another type.
    """
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}
    for name, leaf in leaves.items():
        if not (hasattr(leaf, "dtype") and _is_kept(leaf)):
            raise TypeError(f"leaf {name} must be an array, got {leaf!r}; wrap it in jnp.asarray")
    return leaves


def kinds(leaves: Mapping[str, Any]) -> dict[str, str]:
    """Return type and shape of each leaf.

    >>> kinds({"w": jnp.zeros((2, 3))})
    {'w': 'float32[2, 3]'}
    """
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in leaves.items()}


def packed(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return what orbax saves: keys as integers, and no empty arrays, which it does not accept."""
    return {name: _raw(leaf) for name, leaf in leaves.items() if leaf.size}


def packed_template(leaves: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Return what orbax restores for a template; leaves without sharding go to the first device."""
    return {name: _raw_template(leaf) for name, leaf in leaves.items() if leaf.size}


def unpacked(found: Mapping[str, jax.Array], leaves: Mapping[str, Any]) -> list[jax.Array]:
    """Invert `packed`, in the order of the template's leaves."""
    return [
        _typed(found[name] if leaf.size else _empty(leaf), leaf) for name, leaf in leaves.items()
    ]


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_kept(leaf: Any) -> bool:
    """Return whether JAX has the leaf's type: not NumPy's objects, nor float64 if that is off."""
    is_number = any(jnp.issubdtype(leaf.dtype, kind) for kind in (jnp.number, jnp.bool))
    return _is_key(leaf) or (is_number and jax.dtypes.canonicalize_dtype(leaf.dtype) == leaf.dtype)


def _raw(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _raw_template(leaf: Any) -> jax.ShapeDtypeStruct:
    where = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.local_devices()[0])
    array = jax.eval_shape(_raw, leaf)
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=where)


def _empty(leaf: Any) -> jax.Array:
    array = _raw_template(leaf)
    return jax.device_put(np.zeros(array.shape, array.dtype), array.sharding)


def _typed(array: jax.Array, leaf: Any) -> jax.Array:
    if not _is_key(leaf):
        return array
    return jax.random.wrap_key_data(array, impl=jax.random.key_impl(jnp.empty((), leaf.dtype)))
