"""How large can an update get? Two theories of Adam's max-update, side by side.

The paper's theory (Theorem 1, §3.1, Appendix D) bounds continuous-time Adam, by a constant where
C(β, γ) = 2/γ - 1/β - 1 is positive. The exact theory takes the supremum of |u_n| over all gradient
sequences of the discrete algorithm, which a constant bounds where γ² < β. Since β/γ² - 1 = C +
(β-γ)²/(γ²β), every pair that C calls stable is exactly stable, but not the reverse: at (β, γ) =
(0.1, 0.25) C is -3, while no update ever exceeds 1.291.

Updates are in units of the learning rate; `b1` is the paper's γ and `b2` its β. Arguments broadcast
against each other, whatever their ranks. Results have the dtype of `b1` and `b2`, at least float32
(float64 if x64 is on and they are float64 or Python floats). Concrete values are checked, traced
values are not.

**Precision.** Decays are rounded to that dtype once, and bounds are those of the rounded decays,
while an optimizer given Python floats keeps 1-b2 to full precision (in float32 the relative
difference in 1-b2 is up to 3e-8/(1-b2)). γ²-β and C, which vanish on the boundaries, are the
differences of the decays as given: exactly those of float32 arrays, and those of Python floats
before the rounding. For decays that are float32 numbers, a bound that float32 can represent has
a relative error of at most 2e-5 for n up to 10⁹, even close to both boundaries.

**Derivatives** with respect to step, b1 and b2 exist in forward and in reverse mode, to any order,
even on γ²=β and, in the integral form, on C=0, where terms are 0/0, at b1=0, at step=0 and at
step=∞. Where a bound is infinite or overflows, only the derivatives of its logarithm are numbers
(at step=∞ very large ones, in place of ∞). At jumps and kinks the conventions are: on C=0 Theorem
1's B_n counts as √n, the paper's growth rate is constant, and the exact one rises half as fast as
beyond its boundary; at step=0 the slope of √n is the largest float, in place of ∞.

The paper is Gould and Tanaka, `arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_.
"""

from collections.abc import Callable
from fractions import Fraction
from math import factorial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from kadam_jax._checks import (
    AT_LEAST_0,
    DECAY,
    POSITIVE_DECAY,
    Range,
    check_bool,
    check_choice,
    check_integer,
    check_real,
    is_known,
    require,
)
from kadam_jax.curves import level_curve, normal_curve

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


def stability_coefficient(b1: ArrayLike, b2: ArrayLike) -> jax.Array:
    r"""Compute the coefficient C(β, γ), whose sign decides if the paper's bound stays finite.

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
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §3.1, Theorem 1.
    """
    return _coefficient(*_decays(b1, b2))


def max_update_bound(
    step: ArrayLike, b1: ArrayLike, b2: ArrayLike, *, form: str = "theorem", log: bool = False
) -> jax.Array:
    r"""Compute the paper's bound on ‖u_n‖∞, the max-update after n steps, with bias correction.

    .. math::
      \|u_n\|_\infty \le \frac{\sqrt{1-\beta^{n+1}}}{1-\gamma^{n+1}} \frac{1-\gamma}{\gamma}
        \sqrt{\frac{\beta}{1-\beta}} B_n, \qquad B_n = \begin{cases} 1/\sqrt{C} & C > 0 \\
        \sqrt{n} & C = 0 \\ e^{n|C|/2} / \sqrt{|C|} & C < 0 \end{cases}

    (Theorem 1). `form="integral"` is the step before it in Appendix D,
    :math:`B_n = \sqrt{(1-e^{-Cn})/C}`: it is never larger, and it is continuous through C=0. With
    t = nη^p, neither form depends on the timescale p. The output of each stage of k-Adam has the
    same bound, with the decays of that stage (Theorem 3).

    This bounds the continuous-time update, whose kernel decays faster than the discrete one. For
    C > 0 Theorem 1 bounds the algorithm too; for C <= 0 it starts below what gradients can reach
    (`exact_max_update_bound`): with C=0 and γ=0.9 up to n=12. At n=0 the integral form is 0, and so
    is Theorem 1 at C=0, which is not a bound. The branch is chosen by the computed C, which
    rounding leaves at exactly 0 for only a few pairs; a C smaller than the decays' rounding counts
    as 0.

    Args:
      step: how many steps are already done, n >= 0; `jnp.inf` gives the limit. Any shape.
      b1: decay γ of the first moment, in (0, 1), any shape.
      b2: decay β of the second moment, in (0, 1), any shape.
      form: "theorem" or "integral".
      log: return the natural logarithm, which is finite even where the bound is e^4500.

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
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Theorem 1, Theorem 3, Appendix D, Appendix L.
    """
    check_choice("form", form, _FORMS)
    check_bool("log", log)
    step, b1, b2, *rests = _step_and_decays(step, b1, b2)
    log_squared, factor = _FORMS[form](step, _coefficient(b1, b2, *rests))
    if log:
        log_squared = log_squared + _log(factor)
    log_bound = _log_ratio_of_sums(step, b1, b2) + (jnp.log(b2) + log_squared) / 2 - jnp.log(b1)
    return log_bound if log else jnp.exp(log_bound) * _root(factor)


