"""Settings chosen by their held-out losses; what is not finite is never better."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from experiments.core.config import check_least
from experiments.training.config import ScheduledConfig


@dataclass(frozen=True)
class TunedConfig(ScheduledConfig):
    """The same where the validation losses of some seeds choose what fresh ones test.

    Attributes:
      num_seeds: Fresh seeds, that test losses are of; they follow those of the tuning.
      num_tuning_seeds: Seeds 0, 1, ..., whose mean validation loss chooses.
    """

    num_tuning_seeds: int = 3

    def __post_init__(self):
        super().__post_init__()
        check_least(self, num_seeds=2, num_tuning_seeds=1)

    @property
    def tuning_seeds(self) -> range:
        """Those whose validation losses choose."""
        return range(self.num_tuning_seeds)

    @property
    def seeds(self) -> range:
        """Fresh ones, for the test split."""
        return range(self.num_tuning_seeds, self.num_tuning_seeds + self.num_seeds)


def lowest(losses: ArrayLike, axis: int = -1) -> np.ndarray:
    """Places of the lowest losses along an axis, the first of equals; what diverged comes last.

    >>> lowest([[3.0, np.nan, 1.0], [np.inf, np.nan, np.inf]]).tolist()
    [2, 0]
    """
    return np.where(np.isfinite(losses), losses, np.inf).argmin(axis)


def lowest_few(losses: ArrayLike, num: int) -> np.ndarray:
    """Places of the `num` lowest losses, the lowest first.

    >>> lowest_few([3.0, np.nan, 1.0, 2.0], 2).tolist()
    [2, 3]
    """
    return np.argsort(np.where(np.isfinite(losses), losses, np.inf), kind="stable")[:num]


class Finalists(NamedTuple):
    """Of each row of candidates, those with the lowest losses of one seed, tried with more.

    Attributes:
      places: Of them among the candidates, (num_rows, num).
      losses: Of all seeds, the first one's first, (num_rows, num, num_seeds).
      chosen: The place of the one with the lowest mean, (num_rows,).
    """

    places: np.ndarray
    losses: np.ndarray
    chosen: np.ndarray


def choose_by_halving(
    first: np.ndarray,
    candidates: np.ndarray,
    num: int,
    validate: Callable[[np.ndarray], np.ndarray],
) -> Finalists:
    """Tries the best few candidates of each row with more seeds; the lowest mean is chosen.

    Args:
      first: Validation losses with one seed, (num_rows, num_candidates).
      candidates: What was tried, (num_rows, num_candidates, num_axes).
      num: How many of a row are tried with more seeds.
      validate: Of candidates (num_rows, num, num_axes) the losses with further seeds,
        (num_rows, num, num_further).

    >>> candidates = np.arange(4.0)[None, :, None]  # the lower the better with the first seed
    >>> further = lambda few: 30 - 10 * few  # the other way round
    >>> found = choose_by_halving(candidates[..., 0], candidates, 2, further)
    >>> found.places.tolist(), found.losses.tolist(), found.chosen.tolist()
    ([[0, 1]], [[[0.0, 30.0], [1.0, 20.0]]], [1])
    """
    places = np.stack([lowest_few(losses, num) for losses in first])
    known = np.take_along_axis(first, places, 1)[..., None]
    further = validate(np.take_along_axis(candidates, places[..., None], 1))
    losses = np.concatenate([known, further], -1)
    best = lowest(losses.mean(-1))[:, None]
    return Finalists(places, losses, np.take_along_axis(places, best, 1)[:, 0])
