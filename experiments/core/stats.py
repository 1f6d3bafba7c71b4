"""Estimates with intervals, and means and medians over seeds as variables of a dataset."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from scipy import stats


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; `low == value == high` where nothing is sampled.

    Attributes:
      value: The point estimate.
      low: Lower end of the interval.
      high: Upper end of the interval.
      n: How many observations it rests on.
    """

    value: float
    low: float
    high: float
    n: int


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)
"""The estimate without observations."""


def exact(value: float, n: int) -> Estimate:
    """An estimate without sampling error."""
    return Estimate(float(value), float(value), float(value), n)


def share(holds: xr.DataArray, among: xr.DataArray) -> Estimate:
    """The share of the points in `among` where `holds`, counted in full."""
    n = int(among.sum())
    return exact(float((holds & among).sum()) / n if n else math.nan, n)


def median(samples: Sequence[float] | np.ndarray, coverage: float = 0.9) -> Estimate:
    """The median with a distribution-free interval from order statistics.

    The narrowest pair (i-th smallest, i-th largest) that covers the true median with probability of
    at least `coverage`; the extremes where no pair does (fewer than 5 samples for 0.9).

    >>> median([3.0, 1.0, 2.0, 5.0, 4.0])  # 1 - 2/2^5 = 0.94
    Estimate(value=3.0, low=1.0, high=5.0, n=5)
    """
    ordered = np.sort(np.asarray(samples, dtype=float).ravel())
    n = len(ordered)
    if n == 0:
        return NOTHING
    missed, trim = 2 / 2**n, 0
    while trim + 1 < (n + 1) // 2:
        missed += 2 * math.comb(n, trim + 1) / 2**n
        if missed > 1 - coverage:
            break
        trim += 1
    low, high = float(ordered[trim]), float(ordered[n - 1 - trim])
    return Estimate(float(np.median(ordered)), low, high, n)


def fitted(line: xr.DataArray, n: int) -> Estimate:
    """The estimate behind an array (value, low, high)."""
    value, low, high = line.values.tolist()
    return Estimate(value, low, high, n)


def every_median(values: xr.DataArray, seed: str = "seed") -> Estimate:
    """`median` over seeds at each point: the median of them, lowest and highest end of any.

    All of the interval is acceptable only if every point's own interval is.
    """
    if values.size == 0:
        return NOTHING
    at_points = [median(at_point) for at_point in values.transpose(..., seed).values]
    middle = float(np.median([estimate.value for estimate in at_points]))
    low, high = min(e.low for e in at_points), max(e.high for e in at_points)
    return Estimate(middle, low, high, values.size)


def median_over_seeds(values: xr.DataArray, seed: str = "seed") -> Estimate:
    """For each seed the median over all else, then `median` over seeds.

    Points that share a seed share initial weights and batches: they are not independent.
    """
    others = [dim for dim in values.dims if dim != seed]
    return median(values.median(others).values)


ENDS = ("value", "low", "high")
"""The `end` coordinate: a variable with this dimension alone is a number with an interval."""
END_LABEL = {"end": ("value, or end of its interval", "1")}

Statistics = Mapping[str, tuple[xr.DataArray, str, str]]
"""By name: one value for each seed, what it is, and its units."""
Numbers = tuple[dict[str, tuple[str, np.ndarray]], dict[str, tuple[str, str]]]
"""Variables over `end`, and their long_name and units for `labelled`."""


def mean_interval(values: xr.DataArray | np.ndarray) -> np.ndarray:
    """The mean of independent values with its 95% interval by Student's t, shape (3,) as `ENDS`.

    NaN ends for a single value; all NaN if a value is.

    >>> mean_interval(np.array([1.0, 2.0, 3.0])).round(2).tolist()
    [2.0, -0.48, 4.48]
    >>> mean_interval(np.array([2.0, 2.0, 2.0])).tolist()
    [2.0, 2.0, 2.0]
    """
    values = np.asarray(values, np.float64).ravel()
    mean = values.mean()
    half = stats.t.ppf(0.975, values.size - 1) * stats.sem(values) if values.size > 1 else np.nan
    return np.array([mean, mean - half, mean + half])


def median_interval(values: xr.DataArray | np.ndarray) -> np.ndarray:
    """`median` of independent values with its interval, shape (3,) as `ENDS`.

    >>> median_interval(np.array([3.0, 1.0, 2.0, 5.0, 4.0])).tolist()
    [3.0, 1.0, 5.0]
    """
    estimate = median(np.asarray(values))
    return np.array([estimate.value, estimate.low, estimate.high])


def means_over_seeds(statistics: Statistics) -> Numbers:
    """The numbers that a figure states; its dataset needs the coordinate `end`, `list(ENDS)`."""
    return _over_seeds(statistics, mean_interval, "mean over seeds, 95% interval")


def medians_over_seeds(statistics: Statistics) -> Numbers:
    """The same as medians."""
    return _over_seeds(statistics, median_interval, "median over seeds, order statistics")


def _over_seeds(statistics: Statistics, interval: Callable, what: str) -> Numbers:
    numbers = {name: ("end", interval(values)) for name, (values, *_) in statistics.items()}
    labels = {name: (f"{label}, {what}", units) for name, (_, label, units) in statistics.items()}
    return numbers, labels
