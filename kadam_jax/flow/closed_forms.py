"""Closed forms of the flow: the kernel, the update of a given gradient, decay without updates.

Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
`arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_: Lemma 1, Proposition 1, Appendix C.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from kadam_jax._checks import (
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_DECAY,
    check_choice,
    check_function,
    check_integer,
    check_real,
    require,
)
from kadam_jax.flow.equation import (
    BIAS_CORRECTIONS,
    corrections_at,
    numbers_of,
    root,
    rounded,
    square,
    stage_updates,
)


def moving_average_kernel(
    tau: ArrayLike, t: ArrayLike, decay: ArrayLike, *, learning_rate: ArrayLike
) -> jax.Array:
    r"""Compute the weight of an input at time τ in a moving average at time t >= τ.

    .. math:: K_\alpha(\tau, t) = \frac{1-\alpha}{\eta\alpha}
      \exp\Big(-\frac{1-\alpha}{\eta\alpha} (t-\tau)\Big)

    Lemma 1: :math:`m(t) = \int_0^t K_\gamma(\tau, t) g(\tau) d\tau`, and v likewise from g² and β.

    Args:
      tau: τ, any shape, in the unit of `learning_rate`.
      t: t, any shape.
      decay: α, γ for m and β for v, in (0, 1).
      learning_rate: η.

    Returns:
      K, with the broadcast shape, in units of 1/`learning_rate`.

    Raises:
      ValueError: a concrete scalar `decay` is outside (0, 1).

    Examples:
      >>> print(f"{moving_average_kernel(0.0, 0.0, 0.5, learning_rate=0.1):.1f}")
      10.0

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Lemma 1, Appendix C.
    """
    check_real("decay", decay, POSITIVE_DECAY)
    check_real("learning_rate", learning_rate, POSITIVE)
    rate = jnp.asarray((1 - decay) / decay / learning_rate)
    return rate * jnp.exp(-rate * (jnp.asarray(t) - tau))


def continuous_update(
    gradient: Callable[[jax.Array], jax.Array],
    t: ArrayLike,
    *,
    learning_rate: ArrayLike,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    bias_correction: str = "discrete",
    panels: int = 64,
) -> jax.Array:
    r"""Compute the update u(t) that results from a history of gradients (Proposition 1).

    .. math:: u(t) = \frac{\sqrt{1-\beta^{1+t/\eta}}}{1-\gamma^{1+t/\eta}}
      \int_0^t K_\gamma(\tau, t) g(\tau)\, d\tau
      \Big/ \sqrt{\int_0^t K_\beta(\tau, t) |g(\tau)|^2\, d\tau}

    Each integral is taken over :math:`(t-\tau)/\eta \cdot (1-\alpha)/\alpha`, up to 40 of these
    units back, with eight Gauss nodes in each of `panels` equal panels. It is exact up to rounding
    for gradients that are smooth on a panel's scale.

    Args:
      gradient: g(τ), a function from a scalar to an array; it is vmapped.
      t: a scalar time, at least 0.
      learning_rate: η, in the unit of `t`.
      b1: γ in (0, 1).
      b2: β in (0, 1).
      bias_correction: as in `solve_flow`.
      panels: how many panels, a Python int.

    Returns:
      u(t), with the gradient's shape.

    Raises:
      ValueError: a concrete `b1` or `b2` is outside (0, 1), `t` is negative, or `bias_correction`
        is unknown.
      TypeError: `t` is not a scalar, or `gradient` not a function.

    Examples:
      >>> import jax.numpy as jnp
      >>> print(f"{continuous_update(jnp.cos, 1.0, learning_rate=0.01):.3f}")
      0.723

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Proposition 1.
    """
    p = numbers_of(learning_rate, 1, b1, b2, 0.0, "naive", 0.0, False)
    check_function("gradient", gradient)
    check_real("t", t, NOT_NEGATIVE)
    panels = check_integer("panels", panels)
    check_choice("bias_correction", bias_correction, BIAS_CORRECTIONS)
    p = rounded(p, jnp.promote_types(jnp.result_type(t, float), jnp.float32))
    s = jnp.asarray(t, p.learning_rate.dtype) / p.learning_rate
    nodes, weights = np.polynomial.legendre.leggauss(8)
    nodes = (np.arange(panels)[:, None] + (nodes + 1) / 2).ravel() / panels
    weights = np.tile(weights / 2, panels) / panels

    def average(rate, function):
        ages = jnp.minimum(rate * s, 40) * nodes.astype(s.dtype)  # in the kernel's own time
        masses = jnp.minimum(rate * s, 40) * weights.astype(s.dtype) * jnp.exp(-ages)
        values = jax.vmap(lambda age: function(gradient((s - age / rate) * p.learning_rate)))(ages)
        return jnp.tensordot(masses, values.astype(jnp.promote_types(values.dtype, s.dtype)), 1)

    mu = average(p.mu_rates[0], lambda g: g)
    nu = average(p.nu_rates[0], square)
    c = corrections_at(p, s, bias_correction)
    return stage_updates(gradient(jnp.zeros_like(s)), [mu], [root(nu)], c)[0]


def unforced_rates(
    learning_rate: ArrayLike, weight_decay: ArrayLike
) -> tuple[jax.Array, jax.Array]:
    r"""Compute the two rates at which parameters decay without any update.

    .. math:: k_\pm = \frac{1 \pm \sqrt{1 - 2\lambda\eta}}{\eta}

    Args:
      learning_rate: η > 0, any shape.
      weight_decay: λ with 0 <= 2λη < 1, any shape.

    Returns:
      (k₊, k₋), in units of 1/t.

    Raises:
      ValueError: a concrete 2λη is outside [0, 1).

    Examples:
      >>> print("{:.1f} {:.4f}".format(*unforced_rates(0.01, 0.1)))
      199.9 0.1001

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Appendix C.
    """
    larger = 1 + jnp.sqrt(_discriminant(learning_rate, weight_decay))
    return larger / learning_rate, jnp.asarray(2 * weight_decay) / larger


def _discriminant(learning_rate: ArrayLike, weight_decay: ArrayLike) -> jax.Array:
    """Compute 1 - 2λη, checked."""
    check_real("learning_rate", learning_rate, POSITIVE, single=False)
    check_real("weight_decay", weight_decay, NOT_NEGATIVE, single=False)
    twice = 2 * weight_decay * learning_rate
    holds = isinstance(twice, Tracer) or np.max(twice, initial=0) < 1
    require(holds, "2 * weight_decay * learning_rate", "be below 1", twice)
    return 1 - jnp.asarray(twice)


def unforced_solution(
    t: ArrayLike,
    params: ArrayLike,
    velocity: ArrayLike = 0.0,
    *,
    learning_rate: ArrayLike,
    weight_decay: ArrayLike,
) -> jax.Array:
    r"""Compute the parameters at time t if u is 0 throughout and decay is decoupled.

    .. math:: \theta(t) = a e^{-k_+ t} + b e^{-k_- t}, \qquad
      a = -\frac{\dot\theta(0) + k_- \theta(0)}{k_+ - k_-}, \quad b = \theta(0) - a

    with :math:`k_\pm` from `unforced_rates`; near 2λη = 1, where the two rates meet, the solution
    is summed as a series. All arguments broadcast.

    Args:
      t: time since the start.
      params: θ(0).
      velocity: dθ/dt(0).
      learning_rate: η.
      weight_decay: λ, with 0 <= 2λη < 1.

    Returns:
      θ(t).

    Raises:
      ValueError: a concrete 2λη is outside [0, 1).

    Examples:
      >>> print(f"{unforced_solution(1.0, 2.0, learning_rate=0.01, weight_decay=0.1):.4f}")
      1.8105

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Appendix C.
    """
    # e^(-x) (θ(0) cosh δx + (θ(0) + η dθ/dt(0)) sinh(δx)/δ) with x = t/η and δ² = 1 - 2λη
    discriminant = _discriminant(learning_rate, weight_decay)
    x = jnp.asarray(t / learning_rate)
    square = discriminant * x * x
    is_small = square < 1
    near = jnp.where(is_small, square, 0)
    delta = jnp.sqrt(jnp.where(is_small, 1, discriminant))
    slow = jnp.exp(-2 * weight_decay * jnp.asarray(t) / (1 + delta))  # e^(-(1-δ)x)
    gap = jnp.expm1(-2 * delta * x)
    cosh = jnp.where(is_small, jnp.exp(-x) * _series(near, 0), slow * (2 + gap) / 2)
    sinh = jnp.where(is_small, jnp.exp(-x) * x * _series(near, 1), -slow * gap / (2 * delta))
    params = jnp.asarray(params)
    return params * cosh + (params + learning_rate * velocity) * sinh


def _series(square: jax.Array, odd: int) -> jax.Array:
    """Compute cosh z, or sinh(z)/z if `odd`, from z² <= 1."""
    coefficients = np.array([1 / math.factorial(2 * n + odd) for n in range(10)])
    return jnp.polyval(coefficients[::-1].astype(square.dtype), square)
