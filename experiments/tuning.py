"""Settings chosen by their held-out losses; what is not finite is never better."""

from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from experiments.config import ScheduledConfig, check_least


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


def best_on_other_seeds(loss: xr.DataArray, over: str) -> xr.DataArray:
    """For each seed the place along `over` with the lowest mean loss of all other seeds.

    A setting that diverges (NaN) on one of those is never chosen while another is left.

    Args:
      loss: Held-out losses with the dimensions `seed`, two or more, `over`, and any others.

    Returns:
      Places along `over`, with the other dimensions.

    >>> loss = xr.DataArray([[1.0, 5.0, 1.0], [2.0, 2.0, 2.0]], dims=("rate", "seed"))
    >>> best_on_other_seeds(loss, "rate").values  # without seed 1's, rate 0 is the better
    array([1, 0, 1])
    """
    places = np.arange(loss.sizes["seed"])
    means = [loss.isel(seed=places != seed).mean("seed", skipna=False) for seed in places]
    return xr.concat(means, "seed").fillna(np.inf).argmin(over)