def exact_max_update_bound(
    step: ArrayLike, b1: ArrayLike, b2: ArrayLike, *, log: bool = False
) -> jax.Array:
    r"""Compute the supremum of |u_n| over all gradient sequences of the algorithm (with ε=0).

    .. math::
      \sup_g |u_n| = \frac{\sqrt{1-\beta^{n+1}}}{1-\gamma^{n+1}} \frac{1-\gamma}{\sqrt{1-\beta}}
        \sqrt{\sum_{j=0}^{n} \left(\frac{\gamma^2}{\beta}\right)^j}
        = \frac{\sqrt{\sum_j \beta^j \sum_j (\gamma^2/\beta)^j}}{\sum_j \gamma^j}

    This is Cauchy-Schwarz for sums, where the paper (Appendix D) has integrals: it is tight, and
    attained by `worst_case_gradients`. For k-Adam it bounds the output of each stage, with that
    stage's decays (Theorem 3). It stays finite as n grows if γ² < β, and otherwise grows like
    (γ/√β)^n. At γ=0, which is RMSprop with bias correction, the limit is 1/√(1-β): updates are
    bounded without momentum too; only the paper's continuous-time proof needs momentum.

    Args:
      step: how many steps are already done, n >= 0; `jnp.inf` gives the limit. Any shape.
      b1: decay γ of the first moment, in [0, 1), any shape.
      b2: decay β of the second moment, in (0, 1), any shape.
      log: return the natural logarithm, which is finite for every n.

    Returns:
      The supremum in units of the learning rate, with the broadcast shape.

    Raises:
      ValueError: a concrete `step` is negative, `b1` is outside [0, 1), or `b2` outside (0, 1).

    Example:
      >>> import numpy as np
      >>> from kadam_jax.stability import exact_max_update_bound
      >>> print(np.array(exact_max_update_bound(np.array([0, 1000]), 0.9, 0.999)).round(3))
      [1.    5.783]
      >>> print(f"{exact_max_update_bound(np.inf, 0.25, 0.1):.3f}")
      1.291

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Theorem 1, Theorem 3, Appendix D, Appendix E.
    """
    check_bool("log", log)
    step, b1, b2, *rests = _step_and_decays(step, b1, b2, DECAY)
    log_sum = _log_geometric_sum(step, *_square_over_and_log(b1, b2, *rests))
    log_bound = _log_ratio_of_sums(step, b1, b2) + log_sum / 2
    return log_bound if log else jnp.exp(log_bound)


def growth_rate(b1: ArrayLike, b2: ArrayLike) -> jax.Array:
    r"""Compute the rate at which the paper's bound grows: max(0, -C/2), in nats per step.

    For large n Theorem 1 grows like :math:`e^{n|C|/2}` where C < 0 and is constant where C > 0
    (§3.2 compares it with the measured slope of ln ‖u_n‖∞). Appendix N anneals the learning rate by
    it: :math:`\eta_n = \eta_0 e^{-rn}` with this rate r.

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
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §3.2, Appendix N.
    """
    decays = _decays(b1, b2, DECAY)
    calm = (_coefficient(*decays) >= 0) | (decays[0] == 0)
    unstable = (
        jnp.where(calm, fixed, x) for x, fixed in zip(decays, (0.25, 0.1, 0, 0), strict=True)
    )
    return jnp.where(calm, 0, -_coefficient(*unstable) / 2)


