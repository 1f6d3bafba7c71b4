"""2-Adam's learning rate versus AdamW's: what the paper implies and theory predicts, as rules.

An interval is open on the side where an optimum or a basin may lie beyond its grid.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import xarray as xr

from experiments.core.claims import Claim
from experiments.core.stats import NOTHING, Estimate, geometric_mean, mean

ADAMW, TWO_ADAM = "adamw", "inverse_exp_2"


def _at_edge(run: xr.Dataset, arm: str) -> bool:
    """Return whether the arm's best rate is at an end of its grid, so that it may be better."""
    return bool(run.rate_at_lowest.sel(arm=arm) | run.rate_at_highest.sel(arm=arm))


def _two_adams(
    run: xr.Dataset, values: str, lower: Sequence[str] = (), higher: Sequence[str] = ()
) -> Estimate:
    """Return the mean of 2-Adam's values, which may be lower or higher if these arms' rates are."""
    if TWO_ADAM not in run.switch:
        return NOTHING
    return mean(run[values].sel(switch=TWO_ADAM)).opened(
        lower=any(_at_edge(run, arm) for arm in lower),
        higher=any(_at_edge(run, arm) for arm in higher),
    )


def _wider_basin(run: xr.Dataset) -> Estimate:
    if TWO_ADAM not in run.switch:
        return NOTHING
    ours, theirs = run.sel(arm=TWO_ADAM), run.sel(arm=ADAMW)
    return mean(ours.width - theirs.width).opened(
        lower=bool(theirs.basin_open), higher=bool(ours.basin_open)
    )


def _ratio_over(run: xr.Dataset, predicted: str) -> Estimate:
    """Return the strategies' geometric mean, and the lowest and the highest end of any of them."""
    adamw = run.sel(arm=ADAMW)
    each = []
    for switch in run.switch.values.tolist():
        arm = run.sel(arm=switch)
        ratios = arm.ratio / run[predicted].sel(switch=switch)
        lower = bool(arm.rate_at_lowest | adamw.rate_at_highest)
        higher = bool(arm.rate_at_highest | adamw.rate_at_lowest)
        each.append(geometric_mean(ratios).opened(lower=lower, higher=higher))
    if not each or any(estimate.n == 0 for estimate in each):
        return NOTHING
    middle = float(np.exp(np.mean([math.log(estimate.value) for estimate in each])))
    low, high = min(e.low for e in each), max(e.high for e in each)
    return Estimate(middle, low, high, sum(e.n for e in each))


claim = partial(Claim, figure="rate_sensitivity")

CLAIMS: tuple[Claim, ...] = (
    claim(
        id="two-adam-takes-adamws-learning-rate",
        section="App. H",
        statement="2-Adam can be compared, and so used, at AdamW's learning rates: the paper "
        "sweeps every k and strategy over the same learning rates.",
        quantity="test loss of 2-Adam, inverse exp, at the learning rate that is AdamW's best, "
        "minus that at its own best, nats per token: both chosen on the other seeds' validation "
        "losses, mean over seeds",
        statistic=lambda run: _two_adams(run, "price_at_adamws", [ADAMW], [ADAMW, TWO_ADAM]),
        accept=(-math.inf, 0.05),
        reason="This is the tolerance of a basin here: losing less than that is not a reason to "
        "tune again.",
        correction="It loses more than the tolerance there: tune the rate again, or start from "
        "AdamW's rate times the ratio that the figure states.",
    ),
    claim(
        id="two-adam-is-no-more-sensitive",
        section="§4.3",
        statement="With stronger stability guarantees, 2-Adam is no more sensitive to its learning "
        "rate than Adam.",
        quantity="decades of learning rates whose validation loss is within the tolerance of the "
        "lowest: 2-Adam's, inverse exp, minus AdamW's, same seed, mean over seeds",
        statistic=_wider_basin,
        accept=(0.0, math.inf),
        reason="An optimizer that is no more sensitive does not have a narrower basin.",
        correction="Its basin, as interpolated, is narrower, but by less than the grid can "
        "resolve. The bound on updates, which is Adam's own with other decays, says nothing about "
        "learning rates.",
        scale="On the deeper network its basin is narrower by more, but widths differ too much "
        "among six seeds to decide.",
    ),
    claim(
        id="update-size-predicts-the-rate",
        section="not in the paper",
        statement="The size of updates on noise predicts 2-Adam's learning rate from AdamW's, "
        "for every strategy.",
        quantity="best learning rate over AdamW's, divided by AdamW's root mean square of updates "
        "on noise over the strategy's; geometric mean over strategies and seeds, with the lowest "
        "and highest end of any strategy's interval",
        statistic=lambda run: _ratio_over(run, "predicted_by_size"),
        accept=(0.5, 2.0),
        reason="Learning rates are tried in steps of about a factor of two: a prediction that is "
        "further off saves no trial.",
        correction="Momentum spreads a gradient over many updates: the size of one of them does "
        "not say how far they move a weight together.",
    ),
    claim(
        id="displacement-predicts-the-rate",
        section="not in the paper",
        statement="The distance that updates carry on noise predicts 2-Adam's learning rate from "
        "AdamW's, for every strategy.",
        quantity="best learning rate over AdamW's, divided by AdamW's displacement by many updates "
        "on noise over the strategy's; geometric mean over strategies and seeds, with the lowest "
        "and highest end of any strategy's interval",
        statistic=lambda run: _ratio_over(run, "predicted_by_displacement"),
        accept=(0.5, 2.0),
        reason="The range is that for the size of updates. This factor amplifies slow averages of "
        "the gradient, which training follows, whatever momentum does.",
        correction="The gradients of training are not noise around a slow average, or the learning "
        "rate is not limited by how far updates move a weight.",
    ),
    claim(
        id="switching-to-two-adam-gains",
        section="§4.3, App. P",
        statement="An AdamW run that works is improved by 2-Adam once its learning rate is scaled.",
        quantity="test loss of 2-Adam, inverse exp, at AdamW's best learning rate times the ratio "
        "of their optima, minus AdamW's at its own best rate, nats per token: rates and ratio from "
        "the other seeds, mean over seeds",
        statistic=lambda run: _two_adams(run, "beyond_adamw", [TWO_ADAM], [ADAMW]),
        accept=(-math.inf, 0.0),
        reason="The paper finds that it outperforms Adam; the better optimizer has the lower loss.",
        correction="AdamW at its own learning rate is better.",
    ),
)
