"""The paper's claims about the stability of k-Adam compared with Adam, as rules."""

import math
from functools import partial

import xarray as xr

from experiments.core.claims import Claim
from experiments.core.stats import Estimate, exact, median, median_over_seeds
from experiments.figures.stability.max_updates import GROWING


def _decades_less(run: xr.Dataset, k: int, where: xr.DataArray) -> Estimate:
    """Return log10 of Adam's largest update over k-Adam's, same point and seed, `where` true."""
    less = run.log10_largest.sel(k=1) - run.log10_largest.sel(k=k)
    return median_over_seeds(less.isel(point=where.values))


claim = partial(Claim, figure="kadam_stability")

CLAIMS: tuple[Claim, ...] = (
    claim(
        id="kadam-within-last-stages-bound",
        section="§4.3, Theorem 3",
        statement="Adam's bound, with the last stage's decays, holds identically for k-Adam.",
        quantity="largest ‖uₙ‖∞ over the exact bound of the last stage, k = 1, 2, 3, all members "
        "and steps",
        statistic=lambda run: exact(run.exact_ratio.max(), run.exact_ratio.size),
        accept=(-math.inf, 1 + 1e-5),
        reason="A supremum over all inputs of a stage has no exceptions beyond rounding.",
    ),
    claim(
        id="kadam-within-theorem-3",
        section="§4.3, Theorem 3",
        statement="The max-update of k-Adam stays below Theorem 3's bound, in B₊ and in B₋.",
        quantity="largest ‖uₙ‖∞ over Theorem 3's bound, k = 2, 3, all members and steps",
        statistic=lambda run: exact(
            run.paper_ratio.sel(k=[2, 3]).max(), run.paper_ratio.sel(k=[2, 3]).size
        ),
        accept=(-math.inf, 1 + 1e-5),
        reason="A bound has no exceptions beyond the rounding of float32.",
    ),
    claim(
        id="two-adam-guarantee-is-stronger",
        section="§4.3",
        statement="Theorem 3 places stronger stability guarantees on 2-Adam than on Adam.",
        quantity="largest update to which constructed gradients drive 2-Adam, over Adam's supremum "
        "with the same decays; the longest sequences, the smallest value of all points",
        statistic=lambda run: exact(
            run.constructed_ratio.sel(k=2).isel(length=-1).min(), run.sizes["worst_point"]
        ),
        accept=(-math.inf, 0.9),
        reason="A guarantee that is less than a tenth stronger would help nobody.",
        correction="A stage does not see the scale of its input, so a bound on the input "
        "guarantees nothing: some gradients drive 2-Adam as far as Adam with the last stage's "
        "decays, and beyond the boundary at the same exponential rate.",
    ),
    *(
        claim(
            id=f"{k}-adam-more-stable-in-b-minus",
            section="§4.3",
            statement=f"{k}-Adam exhibits more stable updates than Adam when each stage has Adam's "
            "decays in B₋.",
            quantity=f"decades by which {k}-Adam's largest ‖uₙ‖∞ is below Adam's, same decays and "
            f"seed, where C ≤ {GROWING}: median over points, then over seeds",
            statistic=lambda run, k=k: _decades_less(run, k, run.C <= GROWING),
            accept=(1.0, math.inf),
            reason="Adam's updates must have grown by a decade there.",
            correction="Its updates are smaller, but by less than a decade in a run of this "
            "length, and they grow too.",
            scale="Adam's updates keep growing exponentially, and 2-Adam's hardly grow: they are "
            "less than a decade below Adam's after 400 steps, and about three decades after 800."
            if k == 2
            else "",
        )
        for k in (2, 3)
    ),
    *(
        claim(
            id=f"{k}-adam-more-stable-in-b-plus",
            section="§4.3",
            statement=f"{k}-Adam exhibits more stable updates than Adam when each stage has Adam's "
            "decays in B₊.",
            quantity=f"decades by which {k}-Adam's largest ‖uₙ‖∞ is below Adam's, same decays and "
            "seed, where C > 0: median over points, then over seeds",
            statistic=lambda run, k=k: _decades_less(run, k, run.C > 0),
            accept=(0.0, math.inf),
            reason="A more stable optimizer does not have larger updates.",
            correction="Inside B₊ its updates are larger than Adam's and nearer to their common "
            "bound.",
        )
        for k in (2, 3)
    ),
    *(
        claim(
            id=f"{k}-adam-stable-with-dead-gradients",
            section="§4.3",
            statement=f"With dead gradients in B₋ {k}-Adam's updates do not grow as Adam's do.",
            quantity=f"slope of ln ‖uₙ‖∞ of {k}-Adam over the second half of a run whose gradients "
            "have died, over ln(γ/√β), the rate at which Adam's grow: median over seeds",
            statistic=lambda run, k=k: median(run.dead_growth.sel(k=k).values),
            accept=(-math.inf, 0.1),
            reason="This is a tenth of Adam's rate.",
        )
        for k in (2, 3)
    ),
)
