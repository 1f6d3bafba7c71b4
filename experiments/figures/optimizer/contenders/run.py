"""k-Adam, Muon with stages around it, and their rivals, under one protocol; not in the paper.

Every contender is searched on each task as the family's protocol says; fresh seeds also test the
one setting of the coarse grid that suits all tasks best.
"""

from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from experiments.core.config import check_least, check_names, require
from experiments.core.run import Run
from experiments.core.store import coordinates, named, over
from experiments.figures.optimizer.compass import Found, Place, columns
from experiments.figures.optimizer.contender_table import CONTENDERS
from experiments.figures.optimizer.contenders.analysis import analyze
from experiments.figures.optimizer.problems import TASKS, Problem, problem
from experiments.figures.optimizer.protocol import (
    SearchedConfig,
    leading,
    results,
    searched,
)
from experiments.training.config import DEEP_MODEL, ImagesConfig
from experiments.training.optimizers import ADAMW
from experiments.training.tuning import lowest
from models.cnn import CNNConfig
from models.nanogpt import GPTConfig


@dataclass(frozen=True)
class Config(SearchedConfig, ImagesConfig):
    """The configuration.

    Attributes:
      tasks: What is trained, names of the table of tasks.
      contenders: Who is compared, names of the table of contenders, always including "adamw".
      deep_model: The network of "text_deep".
      cnn: The network for images.
      image_batch: Images in a batch.
      num_shared_seeds: Fresh seeds for the setting that all tasks share.
    """

    tasks: tuple[str, ...] = tuple(TASKS)
    contenders: tuple[str, ...] = tuple(CONTENDERS)
    deep_model: GPTConfig = DEEP_MODEL
    cnn: CNNConfig = field(default_factory=lambda: CNNConfig(width=1 / 16))
    image_batch: int = 4
    num_shared_seeds: int = 4

    def __post_init__(self):
        super().__post_init__()
        check_names(self, "tasks", TASKS)
        check_names(self, "contenders", CONTENDERS, ADAMW)
        check_least(self, image_batch=1, num_shared_seeds=2)
        rule = f"num_shared_seeds must be at most num_seeds={self.num_seeds}"
        require(self.num_shared_seeds <= self.num_seeds, rule, self.num_shared_seeds)


def compute(config: Config, run: Run) -> xr.Dataset:
    """Search and test every contender on every task, one program for each pair; then `analyze`."""
    problems = {name: problem(config, name, run) for name in config.tasks}
    data = xr.concat([_contender(config, run, name, problems) for name in config.contenders], "arm")
    chances = ("task", [of.chance for of in problems.values()])
    labels = ("task", [TASKS[name].label for name in config.tasks])
    return analyze(
        data.assign_coords(
            chance=named(chances, "loss of a uniform guess", "nat"),
            label=named(labels, "what is trained"),
        )
    )


def _contender(config: Config, run: Run, name: str, problems: dict[str, Problem]) -> xr.Dataset:
    """Search and test one contender on all tasks, and at the setting that they share."""
    contender = CONTENDERS[name]
    tried = {
        task: searched(config, run, f"{task}_{name}", contender, of)
        for task, of in problems.items()
    }
    by_task = [
        results(config, name, contender, task, problems[task], its) for task, its in tried.items()
    ]
    found = [its.found for its in tried.values()]
    shared, guess = _shared(config, found, list(problems.values()))
    picked = {key: column[:, 0] for key, column in columns(contender, [shared]).items()}
    seeds = config.seeds[: config.num_shared_seeds]
    again = [its.train("shared", picked, seeds)["loss"][0] for its in tried.values()]
    label = "test loss at the setting that all tasks share"
    numbers = {
        "shared_rate": (picked["learning_rate"][0], "learning rate that all tasks share"),
        "shared_b1": (picked["b1"][0], "b1 that all tasks share"),
        "shared_b2": (picked["b2"][0], "b2 that all tasks share"),
        "shared_validation": (
            guess,
            "validation loss at the shared setting, first tuning seed, as a share of a uniform "
            "guess's, mean over tasks",
        ),
    }
    return (
        xr.concat(by_task, "task")
        .assign(
            shared_loss=named(
                (("arm", "task", "shared_seed"), np.stack(again)[None]), label, "nat"
            ),
            **over("arm", leading(numbers)),
        )
        .assign_coords(coordinates(shared_seed=(seeds, "fresh seed of the shared setting")))
    )


def _shared(config: Config, found: list[Found], problems: list[Problem]) -> tuple[Place, float]:
    """Return the place of the coarse grid that suits all tasks best, and its loss.

    This is the place whose validation loss, as a share of a uniform guess's, has the lowest mean
    over tasks.
    """
    losses = [
        its.tuned.first["validation"][0, : len(config.places), 0] / of.chance
        for its, of in zip(found, problems, strict=True)
    ]
    means = np.mean(losses, 0)
    best = int(lowest(means))
    return config.places[best], means[best]
