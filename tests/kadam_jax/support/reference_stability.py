"""Section 3 and appendices D and F, literally: slow, in exact fractions where it matters.

Decays may be floats (taken at face value) or fractions; b1 is the paper's γ, b2 its β, n the number
of steps already done.
"""

import functools
import math
from fractions import Fraction

import mpmath
import numpy as np


def stability_coefficient(b1, b2):
    """Theorem 1's C(β, γ) as a fraction, None at γ=0."""
    b1, b2 = Fraction(b1), Fraction(b2)
    return (2 * b2 * (1 - b1) - b1 * (1 - b2)) / (b2 * b1) if b1 else None


def log_max_update_bound(n, b1, b2):
    """ln of Theorem 1 with bias correction; None where it bounds nothing (γ=0, or n=0 on C=0)."""
    b1, b2 = Fraction(b1), Fraction(b2)
    c = stability_coefficient(b1, b2)
    if c is None or (c == 0 and n == 0):
        return None
    b_n_squared = 1 / c if c > 0 else Fraction(n) if c == 0 else 1 / abs(c)
    growth = n * abs(c) / 2 if c < 0 else 0
    return log_prefactor(n, b1, b2) + _log(b_n_squared) / 2 + float(growth)


def log_prefactor(n, b1, b2):
    """ln of everything in Theorem 1 but B_n."""
    b1, b2 = Fraction(b1), Fraction(b2)
    return log_bias_correction(n, b1, b2) + _log(((1 - b1) / b1) ** 2 * b2 / (1 - b2)) / 2


def log_exact_max_update_bound(n, b1, b2):
    """ln of the supremum of |u_n| over all gradient sequences, by a geometric sum in fractions."""
    b1, b2 = Fraction(b1), Fraction(b2)
    ratio = b1**2 / b2
    total = Fraction(n + 1) if ratio == 1 else (1 - ratio ** (n + 1)) / (1 - ratio)
    return log_bias_correction(n, b1, b2) + _log((1 - b1) ** 2 / (1 - b2) * total) / 2


def log_bias_correction(n, b1, b2):
    """ln of √(1-β^(n+1)) / (1-γ^(n+1))."""
    b1, b2 = Fraction(b1), Fraction(b2)
    return _log(1 - b2 ** (n + 1)) / 2 - _log(1 - b1 ** (n + 1))


def cauchy_schwarz_bound(t, learning_rate, p, b1, b2):
    """Appendix D before its last inequality: the bound on u(t), in units where t_n = nη^p."""
    eta_p = learning_rate**p
    c = float(stability_coefficient(b1, b2))
    prefactor = eta_p ** (-1 / 2) * (1 - b1) / b1 * math.sqrt(b2 / (1 - b2))
    kernels = math.sqrt(eta_p / c * (1 - math.exp(-c * t / eta_p)))
    correction = math.sqrt(1 - b2 ** (1 + t / eta_p)) / (1 - b1 ** (1 + t / eta_p))
    return correction * prefactor * kernels


def exact_terms(n, b1, b2):
    """Terms of ln of the supremum, closed forms that mpmath can differentiate; n may be ∞."""
    return [
        -_log_sum(n, b1),
        _log_sum(n, b2) / 2,
        _log_sum(n, b1 * b1 / b2) / 2,
    ]


def paper_terms(n, b1, b2, form="theorem"):
    """Terms of ln of Theorem 1, or of appendix D's integral."""
    c = 2 / b1 - 1 / b2 - 1
    growth = mpmath.mpf(0)
    if form == "integral":
        squared = 1 / c if n == mpmath.inf else -mpmath.expm1(-c * n) / c if c else n
    else:
        squared = 1 / abs(c) if c else n
        growth = -n * c / 2 if c < 0 else growth
    return [
        -_log_sum(n, b1),
        _log_sum(n, b2) / 2,
        mpmath.log(b2) / 2,
        -mpmath.log(b1),
        mpmath.log(squared) / 2,
        growth,
    ]


