"""Estimates with intervals, choices made on other seeds, and a figure's numbers as variables."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from scipy import stats

from experiments.core.store import named

RESAMPLES = 9999
"""Number of resamples of a bootstrap."""


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; `low == value == high` if nothing is sampled.

    Attributes:
      value: The point estimate.
      low: Lower end of the interval.
      high: Upper end of the interval.
      n: The number of observations that it is based on.
    """

    value: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, ends: ArrayLike, n: int) -> "Estimate":
        """Return the estimate that an array over `end` holds, the inverse of `number`."""
        return cls(*np.asarray(ends, float).tolist(), n)

    @property
    def ends(self) -> np.ndarray:
        """(value, low, high), shape (3,): a variable over `end` in a dataset."""
        return np.array([self.value, self.low, self.high])

    def opened(self, *, lower: bool = False, higher: bool = False) -> "Estimate":
        """Open the interval where the truth may be `lower` or `higher` than was measured.

        This is the case where a tuned value lies at an end of its range. An estimate without
        observations stays as it is.

        >>> Estimate(2.0, 1.0, 3.0, 5).opened(higher=True)
        Estimate(value=2.0, low=1.0, high=inf, n=5)
        """
        if math.isnan(self.value):
            return NOTHING
        low = -math.inf if lower else self.low
        return Estimate(self.value, low, math.inf if higher else self.high, self.n)


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)
"""The estimate without observations."""


def exact(value: float, n: int) -> Estimate:
    """Return an estimate without sampling error."""
    return Estimate(float(value), float(value), float(value), n)


def share(holds: xr.DataArray, among: xr.DataArray) -> Estimate:
    """Return the share of the points in `among` where `holds`, counted exactly."""
    n = int(among.sum())
    return exact(float((holds & among).sum()) / n if n else math.nan, n)


def median(samples: Sequence[float] | np.ndarray, coverage: float = 0.9) -> Estimate:
    """Compute the median with a distribution-free interval from order statistics.

    The interval is the narrowest pair (i-th smallest, i-th largest) that covers the true median
    with probability of at least `coverage`; it is the extremes if no pair does (fewer than 5
    samples for 0.9).

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


def every_median(values: xr.DataArray) -> Estimate:
    """Compute `median` over seeds at each point; return their median, lowest end and highest end.

    The whole interval is acceptable only if every point's interval is.
    """
    if values.size == 0:
        return NOTHING
    at_points = [median(at_point) for at_point in values.transpose(..., "seed").values]
    middle = float(np.median([estimate.value for estimate in at_points]))
    low, high = min(e.low for e in at_points), max(e.high for e in at_points)
    return Estimate(middle, low, high, values.size)


def median_over_seeds(values: xr.DataArray, seed: str = "seed") -> Estimate:
    """Compute the median over all else for each seed, then `median` over seeds.

    Points that share a seed share initial weights and batches, so they are not independent.
    """
    others = [dim for dim in values.dims if dim != seed]
    return median(values.median(others).values)


ENDS = ("value", "low", "high")
"""The `end` coordinate; a variable with only this dimension is a number with an interval."""


def mean(values: ArrayLike) -> Estimate:
    """Compute the mean of independent values with its 95% interval by Student's t.

    The ends are NaN for a single value; everything is NaN if any value is.

    >>> mean([1.0, 2.0, 3.0]).ends.round(2).tolist()
    [2.0, -0.48, 4.48]
    >>> mean([2.0, 2.0, 2.0]).ends.tolist()
    [2.0, 2.0, 2.0]
    """
    values = np.asarray(values, np.float64).ravel()
    middle = values.mean()
    half = student(values.size) * stats.sem(values) if values.size > 1 else np.nan
    return Estimate.of([middle, middle - half, middle + half], values.size)


def student(n: int) -> float:
    """Return the half-width of a 95% interval of the mean of n values, in standard errors."""
    return stats.t.ppf(0.975, n - 1)


def geometric_mean(ratios: ArrayLike) -> Estimate:
    """Compute the geometric mean of independent ratios, with Student's 95% interval of logarithms.

    >>> geometric_mean([0.5, 0.5, 0.5]).ends.round(3).tolist()
    [0.5, 0.5, 0.5]
    """
    logarithms = mean(np.log(ratios))
    return Estimate.of(np.exp(logarithms.ends), logarithms.n)


def paired_mean(differences: ArrayLike) -> Estimate:
    """Compute the mean of paired differences; its 95% interval is a bootstrap's or wider.

    The bootstrap (BCa, resampling the pairs) follows a skewed distribution, but it is too narrow
    for few seeds: with 5, 10 and 20 normal differences it covers the mean in 84%, 91% and 93% of
    cases, and Student's interval does in 95%. Each end is the outer one of the two.

    Args:
      differences: One difference for each seed, two or more.

    Returns:
      The estimate; all NaN if any difference is not finite.

    Raises:
      ValueError: If there are fewer than 2.

    >>> paired_mean([1.0, 2.0, 3.0, 4.0, 5.0]).ends.round(1).tolist()
    [3.0, 1.0, 5.0]
    >>> paired_mean([2.0, 2.0]).ends.tolist()
    [2.0, 2.0, 2.0]
    """
    values = _at_least_two(differences)
    if not np.isfinite(values).all():
        return Estimate.of(np.full(3, np.nan), values.size)
    if np.ptp(values) == 0:
        return exact(values[0], values.size)
    found = stats.bootstrap((values,), np.mean, n_resamples=RESAMPLES, rng=np.random.default_rng(0))
    low, high = found.confidence_interval
    plain = mean(values)
    return Estimate(plain.value, min(plain.low, low), max(plain.high, high), values.size)


def paired_p_value(differences: ArrayLike) -> float:
    """Compute the two-sided p-value of a mean paired difference of 0, by Student's t.

    A bootstrap of a few seeds cannot give the small probabilities that many comparisons need.

    Args:
      differences: One difference for each seed, two or more.

    Returns:
      The p-value; NaN if any difference is not finite.

    Raises:
      ValueError: If there are fewer than 2.

    >>> round(paired_p_value([1.0, 2.0, 3.0]), 4)
    0.0742
    """
    values = _at_least_two(differences)
    if not np.isfinite(values).all():
        return np.nan
    if np.ptp(values) == 0:
        return float(values[0] == 0)
    return float(stats.ttest_1samp(values, 0.0).pvalue)


def _at_least_two(differences: ArrayLike) -> np.ndarray:
    values = np.asarray(differences, np.float64).ravel()
    if values.size < 2:
        raise ValueError(f"differences must be from at least 2 seeds, got {values.size}")
    return values


def holm(p_values: ArrayLike) -> np.ndarray:
    """Compute Holm's adjusted p-values; below α, a hypothesis of the family is rejected at level α.

    p̃₍ᵢ₎ = max over j <= i of min(1, (m - j + 1) p₍ⱼ₎) with the m values in rising order (Holm,
    "A simple sequentially rejective multiple test procedure", 1979).

    Args:
      p_values: Shape (m,); NaN counts as 1, since it is not evidence.

    Returns:
      Shape (m,).

    >>> holm([0.01, 0.04, 0.03]).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.nan_to_num(np.asarray(p_values, np.float64), nan=1.0)
    order = np.argsort(values, kind="stable")
    scaled = values[order] * np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Compute Spearman's correlation of the pairs without NaN; NaN if one side is constant.

    >>> round(spearman([1.0, 2.0, 3.0, 4.0], [9.0, 8.0, 1.0, np.nan]), 6)
    -1.0
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    kept = ~(np.isnan(x) | np.isnan(y))
    if kept.sum() < 2 or np.ptp(x[kept]) == 0 or np.ptp(y[kept]) == 0:
        return np.nan
    return float(stats.spearmanr(x[kept], y[kept]).statistic)


