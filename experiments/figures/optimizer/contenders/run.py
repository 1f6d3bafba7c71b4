"""k-Adam, Muon with stages around it, and their rivals, under one protocol; not in the paper.

For each task every contender is given the same number of runs: a coarse grid of learning rate and
memory with one seed; steps of a compass from the best, with the same seed; the best few with more
seeds; fresh seeds for what was chosen; and fresh seeds for the one setting of the coarse grid that
suits all tasks best.
"""

from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from experiments.core.config import check_least, require
from experiments.core.run import Run
from experiments.core.store import coordinates, named, over
from experiments.figures.optimizer.contenders.analysis import analyze
from experiments.figures.optimizer.contenders.problems import TASKS, Problem, problem, train
from experiments.figures.optimizer.contenders.rows import CONTENDERS, Contender
from experiments.figures.optimizer.contenders.search import (
    Place,
    coarse_grid,
    columns,
    search,
)
from experiments.training.config import LAPTOP_MODEL, ContendersConfig, ImagesConfig
from experiments.training.optimizers import ADAMW
from experiments.training.schedules import SCHEDULES
from experiments.training.tuning import TunedConfig, lowest, trainer
from models.cnn import CNNConfig
from models.nanogpt import GPTConfig

PARTS = 4
"""Course measurements are a multiple of this, so that one is at three quarters of a run."""


