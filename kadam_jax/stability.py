"""How large can an update get? Two theories of Adam's max-update, side by side.

The paper's (§3.1, appendix D) bounds continuous-time Adam, by a constant where
C(β, γ) = 2/γ - 1/β - 1 is positive. The exact one takes the supremum of |u_n| over all gradient
sequences of the discrete algorithm, a constant where γ² < β. Since
β/γ² - 1 = C + (β-γ)²/(γ²β), whatever C calls stable is exactly stable, but not the reverse: at
(β, γ) = (0.1, 0.25) C is -3, while no update ever exceeds 1.291.

Updates are in units of the learning rate; `b1` is the paper's γ and `b2` its β. Arguments broadcast
against each other, whatever their ranks. Results have the dtype of `b1` and `b2`, at least float32
(float64 where x64 is on and they are float64 or Python floats). Both are rounded to it once: the
bounds are those of the rounded decays, while an optimizer given Python floats keeps 1-b2 to full
precision (in float32 the two are up to 3e-8/(1-b2) apart, relative to 1-b2). Concrete values are
checked, traced ones never.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from kadam_jax._checks import (
    AT_LEAST_0,
    DECAY,
    FINITE,
    POSITIVE_DECAY,
    Range,
    check_bool,
    check_choice,
    check_integer,
    check_real,
    is_known,
    require,
)

__all__ = [
    "exact_growth_rate",
    "exact_max_update_bound",
    "growth_rate",
    "is_exactly_stable",
    "is_stable",
    "level_curve",
    "max_update_bound",
    "normal_curve",
    "stability_coefficient",
    "worst_case_gradients",
]

# B_n² of Theorem 1 and of appendix D's integral at C = ±size, without the factor e^{n·max(-C, 0)}.
_QUOTIENTS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "theorem": lambda step, size: 1 / size,
    "integral": lambda step, size: -jnp.expm1(-step * size) / size,
}


def stability_coefficient(b1: ArrayLike, b2: ArrayLike) -> jax.Array:
    r"""The coefficient C(β, γ) whose sign decides whether the paper's bound stays finite.

    .. math::
      C(\beta, \gamma) = \frac{2\beta(1-\gamma) - \gamma(1-\beta)}{\beta\gamma}
        = \frac{2}{\gamma} - \frac{1}{\beta} - 1

    (Theorem 1). β > γ suffices for C > 0.

    Args:
      b1: decay γ of the first moment, in (0, 1), any shape.
      b2: decay β of the second moment, in (0, 1), any shape.

    Returns:
      C, with the broadcast shape.

    Raises:
      ValueError: a concrete `b1` or `b2` is outside (0, 1).

    Example:
      >>> from kadam_jax.stability import stability_coefficient
      >>> print(f"{stability_coefficient(0.9, 0.999):.4f}")
      0.2212

    References:
      Gould and Tanaka, Continuous-Time Analysis of Adaptive Optimization and Normalization, §3.1
    """
    return _coefficient(*_decays(b1, b2))


def max_update_bound(
    step: ArrayLike, b1: ArrayLike, b2: ArrayLike, *, form: str = "theorem", log: bool = False
) -> jax.Array:
    r"""The paper's bound on ‖u_n‖∞, the largest update after n steps, bias correction included.

    .. math::
      \|u_n\|_\infty \le \frac{\sqrt{1-\beta^{n+1}}}{1-\gamma^{n+1}} \frac{1-\gamma}{\gamma}
        \sqrt{\frac{\beta}{1-\beta}} B_n, \qquad B_n = \begin{cases} 1/\sqrt{C} & C > 0 \\
        \sqrt{n} & C = 0 \\ e^{n|C|/2} / \sqrt{|C|} & C < 0 \end{cases}

    (Theorem 1). `form="integral"` is the step before it in appendix D,
    :math:`B_n = \sqrt{(1-e^{-Cn})/C}`: never larger, and continuous through C=0. With t = nη^p
    neither depends on the timescale p.

    This bounds the continuous-time update, whose kernel decays faster than the discrete one. For
    C > 0 Theorem 1 bounds the algorithm too; for C <= 0 it starts below what gradients can reach
    (`exact_max_update_bound`): with C=0 and γ=0.9 up to n=12. At n=0 the integral form is 0, and so
    is Theorem 1 at C=0, which is no bound. The branch is that of the computed C, which rounding
    leaves at exactly 0 for few pairs only.

    Args:
      step: how many steps are already done, n >= 0; `jnp.inf` gives the limit. Any shape.
      b1: decay γ of the first moment, in (0, 1), any shape.
      b2: decay β of the second moment, in (0, 1), any shape.
      form: "theorem" or "integral".
      log: return the natural logarithm, which is finite where the bound is e^4500.

    Returns:
      The bound in units of the learning rate, with the broadcast shape.

    Raises:
      ValueError: a concrete `step` is negative, a concrete `b1` or `b2` is outside (0, 1), or
        `form` is unknown.

    Example:
      >>> import numpy as np
      >>> from kadam_jax.stability import max_update_bound
      >>> print(np.array(max_update_bound(np.array([10, 1000]), 0.9, 0.999)).round(3))
      [1.138 5.939]
      >>> print(f"{max_update_bound(3000, 0.25, 0.1, log=True):.0f}")
      4499

    References:
      Gould and Tanaka, Continuous-Time Analysis of Adaptive Optimization and Normalization,
      Theorem 1 and appendix D
    """
    check_choice("form", form, _QUOTIENTS)
    check_bool("log", log)
    step, b1, b2 = _step_and_decays(step, b1, b2)
    log_squared = _log_sum(step, -_coefficient(b1, b2), _QUOTIENTS[form], step)
    log_bound = _log_ratio_of_sums(step, b1, b2) + (jnp.log(b2) + log_squared) / 2 - jnp.log(b1)
    return log_bound if log else jnp.exp(log_bound)


def exact_max_update_bound(
    step: ArrayLike, b1: ArrayLike, b2: ArrayLike, *, log: bool = False
) -> jax.Array:
    r"""The supremum of |u_n| over all gradient sequences of the discrete algorithm (with ε=0).

    .. math::
      \sup_g |u_n| = \frac{\sqrt{1-\beta^{n+1}}}{1-\gamma^{n+1}} \frac{1-\gamma}{\sqrt{1-\beta}}
        \sqrt{\sum_{j=0}^{n} \left(\frac{\gamma^2}{\beta}\right)^j}
        = \frac{\sqrt{\sum_j \beta^j \sum_j (\gamma^2/\beta)^j}}{\sum_j \gamma^j}

    It is Cauchy-Schwarz for sums, where the paper (appendix D) has integrals: tight, and attained
    by `worst_case_gradients`. It stays finite as n grows where γ² < β, and grows like (γ/√β)^n
    beyond. At γ=0, RMSprop with bias correction, the limit is 1/√(1-β): updates are bounded without
    momentum too, which only the paper's continuous-time proof needs.

    Args:
      step: how many steps are already done, n >= 0; `jnp.inf` gives the limit. Any shape.
      b1: decay γ of the first moment, in [0, 1), any shape.
      b2: decay β of the second moment, in (0, 1), any shape.
      log: return the natural logarithm, finite whatever n.

    Returns:
      The supremum in units of the learning rate, with the broadcast shape.

    Raises:
      ValueError: a concrete `step` is negative, `b1` outside [0, 1) or `b2` outside (0, 1).

    Example:
      >>> import numpy as np
      >>> from kadam_jax.stability import exact_max_update_bound
      >>> print(np.array(exact_max_update_bound(np.array([0, 1000]), 0.9, 0.999)).round(3))
      [1.    5.783]
      >>> print(f"{exact_max_update_bound(np.inf, 0.25, 0.1):.3f}")
      1.291

    References:
      Gould and Tanaka, Continuous-Time Analysis of Adaptive Optimization and Normalization,
      appendix D (the continuous counterpart)
    """
    check_bool("log", log)
    step, b1, b2 = _step_and_decays(step, b1, b2, DECAY)
    log_sum = _log_geometric_sum(step, 2 * jnp.log(b1) - jnp.log(b2))
    log_bound = _log_ratio_of_sums(step, b1, b2) + log_sum / 2
    return log_bound if log else jnp.exp(log_bound)


def growth_rate(b1: ArrayLike, b2: ArrayLike) -> jax.Array:
    r"""The rate at which the paper's bound grows: max(0, -C/2), in nats per step.

    For large n Theorem 1 grows like :math:`e^{n|C|/2}` where C < 0 and is constant where C > 0
    (§3.2 compares it with the measured slope of ln ‖u_n‖∞).

    Args:
      b1: decay γ of the first moment, in [0, 1), any shape; as γ falls to 0, the rate is 0.
      b2: decay β of the second moment, in (0, 1), any shape.

    Returns:
      The rate, with the broadcast shape.

    Raises:
      ValueError: a concrete `b1` is outside [0, 1) or `b2` outside (0, 1).

    Example:
      >>> from kadam_jax.stability import growth_rate
      >>> print(growth_rate(0.25, 0.1), growth_rate(0.9, 0.999))
      1.5 0.0

    References:
      Gould and Tanaka, Continuous-Time Analysis of Adaptive Optimization and Normalization, §3.2
    """
    return jnp.maximum(-_coefficient(*_decays(b1, b2, DECAY)) / 2, 0)


def exact_growth_rate(b1: ArrayLike, b2: ArrayLike) -> jax.Array:
    r"""The rate at which the exact supremum grows: max(0, ln(γ/√β)), in nats per step.

    It is what a parameter whose gradient vanishes shows: m decays like γ^n and √v like β^{n/2}. The
    paper's |C|/2 (§3.2) agrees with it to first order in 1-γ and 1-β.

    Args:
      b1: decay γ of the first moment, in [0, 1), any shape.
      b2: decay β of the second moment, in (0, 1), any shape.

    Returns:
      The rate, with the broadcast shape.

    Raises:
      ValueError: a concrete `b1` is outside [0, 1) or `b2` outside (0, 1).

    Example:
      >>> from kadam_jax.stability import exact_growth_rate
      >>> print(f"{exact_growth_rate(0.99, 0.9):.4f} {exact_growth_rate(0.25, 0.1):.4f}")
      0.0426 0.0000

    References:
      Gould and Tanaka, Continuous-Time Analysis of Adaptive Optimization and Normalization, §3.2
    """
    b1, b2 = _decays(b1, b2, DECAY)
    return jnp.maximum(jnp.log(b1) - jnp.log(b2) / 2, 0)


def is_stable(b1: ArrayLike, b2: ArrayLike) -> jax.Array:
    r"""Whether (β, γ) lies in the paper's bounded-update region B₊, that is C(β, γ) > 0.

    Args:
      b1: decay γ of the first moment, in (0, 1), any shape.
      b2: decay β of the second moment, in (0, 1), any shape.

    Returns:
      Booleans, with the broadcast shape.

    Raises:
      ValueError: a concrete `b1` or `b2` is outside (0, 1).

    Example:
      >>> from kadam_jax.stability import is_stable
      >>> print(is_stable(0.9, 0.999), is_stable(0.25, 0.1))
      True False

    References:
      Gould and Tanaka, Continuous-Time Analysis of Adaptive Optimization and Normalization, §3.1
    """
    return stability_coefficient(b1, b2) > 0


def is_exactly_stable(b1: ArrayLike, b2: ArrayLike) -> jax.Array:
    r"""Whether the updates of the discrete algorithm are bounded for all n, that is γ² < β.

    The paper's condition (§3.1) implies this one: β/γ² - 1 = C + (β-γ)²/(γ²β).

    Args:
      b1: decay γ of the first moment, in [0, 1), any shape.
      b2: decay β of the second moment, in (0, 1), any shape.

    Returns:
      Booleans, with the broadcast shape.

    Raises:
      ValueError: a concrete `b1` is outside [0, 1) or `b2` outside (0, 1).

    Example:
      >>> from kadam_jax.stability import is_exactly_stable
      >>> print(is_exactly_stable(0.25, 0.1), is_exactly_stable(0.35, 0.1))
      True False

    References:
      Gould and Tanaka, Continuous-Time Analysis of Adaptive Optimization and Normalization, §3.1
    """
    b1, b2 = _decays(b1, b2, DECAY)
    return b1 * b1 < b2


def worst_case_gradients(num_steps: int, b1: ArrayLike, b2: ArrayLike) -> jax.Array:
    r"""Gradients that drive Adam (with ε=0) to the exact bound at their last step.

    .. math:: g_j = (\gamma/\beta)^{N-1-j}, \qquad j = 0, \ldots, N-1

    Equality in Cauchy-Schwarz (appendix D, with sums for integrals) leaves only a common factor
    open. At γ=0 all but the last are 0.

    With β < γ < √β early gradients can be too large for the dtype. They are left out (set to 0);
    with the last K left, a long sequence attains :math:`\sqrt{1-(\gamma^2/\beta)^K}` of the bound,
    which is all of it unless γ² is close to β. With γ² >= β the early ones matter most, and a
    sequence that doesn't fit is an error (unchecked where `b1` or `b2` is traced). Gradients whose
    squares overflow need an optimizer that stores √v.

    Args:
      num_steps: the length N >= 1, a Python int.
      b1: decay γ of the first moment, in [0, 1), any shape.
      b2: decay β of the second moment, in (0, 1), any shape.

    Returns:
      The gradients, shape (num_steps, *broadcast shape of `b1` and `b2`).

    Raises:
      ValueError: `num_steps` is no int >= 1, a concrete `b1` is outside [0, 1) or `b2` outside
        (0, 1), or γ² >= β and `num_steps` too long for the dtype.

    Example:
      >>> from kadam_jax.stability import worst_case_gradients
      >>> print(worst_case_gradients(4, 0.5, 0.25))
      [8. 4. 2. 1.]

    References:
      Gould and Tanaka, Continuous-Time Analysis of Adaptive Optimization and Normalization,
      appendix D (the inequality they turn into an equality)
    """
    num_steps = check_integer("num_steps", num_steps)
    *numbers, dtype = _numbers(b1, b2, DECAY)
    if all(map(is_known, numbers)):
        _check_span(num_steps, *(np.asarray(b, dtype) for b in numbers))
    first, second = jnp.broadcast_arrays(*(jnp.asarray(b, dtype) for b in numbers))
    lag = jnp.arange(num_steps - 1, -1, -1, dtype=first.dtype)
    gradients = (first / second)[None] ** lag.reshape(num_steps, *(1,) * first.ndim)
    return jnp.where(jnp.isfinite(gradients), gradients, 0)


def level_curve(c: ArrayLike, num: int) -> tuple[jax.Array, jax.Array]:
    r"""Points of the level curve C(β, γ) = c, uniform in arc length.

    The curve γ = 2β / (1 + (1+c)β) (appendix F) rises from the origin to the side β=1, which it
    meets at γ = 2/(2+c), if c >= 0, and to the side γ=1 at β = 1/(1-c) otherwise. Both ends are
    excluded: of length L, point i is at :math:`s_i = (i+1)L/(num+1)` from the origin.

    Computed on the host in float64 and rounded once. The points lie on the curve whatever c;
    arc lengths are right to 1e-12 for \|c\| up to 100 and lose digits slowly beyond.

    Args:
      c: the value of C, any finite number, any shape.
      num: how many points, a Python int >= 1.

    Returns:
      (b1s, b2s), each of shape (*c.shape, num), of JAX's default float dtype.

    Raises:
      ValueError: `c` is not finite, or `num` is no int >= 1.
      TypeError: `c` is traced; a curve needs concrete values.

    Example:
      >>> import numpy as np
      >>> from kadam_jax.stability import level_curve, stability_coefficient
      >>> b1s, b2s = level_curve(0.5, 3)
      >>> print(np.array([b1s, b2s, stability_coefficient(b1s, b2s)]).round(3))
      [[0.278 0.509 0.68 ]
       [0.176 0.411 0.693]
       [0.5   0.5   0.5  ]]

    References:
      Gould and Tanaka, Continuous-Time Analysis of Adaptive Optimization and Normalization,
      appendix F
    """
    num = check_integer("num", num)
    c = np.asarray(check_real("c", c, FINITE, single=False), np.float64)[..., None, None]

    # The parameter is b1 + b2: both rise along the curve, so the speed is within [1/√2, 1].
    def curve(total):
        bend = (1 + c) * total
        b2 = 2 * total / (3 - bend + np.sqrt((bend - 1) ** 2 + 8))
        ratio = 2 / (1 + (1 + c) * b2)  # b1 / b2
        slope = ratio**2 / 2  # db1/db2
        return ratio * b2, b2, np.hypot(1, slope) / (1 + slope)

    stop = 1 / (1 + np.maximum(-c, 0)) + 2 / (2 + np.maximum(c, 0))
    return _uniform_in_arc_length(curve, 0 * stop, stop, (np.arange(num) + 1) / (num + 1))


def normal_curve(
    b1: ArrayLike, b2: ArrayLike, num: int, *, direction: str = "unstable"
) -> tuple[jax.Array, jax.Array]:
    r"""Points of the curve through (β, γ) that meets every level curve of C at a right angle.

    The curve is 2β³ + γ³ = constant (appendix F), and C is monotone along it. The points are
    uniform in arc length; an end on the border of the unit square is never among them:

    - "unstable": from the given point, which comes first, to γ=1 (or β=0, if the constant is below
      1); C falls. With length L point i is at :math:`s_i = iL/num`.
    - "stable": from the given point to β=1 (or γ=0, if the constant is below 2); C rises.
    - "both": the whole curve, in the order in which C falls, at :math:`s_i = (i+1)L/(num+1)`.

    Computed on the host in float64 and rounded once.

    Args:
      b1: decay γ of the first moment at the given point, in (0, 1), any shape.
      b2: decay β of the second moment at the given point, in (0, 1), any shape.
      num: how many points, a Python int >= 1.
      direction: "unstable", "stable" or "both".

    Returns:
      (b1s, b2s), each of the broadcast shape of `b1` and `b2` followed by num, of JAX's default
      float dtype.

    Raises:
      ValueError: `b1` or `b2` is outside (0, 1), `num` is no int >= 1, `direction` is unknown.
      TypeError: `b1` or `b2` is traced; a curve needs concrete values.

    Example:
      >>> import numpy as np
      >>> from kadam_jax.stability import normal_curve, stability_coefficient
      >>> b1s, b2s = normal_curve(0.9, 0.999, 3)
      >>> print(np.array([b1s, b2s, stability_coefficient(b1s, b2s)]).round(3))
      [[0.9   0.934 0.967]
       [0.999 0.984 0.969]
       [0.221 0.126 0.035]]

    References:
      Gould and Tanaka, Continuous-Time Analysis of Adaptive Optimization and Normalization,
      §3.1 and appendix F
    """
    num = check_integer("num", num)
    b1, b2 = (
        np.asarray(check_real(name, b, POSITIVE_DECAY, single=False), np.float64)[..., None, None]
        for name, b in (("b1", b1), ("b2", b2))
    )
    constant = 2 * b2**3 + b1**3

    # The parameter is the polar angle: radius and speed are smooth on the whole quadrant.
    def curve(angle):
        sin, cos = np.sin(angle), np.cos(angle)
        form = 2 * cos**3 + sin**3
        radius = np.cbrt(constant / form)
        log_slope = sin * cos * (2 * cos - sin) / form
        return radius * sin, radius * cos, radius * np.hypot(1, log_slope)

    given = np.arctan2(b1, b2)
    stable_end = np.arctan2(np.cbrt(np.maximum(constant - 2, 0)), 1)
    unstable_end = np.arctan2(1, np.cbrt(np.maximum(constant - 1, 0) / 2))
    from_given, inside = np.arange(num) / num, (np.arange(num) + 1) / (num + 1)
    sections = {
        "unstable": (given, unstable_end, from_given),
        "stable": (given, stable_end, from_given),
        "both": (stable_end, unstable_end, inside),
    }
    check_choice("direction", direction, sections)
    return _uniform_in_arc_length(curve, *sections[direction])


def _coefficient(b1: jax.Array, b2: jax.Array) -> jax.Array:
    # 1-b is exact for b >= 1/2, so this keeps its digits where 2/b1 - 1/b2 - 1 would cancel.
    return 2 * (1 - b1) / b1 - (1 - b2) / b2


def _log_sum(
    step: jax.Array,
    rate: jax.Array,
    quotient: Callable[[jax.Array, jax.Array], jax.Array],
    at_zero: jax.Array,
) -> jax.Array:
    """ln of quotient(step, |rate|)·e^{step·max(rate, 0)}, or ln(at_zero) at rate=0.

    A sum of e^{rate·j} over j = 0..n is the one with -rate times e^{rate·n}: so the quotient only
    meets decaying exponentials, nothing overflows, and the derivative at rate=0 is right too.
    """
    size = jnp.where(rate == 0, 1, jnp.abs(rate))
    exponent = jnp.maximum(rate, 0) * jnp.where((rate <= 0) & jnp.isinf(step), 0, step)
    return jnp.log(jnp.where(rate == 0, at_zero, quotient(step, size))) + exponent


def _log_geometric_sum(step: jax.Array, rate: jax.Array) -> jax.Array:
    """ln of the sum of e^{rate·j} over j = 0..step."""

    def quotient(step, size):
        return jnp.expm1(-(step + 1) * size) / jnp.expm1(-size)

    return _log_sum(step, rate, quotient, step + 1)


def _log_ratio_of_sums(step: jax.Array, b1: jax.Array, b2: jax.Array) -> jax.Array:
    """ln of √(Σ β^j) / Σ γ^j: the bias correction times (1-γ)/√(1-β), without a 1-b^(n+1)."""
    first, second = (_log_geometric_sum(step, jnp.log(b)) for b in (b1, b2))
    return second / 2 - first


def _uniform_in_arc_length(
    curve: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]],
    start: np.ndarray,
    stop: np.ndarray,
    fractions: np.ndarray,
) -> tuple[jax.Array, jax.Array]:
    """Points at the given fractions, shape (num,), of the arc length from start to stop.

    `curve` maps parameters, shape (..., num, nodes), to (b1, b2, speed); start and stop have shape
    (..., 1, 1). The speeds of both curves vary by a factor below 1.5, so each of Newton's steps at
    least halves the error, and soon squares it.
    """
    nodes, weights = np.polynomial.legendre.leggauss(128)

    def length(parameter):
        span = parameter - start
        speed = curve(start + span * (1 + nodes) / 2)[2]
        return span * (speed @ weights)[..., None] / 2

    fractions = fractions[:, None]
    target = fractions * length(stop)
    parameter = start + fractions * (stop - start)
    for _ in range(12):
        parameter = parameter - (length(parameter) - target) / curve(parameter)[2]
    b1s, b2s, _ = curve(parameter)
    return jnp.asarray(b1s[..., 0]), jnp.asarray(b2s[..., 0])


def _step_and_decays(
    step: ArrayLike, b1: ArrayLike, b2: ArrayLike, b1_range: Range = POSITIVE_DECAY
) -> list[jax.Array]:
    step = check_real("step", step, AT_LEAST_0, single=False)
    b1, b2 = _decays(b1, b2, b1_range)
    return jnp.broadcast_arrays(jnp.asarray(step, b1.dtype), b1, b2)


def _decays(b1: ArrayLike, b2: ArrayLike, b1_range: Range = POSITIVE_DECAY) -> list[jax.Array]:
    """`b1` and `b2` in one floating dtype and shape, checked where they are known."""
    *numbers, dtype = _numbers(b1, b2, b1_range)
    return jnp.broadcast_arrays(*(jnp.asarray(b, dtype) for b in numbers))


def _numbers(b1: ArrayLike, b2: ArrayLike, b1_range: Range):
    """`b1` and `b2` as they are given, on the host where known, and the dtype of results."""
    named = (("b1", b1, b1_range), ("b2", b2, POSITIVE_DECAY))
    numbers = [check_real(name, b, within, single=False) for name, b, within in named]
    # A Python number leaves the other's dtype as it is.
    kept = (b if type(b) in (int, float) else x for b, x in zip((b1, b2), numbers, strict=True))
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.promote_types(jnp.result_type(*kept, 1.0), jnp.float32)
    for name, b, within in named:
        check_real(name, b, within, single=False, dtype=dtype, hint="such as b1=0.9, b2=0.999")
    return *numbers, dtype


def _check_span(num_steps: int, b1: np.ndarray, b2: np.ndarray) -> None:
    """Raises if the worst case for any γ² >= β overflows; half the largest float leaves room."""
    ratio = np.max(b1 / b2, where=b1 * b1 >= b2, initial=1)
    with np.errstate(divide="ignore"):
        longest = 1 + np.floor(np.log(np.finfo(b1.dtype).max / 2) / np.log(ratio))
    require(
        num_steps <= longest,
        "num_steps",
        f"be at most {longest:.0f} where b1**2 >= b2, since the worst case spans "
        f"(b1/b2)**(num_steps-1) and has to fit {b1.dtype}",
        num_steps,
    )
