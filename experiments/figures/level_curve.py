"""Test loss along the level curve of C through the usual (β, γ) (Fig. 13).

C is the same at every point: what varies here, C does not explain.
"""

from dataclasses import dataclass

import jax
import numpy as np
import xarray as xr
from matplotlib.figure import Figure as Canvas

from experiments.figures import Figure
from experiments.generalisation import (
    GIVEN,
    HORIZONS,
    LABELS,
    MINIMUM,
    SETTINGS,
    SETUP,
    GeneralisationConfig,
    losses,
    train,
)
from experiments.generalisation_plot import Axis, page
from experiments.intervals import END_LABEL, ENDS
from experiments.point_statistics import (
    OPTIMUM_LABELS,
    optimum,
    rank_correlation,
    spread,
    stated,
)
from experiments.results import labelled
from experiments.running import Run
from kadam_jax.stability import level_curve, stability_coefficient


@dataclass(frozen=True)
class Config(GeneralisationConfig):
    """What is trained; the usual point is the last of num_points."""

    @property
    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """γ and β, shape (num_points,): uniform in arc length from the origin, then the usual."""
        with jax.enable_x64(True):
            C = stability_coefficient(*GIVEN).item()
        b1, b2 = level_curve(C, self.num_points - 1)
        return np.append(b1, np.float32(GIVEN[0])), np.append(b2, np.float32(GIVEN[1]))


def compute(config: Config, run: Run) -> xr.Dataset:
    """One sweep over the points; then `analyse`."""
    return analyse(config, train(run, "curve", config, *config.points))


def analyse(config: Config, test_loss: np.ndarray) -> xr.Dataset:
    """Test losses and what each seed says of the curve.

    Args:
      config: Names the points.
      test_loss: Shape (num_points, num_seeds, num_evaluations).

    Returns:
      The figure's dataset.
    """
    data = losses(config, ("point",), *config.points, test_loss).assign_coords(end=list(ENDS))
    data = data.assign(
        rank_correlation=rank_correlation(data.b2, data.best_loss),
        spread=spread(data.best_loss),
        best_b2=data.b2[data.best_loss.argmin("point")],
        **optimum(data.best_loss),
    )
    numbers, labels = stated(data, STATISTICS, HORIZONS)
    labels = LABELS | OPTIMUM_LABELS | STATISTICS | END_LABEL | labels
    return labelled(data.assign(numbers), labels)


STATISTICS = {
    "rank_correlation": ("Spearman's correlation of β with the best test loss", "1"),
    "spread": ("largest less smallest best test loss of the points", "nat/token"),
    "best_b2": ("β where the best test loss is lowest", "1"),
}
"""What each seed says up to each horizon."""

BY_B2 = Axis(
    name="b2",
    symbol="β",
    reference=-1,
    reference_name="(0.999, 0.9)",
    colours="viridis_r",
    levels=(0.0, 0.2212),
)


def plot(dataset: xr.Dataset) -> dict[str, Canvas]:
    """One page."""
    return {"": page(dataset, BY_B2)}


FIGURE = Figure(
    name="level_curve",
    title="Test loss along a level curve of C",
    paper="Fig. 13",
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
    plot=plot,
    minimum={**MINIMUM, "num_points": 17},
)
