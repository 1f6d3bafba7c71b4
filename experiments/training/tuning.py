"""Choice of settings by their held-out losses; a loss that is not finite is never better."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from experiments.core.config import check_least
from experiments.core.run import Run
from experiments.training.config import ScheduledConfig
from kadam_jax import grid, points


@dataclass(frozen=True)
class TunedConfig(ScheduledConfig):
    """`ScheduledConfig` where the validation losses of some seeds choose what fresh seeds test.

    Attributes:
      num_seeds: Number of fresh seeds, for test losses; they follow the tuning seeds.
      num_tuning_seeds: Number of seeds 0, 1, ..., whose mean validation loss chooses.
    """

    num_tuning_seeds: int = 3

    def __post_init__(self):
        super().__post_init__()
        check_least(self, num_seeds=2, num_tuning_seeds=1)

    @property
    def tuning_seeds(self) -> range:
        """The seeds whose validation losses choose."""
        return range(self.num_tuning_seeds)

    @property
    def seeds(self) -> range:
        """Fresh seeds, for the test split."""
        return range(self.num_tuning_seeds, self.num_tuning_seeds + self.num_seeds)


def lowest(losses: ArrayLike) -> np.ndarray:
    """Return where losses are lowest along the last axis: the first of equals, diverged ones last.

    >>> lowest([[3.0, np.nan, 1.0], [np.inf, np.nan, np.inf]]).tolist()
    [2, 0]
    """
    return np.where(np.isfinite(losses), losses, np.inf).argmin(-1)


def ranked(*losses: ArrayLike) -> np.ndarray:
    """Return indices along the last axis from the lowest loss to the highest; diverged come last.

    Args:
      *losses: Arrays of equal shape; the last one takes precedence, and others rank its equals.
        Where all are equal, the first comes first.

    >>> ranked([3.0, np.nan, 1.0, 2.0]).tolist(), ranked([5.0, 4.0], [1.0, 1.0]).tolist()
    ([2, 3, 0, 1], [1, 0])
    """
    return np.lexsort([np.where(np.isfinite(x), x, np.inf) for x in losses])


Candidates = Mapping[str, np.ndarray]
"""A column for each value of a member, all of the same shape; if one of each row is chosen, this is
(num_rows, num_candidates)."""
Train = Callable[[str, Candidates, Sequence[int]], dict[str, np.ndarray]]
"""`train(stage, candidates, seeds)` returns the results of every candidate with every seed:
`validation`, `test`, and others, (*shape of the candidates, num_seeds, ...)."""


def trainer(
    run: Run, name: str, fn: Callable[[Mapping[str, Any]], Mapping[str, Any]], chunk_size: int
) -> Train:
    """Return a function that trains candidates with seeds, each stage in a sweep of its own.

    Args:
      run: The figure's run.
      name: Distinguishes its sweeps from others.
      fn: Maps a member, including its `seed`, to its results.
      chunk_size: As in `Run.sweep`.

    """

    def train(stage, candidates, seeds):
        shape = next(iter(candidates.values())).shape
        columns = {key: np.ravel(column) for key, column in candidates.items()}
        found = run.sweep(
            f"{stage}_{name}",
            fn,
            grid(candidate=points(**columns), seed=np.array(seeds)),
            chunk_size=chunk_size,
        )
        return {key: x.reshape(*shape, *x.shape[1:]) for key, x in found.items()}

    return train


class Tuned(NamedTuple):
    """The chosen candidate of each row, and the losses that chose it."""

    first: Mapping[str, np.ndarray]
    """The results of all candidates, (num_rows, num_candidates, num_first_seeds, ...)."""
    places: np.ndarray
    """Indices of the finalists among the candidates, the best first, (num_rows, num_finalists)."""
    losses: np.ndarray
    """Validation losses of the finalists with all seeds, (num_rows, num_finalists, num_seeds)."""
    chosen: np.ndarray
    """Index of the candidate whose mean loss as a finalist is the lowest, (num_rows,)."""
    picked: Candidates
    """The chosen candidates, columns (num_rows,)."""


def tune(
    train: Train,
    candidates: Candidates,
    seeds: Sequence[int],
    few: int | None = None,
    first: Mapping[str, np.ndarray] | None = None,
) -> Tuned:
    """Choose one candidate of each row by its mean validation loss; tests use other seeds.

    Candidates with equal validation (such as errors on few examples) are ranked by their
    `validation_loss`, if there is one; a value that is not finite is never better than one that is.

    Args:
      train: Trains candidates.
      candidates: The candidates, (num_rows, num_candidates).
      seeds: The seeds that choose.
      few: How many candidates of a row, those best with the first seed, are tried with all seeds;
        None for all.
      first: The candidates' results with the first seed, if already known.

    >>> candidates = {"rate": np.arange(4.0)[None]}  # with the first seed, the lower the better
    >>> def train(stage, candidates, seeds):
    ...     by_seed = [candidates["rate"] if seed == 0 else 30 - 10 * candidates["rate"]
    ...                for seed in seeds]
    ...     return {"validation": np.stack(by_seed, -1)}
    >>> found = tune(train, candidates, seeds=[0, 1], few=2)
    >>> found.places.tolist(), found.losses.tolist(), found.picked["rate"].tolist()
    ([[0, 1]], [[[0.0, 30.0], [1.0, 20.0]]], [1.0])
    """
    first_seeds, more = (seeds, []) if few is None else (seeds[:1], seeds[1:])
    if first is None:
        first = train("tuning", candidates, first_seeds)
    places = _by_mean(first)[:, :few]
    finalists = {key: _at(first[key], places) for key in MEASURES if key in first}
    if more:
        further = train("finalists", {k: _at(x, places) for k, x in candidates.items()}, more)
        finalists = {key: np.concatenate([x, further[key]], 2) for key, x in finalists.items()}
    chosen = _at(places, _by_mean(finalists)[:, :1])[:, 0]
    picked = {key: _at(column, chosen[:, None])[:, 0] for key, column in candidates.items()}
    return Tuned(first, places, finalists["validation"], chosen, picked)


MEASURES = ("validation_loss", "validation")
"""The measures that rank candidates; the last one takes precedence."""


def _by_mean(found: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return indices from the lowest mean over seeds to the highest."""
    return ranked(*(found[key].mean(-1) for key in MEASURES if key in found))


def _at(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return values (num_rows, num_candidates, ...) at indices (num_rows, num)."""
    return np.take_along_axis(values, places.reshape(*places.shape, *[1] * (values.ndim - 2)), 1)
