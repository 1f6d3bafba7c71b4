"""The search of each contender: a grid, steps of a compass, closing steps and finalists.

All contenders have as many of each. A place is a pair of numbers (rate, memory): the learning rate
is 2^rate times that of the contender's row, and its averages remember 2^-memory times as long.
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from experiments.figures.optimizer.contender_table import Contender, decays
from experiments.training.tuning import Train, Tuned, lowest, ranked, tune

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


def neighbors(tried: Sequence[Place]) -> list[Place]:
    """Return a new place in each direction from the best: a factor of 2 away, or √2, and so on.

    Args:
      tried: The places tried, the best one first.

    >>> neighbors([(0.0, 0.0), (1.0, 0.0)])
    [(0.5, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)]
    """
    best, found = tried[0], []
    for rate, memory in COMPASS:
        step = 1.0
        while (place := (best[0] + step * rate, best[1] + step * memory)) in tried:
            step /= 2
        found.append(place)
    return found


def beyond(contender: Contender, tried: Sequence[Place], place: Place) -> Iterator[Place]:
    """Yield a new place, a factor of 2 away, on each untried side of a place.

    Only places that differ from it in one coordinate count. Beyond no memory there is nothing.

    Args:
      contender: The contender.
      tried: The places tried, in any order.
      place: One of them.

    >>> from experiments.figures.optimizer.contender_table import CONTENDERS
    >>> list(beyond(CONTENDERS["adamw"], coarse_grid(3, 3), (1.0, 0.0)))
    [(2.0, 0.0)]
    """
    away = [(rate - place[0], memory - place[1]) for rate, memory in tried]
    for rate, memory in COMPASS:
        # (x, y) is ahead if it is a positive multiple of (rate, memory).
        ahead = any(x * rate + y * memory > 0 == x * memory - y * rate for x, y in away)
        if not ahead and (memory <= 0 or any(decays(contender, place[1]))):
            yield place[0] + rate, place[1] + memory


def closing(contender: Contender, tried: Sequence[Place]) -> list[Place]:
    """Return four new places, as many as a step of the compass, `beyond` the best ones tried.

    A search that ends with such steps rarely ends at an edge of what it tried.

    Args:
      contender: The contender.
      tried: The places tried, the best one first.

    >>> from experiments.figures.optimizer.contender_table import CONTENDERS
    >>> closing(CONTENDERS["adamw"], [(1.0, 0.0), (0.0, 0.0)])
    [(2.0, 0.0), (1.0, 1.0), (1.0, -1.0), (-1.0, 0.0)]
    """
    new = (found for place in tried for found in beyond(contender, tried, place))
    return list(itertools.islice(dict.fromkeys(new), len(COMPASS)))


def search(config: Any, contender: Contender, train: Train) -> Found:
    """Choose a contender's learning rate and memory on one task.

    Args:
      config: Has `places`, the coarse grid, `num_rounds`, `num_closings`, `num_finalists` and
        `tuning_seeds`.
      contender: The contender.
      train: Trains candidates.

    Returns:
      The choice; every contender is given the same number of runs.
    """
    tried = list(config.places)
    first = train("round0", columns(contender, tried), config.tuning_seeds[:1])
    steps = [neighbors] * config.num_rounds + [partial(closing, contender)] * config.num_closings
    for turn, step in enumerate(steps, 1):
        new = step([tried[at] for at in ranked(first["validation"][0, :, 0])])
        found = train(f"round{turn}", columns(contender, new), config.tuning_seeds[:1])
        first = {key: np.concatenate([x, found[key]], 1) for key, x in first.items()}
        tried += new
    tuned = tune(train, columns(contender, tried), config.tuning_seeds, config.num_finalists, first)
    return Found(tried, tuned, at_edge(contender, tried, tried[int(tuned.chosen[0])]))


def at_edge(contender: Contender, tried: Sequence[Place], chosen: Place) -> tuple[bool, bool]:
    """Return whether nothing was tried on some side of a place, along each axis.

    >>> from experiments.figures.optimizer.contender_table import CONTENDERS
    >>> at_edge(CONTENDERS["adamw"], coarse_grid(3, 3), (1.0, 0.0))
    (True, False)
    """
    found = list(beyond(contender, tried, chosen))
    return any(rate != chosen[0] for rate, _ in found), any(its != chosen[1] for _, its in found)