def at_end(place: ArrayLike, size: int) -> np.ndarray:
    """Return whether places along an axis are its first or last; a better one may lie beyond.

    >>> at_end([0, 1, 2], 3).tolist()
    [True, False, True]
    """
    return np.isin(place, [0, size - 1])


def best_on_other_seeds(loss: xr.DataArray, over: str) -> xr.DataArray:
    """Find for each seed the place along `over` with the lowest mean loss of all other seeds.

    A setting that diverges (NaN) on one of those is chosen only if all settings do.

    Args:
      loss: Held-out losses with the dimensions `seed`, two or more, `over`, and any others.

    Returns:
      Places along `over`, with the other dimensions.

    >>> loss = xr.DataArray([[1.0, 5.0, 1.0], [2.0, 2.0, 2.0]], dims=("rate", "seed"))
    >>> best_on_other_seeds(loss, "rate").values  # without seed 1, rate 0 is better
    array([1, 0, 1])
    """
    places = np.arange(loss.sizes["seed"])
    means = [loss.isel(seed=places != seed).mean("seed", skipna=False) for seed in places]
    return xr.concat(means, "seed").fillna(np.inf).argmin(over)


Statistics = Mapping[str, tuple[xr.DataArray, str, str]]
"""By name: a value for each seed, a label and units."""


def means_over_seeds(statistics: Statistics) -> dict[str, xr.DataArray]:
    """Return the numbers that a figure states, over the coordinate `end`, for `Dataset.assign`.

    >>> gains = xr.DataArray([1.0, 2.0, 3.0], dims="seed")
    >>> found = means_over_seeds({"gain": (gains, "gain", "nat/token")})["gain"]
    >>> float(found.sel(end="value")), found.long_name
    (2.0, 'gain, mean over seeds, 95% interval')
    """
    return _over_seeds(statistics, mean, "mean over seeds, 95% interval")


def medians_over_seeds(statistics: Statistics) -> dict[str, xr.DataArray]:
    """Return the same with medians."""
    return _over_seeds(statistics, median, "median over seeds, order statistics")


def _over_seeds(statistics: Statistics, estimate: Callable, how: str) -> dict[str, xr.DataArray]:
    return {
        name: number(estimate(values), f"{label}, {how}", units)
        for name, (values, label, units) in statistics.items()
    }


def number(
    estimates: Estimate | Sequence[Any], long_name: str, units: str = "1", dims: Sequence[str] = ()
) -> xr.DataArray:
    """Return estimates as a labeled variable over `dims` and the coordinate `end`.

    Args:
      estimates: One, or as deeply nested sequences as there are `dims`.
      long_name: Their label.
      units: Their units.
      dims: Other dimensions.

    >>> number([mean([1.0, 1.0]), mean([2.0, 2.0])], "gain", dims=["arm"]).values.tolist()
    [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]
    """
    nested = np.array(estimates, object)
    ends = np.array([estimate.ends for estimate in nested.ravel()]).reshape(*nested.shape, 3)
    return named(xr.DataArray(ends, {"end": list(ENDS)}, (*dims, "end")), long_name, units)
