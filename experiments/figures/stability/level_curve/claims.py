"""What the paper says of test losses along a level curve of C, as a rule."""

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
        reason="Beyond what one order of a dozen points reaches by chance.",
        correction="C, the same at every point, does not order them; and towards β = 1 the loss "
        "rises again.",
    ),
)
