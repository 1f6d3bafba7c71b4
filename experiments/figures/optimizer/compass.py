"""The search of each contender: a coarse grid, steps of a compass, and finalists, as many for all.

A place is a pair of numbers (rate, memory): the learning rate is 2^rate times that of the
contender's row, and its averages remember 2^-memory times as long.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.figures.optimizer.contender_table import Contender, decays
from experiments.training.tuning import Train, Tuned, lowest, tune

Place = tuple[float, float]
COMPASS = ((1, 0), (-1, 0), (0, 1), (0, -1))


class Found(NamedTuple):
    """What a search found."""

    places: list[Place]
    """All places tried, the coarse grid first."""
    tuned: Tuned
    at_edge: tuple[bool, bool]
    """Whether nothing was tried beyond the chosen place along the rate, and along the memory."""

    @property
    def picked_validation(self) -> float:
        """The chosen place's validation loss, mean over tuning seeds; others may have diverged."""
        means = self.tuned.losses[0].mean(-1)
        return means[int(lowest(means))]


def columns(contender: Contender, places: Sequence[Place]) -> dict[str, np.ndarray]:
    """Return members at places, as a single row of candidates."""
    b1, b2 = np.array([decays(contender, memory) for _, memory in places]).T
    return {
        "learning_rate": contender.rate * 2.0 ** np.array([[rate for rate, _ in places]]),
        "b1": b1[None],
        "b2": b2[None],
        "weight_decay": np.full((1, len(places)), contender.weight_decay),
    }


def coarse_grid(num_rates: int, num_memories: int) -> list[Place]:
    """Return a grid around (0, 0), or one step more to lower rates if their number is even.

    >>> coarse_grid(2, 1)
    [(-1.0, 0.0), (0.0, 0.0)]
    """
    return [
        (float(rate), float(memory))
        for memory in _around(num_memories)
        for rate in _around(num_rates)
    ]


def _around(number: int) -> range:
    return range(-(number // 2), number - number // 2)


def neighbors(best: Place, tried: Sequence[Place]) -> list[Place]:
    """Return one new place in each direction: a factor of 2 away, of √2 if that is known, ...

    >>> neighbors((0.0, 0.0), [(0.0, 0.0), (1.0, 0.0)])
    [(0.5, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)]
    """
    found = []
    for rate, memory in COMPASS:
        step = 1.0
        while (place := (best[0] + step * rate, best[1] + step * memory)) in tried:
            step /= 2
        found.append(place)
    return found


def search(config: Any, contender: Contender, train: Train) -> Found:
    """Choose a contender's learning rate and memory on one task.

    Args:
      config: Has `places`, the coarse grid, `num_rounds`, `num_finalists` and `tuning_seeds`.
      contender: The contender.
      train: Trains candidates.

    Returns:
      The choice; every contender is given the same number of runs.
    """
    tried, first = list(config.places), None
    for turn in range(config.num_rounds + 1):
        new = tried if first is None else neighbors(tried[_best(first)], tried)
        found = train(f"round{turn}", columns(contender, new), config.tuning_seeds[:1])
        first = found if first is None else _joined(first, found)
        tried = tried if new is tried else [*tried, *new]
    tuned = tune(train, columns(contender, tried), config.tuning_seeds, config.num_finalists, first)
    return Found(tried, tuned, at_edge(contender, tried, tried[int(tuned.chosen[0])]))


def _best(found: Mapping[str, np.ndarray]) -> int:
    return int(lowest(found["validation"][0, :, 0]))


def _joined(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {key: np.concatenate([x, other[key]], 1) for key, x in one.items()}


def at_edge(contender: Contender, tried: Sequence[Place], chosen: Place) -> tuple[bool, bool]:
    """Return whether nothing was tried beyond a place, along each axis; no memory is not an edge.

    >>> from experiments.figures.optimizer.contender_table import CONTENDERS
    >>> at_edge(CONTENDERS["adamw"], coarse_grid(3, 3), (1.0, 0.0))
    (True, False)
    """
    rate, memory = chosen
    rates = [other for other, its in tried if its == memory]
    memories = [its for other, its in tried if other == rate]
    shortest = memory == max(memories) and any(decays(contender, memory))
    return rate in (min(rates), max(rates)), memory == min(memories) or shortest
