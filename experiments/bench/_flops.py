"""How many operations a figure takes, from its traced functions; nothing runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr


def flops(fn: Callable[..., Any], *inputs: Any) -> int:
    """Return the operations of a function's matrix products and convolutions.

    A scan counts its body once for each step; of a condition's branches the longest counts.

    Args:
      fn: The function.
      *inputs: Arrays or their shapes.

    Raises:
      ValueError: If the function has a loop whose number of steps is not known.

    >>> matrix = jnp.ones((10, 10))
    >>> flops(lambda x: jax.lax.scan(lambda x, _: (x @ matrix, None), x, length=3)[0], matrix)
    6000
    """
    return _flops_of_used(jax.make_jaxpr(fn)(*inputs).jaxpr)


def _flops_of_used(jaxpr: Any) -> int:
    """Count what the results need: a gradient's trace also has what only the value would need."""
    return _flops(dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0])


def _flops(jaxpr: Any) -> int:
    return sum(map(_flops_of, jaxpr.eqns))


def _flops_of(equation: Any) -> int:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return 2 * equation.outvars[0].aval.size * math.prod(left[axis] for axis in contracted)
    if name == "conv_general_dilated":
        return _flops_of_convolution(*(x.aval.shape for x in equation.invars), params)
    if name == "scan":
        return params["length"] * _flops(params["jaxpr"].jaxpr)
    if name == "cond":
        return max(_flops(branch.jaxpr) for branch in params["branches"])
    inner = sum(map(_flops, jaxprs_in_params(params)))
    if name == "while" and inner:
        raise ValueError("a while loop has matrix products; write it as a scan, to count its steps")
    return inner


def _flops_of_convolution(image: Sequence[int], kernel: Sequence[int], params: Any) -> int:
    """Count products with the image's own entries, not those with its padding and its holes."""
    images, kernels, _ = params["dimension_numbers"]
    # An output's features have one group of inputs each; a gradient's images one group of images.
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
      members: Members of all sweeps.
      flops: Operations of their matrix products and convolutions.
    """

    corpus: Any = None
    images: Any = None
    mesh: None = None
    members: int = 0
    flops: int = 0

    def sweep(
        self,
        name: str,
        fn: Callable[[dict[str, Any]], Mapping[str, jax.Array]],
        members: Mapping[str, Any],
        *,
        chunk_size: int | None = None,
        batching: str = "auto",
        grid_shape: bool = False,
    ) -> dict[str, np.ndarray]:
        """Count the first member's operations for all of them."""
        del name, chunk_size, batching
        num_members = len(next(iter(members.values())))
        member = {key: jnp.asarray(column)[0] for key, column in members.items()}
        traced, results = jax.make_jaxpr(fn, return_shape=True)(member)
        self.members += num_members
        self.flops += num_members * _flops_of_used(traced.jaxpr)
        leading = members.shape if grid_shape else (num_members,)
        return {key: np.ones((*leading, *x.shape), x.dtype) for key, x in results.items()}
