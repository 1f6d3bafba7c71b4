"""The memory of one chunk of a sweep, read from its program compiled for a chip."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params

from experiments.bench._flops import num_members
from experiments.bench._programs import peak_bytes

Chunk = tuple[Callable[[dict[str, Any]], Any], Mapping[str, jax.Array]]
"""A function of one member and the columns of the members that are side by side."""


def largest(chunks: Iterable[Chunk]) -> Chunk:
    """Return the chunk whose trace has the most bytes, each loop's body once.

    >>> import jax.numpy as jnp
    >>> few, many = {"x": jnp.ones(2)}, {"x": jnp.ones(3)}
    >>> fn, columns = largest([(lambda m: m["x"], many), (lambda m: jnp.eye(9) * m["x"], few)])
    >>> columns is few
    True
    """

    def size(chunk):
        fn, columns = chunk
        one = {name: column[0] for name, column in columns.items()}
        # `CountingRun` has traced fn with such a member, and JAX keeps that trace.
        return num_members(columns) * _bytes_of(jax.make_jaxpr(fn)(one).jaxpr)

    return max(chunks, key=size)


def peak(chunk: Chunk, device: jax.Device) -> int | None:
    """Return the bytes of a chunk's arguments, data, results and temporaries on a chip.

    Args:
      chunk: The chunk; its members are side by side, as `kadam_jax.sweep` has them on accelerators,
        except on a CPU, where they take turns.
      device: The chip, which may be one that is only described.

    Returns:
      The bytes, or None if the compiler says that they do not fit.

    >>> import jax.numpy as jnp
    >>> chunk = lambda m: {"y": 2 * m["x"]}, {"x": jnp.ones(1024)}
    >>> peak(chunk, jax.devices("cpu")[0]) // 4096
    2
    """
    fn, columns = chunk
    every = partial(jax.lax.map, fn) if device.platform == "cpu" else jax.vmap(fn)
    traced = jax.make_jaxpr(every)(dict(columns))
    where = jax.sharding.SingleDeviceSharding(device)

    def described(leaf):
        its = jax.typeof(leaf)
        return jax.ShapeDtypeStruct(its.shape, its.dtype, sharding=where)

    # Arrays that fn closes over, such as the corpus, are on the chip too: here they are arguments.
    program = jax.jit(lambda consts, *leaves: jax.core.eval_jaxpr(traced.jaxpr, consts, *leaves))
    inputs = traced.consts, *jax.tree.leaves(dict(columns))
    try:
        return peak_bytes(program.lower(*jax.tree.map(described, inputs)).compile())
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None


def _bytes_of(jaxpr: Any) -> int:
    own = sum(x.aval.size * x.aval.dtype.itemsize for e in jaxpr.eqns for x in e.outvars)
    return own + sum(_bytes_of(inner) for e in jaxpr.eqns for inner in jaxprs_in_params(e.params))
