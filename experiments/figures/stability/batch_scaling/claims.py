"""Claims about decays that follow the batch size, as rules."""

import math
from functools import partial

import numpy as np
import xarray as xr

from experiments.core.claims import Claim
from experiments.core.stats import Estimate, exact, median, paired_mean

claim = partial(Claim, figure="batch_scaling")


def _crossing(run: xr.Dataset) -> Estimate:
    """Return the batch size at which the tokens rule's growth is 0, from a batch size of 128."""
    growth = run.growth.sel(rule="tokens").values  # rises with the batch size
    return exact(128 * np.interp(0.0, growth, run.ratio.values), growth.size)


def _of_largest_batch(values: xr.DataArray, rule: str) -> xr.DataArray:
    return values.isel(trained_ratio=-1).sel(rule=rule)


def _loss_gap(run: xr.Dataset) -> Estimate:
    """Compare the tokens rule with the both rule at the largest batch size."""
    gap = _of_largest_batch(run.loss, "tokens") - _of_largest_batch(run.loss, "both")
    return paired_mean(gap.values)


def _update_ratio(run: xr.Dataset) -> Estimate:
    largest = run.largest.max("where")
    return median(
        (_of_largest_batch(largest, "tokens") / _of_largest_batch(largest, "both")).values
    )


def _share_in_unused_rows(run: xr.Dataset) -> Estimate:
    unused, rest = (_of_largest_batch(run.largest.isel(where=i), "tokens") for i in range(2))
    return exact((unused > rest).mean().item(), unused.size)


CLAIMS: tuple[Claim, ...] = (
    claim(
        id="boundary-at-650",
        section="Theorem 1",
        statement="With γ = .95 and β = .98 at batch size 128, the tokens rule leaves the region "
        "of bounded updates at batch size 650.",
        quantity="batch size at which ln(γ/√β) of the tokens rule is 0",
        statistic=_crossing,
        accept=(650 * 0.99, 650 * 1.01),
        reason="A percent allows for interpolation and for the rounding of 650.",
    ),
    claim(
        id="other-rules-stay-inside",
        section="Theorem 1",
        statement="Rules that change both decays stay in the region of bounded updates.",
        quantity='largest ln(γ/√β) of the rules "both" and "sde" at all batch sizes, in 1/step',
        statistic=lambda run: exact(
            run.growth.sel(rule=["both", "sde"]).max(), 2 * run.sizes["ratio"]
        ),
        accept=(-math.inf, 0.0),
        reason="Updates without gradients grow if and only if it is positive.",
    ),
    claim(
        id="training-stays-below-the-supremum",
        section="Theorem 1",
        statement="In training no update exceeds the supremum of its decays at any step.",
        quantity="largest ‖uₙ‖∞ over the exact supremum, all rules, batch sizes and seeds",
        statistic=lambda run: exact(run.exceeds.max(), run.exceeds.size),
        accept=(-math.inf, 1 + 1e-5),
        reason="No gradients can exceed a supremum, except by the rounding of float32.",
    ),
    claim(
        id="updates-grow-beyond-the-critical-batch",
        section="§3.2",
        statement="Beyond B* updates grow in training too.",
        quantity='largest ‖uₙ‖∞ of the rule "tokens" over that of the rule "both" at the largest '
        "batch size, median over seeds",
        statistic=_update_ratio,
        accept=(10.0, math.inf),
        reason="A factor of ten is more than seeds or stable decays can cause.",
    ),
    claim(
        id="unused-rows-grow",
        section="§3.2",
        statement="The updates that grow are those of vocabulary rows that the text never uses.",
        quantity="share of seeds whose largest update is in an unused row, tokens rule, largest "
        "batch size",
        statistic=_share_in_unused_rows,
        accept=(1.0, 1.0),
        reason="A seed whose largest update is elsewhere contradicts the statement.",
    ),
    claim(
        id="growth-harms-the-loss",
        section="§3.3",
        statement="Beyond B* the loss is worse than with decays inside the stable region.",
        quantity='training loss at the end of the rule "tokens" minus that of the rule "both", '
        "largest batch size, nats per token, paired by seed",
        statistic=_loss_gap,
        accept=(0.02, math.inf),
        reason="Changes of γ and β within the region change the loss by about two hundredths of a "
        "nat.",
    ),
)
