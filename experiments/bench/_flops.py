"""The operations that a figure takes, counted in its traced functions; only the counters run."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal, jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr

from experiments.core.errors import Failed
from kadam_jax.members import Members


def flops(fn: Callable[[Any], Any], inputs: Any) -> np.ndarray:
    """Return the operations of a function's matrix products and convolutions, for each input.

    Only the branch of a condition that is taken counts. It is found by running the code that the
    condition depends on, such as a number of steps, which must not contain products.

    Args:
      fn: The function of one input.
      inputs: Inputs, with a leading axis.

    Raises:
      Failed: If a condition or a loop depends on products.

    >>> def fn(times):
    ...     def step(x, index):
    ...         return jax.lax.cond(index < times, lambda x: x @ x, lambda x: x, x), None
    ...     return jax.lax.scan(step, jnp.ones((10, 10)), jnp.arange(5))[0]
    >>> flops(fn, jnp.array([3, 4])).tolist()
    [6000.0, 8000.0]
    """
    return counter(fn, jax.tree.map(lambda leaf: leaf[0], inputs))(inputs)


def counter(fn: Callable[[Any], Any], first: Any) -> Callable[[Any], np.ndarray]:
    """Return a function of inputs with a leading axis, `flops` without another trace.

    Args:
      fn: As in `flops`.
      first: One input.

    Raises:
      Failed: As `flops`.
    """
    traced = jax.make_jaxpr(fn)(first)
    # A gradient's trace also has operations that only the value would need.
    used, _ = dce_jaxpr(traced.jaxpr, [True] * len(traced.out_avals), instantiate=True)

    def count(one):
        return _run(used, traced.consts, jax.tree.leaves(one))[1]

    counting = jax.make_jaxpr(count)(first)
    needed, _ = dce_jaxpr(counting.jaxpr, [True], instantiate=True)
    if _has_products(needed):
        raise Failed("a condition depends on matrix products, so they cannot be counted")

    def counted(one):
        return jax.core.eval_jaxpr(needed, counting.consts, *jax.tree.leaves(one))[0]

    every = jax.jit(lambda inputs: jax.lax.map(counted, inputs))
    return lambda inputs: np.asarray(every(inputs), float)


def _run(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> tuple[list[Any], jax.Array]:
    """Return a trace's results and its operations."""
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *inputs), strict=True))
    total = jnp.zeros(())
    for equation in jaxpr.eqns:
        read = [x.val if isinstance(x, Literal) else values[x] for x in equation.invars]
        results, operations = _run_one(equation, read)
        values |= zip(equation.outvars, results, strict=True)
        total += operations
    return [x.val if isinstance(x, Literal) else values[x] for x in jaxpr.outvars], total


def _run_one(equation: Any, inputs: list[Any]) -> tuple[Sequence[Any], Any]:
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        body, (num_consts, num_carry) = params["jaxpr"], (params["num_consts"], params["num_carry"])
        fixed, carry = inputs[:num_consts], inputs[num_consts : num_consts + num_carry]

        def step(carry, x):
            results, operations = _run(body.jaxpr, body.consts, [*fixed, *carry, *x])
            return results[:num_carry], (results[num_carry:], operations)

        carry, (results, operations) = jax.lax.scan(
            step, carry, inputs[num_consts + num_carry :], params["length"], params["reverse"]
        )
        return [*carry, *results], operations.sum()
    if name == "cond":
        branches = [
            lambda *inputs, branch=branch: _run(branch.jaxpr, branch.consts, inputs)
            for branch in params["branches"]
        ]
        return jax.lax.switch(inputs[0], branches, *inputs[1:])
    if name == "while":
        if any(map(_has_products, jaxprs_in_params(params))):
            raise Failed(
                "it has matrix products in a loop whose number of steps depends on its data"
            )
    elif inner := [x for x in (params.get("jaxpr"), params.get("call_jaxpr")) if x is not None]:
        return _run(getattr(inner[0], "jaxpr", inner[0]), getattr(inner[0], "consts", ()), inputs)
    results = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(params))
    results = results if equation.primitive.multiple_results else [results]
    return results, float(_operations(equation))


def _has_products(jaxpr: Any) -> bool:
    return any(
        _operations(equation) or any(map(_has_products, jaxprs_in_params(equation.params)))
        for equation in jaxpr.eqns
    )


def _operations(equation: Any) -> int:
    """Return the operations of a product or a convolution, and 0 for anything else."""
    name, params = equation.primitive.name, equation.params
    shapes = [x.aval.shape for x in equation.invars]
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return 2 * equation.outvars[0].aval.size * math.prod(shapes[0][i] for i in contracted)
    return _of_convolution(*shapes, params) if name == "conv_general_dilated" else 0


def _of_convolution(image: Sequence[int], kernel: Sequence[int], params: Any) -> int:
    """Count products with the image's own entries, not those with its padding and its holes."""
    images, kernels, _ = params["dimension_numbers"]
    # Each output feature sees one group of inputs; in a gradient, each image one group of images.
    total = (
        2
        * image[images[0]]
        // params["batch_group_count"]
        * kernel[kernels[0]]
        * kernel[kernels[1]]
    )
    for axis, (low, high) in enumerate(params["padding"]):
        size, width = image[images[axis + 2]], kernel[kernels[axis + 2]]
        holes, spread = params["lhs_dilation"][axis], params["rhs_dilation"][axis]
        stop = low + (size - 1) * holes + 1 + high - (width - 1) * spread
        starts = np.arange(0, stop, params["window_strides"][axis])
        places = starts[:, None] + spread * np.arange(width) - low
        total *= np.sum((places >= 0) & (places <= (size - 1) * holes) & (places % holes == 0))
    return int(total)


@dataclass
class CountingRun:
    """A stand-in for `core.run.Run` whose sweeps are traced and counted; every result is 1.

    Attributes:
      corpus: As in `Run`.
      images: As in `Run`.
      mesh: As in `Run`.
      at_once: Members of a chunk; None for each sweep's `chunk_size`.
      members: Members of all sweeps.
      flops: Operations of their matrix products and convolutions.
      chunks: The columns of a chunk of each swept function's members, of the largest if there are
        several.
    """

    corpus: Any = None
    images: Any = None
    mesh: None = None
    at_once: int | None = None
    members: int = 0
    flops: float = 0.0
    chunks: dict[Callable[..., Any], dict[str, jax.Array]] = field(default_factory=dict)
    _counters: dict[Any, Callable[[Any], np.ndarray]] = field(default_factory=dict, repr=False)

    def sweep(
        self,
        name: str,
        fn: Callable[[dict[str, Any]], Mapping[str, jax.Array]],
        members: Members,
        *,
        chunk_size: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Count all members' operations."""
        del name
        inputs = {key: jnp.asarray(column) for key, column in members.items()}
        chunk = {key: column[: self.at_once or chunk_size] for key, column in inputs.items()}
        self.chunks[fn] = max(self.chunks.get(fn, {}), chunk, key=num_members)
        first = {key: column[0] for key, column in inputs.items()}
        kind = fn, *((key, x.shape, x.dtype) for key, x in sorted(first.items()))
        if kind not in self._counters:
            self._counters[kind] = counter(fn, first)
        self.members += num_members(members)
        self.flops += self._counters[kind](inputs).sum()
        results = jax.eval_shape(fn, first)
        return {key: np.ones((*members.shape, *x.shape), x.dtype) for key, x in results.items()}


def num_members(columns: Mapping[str, Any]) -> int:
    """Return the number of members that columns describe."""
    return len(next(iter(columns.values()), ()))
