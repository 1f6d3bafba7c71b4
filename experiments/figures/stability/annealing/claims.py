"""The paper's claims about annealing the learning rate beyond the boundary, as rules."""

import math
from functools import partial

from experiments.core.claims import Claim
from experiments.core.stats import every_median, median_over_seeds
from experiments.figures.stability.max_updates import GROWING

claim = partial(Claim, figure="annealing", section="App. N")
CLAIMS: tuple[Claim, ...] = (
    claim(
        id="annealed-max-update-very-small",
        statement="Annealing by e^(-n|C|/2) is too strong: the max-update becomes very small.",
        quantity="‖θₙ₊₁-θₙ‖∞/η₀, median over the last tenth of the steps, at the points with C ≤ "
        f"{GROWING}: median over seeds at each, lowest and highest ends of the points' intervals",
        statistic=lambda run: every_median(
            run.final_change.sel(strength=1.0).isel(point=run.C.values <= GROWING)
        ),
        accept=(-math.inf, 0.1),
        reason="This is a tenth of the change that Adam makes where all gradients keep their sign.",
    ),
    claim(
        id="annealed-generalization-not-good",
        statement="Annealing by e^(-n|C|/2) does not give good generalization performance.",
        quantity="lowest test loss with it minus that at the usual (β, γ), with the same warm-up "
        f"and cosine, nat/token, where C ≤ {GROWING}: median over points, then over seeds",
        statistic=lambda run: median_over_seeds(
            run.excess_loss.sel(strength=1.0).isel(point=run.C.values <= GROWING)
        ),
        accept=(0.1, math.inf),
        reason="A tenth of a nat is a tenth of the perplexity; nobody would call that equal.",
    ),
)
