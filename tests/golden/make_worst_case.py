"""Writes worst_case.json: suprema and weights of optimizers in 60 digits, from their definitions.

Run `python tests/golden/make_worst_case.py`; it needs mpmath. Weights are those of a plain
simulation of each optimizer's averages for one gradient, not of a closed form.
"""

import json
from pathlib import Path

from mpmath import mp, mpf, sqrt

mp.dps = 60


def average(num_steps, decay, gain):
    """Return the weight of the gradient j steps ago in m = decay m + gain g, for every j."""
    weights = [gain]
    for _ in range(num_steps - 1):
        weights.append(weights[-1] * decay)
    return weights


def corrected(num_steps, decay):
    total = 1 - decay**num_steps
    return [w / total for w in average(num_steps, decay, 1 - decay)]


def adam(num_steps, b1, b2):
    return corrected(num_steps, b1), corrected(num_steps, b2)


def nadam(num_steps, b1, b2):
    ahead = b1 / (1 - b1 ** (num_steps + 1))
    a = [ahead * w for w in average(num_steps, b1, 1 - b1)]
    a[0] += (1 - b1) / (1 - b1**num_steps)
    return a, corrected(num_steps, b2)


def ademamix(num_steps, b1, b2, b3, alpha):
    slow = average(num_steps, b3, alpha * (1 - b3))
    a = [x + y for x, y in zip(corrected(num_steps, b1), slow, strict=True)]
    return a, corrected(num_steps, b2)


def simplified_ademamix(num_steps, b1, b2, alpha):
    a = average(num_steps, b1, mpf(1))
    a[0] += alpha
    return a, corrected(num_steps, b2)


def rmsprop(num_steps, b2):
    return [mpf(1)] + [mpf(0)] * (num_steps - 1), average(num_steps, b2, 1 - b2)


CASES = [
    (adam, ("0.9", "0.999")),
    (adam, ("0.95", "0.851")),
    (adam, ("0.5", "0.1")),
    (nadam, ("0.9", "0.999")),
    (ademamix, ("0.9", "0.999", "0.9999", "5")),
    (simplified_ademamix, ("0.99", "0.95", "0")),
    (simplified_ademamix, ("0.9", "0.95", "2")),
    (rmsprop, ("0.9",)),
]


def case(family, decays, num_steps):
    # The optimizer's own decays are float64, so these are those numbers, exactly.
    a, b = family(num_steps, *(mpf(float(d)) for d in decays))
    lags = sorted({min(j, num_steps - 1) for j in (0, 1, 2, num_steps // 3, num_steps)})
    return {
        "family": family.__name__,
        "decays": [float(d) for d in decays],
        "num_steps": num_steps,
        "supremum": float(sqrt(sum(x * x / y for x, y in zip(a, b, strict=True)))),
        "lags": lags,
        "numerator": [float(a[j] / sqrt(b[0])) for j in lags],
        "denominator": [float(b[j] / b[0]) for j in lags],
    }


if __name__ == "__main__":
    found = [case(*family, n) for family in CASES for n in (10, 2000)]
    Path(__file__).with_name("worst_case.json").write_text(json.dumps(found, indent=1) + "\n")
