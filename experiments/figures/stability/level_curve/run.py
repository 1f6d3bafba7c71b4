"""Test loss along the level curve of C through the usual (β, γ) (Fig. 13).

C is the same at every point, so C does not explain what varies here.
"""

from dataclasses import dataclass

import jax
import numpy as np
import xarray as xr

from experiments.core.run import Run
from experiments.core.store import labeled, named
from experiments.figures.stability import losses
from experiments.figures.stability import point_statistics as statistics
from experiments.figures.stability.max_updates import GIVEN
from kadam_jax import grid, level_curve, points, stability_coefficient


@dataclass(frozen=True)
class Config(losses.Config):
    """The training setup; the usual point is the last of num_points."""

    @property
    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """γ and β, float32, (num_points,): uniform in arc length, the usual point last."""
        with jax.enable_x64(True):
            C = stability_coefficient(*GIVEN).item()
        curve = level_curve(C, self.num_points - 1)
        b1, b2 = (np.append(b, usual) for b, usual in zip(curve, GIVEN, strict=True))
        return b1.astype(np.float32), b2.astype(np.float32)


def compute(config: Config, run: Run) -> xr.Dataset:
    """Run one sweep over the points and `analyze` it."""
    b1, b2 = config.points
    members = grid(point=points(b1=b1, b2=b2), seed=config.seeds)
    return analyze(config, losses.train(run, "curve", config, members))


def analyze(config: Config, test_loss: np.ndarray) -> xr.Dataset:
    """Return the figure's dataset from test losses, (num_points, num_seeds, num_evaluations)."""
    data = losses.dataset(config, ("point",), *config.points, test_loss)
    best = data.best_loss
    data = data.assign(
        rank_correlation=named(
            statistics.rank_correlation(data.b2, best),
            "Spearman's correlation of β with the best test loss",
        ),
        spread=named(
            statistics.spread(best),
            "largest minus smallest best test loss of the points",
            losses.NAT,
        ),
        best_b2=named(data.b2[best.argmin("point")], "β where the best test loss is lowest"),
        **statistics.optimum(best),
    )
    return labeled(data.assign(statistics.stated(data, losses.HORIZONS)))