@dataclass(frozen=True)
class Config(TunedConfig, ContendersConfig, ImagesConfig):
    """The configuration; learning_rate is 1, since each contender's row has its own.

    Schedule-free AdamW has a constant learning rate in place of the cosine.

    Attributes:
      tasks: What is trained, names of the table of tasks.
      contenders: Who is compared, names of the table of contenders, always including "adamw".
      deep_model: The network of "text_deep".
      cnn: The network for images.
      image_batch: Images in a batch.
      num_rates: Learning rates of the coarse grid, each twice the one before.
      num_memories: Memories of the coarse grid, each half the one before: all decays of a
        contender are moved so that 1 minus the decay doubles.
      num_rounds: Steps of the compass; each tries four settings around the best one.
      num_finalists: How many of the settings are trained with all tuning seeds.
      num_shared_seeds: Fresh seeds for the setting that all tasks share.
      num_points: How often the loss is measured in the course of a run.
      course_batches: Batches of text for that.
    """

    model: GPTConfig = LAPTOP_MODEL
    tasks: tuple[str, ...] = tuple(TASKS)
    contenders: tuple[str, ...] = tuple(CONTENDERS)
    deep_model: GPTConfig = field(
        default_factory=lambda: GPTConfig(
            vocab_size=256, context=32, num_layers=4, num_heads=2, width=128, qk_norm=True
        )
    )
    cnn: CNNConfig = field(default_factory=lambda: CNNConfig(width=1 / 16))
    image_batch: int = 4
    learning_rate: float = 1.0
    num_rates: int = 8
    num_memories: int = 3
    num_rounds: int = 2
    num_finalists: int = 4
    num_tuning_seeds: int = 3
    num_seeds: int = 12
    num_shared_seeds: int = 4
    num_points: int = 8
    course_batches: int = 8
    eval_batches: int = 32
    chunk_size: int = 4

    @property
    def places(self) -> list[Place]:
        """The coarse grid."""
        return coarse_grid(self.num_rates, self.num_memories)

    @property
    def runs(self) -> int:
        """Number of runs of each contender on each task before the fresh ones."""
        finalists = self.num_finalists * (self.num_tuning_seeds - 1)
        return self.num_tried + finalists

    @property
    def num_tried(self) -> int:
        """Number of settings that each contender tries on each task."""
        return self.num_rates * self.num_memories + 4 * self.num_rounds

    def __post_init__(self):
        super().__post_init__()
        for name, table, needed in (("tasks", TASKS, set()), ("contenders", CONTENDERS, {ADAMW})):
            names = getattr(self, name)
            holds = bool(names) and len({*names}) == len(names)
            holds = holds and needed <= {*names} <= table.keys()
            including = f", including {ADAMW}" if needed else ""
            require(
                holds, f"{name} must be distinct names from {', '.join(table)}{including}", names
            )
        require(self.learning_rate == 1, "learning_rate must be 1", self.learning_rate)
        check_least(
            self,
            image_batch=1,
            num_rates=2,
            num_memories=1,
            num_rounds=0,
            num_finalists=1,
            num_tuning_seeds=2,
            num_shared_seeds=2,
            course_batches=1,
        )
        rule = f"num_finalists must be at most {self.num_tried}, the settings tried"
        require(self.num_finalists <= self.num_tried, rule, self.num_finalists)
        rule = f"num_points must be a multiple of {PARTS} that divides num_steps={self.num_steps}"
        holds = self.num_points > 0 == self.num_points % PARTS == self.num_steps % self.num_points
        require(holds, rule, self.num_points)
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
    """Search and test one contender on all tasks."""
    contender = CONTENDERS[name]
    trainers = {
        task: trainer(run, f"{task}_{name}", _trial(config, contender, of, task), config.chunk_size)
        for task, of in problems.items()
    }
    found = {task: search(config, contender, train) for task, train in trainers.items()}
    fresh = [
        train("fresh", found[task].tuned.picked, config.seeds) for task, train in trainers.items()
    ]
    shared, guess = _shared(config, list(found.values()), list(problems.values()))
    picked = {key: column[:, 0] for key, column in columns(contender, [shared]).items()}
    seeds = config.seeds[: config.num_shared_seeds]
    again = [train("shared", picked, seeds) for train in trainers.values()]
    tried = [columns(contender, its.places) for its in found.values()]

    def stacked(key, rows):
        return np.stack([row[key][0] for row in rows])

    chosen = [int(its.tuned.chosen[0]) for its in found.values()]
    edges = [its.at_edge for its in found.values()]
    losses = [its.picked_validation for its in found.values()]
    nats = "nat"
    values = {
        ("task", "candidate"): {
            "validation": (
                np.stack([its.tuned.first["validation"][0, :, 0] for its in found.values()]),
                "validation loss, first tuning seed",
                nats,
            ),
            "learning_rate": (stacked("learning_rate", tried), "learning rate η"),
            "b1": (stacked("b1", tried), "γ of every stage, or the contender's b1"),
            "b2": (stacked("b2", tried), "β of every stage, or the contender's b2"),
        },
        ("task",): {
            "picked": (chosen, "index of the chosen candidate"),
            "picked_validation": (
                losses,
                "validation loss of what was chosen, mean over tuning seeds",
                nats,
            ),
        },
        ("task", "axis"): {"at_edge": (edges, "whether nothing was tried beyond what was chosen")},
        ("task", "seed"): {
            "loss": (stacked("loss", fresh), "test loss, fresh seeds", nats),
            "score": (
                stacked("score", fresh),
                "test loss of text, or percent of test images that are misclassified, fresh seeds",
                "nat/token or %",
            ),
        },
        ("task", "seed", "point"): {
            "course": (
                stacked("course", fresh),
                "validation loss in the course of a run, fresh seeds",
                nats,
            )
        },
        ("task", "shared_seed"): {
            "shared_loss": (
                stacked("loss", again),
                "test loss at the setting that all tasks share",
                nats,
            )
        },
        (): {
            "shared_rate": (picked["learning_rate"][0], "learning rate that all tasks share"),
            "shared_b1": (picked["b1"][0], "b1 that all tasks share"),
            "shared_b2": (picked["b2"][0], "b2 that all tasks share"),
            "shared_validation": (
                guess,
                "validation loss at the shared setting, first tuning seed, as a share of a uniform "
                "guess's, mean over tasks",
            ),
        },
    }
    steps = np.array([of.num_steps for of in problems.values()])[:, None]
    steps = steps * np.arange(1, config.num_points + 1) / config.num_points
    return xr.Dataset(
        {
            key: variable
            for dims, rows in values.items()
            for key, variable in over(("arm", *dims), _leading(rows)).items()
        },
        coordinates(
            arm=([name], "contender"),
            task=(config.tasks, "task"),
            candidate=(np.arange(config.num_tried), "setting tried, the coarse grid first"),
            axis=(["rate", "memory"], "what is searched"),
            seed=(config.seeds, "fresh seed"),
            shared_seed=(seeds, "fresh seed of the shared setting"),
            point=(np.arange(config.num_points), "measurement in the course of a run"),
        )
        | {"steps": named((("task", "point"), steps), "optimizer steps done", "step")},
    )


def _leading(rows: dict[str, tuple]) -> dict[str, tuple]:
    """Return the rows with an axis of size 1 in front of their values."""
    return {key: (np.asarray(values)[None], *label) for key, (values, *label) in rows.items()}


def _shared(config: Config, found: list, problems: list[Problem]) -> tuple[Place, float]:
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


def _trial(config: Config, contender: Contender, of: Problem, task: str):
    """Return a function that trains a member of a contender on a task."""
    row = contender.optimizer
    after = SCHEDULES["cosine" if row.decays_rate else "constant"]
    scale = TASKS[task].steps
    shape = after(of.num_steps, config.warmup_steps * scale, config.final_rate)
    ratio = TASKS[task].batch if contender.squares else 1

    def fn(member):
        rate = member["learning_rate"]
        at = {"eps": row.eps, **member, "b2": member["b2"] ** ratio}
        optimizer = row.make(at, lambda count: rate * shape(count))
        return train(of, optimizer, member["seed"], config.num_points, row.evaluated)

    return fn
