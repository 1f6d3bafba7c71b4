"""Slices of the leaves of a tree, as `kadam_jax.invariance` describes them, and sums over them.

They are the scale-invariant weights of Gould and Tanaka,
`arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_, Section 4, or the neurons, rows and tensors
that share a second moment.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kadam_jax._numerics import accumulator_dtype

# The axes that a slice spans, for all leaves or for each.
Axes = None | Sequence[int]
AxesOfLeaves = Axes | Callable[[str, Any], Axes]


def map_slices(fn: Callable[..., jax.Array], axes: AxesOfLeaves, tree, *rest):
    """Apply fn(leaf, the axes its slices span, *leaves of the other trees) to each leaf."""

    def of_leaf(path, leaf, *others):
        if any(other is None for other in others):
            raise ValueError(f"trees must have the same leaves, got None for {label(path)!r}")
        shapes = {jnp.shape(x) for x in (leaf, *others)}
        if len(shapes) > 1:
            raise ValueError(f"trees must have the same shapes, got {shapes} for {label(path)!r}")
        return fn(leaf, slice_axes(axes, path, leaf), *others)

    return jax.tree_util.tree_map_with_path(of_leaf, tree, *rest)


def slice_axes(axes: AxesOfLeaves, path, leaf) -> tuple[int, ...]:
    """Return the axes of `leaf`, none negative, that a slice spans."""
    ndim = jnp.ndim(leaf)
    chosen = axes(label(path), leaf) if callable(axes) else axes
    if chosen is None:
        return tuple(range(ndim))
    if not isinstance(chosen, Sequence) or not all(map(_is_int, chosen)):
        raise TypeError(
            f"axes must be None, a sequence of ints such as (0,), or a function of path and leaf "
            f"that returns one of these, got {chosen!r} for leaf {label(path)!r}"
        )
    over = tuple(axis + ndim if axis < 0 else axis for axis in chosen)
    if len(set(over)) < len(over) or not set(over) <= set(range(ndim)):
        raise ValueError(
            f"axes must be distinct axes of a leaf, got {tuple(chosen)} for leaf {label(path)!r} "
            f"of shape {jnp.shape(leaf)}; give None for whole leaves, or a function of path and "
            "leaf to choose for each"
        )
    return over


def _is_int(axis) -> bool:
    return isinstance(axis, int | np.integer) and not isinstance(axis, bool)


def label(path) -> str:
    """Return a leaf's path as given to functions, such as "blocks/0/qkv"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def inner(a, b, over: tuple[int, ...], *, keepdims: bool = False) -> jax.Array:
    """Return ⟨a, b⟩ over the axes `over`."""
    return jnp.sum(jnp.real(jnp.conj(wide(a)) * wide(b)), axis=over, keepdims=keepdims)


def root_mean_square(x, over: tuple[int, ...], mask=None) -> jax.Array:
    """Return √(mean of |x|²) over `over`, keeping dimensions; no square leaves the dtype's range.

    It is exact under scaling by powers of two, and is |x| itself if a slice is one entry.
    Derivatives are those of the formula, even at entries that are 0; for a slice that is 0, the
    first derivative is 0.
    """
    count = size(x, over)
    if mask is not None:
        count = jnp.maximum(jnp.sum(mask, axis=over, keepdims=True), 1)
    x = jnp.where(True if mask is None else mask, wide(x), 0)  # True: see _numerics.modulus
    return _root_mean_square(x, jnp.asarray(count, real_dtype(x)), over)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _root_mean_square(x, count, over):
    modulus = jnp.abs(x)
    largest = jnp.max(modulus, axis=over, keepdims=True, initial=0)
    ratios = modulus / jnp.where(largest != 0, largest, jnp.inf)
    mean = jnp.sum(jnp.square(ratios), axis=over, keepdims=True) / count
    return largest * jnp.sqrt(mean)


@_root_mean_square.defjvp
def _root_mean_square_jvp(over, primals, tangents):
    (x, count), (x_dot, _) = primals, tangents

    def change(root, x_dot):  # at a root of 0, the derivative of half its square, as in _numerics
        direction = x / jnp.where(root != 0, root, 1)
        return inner(direction, x_dot, over, keepdims=True) / count

    # The root itself has its derivative too, for scans (see _numerics).
    still = jax.lax.stop_gradient(_root_mean_square(x, count, over))
    fixed = change(still, x - jax.lax.stop_gradient(x))
    return still + fixed, change(still + fixed, x_dot)


def size(x, over: tuple[int, ...]) -> int:
    """Return how many entries a slice has, the divisor of its means; 1 for an empty slice."""
    return max(math.prod(jnp.shape(x)[axis] for axis in over), 1)


def wide(x) -> jax.Array:
    """Return `x` as an array of at least float32."""
    x = jnp.asarray(x)
    return x.astype(accumulator_dtype(x.dtype))


def real_dtype(x) -> np.dtype:
    """Return the dtype of real numbers as precise as `x`."""
    return jnp.finfo(x.dtype).dtype
