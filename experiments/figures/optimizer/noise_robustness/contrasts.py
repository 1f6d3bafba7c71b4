"""Gains of one number of stages over another, and their growth with noise.

Everything is a weighted sum of test losses, one sum for each seed: seeds are independent, while
members of one seed share initial weights and crops. Its interval is Student's, since a bootstrap of
few seeds is too narrow; it is open on the side where a learning rate at an end of its grid leaves
open how low a loss can be.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from experiments.core.stats import NOTHING, Estimate, mean

SMALLER, LARGER = (1, 2), 3
"""Adam and the paper's best k; the smallest k that is larger."""


class Condition(NamedTuple):
    """The noise of a training run; the names are those of `AXES`."""

    batch: int
    gradient_noise: float
    label_noise: float


class Axis(NamedTuple):
    """One kind of noise."""

    amount: Callable[[np.ndarray], np.ndarray]
    """Maps the coordinate to a number that grows with the noise."""
    unit: str
    """The unit of that number."""
    reach: float
    """The distance between the ends that a statement about this noise requires."""


AXES: Mapping[str, Axis] = {
    "batch": Axis(lambda batch: -np.log2(batch), "halving", math.log2(512 / 8)),
    "gradient_noise": Axis(np.asarray, "level of 1", 3.0),
    "label_noise": Axis(lambda share: 10 * share, "tenth of the labels", 3.0),
}
"""Axes by the name of the coordinate along `condition`."""


def amount(run: xr.Dataset, axis: str) -> np.ndarray:
    """Return how noisy each condition is along one axis."""
    return AXES[axis].amount(run[axis].values.astype(float))


def along(run: xr.Dataset, axis: str) -> np.ndarray:
    """Return the indices of the conditions that differ only in one noise, from the least noise up.

    Args:
      run: A dataset whose first condition is the one from which the others differ.
      axis: A key of `AXES`.
    """
    alike = [run[name].values == run[name].values[0] for name in AXES if name != axis]
    places = np.flatnonzero(np.all(alike, axis=0))
    return places[np.argsort(amount(run, axis)[places], kind="stable")]


def reaches(run: xr.Dataset, axis: str) -> bool:
    """Return whether the conditions are far enough apart for a statement about this noise."""
    amounts = amount(run, axis)[along(run, axis)]
    return bool(amounts[-1] - amounts[0] >= AXES[axis].reach)


def larger(run: xr.Dataset) -> list[int]:
    """Return every k that is larger than the paper's best."""
    return [k for k in run.k.values.tolist() if k >= LARGER]


def contrast(run: xr.Dataset, weights: xr.DataArray, sides: xr.DataArray | None = None) -> Estimate:
    """Return the mean over seeds of a weighted sum of test losses, with its 95% interval.

    Args:
      run: Has `test` (condition, k, seed) and `rate_at_edge` (condition, k).
      weights: Weights over condition and k; a run without a weight may have diverged.
      sides: The same signs for all candidates, if weights are those of a choice.
    """
    used, at_edge = weights != 0, run.rate_at_edge
    sides = weights if sides is None else sides
    if not used.any():
        return NOTHING
    sums = (weights * run.test.where(used, 0.0)).sum(["condition", "k"], skipna=False)
    may_be_lower, may_be_higher = at_edge & (sides > 0), at_edge & (sides < 0)
    return mean(sums).opened(lower=bool(may_be_lower.any()), higher=bool(may_be_higher.any()))


def gain(run: xr.Dataset, axis: str) -> Estimate:
    """Return the loss of the best of k = 1, 2 minus that of the best larger k, at the most noise.

    The best of each are chosen on the validation split, with the seeds that tune learning rates; a
    k that was not chosen may be the best if its learning rate is at an end of its grid.
    """
    weights, sides = _no_weights(run), _no_weights(run)
    noisiest = along(run, axis)[-1]
    for ks, sign in ((SMALLER, 1.0), (larger(run), -1.0)):
        group = run.k.isin(list(ks))
        tuned = run.tuned_validation.isel(condition=noisiest).sel(k=group)
        if not tuned.size:
            return NOTHING
        best = tuned.k.values[tuned.values.argmin()].item()
        weights[noisiest, _place(run, best)] = sign
        sides[noisiest, group.values] = sign
    return contrast(run, weights, sides)


def trend(run: xr.Dataset, axis: str, ks: Sequence[int]) -> Estimate:
    """Return the slope of Adam's loss minus k-Adam's over the noise, mean over some k > 1."""
    weights = _no_weights(run)
    places = along(run, axis)
    if len(places) < 2 or not ks:
        return NOTHING
    amounts = amount(run, axis)[places]
    deviations = amounts - amounts.mean()
    slope = deviations / (deviations**2).sum()
    weights[places, _place(run, 1)] = slope
    for k in ks:
        weights[places, _place(run, k)] = -slope / len(ks)
    return contrast(run, weights)


def _place(run: xr.Dataset, k: int) -> int:
    return run.k.values.tolist().index(k)


def _no_weights(run: xr.Dataset) -> xr.DataArray:
    return xr.zeros_like(run.rate_at_edge.transpose("condition", "k"), dtype=float)
