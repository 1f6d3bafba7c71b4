r"""Gradients that drive k-Adam as far as its last stage can be driven (§4.3, Theorem 3).

Whatever a stage is fed, its output is within the exact supremum for its decays, so k-Adam's update
is within that of the last stage. A bound on the input from an earlier stage adds nothing, since a
stage divides out the scale of its input. Is the supremum reached after other stages? It is if those
stages can produce the last stage's worst case, times any number. At a step, a stage's output is
:math:`c\,(\gamma m + (1-\gamma) g) / \sqrt{\beta v + (1-\beta) g^2}`, which takes every value up to
:math:`c\,(1-\gamma)/\sqrt{1-\beta}` in modulus, and larger values of the sign that m favors; the
input that gives a desired output solves a quadratic equation.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from kadam_jax import (
    ScaleByAdaptiveNormalizationState,
    exact_max_update_bound,
    scale_by_adaptive_normalization,
    scale_by_kadam,
)

SCALES = tuple(np.geomspace(0.1, 10, 33))
"""Largest inputs of the last stage that are tried. A stage's first output is ±1 whatever its input,
so the scale of the later inputs decides how much the first one disturbs."""

NEGLIGIBLE = 1e-100
"""Smaller inputs are replaced by 0, because their squares would underflow."""


def stage_input(
    wanted: ArrayLike, state: ScaleByAdaptiveNormalizationState, b1: ArrayLike, b2: ArrayLike
) -> jax.Array:
    r"""Return the next input that makes a stage output a desired number, with ε = 0.

    Args:
      wanted: The desired output, a scalar.
      state: The stage's state for a scalar.
      b1, b2: Decays of the stage.

    Returns:
      The smallest input that gives `wanted`; if there is none, the input with the largest output of
      that sign. A stage in its initial state outputs the sign of its input: the sign of `wanted`.

    >>> from kadam_jax import scale_by_adaptive_normalization
    >>> stage = scale_by_adaptive_normalization(0.9, 0.99, 0.0)
    >>> _, state = stage.update(jnp.array(2.0), stage.init(jnp.array(0.0)))
    >>> u, _ = stage.update(stage_input(-0.25, state, 0.9, 0.99), state)
    >>> round(float(u), 4)
    -0.25
    """
    gain, square_gain = 1 - b1, 1 - b2
    steps = (state.count + 1).astype(state.rms.dtype)
    ratio = wanted * (1 - b1**steps) / jnp.sqrt(1 - b2**steps)
    rms = jnp.sqrt(b2) * state.rms
    m = b1 * state.mu / rms
    # In units of rms: (m + gain x)² = ratio² (1 + square_gain x²), as a x² + 2 b x + c = 0.
    a = gain**2 - square_gain * ratio**2
    b, c = gain * m, m**2 - ratio**2
    root = jnp.sqrt(jnp.maximum(b**2 - a * c, 0))
    q = -(b + jnp.copysign(root, b))
    solutions = jnp.stack([q / a, c / jnp.where(q == 0, jnp.inf, q)])
    right = jnp.isfinite(solutions) & ((m + gain * solutions) * ratio >= 0)
    right &= b**2 >= (1 - 1e-9) * a * c  # equal up to rounding where wanted is 0
    smallest = jnp.argmin(jnp.where(right, jnp.abs(solutions), jnp.inf))
    farthest = jnp.sign(wanted) * jnp.abs(gain / (square_gain * m))
    x = rms * jnp.where(right.any(), solutions[smallest], farthest)
    return jnp.where(state.rms == 0, jnp.sign(wanted), x)


def constructed_updates(
    k: int, lengths: tuple[int, ...], b1: np.ndarray, b2: np.ndarray
) -> np.ndarray:
    r"""Compute how far constructed gradients of each length drive k-Adam with k equal stages.

    This runs in float64, through the optimizer itself with ε = 0, so even where the construction
    falls short, the update is one that gradients can reach.

    Args:
      k: Number of stages.
      lengths: Numbers of steps N.
      b1, b2: Decays of every stage, shape (num_points,).

    Returns:
      The largest \\|u_{N-1}\\| over `SCALES`, shape (num_points, len(lengths)).

    >>> constructed_updates(2, (64,), np.array([0.9]), np.array([0.95])).round(2).tolist()
    [[1.14]]
    """

    def reached(scale, length, b1, b2):
        optimizer = scale_by_kadam(k, (b1,) * k, (b2,) * k, 0.0)
        first = (b1 / b2) ** (length - 1).astype(b1.dtype)
        worst = scale / jnp.maximum(first, 1)

        def advance(state, n):
            left = (length - 1 - n).astype(b1.dtype)
            value = worst * (b1 / b2) ** left  # the desired input of the last stage
            value = jnp.where(value > NEGLIGIBLE, value, 0)
            for stage in reversed(state[:-1]):
                value = stage_input(value, stage, b1, b2)
            update, state = optimizer.update(value, state)
            return state, update

        start = (scale_by_adaptive_normalization().init(jnp.zeros_like(scale)),) * k
        updates = jax.lax.scan(advance, start, jnp.arange(max(lengths)))[1]
        return jnp.nan_to_num(jnp.abs(updates[length - 1]))

    with jax.enable_x64(True):
        b1, b2 = jnp.asarray(b1, jnp.float64), jnp.asarray(b2, jnp.float64)
        over = jax.vmap(reached, (0, None, None, None))
        over = jax.vmap(jax.vmap(over, (None, 0, None, None)), (None, None, 0, 0))
        return np.asarray(jax.jit(over)(jnp.array(SCALES), jnp.array(lengths), b1, b2).max(-1))


def last_stage_bounds(lengths: tuple[int, ...], b1: np.ndarray, b2: np.ndarray) -> np.ndarray:
    """Return the exact supremum at the last of N steps, float64, (num_points, len(lengths))."""
    with jax.enable_x64(True):
        b1, b2 = np.asarray(b1, np.float64)[:, None], np.asarray(b2, np.float64)[:, None]
        return np.asarray(exact_max_update_bound(np.array(lengths) - 1, b1, b2))
