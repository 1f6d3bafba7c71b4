"""Means over seeds with their intervals, as variables of a dataset."""

from collections.abc import Mapping

import numpy as np
import xarray as xr
from scipy import stats

ENDS = ("value", "low", "high")
"""The `end` coordinate: a variable with this dimension alone is a number with an interval."""
END_LABEL = {"end": ("value, or end of its 95% interval", "1")}


def mean_interval(values: xr.DataArray | np.ndarray) -> np.ndarray:
    """The mean of independent values with its 95% interval by Student's t, shape (3,) as `ENDS`.

    NaN ends for a single value; all NaN if a value is.

    >>> mean_interval(np.array([1.0, 2.0, 3.0])).round(2).tolist()
    [2.0, -0.48, 4.48]
    >>> mean_interval(np.array([2.0, 2.0, 2.0])).tolist()
    [2.0, 2.0, 2.0]
    """
    values = np.asarray(values, np.float64).ravel()
    mean = values.mean()
    half = stats.t.ppf(0.975, values.size - 1) * stats.sem(values) if values.size > 1 else np.nan
    return np.array([mean, mean - half, mean + half])


def means_over_seeds(
    statistics: Mapping[str, tuple[xr.DataArray, str, str]],
) -> tuple[dict[str, tuple[str, np.ndarray]], dict[str, tuple[str, str]]]:
    """The numbers that a figure states.

    Args:
      statistics: By name: one value for each seed, what it is, and its units.

    Returns:
      Variables over `end`, and their long_name and units for `labelled`; the dataset needs the
      coordinate `end`, which is `list(ENDS)`.
    """
    numbers = {name: ("end", mean_interval(values)) for name, (values, *_) in statistics.items()}
    labels = {
        name: (f"{label}, mean over seeds", units) for name, (_, label, units) in statistics.items()
    }
    return numbers, labels
