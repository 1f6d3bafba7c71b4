"""Test loss along normal curves of C (Figs 4, 12)."""

from experiments.core.figure import Figure
from experiments.core.questions import GENERALIZATION
from experiments.figures.stability import MINIMUM, SETTINGS, SETUP
from experiments.figures.stability.normal_curves import claims, plot
from experiments.figures.stability.normal_curves.run import Config, compute

FIGURE = Figure(
    name="normal_curves",
    title="Test loss along normal curves of C",
    paper="Figs 4, 12",
    question=GENERALIZATION,
    decided_by=(
        "larger-c-generalises-faster-0.999",
        "larger-c-generalises-faster-0.95",
        "largest-c-generalises-fastest-0.999",
        "largest-c-generalises-fastest-0.95",
    ),
    caption=SETUP + " {num_points} points uniform in arc length on "
    "a normal curve; first page: from (β, γ) = (0.999, 0.9) to γ = 1 (that end excluded); second "
    "page: the whole curve through (0.95, 0.9), both ends excluded. (a) Loss on {eval_batches} "
    "held-out batches, the same for all, every {eval_every} steps; the vertical line ends the "
    "first third. (b) The lowest of them up to there and in the whole run, means and 95% "
    "intervals. (c) The points; the colour is C. (d) As (b) where C > 0, less the loss at the "
    "largest C of the same seed.",
    presets={
        "smoke": Config(**SETTINGS["smoke"], chunk_size=24),
        "laptop": Config(**SETTINGS["laptop"], num_points=12),
        "paper": Config(**SETTINGS["paper"]),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={**MINIMUM, "num_points": 12},
)
