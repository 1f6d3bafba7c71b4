"""Test loss along normal curves of C (Figs. 4 and 12)."""

from experiments.core.figure import Figure
from experiments.core.questions import GENERALIZATION
from experiments.figures.stability import MINIMUM, PANELS, SETTINGS, SETUP
from experiments.figures.stability.normal_curves import claims, plot
from experiments.figures.stability.normal_curves.run import Config, compute

FIGURE = Figure(
    name="normal_curves",
    title="Test loss along normal curves of C",
    paper="Figs. 4 and 12",
    question=GENERALIZATION,
    decided_by={
        f"{name}-{b2}": f"along the normal curve through ({b2}, 0.9) {phrase}"
        for name, phrase in (
            (
                "larger-c-generalizes-faster",
                "C has a rank correlation of {} with the test loss early in training",
            ),
            (
                "largest-c-generalizes-fastest",
                "the test loss of the largest C minus that of the best other point is {} nats per "
                "token",
            ),
        )
        for b2 in claims.CURVES
    },
    caption=SETUP + " The {num_points} points are uniform in arc length on a normal curve: on the "
    "first page from (β, γ) = (0.999, 0.9) to γ = 1 (that end excluded), on the second page along "
    "the whole curve through (0.95, 0.9), both ends excluded." + PANELS + "C; (d) as (b) where C > "
    "0, minus the loss at the largest C for the same seed.",
    presets={
        "smoke": Config(**SETTINGS["smoke"], chunk_size=24),
        "laptop": Config(**SETTINGS["laptop"], num_points=12),
        "evening": Config(**SETTINGS["evening"], num_points=12),
        "paper": Config(**SETTINGS["paper"]),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={**MINIMUM, "num_points": 12},
)
