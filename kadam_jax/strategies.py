"""Strategies that turn two decays chosen for Adam into the decays of k stages.

The strategies of Gould and Tanaka, `arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_,
Section 4.3 and Appendix O.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from kadam_jax._checks import DECAY, check_choice, check_integer, check_real

# A scalar for the strategy, or the k per-stage values themselves.
Decays = ArrayLike | Sequence[ArrayLike]

STRATEGIES: Mapping[str, Callable] = MappingProxyType(
    {
        "inverse_exp": lambda b, k: 1 - (1 - b) ** (1 / k),
        "exp": lambda b, k: b**k,
        "scaled": lambda b, k: b / k,
        "naive": lambda b, k: b,
        "root": lambda b, k: b ** (1 / k),
    }
)

STATIC_K = (
    "it is the number of stages: with optax.inject_hyperparams pass static_args=('k', ...), and "
    "include a callable mask there too; in a sweep make k a static axis"
)


def per_stage_decays(
    b1: ArrayLike, b2: ArrayLike, k: int, strategy: str = "inverse_exp"
) -> tuple[tuple[ArrayLike, ...], tuple[ArrayLike, ...]]:
    r"""Return the decays :math:`(\gamma_{1:k}, \beta_{1:k})` of k-Adam's stages, all the same.

    ============= ==================================== ==================================
    strategy      each stage's decay                   what it keeps
    ============= ==================================== ==================================
    "inverse_exp" :math:`1 - (1-b)^{1/k}`              the product of the gains 1-b
    "exp"         :math:`b^k`                          nothing; forgets faster
    "scaled"      :math:`b / k`                        nothing; forgets much faster
    "naive"       :math:`b`                            the decay of each stage
    "root"        :math:`b^{1/k}`                      nothing; remembers longer
    ============= ==================================== ==================================

    The exponent is the number of stages k, not the stage's index; Appendix O's prefactor of
    :math:`m^{(k)}`, printed with β, is :math:`\prod_i (1-\gamma_i)`.

    Args:
      b1: γ̃, scalar in [0, 1); may be traced.
      b2: β̃, scalar in [0, 1); may be traced.
      k: number of stages.
      strategy: a name in the table.

    Returns:
      Two k-tuples, (b1_1, ..., b1_k) and (b2_1, ..., b2_k): Python floats for Python floats.

    Raises:
      TypeError: `k` is not an int, or `strategy` not a string.
      ValueError: `k` is less than 1, `strategy` unknown, or a concrete decay outside [0, 1).

    Examples:
      >>> b1s, b2s = per_stage_decays(0.9, 0.999, k=2)
      >>> [round(b, 5) for b in b1s], [round(b, 5) for b in b2s]
      ([0.68377, 0.68377], [0.96838, 0.96838])

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §4.3, Appendix O.
    """
    rule = checked_rule(k, strategy)
    for name, decay in (("b1", b1), ("b2", b2)):
        check_real(name, decay, DECAY)
    return (rule(b1, k),) * k, (rule(b2, k),) * k


def stage_decays(
    name: str, decays: Any, k: int, strategy: str, check: Callable[[str, Iterable[Any]], None]
) -> tuple[Any, ...]:
    """Return the k decays that a scalar or k values stand for; `check` gets what was given."""
    rule: Callable = checked_rule(k, strategy)
    if isinstance(decays, str) or not isinstance(decays, Sequence):
        if np.ndim(decays) == 0:
            check(name, [decays])  # before a rule turns it into another number
            return (rule(decays, k),) * k
        if np.ndim(decays) > 1:
            raise ValueError(f"{name} must be a scalar or hold k={k} values, got {decays}")
    if len(decays) != k:
        raise ValueError(f"{name} must be a scalar or hold k={k} values, got {len(decays)}")
    check(name, decays)
    return tuple(decays[i] for i in range(k))


def checked_rule(k: int, strategy: str) -> Callable[[ArrayLike, int], ArrayLike]:
    """Return the rule of `strategy`, after checking `k` and `strategy`."""
    # optax.adam's second argument is b1.
    hint = "k comes before b1 here: name b1" if isinstance(k, float) else STATIC_K
    check_integer("k", k, hint=hint)
    check_choice("strategy", strategy, STRATEGIES)
    return STRATEGIES[strategy]
