"""Claims about updates between the two boundaries, as rules."""

import math
from functools import partial

from experiments.core.claims import Claim
from experiments.core.stats import exact, median_over_seeds
from experiments.figures.stability.max_updates import DISAGREE

claim = partial(Claim, figure="discrete_boundary")

CLAIMS: tuple[Claim, ...] = (
    claim(
        id="exact-bound-holds-between-the-boundaries",
        section="Theorem 1",
        statement="Where C < 0 but γ² < β, real training stays below the exact bound, a constant.",
        quantity="largest ‖uₙ‖∞ over the exact bound where the theories disagree",
        statistic=lambda run: exact(
            run.exact_ratio.where(run.theories == DISAGREE).max(),
            int((run.theories == DISAGREE).sum()) * run.seed.size,
        ),
        accept=(-math.inf, 1 + 1e-5),
        reason="No gradients can exceed a supremum, except by the rounding of float32.",
    ),
    claim(
        id="growth-between-the-boundaries",
        section="§3.2",
        statement="B₋ exhibits exponential growth at the rate |C|/2, even where γ² < β.",
        quantity="slope of ln ‖uₙ‖∞ over |C|/2 in the second half of training where the theories "
        "disagree: median over points, then over seeds",
        statistic=lambda run: median_over_seeds(
            (run.slope / (-run.C / 2)).isel(point=run.theories.values == DISAGREE)
        ),
        accept=(0.9, 1.1),
        reason="A tenth is the tolerance of slopes along the paper's curve.",
        corrected_by="exact-bound-holds-between-the-boundaries",
        correction="Nothing grows there: the boundary of the discrete algorithm is γ² = β.",
    ),
    claim(
        id="worst-case-attains-exact-bound",
        section="App. D",
        statement="The exact bound is attained, by gradients g_j = (γ/β)^(N-1-j).",
        quantity="largest relative difference between their last update, through the real "
        "optimizer in float64, and the exact bound, all points and lengths",
        statistic=lambda run: exact(run.worst_error.max(), run.worst_case.size),
        accept=(0.0, 1e-6),
        reason="If a supremum is attained, rounding is the only difference.",
    ),
    claim(
        id="worst-case-grows-beyond-the-exact-boundary-alone",
        section="Theorem 1",
        statement="The worst case grows with its length where γ² > β and only there.",
        quantity="share of the points where doubling the length multiplies the worst case, without "
        "its bias correction, by more than √2 if and only if γ² > β",
        statistic=lambda run: exact(
            ((run.worst_growth > math.sqrt(2)) == (run.exact_rate > 0)).mean(), run.point.size
        ),
        accept=(1.0, 1.0),
        reason="On the boundary itself it grows like √N, so doubling multiplies it by √2.",
    ),
)
