"""The contents of a checkpoint as a run describes them: its configuration and leaves by path."""

import json
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

import jax
import jax.numpy as jnp
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
    """Return what orbax saves: all but empty arrays, which it does not accept."""
    return {name: leaf for name, leaf in leaves.items() if leaf.size}


def packed_template(leaves: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Return what orbax restores for a template; leaves without sharding go to the first device."""
    return {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=_sharding(leaf))
        for name, leaf in packed(leaves).items()
    }


def unpacked(found: Mapping[str, jax.Array], leaves: Mapping[str, Any]) -> list[jax.Array]:
    """Invert `packed`, in the order of the template's leaves."""
    return [
        found[name]
        if leaf.size
        else jax.device_put(jnp.empty(leaf.shape, leaf.dtype), _sharding(leaf))
        for name, leaf in leaves.items()
    ]


def _sharding(leaf: Any) -> jax.sharding.Sharding:
    return getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.local_devices()[0])


def _is_kept(leaf: Any) -> bool:
    """Return whether JAX has the leaf's type: not NumPy's objects, nor float64 if that is off."""
    kinds = (jnp.number, jnp.bool, jax.dtypes.prng_key)
    return any(jnp.issubdtype(leaf.dtype, kind) for kind in kinds) and (
        jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True) == leaf.dtype
    )
