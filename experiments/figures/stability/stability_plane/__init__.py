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
    caption="Level curves of C(β, γ), coloured by C, and normal curves perpendicular to them. "
    "Shaded: B₊, where Theorem 1 bounds the max-update for all steps. Dotted: γ² = β, the boundary "
    "of the discrete algorithm; between it and C = 0 updates are bounded though the theorem's "
    "bound grows. Claims are checked at the {num_grid}² centres of a grid, in float64.",
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
