"""The box in which decays and learning rates are searched, and quasi-random points in it.

A point is first a place in the unit cube. Points are uniform in log10(1 - b) along the axis of a
decay, and in log10 along that of the learning rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import qmc

from experiments.training.optimizers import ADAMW

KADAM = "kadam_2"
COORDINATES = ("b1_1", "b2_1", "b1_2", "b2_2", "rate")
"""γ and β of the stages, and the learning rate."""
AXES: Mapping[str, tuple[str, ...]] = {ADAMW: ("b1_1", "b2_1", "rate"), KADAM: COORDINATES}
"""The axes searched for each optimizer; AdamW is one stage."""
OUTER = 0.1
"""If an optimum is nearer to an end of an axis than this share of it, it may lie beyond."""


@dataclass(frozen=True)
class Box:
    """The box, given by the ends of its axes.

    Attributes:
      highest_b1: Highest value of every γ; the lowest is 0.
      b2: Lowest and highest β.
      rates: Lowest and highest learning rate.
      zero_share: The share of a γ's axis on which γ is 0 (no average), which a logarithm would
        miss.
    """

    highest_b1: float
    b2: tuple[float, float]
    rates: tuple[float, float]
    zero_share: float

    def settings(self, cube: np.ndarray, axes: Sequence[str]) -> np.ndarray:
        """Return decays and learning rates of points of the unit cube, (num_points, num_axes).

        >>> box = Box(highest_b1=0.99, b2=(0.9, 0.999), rates=(1e-3, 1e-1), zero_share=0.2)
        >>> box.settings(np.array([[0.1, 0.5, 0.5], [0.6, 1.0, 0.0]]), AXES["adamw"]).round(4)
        array([[0.   , 0.99 , 0.01 ],
               [0.9  , 0.999, 0.001]])
        """
        return np.stack([self._along(axis, cube[:, i]) for i, axis in enumerate(axes)], axis=1)

    def _along(self, axis: str, x: np.ndarray) -> np.ndarray:
        if axis == "rate":
            return _geometric(*self.rates, x)
        if axis.startswith("b2"):
            return 1 - _geometric(*(1 - b for b in self.b2), x)
        beyond_zero = np.maximum(0, x - self.zero_share) / (1 - self.zero_share)
        return 1 - _geometric(1.0, 1 - self.highest_b1, beyond_zero)


def _geometric(low: float, high: float, x: np.ndarray) -> np.ndarray:
    return low ** (1 - x) * high**x


def at_edge(cube: np.ndarray, axes: Sequence[str]) -> np.ndarray:
    """Return whether points of the unit cube are near an end of an axis; γ = 0 is not an end.

    >>> at_edge(np.array([[0.0, 0.5, 0.95], [0.95, 0.0, 0.5]]), AXES["adamw"])
    array([[False, False,  True],
           [ True,  True, False]])
    """
    ends_below = np.array([not axis.startswith("b1") for axis in axes])
    return (cube > 1 - OUTER) | ((cube < OUTER) & ends_below[None])


def sobol(num_points: int, num_axes: int, seed: int) -> np.ndarray:
    """Return the first points of a scrambled Sobol sequence, (num_points, num_axes), in [0, 1).

    Args:
      num_points: A power of 2, so that the points are spread evenly.
      num_axes: The dimension of the unit cube.
      seed: The seed of the scrambling.

    >>> points = sobol(4, 2, seed=0)
    >>> np.sort(np.floor(4 * points), axis=0).T.tolist()  # one in each quarter of each axis
    [[0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]]
    """
    return qmc.Sobol(num_axes, rng=np.random.default_rng(seed)).random(num_points)


def around(centers: np.ndarray, points: np.ndarray, width: float) -> np.ndarray:
    """Move points of the unit cube into smaller cubes, cycling through their centers.

    Args:
      centers: (num_centers, num_axes).
      points: (num_points, num_axes), uniform in the unit cube.
      width: The width of the smaller cubes; points outside the unit cube are put on its surface.

    >>> around(np.array([[0.5], [0.9]]), np.array([[0.0], [1.0], [0.75]]), 0.4).ravel().tolist()
    [0.3, 1.0, 0.6]
    """
    chosen = centers[np.arange(len(points)) % len(centers)]
    return np.clip(chosen + width * (points - 0.5), 0, 1)
