"""Test loss along two normal curves: what C says about generalization (Figs. 4 and 12).

Along a normal curve C is monotone, and so are β and γ. What is tested is therefore the order of the
points, not C against other functions of them.
"""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from experiments.core.run import Run
from experiments.core.store import labeled, named
from experiments.figures.stability.losses import (
    HORIZONS,
    GeneralizationConfig,
    losses,
    train,
)
from experiments.figures.stability.max_updates import GIVEN
from experiments.figures.stability.point_statistics import (
    excess_over_best_other,
    optimum,
    rank_correlation,
    spread,
    stated,
)
from kadam_jax import normal_curve

CURVES = {0.999: (GIVEN, "unstable"), 0.95: ((0.9, 0.95), "both")}
"""γ and β of a point of each curve, by its β, and which part of the curve is taken, with C falling.
The first begins at that point, as in the paper; the other has it in its middle and begins near
β = 1."""


@dataclass(frozen=True)
class Config(GeneralizationConfig):
    """The training setup; num_points counts the points of each curve."""

    @property
    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """γ and β, shape (num_curves, num_points), uniform in arc length, C falling."""
        curves = (
            normal_curve(*given, self.num_points, direction=direction)
            for given, direction in CURVES.values()
        )
        b1, b2 = np.moveaxis(np.array(list(curves)), 1, 0)
        return b1, b2


def compute(config: Config, run: Run) -> xr.Dataset:
    """Run one sweep over the points of both curves and `analyze` it."""
    return analyze(config, train(run, "curves", config, *config.points))


def analyze(config: Config, test_loss: np.ndarray) -> xr.Dataset:
    """Compute test losses and what each seed says about the curves.

    Args:
      config: The configuration, which determines the points.
      test_loss: Shape (num_curves, num_points, num_seeds, num_evaluations).

    Returns:
      The figure's dataset.
    """
    data = losses(config, ("curve", "point"), *config.points, test_loss)
    data = data.assign_coords(
        curve=named(
            ("curve", list(CURVES)),
            "β of the point with γ = 0.9 that the normal curve goes through",
        )
    )
    stable, unstable = data.best_loss.where(data.C > 0), data.best_loss.where(data.C < 0)
    data = data.assign(
        rank_correlation=named(
            rank_correlation(data.C, stable),
            "Spearman's correlation of C with the best test loss where C > 0",
        ),
        largest_excess=named(
            excess_over_best_other(stable, 0),
            "best test loss at the largest C minus that of the best other point with C > 0, chosen "
            "on the other seeds",
            "nat/token",
        ),
        stable_spread=named(
            spread(stable), "largest minus smallest best test loss where C > 0", "nat/token"
        ),
        unstable_excess=named(
            unstable.mean("point") - stable.mean("point"),
            "best test loss, mean where C < 0 minus mean where C > 0",
            "nat/token",
        ),
        **optimum(data.best_loss),
    )
    for b2 in CURVES:
        where = f", curve through ({b2}, 0.9)"
        data = data.assign(stated(data.sel(curve=b2, drop=True), HORIZONS, where, f"_{b2}"))
    return labeled(data)
