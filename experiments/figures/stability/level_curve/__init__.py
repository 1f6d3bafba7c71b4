"""Test loss along a level curve of C (Fig. 13)."""

from experiments.core.figure import Figure
from experiments.core.questions import GENERALIZATION
from experiments.figures.stability import MINIMUM, SETTINGS, SETUP
from experiments.figures.stability.level_curve import claims, plot
from experiments.figures.stability.level_curve.run import Config, compute

FIGURE = Figure(
    name="level_curve",
    title="Test loss along a level curve of C",
    paper="Fig. 13",
    question=GENERALIZATION,
    caption=SETUP + " {num_points} points on the level curve of C "
    "through (β, γ) = (0.999, 0.9): that one, which is the last, and others uniform in arc length "
    "between the ends, the origin and β = 1. (a) Loss on {eval_batches} held-out batches, the same "
    "for all, every {eval_every} steps; the vertical line ends the first third. (b) The lowest of "
    "them up to there and in the whole run, means and 95% intervals. (c) The points; the colour is "
    "β. (d) As (b), less the loss at (0.999, 0.9) of the same seed.",
    presets={
        "smoke": Config(**SETTINGS["smoke"], chunk_size=12),
        "laptop": Config(**SETTINGS["laptop"], num_points=17),
        "paper": Config(**SETTINGS["paper"]),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={**MINIMUM, "num_points": 17},
)
