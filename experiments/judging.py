"""How a claim is judged: an estimate with an interval, a rule fixed beforehand, a verdict.

A claim is data. Its statistic reads a figure's dataset and returns an estimate with an interval;
its rule is an interval of acceptable values, chosen for the stated reason before any value was
seen. Below a figure's laptop minimum nothing can be more than inconclusive.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import xarray as xr

from experiments.config import shortfalls

SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE = "supported", "not supported", "inconclusive"


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


@dataclass(frozen=True)
class Claim:
    """One statement and how it is judged.

    Attributes:
      id: Short and unique.
      figure: The figure whose dataset is read.
      section: Where the paper says it.
      statement: What the paper says, or what we say in its place.
      quantity: What the statistic is, with units.
      statistic: `statistic(dataset)` gives an `Estimate`.
      accept: Lowest and highest value that support the statement; infinities are allowed.
      reason: Why these, fixed before the value was seen.
      correction: Where the paper is wrong or silent, what holds instead.
      minimum: What it needs beyond its figure's `minimum`.
      corrected_by: The claim that judges what holds instead, if one does.
    """

    id: str
    figure: str
    section: str
    statement: str
    quantity: str
    statistic: Callable[[xr.Dataset], Estimate]
    accept: tuple[float, float]
    reason: str
    correction: str = ""
    minimum: Mapping[str, float] = field(default_factory=dict)
    corrected_by: str = ""


@dataclass(frozen=True)
class Judgement:
    """A claim with what a dataset says about it."""

    claim: Claim
    estimate: Estimate
    verdict: str
    remark: str

    @property
    def correction(self) -> str:
        """What holds instead, where the statement does not; else ""."""
        return self.claim.correction if self.verdict == NOT_SUPPORTED else ""


def verdict(estimate: Estimate, accept: tuple[float, float]) -> str:
    """Supported if the whole interval is acceptable, not supported if none of it is.

    >>> verdict(Estimate(1.0, 0.9, 1.1, 5), (0.8, 1.2))
    'supported'
    >>> verdict(Estimate(1.0, 0.7, 1.1, 5), (0.8, 1.2))
    'inconclusive'
    >>> verdict(Estimate(2.0, 1.9, 2.1, 5), (0.8, 1.2))
    'not supported'
    """
    lowest, highest = accept
    if estimate.n == 0 or any(map(math.isnan, (estimate.value, estimate.low, estimate.high))):
        return INCONCLUSIVE
    if lowest <= estimate.low and estimate.high <= highest:
        return SUPPORTED
    if estimate.high < lowest or highest < estimate.low:
        return NOT_SUPPORTED
    return INCONCLUSIVE


def judge(claim: Claim, dataset: xr.Dataset, minimum: Mapping[str, float]) -> Judgement:
    """Applies a claim to its figure's dataset.

    Args:
      claim: The claim.
      dataset: With the attrs that a run adds.
      minimum: The figure's `minimum`; a configuration below it can only be inconclusive.

    Returns:
      The judgement; its remark says what was too small.
    """
    estimate = claim.statistic(dataset)
    short = shortfalls(settings(dataset), {**minimum, **claim.minimum})
    if short:
        return Judgement(claim, estimate, INCONCLUSIVE, "at this scale: " + ", ".join(short))
    return Judgement(claim, estimate, verdict(estimate, claim.accept), "")


def settings(dataset: xr.Dataset) -> Any:
    """The configuration that a dataset was computed from, fields as attributes."""
    return json.loads(dataset.attrs["config"], object_hook=lambda item: SimpleNamespace(**item))


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