def exact_growth_rate(b1: ArrayLike, b2: ArrayLike) -> jax.Array:
    r"""Compute the rate at which the exact supremum grows: max(0, ln(γ/√β)), in nats per step.

    A parameter whose gradient vanishes shows this rate: m decays like γ^n and √v like β^{n/2}. The
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
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §3.2.
    """
    _, log = _square_over_and_log(*_decays(b1, b2, DECAY))
    return jnp.maximum(log / 2, 0)


def is_stable(b1: ArrayLike, b2: ArrayLike) -> jax.Array:
    r"""Return whether (β, γ) lies in the paper's region B₊ of bounded updates: C(β, γ) > 0.

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
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §3.1, Theorem 1.
    """
    return stability_coefficient(b1, b2) > 0


def is_exactly_stable(b1: ArrayLike, b2: ArrayLike) -> jax.Array:
    r"""Return whether the discrete algorithm's updates are bounded for all n: γ² < β.

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
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §3.1, Theorem 1.
    """
    return _square_minus(*_decays(b1, b2, DECAY)) < 0


@np.errstate(all="ignore")
def worst_case_gradients(num_steps: int, b1: ArrayLike, b2: ArrayLike) -> jax.Array:
    r"""Return gradients that drive Adam (with ε=0) to the exact bound at their last step.

    .. math:: g_j = (\gamma/\beta)^{N-1-j}, \qquad j = 0, \ldots, N-1

    Equality in Cauchy-Schwarz (Appendix D, with sums for integrals) leaves only a common
    factor free. At γ=0 all but the last are 0.

    If β < γ < √β, early gradients can be too large for the dtype. They are left out (set to 0);
    when K gradients remain, a long sequence attains :math:`\sqrt{1-(\gamma^2/\beta)^K}` of the
    bound, which is all of it unless γ² is close to β. If γ² >= β, the early gradients matter most,
    and a sequence that doesn't fit is an error (unchecked if `b1` or `b2` is traced). Gradients
    whose squares overflow need an optimizer that stores √v.

    Args:
      num_steps: the length N >= 1, a Python int.
      b1: decay γ of the first moment, in [0, 1), any shape.
      b2: decay β of the second moment, in (0, 1), any shape.

    Returns:
      The gradients, shape (num_steps, *broadcast shape of `b1` and `b2`).

    Raises:
      TypeError: `num_steps` is not an int.
      ValueError: `num_steps` is below 1, a concrete `b1` is outside [0, 1) or `b2` outside
        (0, 1), or γ² >= β and `num_steps` is too large for the dtype.

    Example:
      >>> from kadam_jax.stability import worst_case_gradients
      >>> print(worst_case_gradients(4, 0.5, 0.25))
      [8. 4. 2. 1.]

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Appendix D.
    """
    num_steps = check_integer("num_steps", num_steps)
    *numbers, dtype = _numbers(b1, b2, DECAY)
    if all(map(is_known, numbers)):
        _check_span(num_steps, *(np.asarray(b, dtype) for b in numbers))
    first, second = jnp.broadcast_arrays(*(jnp.asarray(b, dtype) for b in numbers))
    lag = jnp.arange(num_steps - 1, -1, -1, dtype=dtype).reshape(num_steps, *(1,) * first.ndim)
    ratio = (first / second)[None]
    fits = jnp.isfinite(jax.lax.stop_gradient(ratio) ** lag)
    return jnp.where(fits, _power(jnp.where(fits, ratio, 1), lag), 0)


# B_n² of Theorem 1 is factor · e^logarithm; the factor n, if there is one, is kept apart since at 0
# √n has no finite derivative.


def _theorem(step: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return 1/C, n or e^{n|C|}/|C|, as a logarithm and a factor."""
    size = jnp.where(c == 0, 1, jnp.abs(c))
    return jnp.log(1 / size) + _growth(step, -c), jnp.where(c == 0, step, 1)


def _integral(step: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (1-e^{-Cn})/C as a logarithm and a factor; close to C=0 the factor is n."""
    close = jnp.abs(c) <= _CLOSE / step
    exponent = jnp.where(close, c, 0) * jnp.where(close & jnp.isfinite(step), step, 0)
    size = jnp.where(close, 1, jnp.abs(c))
    steps = jnp.where(close, 1, _finite(step))
    apart = _log1mexp(steps * size) - jnp.log(size) + _growth(step, -c)
    return jnp.where(close, _log_mean_decay(exponent), apart), jnp.where(close, step, 1)


_FORMS: dict[str, Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]] = {
    "theorem": _theorem,
    "integral": _integral,
}


