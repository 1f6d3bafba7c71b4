"""The judging of claims: an estimate with an interval, a rule fixed beforehand, a verdict.

A claim is data. Its statistic reads a figure's dataset and returns an estimate with an interval;
its rule is an interval of acceptable values, chosen for the stated reason before any value was
seen. Below a figure's laptop minimum every verdict is inconclusive. A figure's claims are committed
before its first result; every dataset records the commit of the claims under which it was computed,
and a digest of their rules.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import xarray as xr

from experiments.core.config import digest, shortfalls
from experiments.core.stats import Estimate

SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE = "supported", "not supported", "inconclusive"


@dataclass(frozen=True)
class Claim:
    """A statement and how it is judged.

    Attributes:
      id: Short and unique.
      figure: The figure whose dataset is read.
      section: Where the paper makes it.
      statement: The paper's statement, or ours in its place.
      quantity: A description of the statistic, with units.
      statistic: `statistic(dataset)` returns an `Estimate`.
      accept: The lowest and highest values that support the statement; infinities are allowed.
      reason: The reason for these values, fixed before the estimate was seen.
      correction: What holds instead, where the paper is wrong or silent.
      minimum: Minima that it needs beyond its figure's `minimum`.
      corrected_by: The claim that judges what holds instead, if one does.
      scale: The reason why presets differ in their verdicts, if they do.
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
    scale: str = ""


@dataclass(frozen=True)
class Judgment:
    """A claim together with what a dataset says about it."""

    claim: Claim
    estimate: Estimate
    verdict: str
    remark: str

    @property
    def correction(self) -> str:
        """What holds instead if the statement does not hold; else ""."""
        return self.claim.correction if self.verdict == NOT_SUPPORTED else ""


def verdict(estimate: Estimate, accept: tuple[float, float]) -> str:
    """Return "supported" if the whole interval is acceptable, "not supported" if none of it is.

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


def judge(claim: Claim, dataset: xr.Dataset, minimum: Mapping[str, float]) -> Judgment:
    """Apply a claim to its figure's dataset.

    Args:
      claim: The claim.
      dataset: The figure's dataset, with the attrs that a run adds.
      minimum: The figure's `minimum`; below it the verdict is inconclusive.

    Returns:
      The judgment; its remark names the fields that are too small.
    """
    estimate = claim.statistic(dataset)
    short = shortfalls(settings(dataset), {**minimum, **claim.minimum})
    if short:
        return Judgment(claim, estimate, INCONCLUSIVE, "at this scale: " + ", ".join(short))
    return Judgment(claim, estimate, verdict(estimate, claim.accept), "")


def settings(dataset: xr.Dataset) -> Any:
    """Return the configuration that a dataset was computed from, with fields as attributes."""
    return json.loads(dataset.attrs["config"], object_hook=lambda item: SimpleNamespace(**item))


def rules_digest(claims: Iterable[Claim]) -> str:
    """Hash rules and their words, but not code, corrections, scale or a figure's minimum."""
    rules = [
        repr((claim.id, claim.statement, claim.quantity, claim.accept, claim.reason, claim.minimum))
        for claim in claims
    ]
    return digest(*rules)
