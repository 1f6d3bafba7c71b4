"""Adaptive normalization whose second moment is shared by a slice (Assumption 2).

Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
`arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from kadam_jax._numerics import modulus
from kadam_jax._slices import AxesOfLeaves, label, root_mean_square, slice_axes, wide
from kadam_jax.normalization import check_decays, check_not_negative, init_stage, normalize

MaskOfLeaves = ArrayLike | Callable[[str, Any], ArrayLike]


class ScaleByCoarseGrainedNormalizationState(NamedTuple):
    """State of the coarse-grained stage; neither average is bias-corrected."""

    count: jax.Array  # shape=(), dtype=int32, saturating: steps done
    mu: optax.Updates  # moving average of the incoming updates
    rms: optax.Updates  # √ṽ, size 1 along the axes a slice spans; full size with `where`


def scale_by_coarse_grained_normalization(
    axes: AxesOfLeaves = None,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-30,
    *,
    where: MaskOfLeaves = True,
) -> optax.GradientTransformationExtraArgs:
    r"""Normalize adaptively with one second moment for a whole slice, as Assumption 2 states.

    .. math::

        m_n &= \gamma m_{n-1} + (1-\gamma) g_n, \qquad
        \tilde v_n = \beta \tilde v_{n-1} + (1-\beta) \frac{\|g_n\|^2}{N} \\
        u_n &= \frac{m_n / (1-\gamma^{n+1})}{\sqrt{\tilde v_n / (1-\beta^{n+1})} + \varepsilon}

    where N is the number of entries of a slice and 0/0 = 0. Unlike the elementwise √v, √ṽ does not
    rotate a vector, so at γ = 0 an update is orthogonal to whatever its gradient is orthogonal to.
    If slices are single entries (`axes` = ()), this is `scale_by_adaptive_normalization`, and like
    that it keeps √ṽ: multiplying all gradients by a power of two leaves every bit of the update
    unchanged.

    Args:
      axes: the axes a slice spans, see `kadam_jax.invariance`; None makes each leaf one slice.
      b1: decay γ of the average of the updates, in [0, 1). May be traced, like `b2` and `eps`.
      b2: decay β of the average of the mean squares, in [0, 1).
      eps: ε, added to the bias-corrected root, in units of the gradient.
      where: bools that broadcast to a leaf, or a function of path and leaf that returns them:
        entries where it is False keep their own second moment and do not enter any mean.

    Returns:
      A transformation whose updates are in units of the learning rate, not yet negated, with the
      gradients' dtypes, promoted with the parameters' if `update` is given the parameters. Averages
      are at least float32.

    Raises:
      ValueError: a concrete `b1` or `b2` is outside [0, 1), a concrete `eps` is negative, a leaf
        lacks an axis, `where` does not broadcast.
      TypeError: `b1`, `b2` or `eps` is not a number, `axes` or `where` is not as described; a
        gradient is not floating point or complex (raised by `update`).

    Examples:
      >>> import jax.numpy as jnp, numpy as np
      >>> stage = scale_by_coarse_grained_normalization()
      >>> gradient = jnp.array([3e-12, -4e-12])
      >>> updates, _ = stage.update(gradient, stage.init(gradient))
      >>> [f"{u:.4f}" for u in updates]  # the gradient over √((9 + 16) / 2) · 1e-12
      ['0.8485', '-1.1314']

      The queries and keys of every head, but not the values, of a (width, 3, heads, head_size)
      leaf; other leaves as usual:

      >>> stage = scale_by_coarse_grained_normalization(
      ...     lambda path, leaf: (0, 3) if path.endswith("qkv") else (),
      ...     where=lambda path, leaf: (
      ...         np.array([True, True, False]).reshape(3, 1, 1) if path.endswith("qkv") else True
      ...     ),
      ... )
      >>> state = stage.init({"qkv": jnp.ones((8, 3, 2, 4)), "out": jnp.ones((8, 8))})

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §4.2, Assumption 2, Appendix G.
    """
    check_decays("b1", [b1])
    check_decays("b2", [b2])
    check_not_negative("eps", eps)

    def root_mean_squares(tree):
        def of_leaf(path, g):
            mask = _mask(where, path, g)
            shared = root_mean_square(g, slice_axes(axes, path, g), mask)
            return shared if mask is None else jnp.where(mask, shared, modulus(wide(g)))

        return jax.tree_util.tree_map_with_path(of_leaf, tree)

    def init_fn(params):
        count, mu, _ = init_stage(params, None)
        rms = jax.tree.map(jnp.zeros_like, root_mean_squares(params))
        return ScaleByCoarseGrainedNormalizationState(count, mu, rms)

    def update_fn(updates, state, params=None, **extra_args):
        del extra_args
        moduli = root_mean_squares(updates)
        updates, (state,) = normalize(updates, (state,), (b1,), (b2,), eps, moduli, params)
        return updates, ScaleByCoarseGrainedNormalizationState(*state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _mask(where: MaskOfLeaves, path, leaf) -> jax.Array | None:
    """Return the entries of `leaf` that share second moments, or None for all."""
    mask = where(label(path), leaf) if callable(where) else where
    if mask is True:
        return None
    mask = mask if isinstance(mask, jax.Array) else np.asarray(mask)
    if mask.dtype != bool:
        raise TypeError(f"where must be True, False or an array of bools, got {mask!r}")
    try:
        return jnp.broadcast_to(mask, jnp.shape(leaf))
    except ValueError as error:
        raise ValueError(
            f"where must broadcast to leaf {label(path)!r} of shape {jnp.shape(leaf)}, got "
            f"{mask.shape}"
        ) from error
