"""The paper's claim about test losses along a level curve of C, as a rule."""

import math

from experiments.core.claims import Claim
from experiments.core.stats import median

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="slower-near-the-origin",
        figure="level_curve",
        section="App. M",
        statement="Along the level curve through (0.999, 0.9) points closer to the origin "
        "generalize more slowly.",
        quantity="Spearman's correlation of β, which rises with the distance from the origin, with "
        "the best test loss of the run's first third, median over seeds",
        statistic=lambda run: median(run.rank_correlation.sel(horizon="early").values),
        accept=(-math.inf, -0.6),
        reason="A random order of a dozen points reaches this in one case of 40.",
        correction="C is the same at every point, so it does not order them; toward β = 1 the "
        "loss rises again.",
    ),
)