@jax.custom_jvp
def _coefficient(b1, b2, rest1, rest2):
    """Compute C(β, γ), from an exact numerator where its two terms cancel.

    1-b is exact for b >= 1/2, so the plain form keeps the digits that 2/b1 - 1/b2 - 1 would lose.
    A C decided only by the last digits of the decays is 0, so that (9/10, 9/11) is on C=0.
    """
    plain = _plain_coefficient(b1, b2)
    product, error = _product(b1, b2)
    total = 2 * b2 - b1
    rest = (2 * b2 - total - b1 - error) + (2 * rest2 - rest1 - b1 * rest2 - b2 * rest1)
    exact = (total - product + rest) / b1 / b2
    term, eps = (1 - b2) / b2, jnp.finfo(b1.dtype).eps
    exact = jnp.where(jnp.abs(exact) < jnp.maximum(4 * eps**2, 2.0**-52) * term, 0, exact)
    return jnp.where(_cancels(plain, term), exact, plain)


@_coefficient.defjvp
def _coefficient_jvp(primals, tangents):
    return _coefficient(*primals), jax.jvp(_plain_coefficient, primals[:2], tangents[:2])[1]


def _plain_coefficient(b1, b2):
    return 2 * (1 - b1) / b1 - (1 - b2) / b2


# Only one of a ratio and its logarithm carries the derivative: the ratio, which may be 0, up to
# 1/2, and the logarithm beyond. So no derivative is a quotient of two numbers that vanish.


