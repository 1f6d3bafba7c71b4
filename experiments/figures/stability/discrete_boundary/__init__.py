"""Where C < 0 but γ² < β, the theorem's explosion does not occur (not in the paper)."""

from experiments.core.figure import Figure
from experiments.core.questions import UPDATES_BOUNDED
from experiments.figures.stability.discrete_boundary import claims, plot
from experiments.figures.stability.discrete_boundary.run import Config, compute
from experiments.training.config import LAPTOP_MINIMUM, LAPTOP_MODEL, PAPER_CORPUS, SMOKE_MODEL

FIGURE = Figure(
    name="discrete_boundary",
    title="Where C < 0 but γ² < β, the theorem's explosion does not occur",
    paper="not in the paper",
    question=UPDATES_BOUNDED,
    caption="Real training and the worst case are compared with two theories. Each panel shows the "
    "max-update of nanoGPT ({model.num_layers} layers, width {model.width}, learning rate "
    "{learning_rate:g}, {num_seeds} seeds, {corpus} corpus), with its largest value in the title; "
    "the last update of worst-case gradients of every length, through the same optimizer in "
    "float64; the exact bound of the discrete algorithm; and Theorem 1, which soon leaves the plot "
    "where C is well below 0. Where γ² < β the exact bound is constant, and both training and the "
    "worst case stay within it. Where γ² > β worst cases grow; in training, updates grow only if "
    "gradients die out faster than β^(n/2), which they rarely do when β is small.",
    presets={
        "smoke": Config(model=SMOKE_MODEL, batch=2, num_steps=40, num_seeds=2, worst_case_steps=32),
        "laptop": Config(model=LAPTOP_MODEL, num_steps=400),
        "paper": Config(
            corpus=PAPER_CORPUS, batch=64, num_steps=3000, chunk_size=4, worst_case_steps=512
        ),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={**LAPTOP_MINIMUM, "worst_case_steps": 256},
)
