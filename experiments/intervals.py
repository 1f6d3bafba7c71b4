"""Means and medians over seeds with their intervals, as variables of a dataset."""

from collections.abc import Callable, Mapping

import numpy as np
import xarray as xr
from scipy import stats

from experiments.judging import median

ENDS = ("value", "low", "high")
"""The `end` coordinate: a variable with this dimension alone is a number with an interval."""
END_LABEL = {"end": ("value, or end of its interval", "1")}

Statistics = Mapping[str, tuple[xr.DataArray, str, str]]
"""By name: one value for each seed, what it is, and its units."""
Numbers = tuple[dict[str, tuple[str, np.ndarray]], dict[str, tuple[str, str]]]
"""Variables over `end`, and their long_name and units for `labelled`."""


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


def median_interval(values: xr.DataArray | np.ndarray) -> np.ndarray:
    """`judging.median` of independent values with its interval, shape (3,) as `ENDS`.

    >>> median_interval(np.array([3.0, 1.0, 2.0, 5.0, 4.0])).tolist()
    [3.0, 1.0, 5.0]
    """
    estimate = median(np.asarray(values))
    return np.array([estimate.value, estimate.low, estimate.high])


def means_over_seeds(statistics: Statistics) -> Numbers:
    """The numbers that a figure states; its dataset needs the coordinate `end`, `list(ENDS)`."""
    return _over_seeds(statistics, mean_interval, "mean over seeds, 95% interval")


def medians_over_seeds(statistics: Statistics) -> Numbers:
    """The same as medians."""
    return _over_seeds(statistics, median_interval, "median over seeds, order statistics")


def _over_seeds(statistics: Statistics, interval: Callable, what: str) -> Numbers:
    numbers = {name: ("end", interval(values)) for name, (values, *_) in statistics.items()}
    labels = {name: (f"{label}, {what}", units) for name, (_, label, units) in statistics.items()}
    return numbers, labels