def _and_log(b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return b and ln b."""
    small, fixed = b < 0.5, jax.lax.stop_gradient(b)
    large = jnp.where(small, 1, b)
    return jnp.where(small, b, fixed), jnp.where(small, jnp.log(fixed), jnp.log(large))


@jax.custom_jvp
def _square_over_and_log(b1, b2, rest1, rest2):
    """Return γ²/β and its logarithm, from an exact γ²-β where its two terms cancel."""
    term = jnp.log(b2)
    plain = 2 * jnp.log(b1) - term
    exact = jnp.log1p(_square_minus(b1, b2, rest1, rest2) / b2)
    return b1 * b1 / b2, jnp.where(_cancels(plain, term), exact, plain)


@_square_over_and_log.defjvp
def _square_over_and_log_jvp(primals, tangents):
    (b1, b2, *_), (b1_dot, b2_dot, *_) = primals, tangents
    ratio, log = _square_over_and_log(*primals)
    small = ratio < 0.5
    ratio_dot = jnp.where(small, 2 * b1, 0) / b2 * b1_dot - jnp.where(small, ratio, 0) / b2 * b2_dot
    large = jnp.where(small, 0.0, 1.0)
    log_dot = 2 * large / jnp.where(small, 1, b1) * b1_dot - large / b2 * b2_dot
    return (ratio, log), (ratio_dot, log_dot)


def _square_minus(b1, b2, rest1, rest2):
    """Return γ²-β, right to its last digits."""
    square, error = _product(b1, b1)
    return (square - b2) + (error + (2 * b1 * rest1 - rest2))


def _cancels(difference: jax.Array, term: jax.Array) -> jax.Array:
    """Return whether `difference`, a number minus `term`, has fewer than 20 correct bits."""
    return jnp.abs(difference) < 2**20 * jnp.finfo(term.dtype).eps * jnp.abs(term)


def _product(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return a·b and its rounding error, exactly (Dekker): products of halves are exact."""
    info = jnp.finfo(a.dtype)
    a1, b1 = (jax.lax.reduce_precision(x, info.nexp, (info.nmant - 1) // 2) for x in (a, b))
    a2, b2 = a - a1, b - b1
    product = a * b
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


def _log_ratio_of_sums(step: jax.Array, b1: jax.Array, b2: jax.Array) -> jax.Array:
    """Return ln(√(Σ β^j) / Σ γ^j), the bias correction times (1-γ)/√(1-β), without 1-b^(n+1)."""
    first, second = (_log_geometric_sum(step, *_and_log(b)) for b in (b1, b2))
    return second / 2 - first


@jax.custom_jvp
def _log_geometric_sum(step: jax.Array, ratio: jax.Array, rate: jax.Array) -> jax.Array:
    """Return ln of the sum of ratio^j over j = 0..step; `rate` is ln(ratio).

    The sum equals that for -rate times e^{rate·step}, so only decaying exponentials occur and
    nothing overflows.
    """
    size = jnp.where(rate == 0, 1, jnp.abs(rate))
    total = jnp.expm1(-(step + 1) * size) / jnp.expm1(-size)
    return jnp.log(jnp.where(rate == 0, step + 1, total)) + _growth(step, rate)


@_log_geometric_sum.defjvp
def _log_geometric_sum_jvp(primals, tangents):
    (step, ratio, rate), (step_dot, ratio_dot, rate_dot) = primals, tangents
    n = _finite(step)
    count, small = n + 1, ratio < 0.5

    # In the ratio: Σ j ratio^{j-1} / Σ ratio^j.
    q = jnp.where(small, ratio, 0)
    power = _power(q, n)
    by_ratio = 1 / (1 - q) - count * power / (1 - q * power)
    by_step_if_small = -jnp.log(jnp.where(q == 0, 1, q)) * q * power / (1 - q * power)

    # In the rate: the mean of j under the weights e^{rate·j}, or its mirror image.
    rate = jnp.where(small, -1, rate)
    close = jnp.abs(rate) <= _CLOSE / count
    size = jnp.where(close, 1, jnp.abs(rate))
    tail = _over_expm1(count * size)
    mean = _over_expm1(size) - count * tail
    mean = jnp.where(rate > 0, n - mean, mean)
    by_step = jnp.where(rate > 0, size, 0) + size * tail

    # The same around 0.
    rate = jnp.where(close, rate, 0)
    position = _mean_position(-count * rate)
    mean = jnp.where(close, count * position - _mean_position(-rate), mean)
    by_step = jnp.where(close, 1 / count + rate * position, by_step)

    return _log_geometric_sum(*primals), (
        jnp.where(small, by_step_if_small, by_step) * step_dot
        + jnp.where(small, by_ratio, 0) * ratio_dot
        + jnp.where(small, 0, mean) * rate_dot
    )


@jax.custom_jvp
def _power(q: jax.Array, n: jax.Array) -> jax.Array:
    """Return q^n with finite derivatives: at q=0 for n = 0, 1, 2, ..., and where they overflow."""
    return q**n


@_power.defjvp
def _power_jvp(primals, tangents):
    (q, n), (q_dot, n_dot) = primals, tangents
    power = _power(q, n)
    by_q = n * _power(jnp.where((q == 0) & (n < 1), 1, q), n - 1)
    by_n = power * jnp.log(jnp.where(q == 0, 1, q))
    return power, jnp.minimum(by_q, jnp.finfo(q.dtype).max) * q_dot + by_n * n_dot


@jax.custom_jvp
def _growth(step: jax.Array, rate: jax.Array) -> jax.Array:
    """Return step·max(rate, 0), where 0·∞ is 0."""
    return jnp.maximum(rate, 0) * jnp.where((rate <= 0) & jnp.isinf(step), 0, step)


@_growth.defjvp
def _growth_jvp(primals, tangents):
    (step, rate), (step_dot, rate_dot) = primals, tangents
    grows = rate > 0
    return _growth(step, rate), (
        jnp.where(grows, rate, 0) * step_dot + jnp.where(grows, _finite(step), 0) * rate_dot
    )


def _finite(step: jax.Array) -> jax.Array:
    """Replace a step of ∞ by a large number for derivatives, where 0·∞ has to be 0."""
    return jnp.minimum(step, jnp.sqrt(jnp.finfo(step.dtype).max))


@jax.custom_jvp
def _log1mexp(x: jax.Array) -> jax.Array:
    """Return ln(1 - e^{-x}) for x > 0; JAX's derivative of expm1, expm1 + 1, loses e^{-x}."""
    return jnp.log(-jnp.expm1(-x))


@_log1mexp.defjvp
def _log1mexp_jvp(primals, tangents):
    return _log1mexp(*primals), _over_expm1(*primals) * tangents[0]


def _over_expm1(x: jax.Array) -> jax.Array:
    """Return 1/(e^x - 1) for x > 0."""
    return jnp.exp(-x) / -jnp.expm1(-x)


def _mean_position(x: jax.Array) -> jax.Array:
    """Return 1/x - 1/(e^x - 1), the mean of p in [0, 1] with weight e^{-xp}, for |x| <= 2."""
    square = x * x
    series = jnp.zeros_like(x)
    for coefficient in reversed(_SERIES):
        series = series * square + coefficient
    return 0.5 - x * series


def _bernoulli_series(num: int) -> list[float]:
    """Return B_2k/(2k)! for k = 1..num, the coefficients of x/(e^x - 1)."""
    terms = [Fraction(1)]
    for m in range(1, 2 * num + 1):
        rest = (term / factorial(m + 1 - j) for j, term in enumerate(terms))
        terms.append(-sum(rest, Fraction(0)))
    return [float(term) for term in terms[2::2]]


# |x| <= 2 needs 17 terms in float64; each derivative of the series needs one or two more.
_CLOSE = 2.0
_SERIES = _bernoulli_series(20)


@jax.custom_jvp
def _log_mean_decay(x: jax.Array) -> jax.Array:
    """Return ln((1 - e^{-x})/x), the log of the mean of e^{-xp} over p in [0, 1], for |x| <= 2."""
    divisor = jnp.where(x == 0, 1, x)
    return jnp.log(jnp.where(x == 0, 1, -jnp.expm1(-divisor) / divisor))


@_log_mean_decay.defjvp
def _log_mean_decay_jvp(primals, tangents):
    return _log_mean_decay(*primals), -_mean_position(*primals) * tangents[0]


@jax.custom_jvp
def _root(x: jax.Array) -> jax.Array:
    """Return √x, whose derivative at 0 is the largest float, not ∞, so that 0 times it is 0."""
    return jnp.sqrt(x)


@_root.defjvp
def _root_jvp(primals, tangents):
    root = _root(*primals)
    slope = 0.5 / jnp.where(root == 0, 1, root)
    return root, jnp.where(root == 0, jnp.finfo(root.dtype).max, slope) * tangents[0]


@jax.custom_jvp
def _log(x: jax.Array) -> jax.Array:
    """Return ln x, whose derivative at 0 is the largest float, not ∞, so that 0 times it is 0."""
    return jnp.log(x)


@_log.defjvp
def _log_jvp(primals, tangents):
    (x,) = primals
    slope = 1 / jnp.where(x == 0, 1, x)
    return _log(x), jnp.where(x == 0, jnp.finfo(x.dtype).max, slope) * tangents[0]


def _step_and_decays(
    step: ArrayLike, b1: ArrayLike, b2: ArrayLike, b1_range: Range = POSITIVE_DECAY
) -> list[jax.Array]:
    step = check_real("step", step, AT_LEAST_0, single=False)
    decays = _decays(b1, b2, b1_range)
    return jnp.broadcast_arrays(jnp.asarray(step, decays[0].dtype), *decays)


@np.errstate(all="ignore")
def _decays(b1: ArrayLike, b2: ArrayLike, b1_range: Range = POSITIVE_DECAY) -> list[jax.Array]:
    """Return checked `b1` and `b2` in one dtype and shape, and what rounding took off each."""
    *numbers, dtype = _numbers(b1, b2, b1_range)
    rounded = [jnp.asarray(b, dtype) for b in numbers]
    rests = [
        jnp.asarray(b - b.astype(dtype), dtype) if isinstance(b, np.ndarray) else jnp.zeros_like(x)
        for b, x in zip(numbers, rounded, strict=True)
    ]
    return jnp.broadcast_arrays(*rounded, *rests)


def _numbers(b1: ArrayLike, b2: ArrayLike, b1_range: Range):
    """Return `b1` and `b2` as given, on the host if known, and the dtype of results."""
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
    """Raise if the worst case for any γ² >= β overflows; half the largest float leaves room."""
    ratio = np.max(b1 / b2, where=b1 * b1 >= b2, initial=1)
    longest = 1 + np.floor(np.log(np.finfo(b1.dtype).max / 2) / np.log(ratio))
    require(
        num_steps <= longest,
        "num_steps",
        f"be at most {longest:.0f} where b1**2 >= b2, since the worst case spans "
        f"(b1/b2)**(num_steps-1) and has to fit {b1.dtype}",
        num_steps,
    )
