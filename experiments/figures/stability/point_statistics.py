"""Statistics of each seed's losses at several points; NumPy and xarray, after training."""

from collections.abc import Mapping

import xarray as xr

from experiments.core.stats import at_end, best_on_other_seeds, means_over_seeds, spearman
from experiments.core.store import named


def rank_correlation(values: xr.DataArray, loss: xr.DataArray) -> xr.DataArray:
    """Compute Spearman's correlation over `point` of a value with the loss.

    Points whose loss is NaN are left out; the result is NaN where all losses are the same.

    >>> x = xr.DataArray([1.0, 2.0, 3.0, 4.0], dims="point")
    >>> loss = xr.DataArray([9.0, 8.0, 1.0, float("nan")], dims="point")
    >>> round(rank_correlation(x, loss).item(), 6)
    -1.0
    """
    core = [["point"], ["point"]]
    return xr.apply_ufunc(spearman, values, loss, input_core_dims=core, vectorize=True)


def excess_over_best_other(loss: xr.DataArray, place: int) -> xr.DataArray:
    """Return the loss at a place along `point` minus that of the best other point.

    The other point is chosen on the other seeds; points with NaN are never chosen.

    >>> loss = xr.DataArray([[2.0, 2.0], [1.0, 3.0], [1.5, 1.5]], dims=("point", "seed"))
    >>> excess_over_best_other(loss, 0).values.tolist()  # 1 is best in seed 0, 2 in seed 1
    [0.5, -1.0]
    """
    others = loss.drop_isel(point=place)
    return loss.isel(point=place) - others.isel(point=best_on_other_seeds(others, "point"))


def spread(loss: xr.DataArray) -> xr.DataArray:
    """Return the largest minus the smallest loss of the points, leaving out NaN."""
    return loss.max("point") - loss.min("point")


def optimum(loss: xr.DataArray) -> dict[str, xr.DataArray]:
    """Find the place of the lowest mean over seeds, and whether the points end there."""
    place = loss.mean("seed").argmin("point")
    return {
        "best_point": named(place, "place of the point with the lowest mean loss up to a horizon"),
        "best_at_edge": named(
            place.copy(data=at_end(place, loss.sizes["point"])),
            "whether that is the first or the last point",
        ),
    }


def stated(
    data: xr.Dataset, horizons: Mapping[str, str], where: str = "", suffix: str = ""
) -> dict[str, xr.DataArray]:
    """Compute `means_over_seeds` of each statistic up to each horizon; clip correlations to ±1.

    Args:
      data: A dataset; every variable over exactly `horizon` and `seed` is a statistic.
      horizons: A label for each horizon.
      where: Appended to each long_name.
      suffix: Appended to each variable's name.
    """
    numbers = means_over_seeds(
        {
            f"{name}_{horizon}{suffix}": (
                values.sel(horizon=horizon),
                f"{values.long_name}, {part}{where}",
                values.units,
            )
            for name, values in data.data_vars.items()
            if {*values.dims} == {"horizon", "seed"}
            for horizon, part in horizons.items()
        }
    )
    return {
        name: number.clip(-1, 1, keep_attrs=True) if name.startswith("rank_correlation") else number
        for name, number in numbers.items()
    }
