r"""Decays for another batch size, and the batch size at which they leave the stable region.

A step with a larger batch sees more examples, so averages that should remember as many examples as
before need smaller decays. If only β is changed and γ² < β no longer holds, updates are no longer
bounded (`is_exactly_stable`): a parameter whose gradient vanishes moves faster and faster.

The paper, whose theory of stability this applies, is Gould and Tanaka, `Continuous-Time Analysis of
Adaptive Optimization and Normalization`, `arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_.
"""

import math
import warnings

from kadam_jax._checks import DECAY, POSITIVE, POSITIVE_DECAY, check_choice, check_number, require

__all__ = ["RULES", "critical_batch", "decays_for_batch"]

RULES = ("tokens", "both", "sde")
"""Names of the rules by which decays follow the batch size."""


def decays_for_batch(
    b1: float, b2: float, batch: float, new_batch: float, *, rule: str = "tokens"
) -> tuple[float, float]:
    r"""Return the decays for another batch size, and warn if they are unstable there.

    With the ratio :math:`\rho = B'/B` of the batch sizes,

    .. math::
      \text{tokens:} \quad \gamma' = \gamma, \; \beta' = \beta^\rho \qquad
      \text{both:} \quad \gamma' = \gamma^\rho, \; \beta' = \beta^\rho \qquad
      \text{sde:} \quad 1 - \gamma' = \rho(1-\gamma), \; 1 - \beta' = \rho(1-\beta)

    "tokens" keeps the half-life of the second moment in examples (tokens), "both" that of both
    moments, and "sde" keeps both in the limit of small steps, which is a stochastic differential
    equation. "both" never crosses γ² = β; "tokens" does at `critical_batch`.

    Args:
      b1: decay γ of the first moment, in [0, 1).
      b2: decay β of the second moment, in (0, 1).
      batch: the batch size B at which these decays are used, a positive number.
      new_batch: the batch size B' to find decays for, in the same unit.
      rule: "tokens", "both" or "sde".

    Returns:
      (b1, b2) for `new_batch`, Python floats.

    Raises:
      ValueError: a number is out of range, `rule` is unknown, or `new_batch` is so far from `batch`
        that a decay would be 0, 1 or, with "sde", negative.
      TypeError: an argument is not a single real number, or is traced.

    Warns:
      UserWarning: γ'² >= β', where updates are unbounded; the message has the critical batch size.

    Example:
      >>> from kadam_jax import decays_for_batch
      >>> b1, b2 = decays_for_batch(0.9, 0.999, 256, 1024)
      >>> print(f"{b1} {b2:.6f}")
      0.9 0.996006

    References:
      Marek et al., `Small Batch Size Training for Language Models
      <https://arxiv.org/abs/2507.07101>`_, introduce the rule "tokens"; Malladi et al., `On the
      SDEs and Scaling Rules for Adaptive Gradient Algorithms <https://arxiv.org/abs/2205.10287>`_,
      "sde".
    """
    critical = critical_batch(b1, b2, batch, rule=rule)
    b1, b2, batch = float(b1), float(b2), float(batch)
    new_batch = check_number("new_batch", new_batch, POSITIVE)
    first, second = _scaled(b1, b2, new_batch / batch, rule)
    if rule == "sde":
        largest = batch / max(1 - b1, 1 - b2)
        words = f"be below {largest:.6g} for rule='sde', which has no decays above 0 from there on"
        require(first >= 0 and second > 0, "new_batch", words, new_batch)
    words = "have decays that float64 can tell from 0 and 1"
    hint = f"choose one closer to batch={batch:g}"
    got = f"{new_batch:g} with decays {(first, second)}"
    require(first < 1 and 0 < second < 1, "new_batch", words, got, hint=hint)
    if first**2 >= second:
        where = {0.0: "at every batch size", math.inf: "by rounding"}
        where = where.get(critical, f"from batch {critical:.6g} on")
        warnings.warn(
            f"b1={first:.6g}, b2={second:.6g} at batch {new_batch:g} are unstable: b1**2 >= b2, "
            f"{where}, so that updates without gradients grow; lower b1 to below "
            f"{math.sqrt(second):.6g}, or raise b2 to above {first**2:.6g}",
            stacklevel=2,
        )
    return first, second


def critical_batch(b1: float, b2: float, batch: float, *, rule: str = "tokens") -> float:
    r"""Compute the batch size B* at which the decays that follow a rule reach γ² = β.

    .. math::
      \text{tokens:} \quad B^* = 2B \frac{\ln\gamma}{\ln\beta} \qquad
      \text{sde:} \quad B^* = B \frac{2(1-\gamma) - (1-\beta)}{(1-\gamma)^2}

    Args:
      b1: decay γ of the first moment at `batch`, in [0, 1).
      b2: decay β of the second moment at `batch`, in (0, 1).
      batch: the batch size B at which these decays are used, a positive number.
      rule: "tokens", "both" or "sde", as in `decays_for_batch`.

    Returns:
      B*, in the unit of `batch`; updates are bounded at smaller batch sizes. With "both", B* is inf
      if γ² < β and 0 otherwise: batch size does not matter. With "sde" it is inf if all batch sizes
      that have decays are stable, and 0 if none is.

    Raises:
      ValueError: a number is out of range, or `rule` is unknown.
      TypeError: an argument is not a single real number, or is traced.

    Example:
      >>> from kadam_jax import critical_batch
      >>> print(round(critical_batch(0.95, 0.98, 128)))
      650
    """
    b1 = check_number("b1", b1, DECAY)
    b2 = check_number("b2", b2, POSITIVE_DECAY)
    batch = check_number("batch", batch, POSITIVE)
    check_choice("rule", rule, RULES)
    if b1 == 0:
        return math.inf
    if rule == "tokens":
        return 2 * batch * math.log(b1) / math.log(b2)
    if rule == "both":
        return math.inf if b1**2 < b2 else 0.0
    ratio = (2 * (1 - b1) - (1 - b2)) / (1 - b1) ** 2
    has_decays = ratio * max(1 - b1, 1 - b2) <= 1
    return max(batch * ratio, 0.0) if has_decays else math.inf


def _scaled(b1: float, b2: float, ratio: float, rule: str) -> tuple[float, float]:
    if rule == "sde":
        return 1 - ratio * (1 - b1), 1 - ratio * (1 - b2)
    return b1**ratio if rule == "both" else b1, b2**ratio
