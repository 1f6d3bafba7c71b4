"""A setting chosen by its held-out loss, never on the seed whose result is stated."""

import numpy as np
import xarray as xr


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