def _log_sum(n, ratio):
    """ln of the sum of ratio^j over j = 0..n."""
    if n == mpmath.inf:
        return -mpmath.log(1 - ratio)
    if ratio == 0:
        return mpmath.mpf(0)
    return mpmath.log((1 - ratio ** (n + 1)) / (1 - ratio) if ratio != 1 else n + 1)


@functools.cache
def derivative(terms, point, order):
    """A partial derivative of the sum of `terms`, and the sum of its terms' absolute values.

    `point` is (n, b1, b2), floats taken at face value; `order` says how often to differentiate in
    b1 and b2, and in n too if it is as long as `point`.
    """
    n, *decays = point
    with mpmath.workdps(40):
        n = n if n == mpmath.inf else mpmath.mpf(n) if len(order) == 3 else int(n)
        at = tuple(mpmath.mpf(float(b)) for b in decays)
        found = {}

        def terms_at(*x):
            """All terms, for which mpmath takes the same differences."""
            key = (*x, mpmath.mp.prec)
            if key not in found:
                found[key] = terms(*x)
            return found[key]

        def term(i):
            if len(order) == 3:
                return mpmath.diff(lambda *x: terms_at(*x)[i], (n, *at), order)
            if not sum(order):
                return terms_at(n, *at)[i]
            return mpmath.diff(lambda *x: terms_at(n, *x)[i], at, order)

        values = [term(i) for i in range(len(terms_at(n, *at)))]
        return float(mpmath.fsum(values)), float(mpmath.fsum(map(abs, values)))


def adam_updates(gradients, b1, b2):
    """u_n of Adam with ε=0 for gradients along the first axis, in float64; 0/0 is 0."""
    m, v, updates = 0.0, 0.0, []
    for n, g in enumerate(np.asarray(gradients, np.float64)):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        m_hat, v_hat = m / (1 - b1 ** (n + 1)), v / (1 - b2 ** (n + 1))
        updates.append(np.where(v_hat > 0, m_hat / np.sqrt(np.where(v_hat > 0, v_hat, 1)), 0))
    return np.array(updates)


def level_curve_b1(b2, c):
    """γ where C(β, γ) = c."""
    return 2 * b2 / (1 + (1 + c) * b2)


def level_curve_b2(b1, c):
    """β where C(β, γ) = c."""
    return b1 / (2 - (1 + c) * b1)


def normal_curve_b1(b2, constant):
    """γ on appendix F's curve γ = (k - 2β³)^(1/3)."""
    return np.cbrt(constant - 2 * b2**3)


def normal_curve_b2(b1, constant):
    """β on the same curve."""
    return np.cbrt((constant - b1**3) / 2)


def arc_lengths(b1s, b2s, b1_of_b2, b2_of_b1):
    """Lengths of a curve between consecutive points: inscribed polygons, extrapolated.

    Each section runs over the coordinate that changes more, so that the other is smooth in it.
    """
    lengths = []
    for (x0, x1), (y0, y1) in zip(
        np.lib.stride_tricks.sliding_window_view(b1s, 2),
        np.lib.stride_tricks.sliding_window_view(b2s, 2),
        strict=True,
    ):
        wide = abs(x1 - x0) > abs(y1 - y0)
        start, stop, other = (x0, x1, b2_of_b1) if wide else (y0, y1, b1_of_b2)
        coarse, fine = (_polygon(start, stop, other, sides) for sides in (200, 400))
        lengths.append((4 * fine - coarse) / 3)
    return np.array(lengths)


def _polygon(start, stop, other, sides):
    x = np.linspace(start, stop, sides + 1)
    return np.hypot(np.diff(x), np.diff(other(x))).sum()


def _log(fraction):
    """ln of a positive fraction to 1e-15, however long its integers are."""
    shift = fraction.numerator.bit_length() - fraction.denominator.bit_length()
    return math.log(fraction / Fraction(2) ** shift) + shift * math.log(2)
