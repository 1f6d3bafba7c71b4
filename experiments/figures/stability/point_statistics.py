"""What each seed says of losses at several points; NumPy and xarray, after training."""

from collections.abc import Mapping

import numpy as np
import xarray as xr
from scipy import stats

from experiments.core.stats import means_over_seeds


def rank_correlation(values: xr.DataArray, loss: xr.DataArray) -> xr.DataArray:
    """Spearman's correlation of a value of the points with their loss.

    Args:
      values: Over `point` and any other dimension of `loss`.
      loss: Over `point` and others, such as `seed`; points with NaN are left out.

    Returns:
      Over all dimensions but `point`; NaN where all losses are the same.

    >>> x = xr.DataArray([1.0, 2.0, 3.0, 4.0], dims="point")
    >>> round(rank_correlation(x, xr.DataArray([9.0, 8.0, 1.0, np.nan], dims="point")).item(), 6)
    -1.0
    """

    def correlation(x, y):
        kept = ~np.isnan(y)
        if np.ptp(y[kept]) == 0:
            return np.nan
        return stats.spearmanr(x[kept], y[kept]).statistic

    core = [["point"], ["point"]]
    return xr.apply_ufunc(correlation, values, loss, input_core_dims=core, vectorize=True)


def excess_over_best_other(loss: xr.DataArray, place: int) -> xr.DataArray:
    """A point's loss less that of the best other point, which is chosen on the other seeds.

    Args:
      loss: Over `point`, `seed` and others; points with NaN are never chosen.
      place: The point's place.

    Returns:
      Over all dimensions but `point`.

    >>> loss = xr.DataArray([[2.0, 2.0], [1.0, 3.0], [1.5, 1.5]], dims=("point", "seed"))
    >>> excess_over_best_other(loss, 0).values.tolist()  # 1 is best in seed 0, 2 in seed 1
    [0.5, -1.0]
    """
    others = loss.drop_isel(point=place)
    elsewhere = others.sum("seed", skipna=False) - others
    return loss.isel(point=place) - others.isel(point=elsewhere.fillna(np.inf).argmin("point"))


def spread(loss: xr.DataArray) -> xr.DataArray:
    """The largest less the smallest loss of the points, NaN left out."""
    return loss.max("point") - loss.min("point")


def optimum(loss: xr.DataArray) -> dict[str, xr.DataArray]:
    """The place of the lowest mean over seeds, and whether the points end there."""
    place = loss.mean("seed").argmin("point")
    return {"best_point": place, "best_at_edge": place.isin([0, loss.sizes["point"] - 1])}


def stated(
    data: xr.Dataset,
    statistics: Mapping[str, tuple[str, str]],
    horizons: Mapping[str, str],
    where: str = "",
    suffix: str = "",
) -> tuple[dict[str, tuple[str, np.ndarray]], dict[str, tuple[str, str]]]:
    """`means_over_seeds` of each statistic up to each horizon; correlations stay within ±1.

    Args:
      data: The statistics over `horizon` and `seed`.
      statistics: long_name and units by name.
      horizons: What to call each horizon.
      where: Behind a long_name.
      suffix: Behind a variable's name.

    Returns:
      Variables and labels as `means_over_seeds` gives them.
    """
    numbers, labels = means_over_seeds(
        {
            f"{name}_{horizon}{suffix}": (
                data[name].sel(horizon=horizon),
                f"{meaning}, {part}{where}",
                units,
            )
            for name, (meaning, units) in statistics.items()
            for horizon, part in horizons.items()
        }
    )
    for name, (dim, values) in numbers.items():
        if name.startswith("rank_correlation"):
            numbers[name] = (dim, values.clip(-1, 1))
    return numbers, labels


OPTIMUM_LABELS = {
    "best_point": ("place of the point with the lowest mean loss up to a horizon", "1"),
    "best_at_edge": ("whether that is the first or the last point", "1"),
}
