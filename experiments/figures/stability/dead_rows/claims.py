"""Claims about rows without gradients in training, as rules."""

import math
from functools import partial

import xarray as xr

from experiments.core.claims import Claim
from experiments.core.stats import Estimate, exact, median
from experiments.figures.stability.unused_rows import UNUSED

claim = partial(Claim, figure="dead_rows", section="§3.2")


def _largest(run: xr.Dataset, arm: str) -> xr.DataArray:
    """Return each seed's largest update."""
    return run.largest.sel(arm=arm).max("tensor", skipna=False)


def _ratio(run: xr.Dataset, arm: str, other: str) -> Estimate:
    return median((_largest(run, arm) / _largest(run, other)).values)


def _loss_gap(run: xr.Dataset, arm: str, other: str) -> Estimate:
    return median((run.loss.sel(arm=arm) - run.loss.sel(arm=other)).values)


def _changed_by_clipping(run: xr.Dataset) -> Estimate:
    change = abs(run.loss.sel(arm="inside, clipped") - run.loss.sel(arm="inside"))
    return exact(change.max(skipna=False), change.size)


def _share_in_unused_rows(run: xr.Dataset) -> Estimate:
    largest = run.largest.sel(arm="defaults")
    return exact((largest.fillna(math.inf).idxmax("tensor") == UNUSED).mean(), run.sizes["seed"])


def _exceeds(run: xr.Dataset) -> Estimate:
    inside = ["inside", "inside, small ε", "inside by β", "ademamix inside"]
    ratio = (run.largest.max("tensor", skipna=False) / run.supremum).sel(arm=inside)
    return exact(ratio.max(skipna=False), ratio.size)


CLAIMS: tuple[Claim, ...] = (
    claim(
        id="defaults-grow-in-training",
        statement="At optax's defaults the updates of simplified_ademamix grow in training.",
        quantity="largest update at the defaults over the supremum with γ inside the boundary, "
        "median over seeds",
        statistic=lambda run: median(
            (_largest(run, "defaults") / run.supremum.sel(arm="inside")).values
        ),
        accept=(10.0, math.inf),
        reason="Steady gradients reach 2.2 times that supremum at most; ten times is growth.",
    ),
    claim(
        id="unused-rows-have-the-largest-update",
        statement="The updates that grow are those of embedding rows that the text never uses.",
        quantity="share of seeds whose largest update is in an unused row, at the defaults",
        statistic=_share_in_unused_rows,
        accept=(1.0, 1.0),
        reason="A seed whose largest update is elsewhere contradicts the statement.",
    ),
    claim(
        id="inside-updates-are-bounded",
        section="Theorem 1",
        statement="With the slowest average inside the boundary no update exceeds its supremum.",
        quantity="largest update over the supremum, both optimizers inside the boundary, all seeds",
        statistic=_exceeds,
        accept=(-math.inf, 1 + 1e-5),
        reason="No gradients can exceed a supremum, except by the rounding of float32.",
    ),
    claim(
        id="epsilon-limits-growth",
        statement="A larger ε ends the growth sooner.",
        quantity="largest update at the defaults, ε = 1e-8, over that with ε = 1e-15, median over "
        "seeds",
        statistic=lambda run: _ratio(run, "defaults", "defaults, small ε"),
        accept=(0.0, 0.1),
        reason="The two ε are seven decades apart; the effect must be at least one decade.",
    ),
    claim(
        id="dead-rows-harm-the-loss",
        statement="The growth harms the loss.",
        quantity="training loss at the end, defaults minus γ inside the boundary, ε = 1e-8, nats "
        "per token, median over seeds",
        statistic=lambda run: _loss_gap(run, "defaults", "inside"),
        accept=(0.02, math.inf),
        reason="Changes of decays within the region change the loss by about two hundredths of a "
        "nat.",
    ),
    claim(
        id="clipping-cures",
        statement="Clipping updates at the supremum of decays inside the boundary removes this "
        "harm.",
        quantity="training loss at the end, defaults with clipping minus γ inside the boundary, ε "
        "= 1e-8, nats per token, median over seeds",
        statistic=lambda run: _loss_gap(run, "clipped", "inside"),
        accept=(-math.inf, 0.02),
        reason="The margin is that of the other losses here, two hundredths of a nat.",
        correction="Most of what remains is the cost of the slower average, which clipping keeps. "
        "The rest comes from clipped updates of rows without gradients, which stay as large as "
        "the clip; inside the boundary they vanish.",
        corrected_by="clipping-is-no-substitute-for-stable-decays",
    ),
    claim(
        id="clipping-at-the-supremum-changes-nothing-inside",
        section="Theorem 1",
        statement="Inside the boundary, clipping at the supremum does not change training.",
        quantity="largest difference between training losses at the end with and without clipping, "
        "γ inside the boundary, nats per token, all seeds",
        statistic=_changed_by_clipping,
        accept=(0.0, 1e-6),
        reason="No update exceeds its supremum, so nothing is clipped, up to rounding in float32.",
    ),
    claim(
        id="slower-momentum-does-not-harm-the-loss",
        statement="The slower momentum is not what harms the loss: with a β that keeps it inside "
        "the boundary it trains as well as the faster one.",
        quantity="training loss at the end, with β chosen so that the default γ is inside the "
        "boundary, minus that with γ inside it, ε = 1e-8, nats per token, median over seeds",
        statistic=lambda run: _loss_gap(run, "inside by β", "inside"),
        accept=(-math.inf, 0.02),
        reason="The margin is that of the other losses here, two hundredths of a nat.",
        correction="The slower average causes most of the loss here, although a constant gradient "
        "moves weights equally under both.",
    ),
    claim(
        id="clipping-is-no-substitute-for-stable-decays",
        statement="At equal momentum, clipped updates train worse than those of a β inside the "
        "boundary.",
        quantity="training loss at the end, defaults with clipping, minus that with β chosen so "
        "that the default γ is inside the boundary, ε = 1e-8, nats per token, median over seeds",
        statistic=lambda run: _loss_gap(run, "clipped", "inside by β"),
        accept=(0.02, math.inf),
        reason="The margin is that of the other losses here, two hundredths of a nat.",
    ),
    claim(
        id="ademamix-grows-in-training",
        statement="Beyond the boundary the updates of ademamix grow in training too.",
        quantity="largest update of ademamix over that with b3 inside the boundary, median over "
        "seeds",
        statistic=lambda run: _ratio(run, "ademamix", "ademamix inside"),
        accept=(2.0, math.inf),
        reason="Without gradients the supremum grows by e⁴ in 1,000 steps; steady gradients give a "
        "ratio of 1.",
    ),
)
