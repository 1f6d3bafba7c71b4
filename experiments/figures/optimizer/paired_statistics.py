"""Differences between two things trained with the same seeds: intervals, and tests of many."""

import numpy as np
import xarray as xr
from jax.typing import ArrayLike
from scipy import stats

from experiments.core.stats import mean_interval

RESAMPLES = 9999


def paired_interval(differences: xr.DataArray | ArrayLike) -> np.ndarray:
    """The mean of paired differences with a 95% interval: a bootstrap's, widened to Student's t.

    The bootstrap (BCa, the pairs resampled) follows a skewed distribution, but it is too narrow for
    few seeds: of 5, 10 and 20 normal differences it covers the mean in 84%, 91% and 93% of cases,
    Student's interval in 95%. Each end is the outer one of the two.

    Args:
      differences: One for each seed, two or more.

    Returns:
      Shape (3,) as `experiments.core.stats.ENDS`; all NaN if a difference is not finite.

    Raises:
      ValueError: If there are fewer than 2.

    >>> paired_interval([1.0, 2.0, 3.0, 4.0, 5.0]).round(1).tolist()
    [3.0, 1.0, 5.0]
    >>> paired_interval([2.0, 2.0]).tolist()
    [2.0, 2.0, 2.0]
    """
    values = _of_seeds(differences)
    if not np.isfinite(values).all():
        return np.full(3, np.nan)
    if np.ptp(values) == 0:
        return np.repeat(values[0], 3)
    found = stats.bootstrap((values,), np.mean, n_resamples=RESAMPLES, rng=np.random.default_rng(0))
    bootstrap_low, bootstrap_high = found.confidence_interval
    mean, low, high = mean_interval(values)
    return np.array([mean, min(low, bootstrap_low), max(high, bootstrap_high)])


def paired_p_value(differences: xr.DataArray | ArrayLike) -> float:
    """Of the hypothesis that the mean paired difference is 0, two-sided, by Student's t.

    A bootstrap of a few seeds cannot give the small probabilities that many comparisons need.

    Args:
      differences: One for each seed, two or more.

    Returns:
      The probability; NaN if a difference is not finite.

    Raises:
      ValueError: If there are fewer than 2.

    >>> round(paired_p_value([1.0, 2.0, 3.0]), 4)
    0.0742
    """
    values = _of_seeds(differences)
    if not np.isfinite(values).all():
        return np.nan
    if np.ptp(values) == 0:
        return float(values[0] == 0)
    return float(stats.ttest_1samp(values, 0.0).pvalue)


def _of_seeds(differences: xr.DataArray | ArrayLike) -> np.ndarray:
    values = np.asarray(differences, np.float64).ravel()
    if values.size < 2:
        raise ValueError(f"differences must be of at least 2 seeds, got {values.size}")
    return values


def holm(p_values: ArrayLike) -> np.ndarray:
    """Holm's adjusted p-values: below α, a hypothesis of the family is rejected at level α.

    p̃₍ᵢ₎ = max over j <= i of min(1, (m - j + 1) p₍ⱼ₎) with the m values in rising order (Holm,
    "A simple sequentially rejective multiple test procedure", 1979).

    Args:
      p_values: Shape (m,); NaN, which is no evidence, counts as 1.

    Returns:
      Shape (m,).

    >>> holm([0.01, 0.04, 0.03]).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.nan_to_num(np.asarray(p_values, np.float64), nan=1.0)
    order = np.argsort(values, kind="stable")
    scaled = values[order] * np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted
