"""The paper's claims about test losses along normal curves, as rules."""

import math
from collections.abc import Callable
from functools import partial

import xarray as xr

from experiments.core.claims import Claim
from experiments.core.stats import Estimate, median

CHANCE = -0.6
"""Spearman's correlation that a random order of a dozen points reaches in one case of 40."""
SAME, WORSE = 0.1, 0.1
"""Nats: a tenth in perplexity."""
CURVES = {0.999: "§3.3", 0.95: "App. M"}
"""β of the point with γ = 0.9 that a curve goes through, and where the paper shows it."""


def _median(b2: float, name: str, horizon: str) -> Callable[[xr.Dataset], Estimate]:
    return lambda run: median(run[name].sel(curve=b2, horizon=horizon).values)


claim = partial(Claim, figure="normal_curves")
CLAIMS: tuple[Claim, ...] = tuple(
    row
    for b2, section in CURVES.items()
    for row in (
        claim(
            id=f"larger-c-generalizes-faster-{b2}",
            section=section,
            statement=f"Along the normal curve through ({b2}, 0.9) larger values of C display "
            "faster generalization.",
            quantity="Spearman's correlation of C with the best test loss of the run's first third "
            "over the points in B₊, median over seeds",
            statistic=_median(b2, "rank_correlation", "early"),
            accept=(-math.inf, CHANCE),
            reason="A random order of a dozen points reaches this in one case of 40.",
        ),
        claim(
            id=f"largest-c-generalizes-fastest-{b2}",
            section=section,
            statement=f"The point with the largest C generalizes the fastest along the normal "
            f"curve through ({b2}, 0.9).",
            quantity="best test loss of the run's first third at the largest C minus that of the "
            "best other point, which is chosen on the other seeds, nat/token, median over seeds",
            statistic=_median(b2, "largest_excess", "early"),
            accept=(-math.inf, 0.0),
            reason="The fastest point's loss is not above that of any other point.",
        ),
        claim(
            id=f"equal-after-long-training-{b2}",
            section=section,
            statement="After sufficient training all points in B₊ achieve roughly the same test "
            f"loss (normal curve through ({b2}, 0.9)).",
            quantity="largest minus smallest of the points' best test losses in B₊ over the whole "
            "run, nat/token, median over seeds",
            statistic=_median(b2, "stable_spread", "whole"),
            accept=(0.0, SAME),
            reason="The best and the worst point may differ by a tenth in perplexity.",
            minimum={"num_steps": 3000},  # the paper's own length is sufficient
        ),
        claim(
            id=f"loss-rises-in-b-minus-{b2}",
            section=section,
            statement="The test loss exhibits a rapid increase after entering B₋ (normal curve "
            f"through ({b2}, 0.9)).",
            quantity="best test loss of the whole run, mean over the points with C < 0 minus mean "
            "over those with C > 0, nat/token, median over seeds",
            statistic=_median(b2, "unstable_excess", "whole"),
            accept=(WORSE, math.inf),
            reason="This is more than what counts as the same within B₊.",
        ),
    )
)
