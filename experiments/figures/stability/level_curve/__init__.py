"""Test loss along a level curve of C (Fig. 13)."""

from experiments.core.figure import Figure
from experiments.core.questions import GENERALIZATION
from experiments.figures.stability import MINIMUM, PANELS, SETTINGS, SETUP
from experiments.figures.stability.level_curve import claims, plot
from experiments.figures.stability.level_curve.run import Config, compute

FIGURE = Figure(
    name="level_curve",
    title="Test loss along a level curve of C",
    paper="Fig. 13",
    question=GENERALIZATION,
    caption=SETUP + " The {num_points} points lie on the level curve of C through (β, γ) = (0.999, "
    "0.9): that point, which is the last one, and others uniform in arc length between the ends, "
    "the origin and β = 1." + PANELS + "β; (d) as (b), minus the loss at (0.999, 0.9) for the same "
    "seed.",
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
