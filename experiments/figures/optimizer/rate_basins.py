"""Losses over a ladder of learning rates: the optimum, the basin around it, and values in between.

Rates rise by a constant factor; losses that are not finite are those of diverged runs.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import PchipInterpolator

from experiments.training.tuning import lowest


class Basin(NamedTuple):
    """Learning rates around the best one that are almost as good."""

    low: float
    high: float
    open: bool
    """Whether the ladder ends inside the basin, so that the basin may go on."""

    @property
    def decades(self) -> float:
        """log10(high / low)."""
        return float(np.log10(self.high / self.low))


NO_BASIN = Basin(np.nan, np.nan, open=True)


def optimum(rates: ArrayLike, losses: ArrayLike) -> float:
    """Return the best rate, the vertex of a parabola in ln η around the lowest loss.

    The parabola goes through the lowest loss and its neighbors, so the vertex is at most half a
    step away. If a neighbor is missing or diverged, the result is the rate of the lowest loss
    itself; if every run diverged, it is NaN.

    >>> rates = np.array([0.1, 1.0, 10.0])
    >>> round(optimum(rates, np.log10(rates / 2) ** 2), 6)
    2.0
    >>> optimum(rates, [1.0, 2.0, 3.0])
    0.1
    """
    rates, losses = np.asarray(rates, float), np.asarray(losses, float)
    best = lowest(losses)
    if not np.isfinite(losses[best]):
        return np.nan
    if not 0 < best < len(rates) - 1:
        return float(rates[best])
    left, right = losses[[best - 1, best + 1]] - losses[best]
    rises = left + right
    if not (np.isfinite(rises) and rises > 0):
        return float(rates[best])
    step = np.log(rates[best + 1] / rates[best])
    return float(rates[best] * np.exp(step * (left - right) / rises / 2))


def basin(rates: ArrayLike, losses: ArrayLike, tolerance: float) -> Basin:
    """Return the rates around the lowest loss whose losses are at most `tolerance` above it.

    Between rates the loss is interpolated in ln η by PCHIP, a monotonic piecewise cubic: straight
    lines would halve a basin about a step wide. A basin ends before a diverged run.

    >>> rates = 10.0 ** np.arange(-4, 1)
    >>> found = basin(rates, abs(np.log10(rates) + 2), tolerance=1.0)
    >>> round(found.low, 6), round(found.high, 6), found.open
    (0.001, 0.1, False)
    """
    rates, losses = np.asarray(rates, float), np.asarray(losses, float)
    best = lowest(losses)
    if not np.isfinite(losses[best]):
        return NO_BASIN
    stretch = _finite_around(losses)
    passed = np.empty(0)
    if len(stretch) > 1:
        curve = _between(rates[stretch], losses[stretch])
        passed = np.exp(curve.solve(losses[best] + tolerance, extrapolate=False))
    low = passed[passed < rates[best]].max(initial=rates[stretch[0]])
    high = passed[passed > rates[best]].min(initial=rates[stretch[-1]])
    return Basin(float(low), float(high), bool(low == rates[0] or high == rates[-1]))


def loss_at(rates: ArrayLike, losses: ArrayLike, rate: float) -> float:
    """Return the loss at any rate, interpolated as in `basin`.

    Args:
      rates: Shape (num_rates,).
      losses: The loss at each rate.
      rate: The rate in question; may be NaN.

    Returns:
      The loss; NaN outside the rates around the lowest loss between which no run diverged.

    >>> rates = 10.0 ** np.arange(-2, 1)
    >>> loss_at(rates, [3.0, 2.0, 4.0], 0.1), loss_at(rates, [3.0, 2.0, np.nan], 1.0)
    (2.0, nan)
    """
    rates, losses = np.asarray(rates, float), np.asarray(losses, float)
    on_ladder = np.flatnonzero(rates == rate)
    if on_ladder.size:
        return float(losses[on_ladder[0]])
    stretch = _finite_around(losses)
    if len(stretch) < 2 or not rates[stretch[0]] <= rate <= rates[stretch[-1]]:
        return np.nan
    return float(_between(rates[stretch], losses[stretch])(np.log(rate)))


def _between(rates: np.ndarray, losses: np.ndarray) -> PchipInterpolator:
    """Return the loss as a function of ln η."""
    return PchipInterpolator(np.log(rates), losses)


def _finite_around(losses: np.ndarray) -> np.ndarray:
    """Return places around the lowest loss up to the next diverged runs; none if all diverged."""
    places = np.flatnonzero(np.isfinite(losses))
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    return next((run for run in runs if lowest(losses) in run), places)
