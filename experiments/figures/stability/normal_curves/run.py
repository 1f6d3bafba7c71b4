"""Test loss along two normal curves: what C says about generalization (Figs. 4 and 12).

Along a normal curve C is monotone, and so are β and γ. The claims therefore test the order of the
points, not C against other functions of them.
"""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from experiments.core.run import Run
from experiments.core.store import coordinates, labeled, named
from experiments.figures.stability import losses
from experiments.figures.stability import point_statistics as statistics
from experiments.figures.stability.max_updates import GIVEN
from kadam_jax import grid, normal_curve, points

CURVES = {0.999: (GIVEN, "unstable"), 0.95: ((0.9, 0.95), "both")}
"""γ and β of a point of each curve, by its β, and which part of the curve is taken, with C falling.
The first begins at that point, as in the paper; the other has it in its middle and begins near
β = 1."""


@dataclass(frozen=True)
class Config(losses.Config):
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
    b1, b2 = config.points
    members = grid(point=points(b1=b1.ravel(), b2=b2.ravel()), seed=config.seeds)
    found = losses.train(run, "curves", config, members)
    return analyze(config, found.reshape(*b1.shape, *found.shape[1:]))


def analyze(config: Config, test_loss: np.ndarray) -> xr.Dataset:
    """Return the figure's dataset from test losses.

    Args:
      config: The configuration, which determines the points.
      test_loss: Shape (num_curves, num_points, num_seeds, num_evaluations).
    """
    data = losses.dataset(config, ("curve", "point"), *config.points, test_loss)
    label = "β of the point with γ = 0.9 that the normal curve goes through"
    data = data.assign_coords(coordinates(curve=(list(CURVES), label)))
    stable, unstable = data.best_loss.where(data.C > 0), data.best_loss.where(data.C < 0)
    data = data.assign(
        rank_correlation=named(
            statistics.rank_correlation(data.C, stable),
            "Spearman's correlation of C with the best test loss where C > 0",
        ),
        largest_excess=named(
            statistics.excess_over_best_other(stable, 0),
            "best test loss at the largest C minus that of the best other point with C > 0, chosen "
            "on the other seeds",
            losses.NAT,
        ),
        stable_spread=named(
            statistics.spread(stable),
            "largest minus smallest best test loss where C > 0",
            losses.NAT,
        ),
        unstable_excess=named(
            unstable.mean("point") - stable.mean("point"),
            "best test loss, mean where C < 0 minus mean where C > 0",
            losses.NAT,
        ),
        **statistics.optimum(data.best_loss),
    )
    for b2 in CURVES:
        where = f", curve through ({b2}, 0.9)"
        data = data.assign(
            statistics.stated(data.sel(curve=b2, drop=True), losses.HORIZONS, where, f"_{b2}")
        )
    return labeled(data)
