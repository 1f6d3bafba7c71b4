"""The protocol by which contenders are compared: each is given the same number of runs on a task.

These are a coarse grid of learning rate and memory with one seed; with the same seed steps of a
compass from the best, and steps beyond the best wherever nothing was tried; the best few with more
seeds; and fresh seeds for what was chosen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xarray as xr

from experiments.core.config import check_least, require
from experiments.core.run import Run
from experiments.core.store import coordinates, named, over
from experiments.figures.optimizer.compass import (
    COMPASS,
    Found,
    Place,
    coarse_grid,
    columns,
    search,
)
from experiments.figures.optimizer.contender_table import Contender
from experiments.figures.optimizer.problems import Problem, train_measured
from experiments.training.config import LAPTOP_MODEL, ContendersConfig
from experiments.training.schedules import SCHEDULES
from experiments.training.tuning import Train, TunedConfig, trainer
from models.nanogpt import GPTConfig

PARTS = 4
"""Course measurements are a multiple of this, so that one is at three quarters of a run."""


@dataclass(frozen=True)
class SearchedConfig(TunedConfig, ContendersConfig):
    """The fields of the protocol; learning_rate is 1, since each contender's row has its own.

    Schedule-free AdamW has a constant learning rate in place of the cosine.

    Attributes:
      num_rates: Learning rates of the coarse grid, each twice the one before.
      num_memories: Memories of the coarse grid, each half the one before: all decays of a
        contender are moved so that 1 minus the decay doubles.
      num_rounds: Steps of the compass; each tries four settings around the best one.
      num_closings: Closing steps; each tries four settings beyond the best ones, on the sides on
        which nothing was tried.
      num_finalists: How many of the settings are trained with all tuning seeds.
      num_points: How often the loss is measured in the course of a run.
      course_batches: Batches of text for that.
    """

    model: GPTConfig = LAPTOP_MODEL
    learning_rate: float = 1.0
    num_rates: int = 6
    num_memories: int = 3
    num_rounds: int = 1
    num_closings: int = 4
    num_finalists: int = 4
    num_tuning_seeds: int = 3
    num_seeds: int = 12
    num_points: int = 8
    course_batches: int = 8
    eval_batches: int = 32
    chunk_size: int = 4

    @property
    def places(self) -> list[Place]:
        """The coarse grid."""
        return coarse_grid(self.num_rates, self.num_memories)

    @property
    def num_tried(self) -> int:
        """Number of settings that each contender tries on each task."""
        steps = self.num_rounds + self.num_closings
        return self.num_rates * self.num_memories + len(COMPASS) * steps

    def __post_init__(self):
        super().__post_init__()
        require(self.learning_rate == 1, "learning_rate must be 1", self.learning_rate)
        check_least(
            self,
            num_rates=2,
            num_memories=1,
            num_rounds=0,
            num_closings=0,
            num_finalists=1,
            num_tuning_seeds=2,
            course_batches=1,
        )
        rule = f"num_finalists must be at most {self.num_tried}, the settings tried"
        require(self.num_finalists <= self.num_tried, rule, self.num_finalists)
        rule = f"num_points must be a multiple of {PARTS} that divides num_steps={self.num_steps}"
        holds = self.num_points > 0 == self.num_points % PARTS == self.num_steps % self.num_points
        require(holds, rule, self.num_points)


class Searched(NamedTuple):
    """A contender's search on a task, and the test of what was chosen."""

    train: Train
    found: Found
    fresh: Mapping[str, np.ndarray]
    """The chosen setting's measures with fresh seeds, (1, num_seeds, ...)."""


def searched(
    config: SearchedConfig, run: Run, name: str, contender: Contender, of: Problem
) -> Searched:
    """Search a contender's setting on a task, and train the chosen one with fresh seeds.

    Args:
      config: The figure's configuration.
      run: The figure's run.
      name: Distinguishes the sweeps from others.
      contender: The contender.
      of: The task.
    """
    train = trainer(run, name, trial(config, contender, of), config.chunk_size)
    found = search(config, contender, train)
    return Searched(train, found, train("fresh", found.tuned.picked, config.seeds))


def trial(config: SearchedConfig, contender: Contender, of: Problem):
    """Return a function that trains a member of a contender on a task."""
    row = contender.optimizer
    after = SCHEDULES["cosine" if row.decays_rate else "constant"]
    shape = after(of.num_steps, config.warmup_steps * of.setting.steps, config.final_rate)
    ratio = of.setting.batch if contender.squares else 1

    def fn(member):
        rate = member["learning_rate"]
        at = {"eps": row.eps, **member, "b2": member["b2"] ** ratio}
        optimizer = row.make(at, lambda count: rate * shape(count))
        return train_measured(of, optimizer, member["seed"], config.num_points, row.evaluated)

    return fn


def results(
    config: SearchedConfig, arm: str, contender: Contender, task: str, of: Problem, its: Searched
) -> xr.Dataset:
    """Return what was tried, chosen and measured, over an arm and a task, both of size 1."""
    tried = columns(contender, its.found.places)
    first, fresh = its.found.tuned.first["validation"][0, :, 0], its.fresh
    nats = "nat"
    values = {
        ("candidate",): {
            "validation": (first, "validation loss, first tuning seed", nats),
            "learning_rate": (tried["learning_rate"][0], "learning rate η"),
            "b1": (tried["b1"][0], "γ of every stage, or the contender's b1"),
            "b2": (tried["b2"][0], "β of every stage, or the contender's b2"),
        },
        (): {
            "picked": (int(its.found.tuned.chosen[0]), "index of the chosen candidate"),
            "picked_validation": (
                its.found.picked_validation,
                "validation loss of what was chosen, mean over tuning seeds",
                nats,
            ),
        },
        ("axis",): {
            "at_edge": (its.found.at_edge, "whether nothing was tried beyond what was chosen")
        },
        ("seed",): {
            "loss": (fresh["loss"][0], "test loss, fresh seeds", nats),
            "score": (
                fresh["score"][0],
                "test loss of text, or percent of test images that are misclassified, fresh seeds",
                "nat/token or %",
            ),
        },
        ("seed", "point"): {
            "course": (
                fresh["course"][0],
                "validation loss in the course of a run, fresh seeds",
                nats,
            )
        },
    }
    steps = of.num_steps * np.arange(1, config.num_points + 1) / config.num_points
    return xr.Dataset(
        {
            key: variable
            for dims, rows in values.items()
            for key, variable in over(("arm", "task", *dims), leading(rows, 2)).items()
        },
        coordinates(
            arm=([arm], "contender"),
            task=([task], "task"),
            candidate=(np.arange(config.num_tried), "setting tried, the coarse grid first"),
            axis=(["rate", "memory"], "what is searched"),
            seed=(config.seeds, "fresh seed"),
            point=(np.arange(config.num_points), "measurement in the course of a run"),
        )
        | {"steps": named((("task", "point"), steps[None]), "optimizer steps done", "step")},
    )


def leading(rows: Mapping[str, tuple], axes: int = 1) -> dict[str, tuple]:
    """Return the rows with axes of size 1 in front of their values."""
    return {
        key: (np.asarray(values)[(None,) * axes], *label) for key, (values, *label) in rows.items()
    }
