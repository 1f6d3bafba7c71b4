"""Level and normal curves of C, and where updates are bounded (Fig. 2)."""

from experiments.core.figure import Figure
from experiments.core.questions import UPDATES_BOUNDED
from experiments.figures.stability.stability_plane import claims, plot
from experiments.figures.stability.stability_plane.run import Config, compute

FIGURE = Figure(
    name="stability_plane",
    title="Level and normal curves of C, and where updates are bounded",
    paper="Fig. 2",
    question=UPDATES_BOUNDED,
    caption="Level curves of C(β, γ), colored by C, and normal curves perpendicular to them. The "
    "shaded region is B₊, where Theorem 1 bounds the max-update for all steps. The dotted line is "
    "γ² = β, the boundary of the discrete algorithm; between it and C = 0 updates are bounded, "
    "although the theorem's bound grows. Claims are checked in float64 at the centers of the "
    "{num_grid}² cells of a grid.",
    presets={
        "smoke": Config(num_grid=40, num_curve=60),
        "laptop": Config(),
        "paper": Config(num_grid=1000, num_curve=1000),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={"num_grid": 400, "num_curve": 400},
)
