"""The paper's claims about updates along a normal curve, as rules."""

import math
from functools import partial

import xarray as xr

from experiments.core.claims import Claim
from experiments.core.stats import Estimate, every_median, exact, median_over_seeds
from experiments.figures.stability.max_updates import FAST, GROWING, JUST_BELOW


def _early_over_exact(run: xr.Dataset, where: xr.DataArray) -> xr.DataArray:
    """Return early slopes over the exact rate at the points `where` true."""
    ratio = (run.slope / run.rate).sel(window="early", kind="exact")
    return ratio.isel(point=where.values)


def _place_between_rates(run: xr.Dataset) -> xr.DataArray:
    """Return where late slopes lie between the exact rate (0) and |C|/2 (1)."""
    fast = run.isel(point=run.C.values <= FAST)
    half_C, exact_rate = fast.rate.sel(kind="half_C"), fast.rate.sel(kind="exact")
    return (fast.slope.sel(window="late") - exact_rate) / (half_C - exact_rate)


claim = partial(Claim, figure="max_update")

CLAIMS: tuple[Claim, ...] = (
    claim(
        id="updates-within-exact-bound",
        section="§3.2",
        statement="The max-update stays below its theoretical bound, in B₊ and in B₋.",
        quantity="largest ‖uₙ‖∞ over the exact bound, all members and steps",
        statistic=lambda run: exact(run.exact_ratio.max(), run.exact_ratio.size),
        accept=(-math.inf, 1 + 1e-5),
        reason="No gradients can exceed a supremum, except by the rounding of float32.",
    ),
    claim(
        id="updates-within-theorem-1",
        section="§3.2, Theorem 1",
        statement="The max-update stays below Theorem 1's bound, in B₊ and in B₋.",
        quantity="largest ‖uₙ‖∞ over Theorem 1's bound, all members and steps",
        statistic=lambda run: exact(run.paper_ratio.max(), run.paper_ratio.size),
        accept=(-math.inf, 1 + 1e-5),
        reason="A bound has no exceptions beyond the rounding of float32.",
    ),
    claim(
        id="bounded-in-b-plus",
        section="§3.2, App. L",
        statement="Updates are well-behaved and bounded in B₊.",
        quantity="largest ‖uₙ‖∞ where C > 0, learning rates",
        statistic=lambda run: exact(run.largest_stable, int((run.C > 0).sum()) * run.seed.size),
        accept=(-math.inf, 3.5),
        reason="This is less than half of 7.5, the limit of Theorem 1's bound at the usual (β, γ).",
    ),
    claim(
        id="grows-in-b-minus",
        section="§3.2",
        statement="Updates grow exponentially in B₋.",
        quantity=f"largest ‖uₙ‖∞ where C ≤ {GROWING}, for the member where it is smallest, "
        "learning rates",
        statistic=lambda run: exact(
            run.smallest_growing, int((run.C <= GROWING).sum()) * run.seed.size
        ),
        accept=(10.0, math.inf),
        reason="This is about three times what is allowed in B₊.",
    ),
    claim(
        id="early-slope-is-exact-rate",
        section="§3.2",
        statement="In B₋ ln ‖uₙ‖∞ grows at the predicted rate, here ln(γ/√β).",
        quantity=f"slope for 200 ≤ n ≤ 400 over ln(γ/√β) at the points with C ≤ {FAST}: median "
        "over seeds at each, lowest and highest ends of the points' intervals",
        statistic=lambda run: every_median(_early_over_exact(run, run.C <= FAST)),
        accept=(0.9, 1.1),
        reason="A tenth is allowed at every point, because at n = 200 gradients are still dying "
        "out.",
    ),
    *(
        claim(
            id=f"slope-proportional-to-{name}",
            section="§3.2",
            statement=f"In B₋ the slope of ln ‖uₙ‖∞ is proportional to {symbol}.",
            quantity=f"coefficient of the line through median slopes, 200 ≤ n ≤ 400, against "
            f"{symbol} where C < 0; bootstrap over points and seeds",
            statistic=lambda run, kind=kind: Estimate.of(
                run.fit.sel(kind=kind, quantity="coefficient"),
                int((run.C < 0).sum()) * run.seed.size,
            ),
            accept=(0.9, 1.1),
            reason="A tenth is the tolerance of the slopes themselves.",
        )
        for name, kind, symbol in (
            ("half-c", "half_C", "|C|/2"),
            ("exact-rate", "exact", "ln(γ/√β)"),
        )
    ),
    claim(
        id="late-slope-is-half-c",
        section="§3.2",
        statement="At n = 1000 the slope is |C|/2 in B₋, in near-perfect agreement.",
        quantity=f"(slope - ln(γ/√β)) / (|C|/2 - ln(γ/√β)) for 950 ≤ n ≤ 1050 where C ≤ {FAST}: 1 "
        "if the slope is |C|/2, 0 if it is the exact rate; median over points, then over seeds",
        statistic=lambda run: median_over_seeds(_place_between_rates(run)),
        accept=(0.5, 1.5),
        reason="The slope must be nearer to |C|/2 than to the exact rate, or as far beyond it.",
        corrected_by="early-slope-is-exact-rate",
        correction="The slope is ln(γ/√β), which is 3% less than |C|/2 on this curve.",
    ),
    claim(
        id="growth-starts-at-the-boundary",
        section="§3.2",
        statement="Exponential growth occurs almost immediately after entering B₋.",
        quantity=f"slope for 200 ≤ n ≤ 400 over ln(γ/√β) where {JUST_BELOW} ≤ C < 0: median over "
        "points, then over seeds",
        statistic=lambda run: median_over_seeds(
            _early_over_exact(run, (run.C < 0) & (run.C >= JUST_BELOW))
        ),
        accept=(0.9, 1.1),
        reason="The tolerance is the same tenth as deeper inside B₋.",
        corrected_by="grows-in-b-minus",
        correction="Just below the boundary growth starts, but then gradients revive and end it.",
    ),
    claim(
        id="larger-eps-stops-growth",
        section="Algorithm 1",
        statement="ε is 1e-30 by default, and not every ε shows the growth: 1e-8 ends it.",
        quantity="slope of ln ‖uₙ‖∞ for 950 ≤ n ≤ 1050 with the larger ε, 1/step: median over "
        "points, then over seeds",
        statistic=lambda run: median_over_seeds(run.contrast_eps_slope, "contrast_seed"),
        accept=(-math.inf, 0.0),
        reason="Growth has ended if the slope is not positive.",
    ),
    claim(
        id="float32-v-jumps",
        section="§3.2",
        statement="A second moment stored in float32 underflows and makes updates jump.",
        quantity="largest ‖uₙ‖∞ over the exact bound, in decades, with optax.scale_by_adam: median "
        "over points, then over seeds",
        statistic=lambda run: median_over_seeds(run.contrast_float32_excess, "contrast_seed"),
        accept=(1.0, math.inf),
        reason="A decade above what any gradients can cause is not a rounding error.",
    ),
)
