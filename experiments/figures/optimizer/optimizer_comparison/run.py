"""k-Adam and other optimizers, each tuned with the same number of runs; not in the paper.

An arm is one row of the figure: a rival as tuned, or k-Adam at one k with one strategy. The number
of trained members is the same for each optimizer; all of k-Adam's arms together are one optimizer.
Everything is tried with one seed, and the best with several: the lowest of a hundred losses with
one or two seeds is often that of a setting that fails with other seeds.
"""

import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import xarray as xr

from experiments.core.config import check_least, check_names, check_rising, require
from experiments.core.run import Run
from experiments.core.store import coordinates, named, over
from experiments.figures.optimizer.optimizer_comparison.gains import NATS, analyze
from experiments.figures.optimizer.optimizer_comparison.grids import Grid, Grids, Setting
from experiments.training.config import ContendersConfig
from experiments.training.optimizers import ADAMW, OPTIMIZERS, USUAL, strategy_decays
from experiments.training.trials import Trial, optimizer_trial, text_trial
from experiments.training.tuning import TunedConfig, trainer, tune
from kadam_jax import STRATEGIES

KADAM = "kadam"
SETTING = {
    "b1": "γ of every stage, or the optimizer's b1",
    "b2": "β of every stage, or the optimizer's b2",
    "weight_decay": "weight decay λ",
}
"""Labels of the values that distinguish members of an arm, apart from learning rate and seed."""


class Arm(NamedTuple):
    """One row of the figure."""

    name: str
    optimizer: str
    """The optimizer whose number of members the arm shares."""
    k: int
    """Stages of k-Adam; arms of one optimizer and k share a program."""
    settings: tuple[Setting, ...]
    """The settings that the arm is tuned over, apart from the learning rate."""


@dataclass(frozen=True)
class Config(TunedConfig, ContendersConfig):
    """The configuration, where the grids' rates multiply learning_rate.

    Schedule-free AdamW has a constant learning rate in place of the cosine.

    Attributes:
      optimizers: The optimizers compared, always including "adamw" and "kadam".
      ks: Numbers of stages of k-Adam, 2 or 3, each with every strategy.
      grids: The settings that each optimizer is tuned over, first with one seed.
      num_finalists: How many of each optimizer's best are trained with all tuning seeds; for
        k-Adam, the same number from each arm.
    """

    chunk_size: int = 10
    optimizers: tuple[str, ...] = (
        *(ADAMW, "nadamw", "rmsprop", "lion", "muon", "schedule_free_adamw", KADAM),
    )
    ks: tuple[int, ...] = (2, 3)
    grids: Grids = field(default_factory=Grids)
    num_finalists: int = 20
    num_tuning_seeds: int = 6
    learning_rate: float = 1e-2
    num_seeds: int = 10
    eval_batches: int = 64

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The rivals, then k-Adam's."""
        return (
            *(
                Arm(name, name, 1, self.grid(name).settings)
                for name in self.optimizers
                if name != KADAM
            ),
            *(
                Arm(f"{strategy}_{k}", KADAM, k, (_setting(k, strategy),))
                for k in self.ks
                for strategy in STRATEGIES
            ),
        )

    def grid(self, optimizer: str) -> Grid:
        """Return the grid an optimizer is tuned over, AdamW's if it has none of its own."""
        return getattr(self.grids, optimizer, self.grids.adamw)

    def __post_init__(self):
        super().__post_init__()
        names = self.optimizers
        check_names(self, "optimizers", OPTIMIZERS, ADAMW, KADAM)
        require(sorted(self.ks) in ([2], [3], [2, 3]), "ks must be 2, 3 or both", self.ks)
        for name in names:
            check_rising(**{f"grids.{name}.rates": self.grid(name).rates})
            rule = (
                f"grids.{name}.settings must be b1 and b2 from 0 to below 1 and a weight decay "
                "that is not negative"
            )
            for b1, b2, weight_decay in self.grid(name).settings:
                holds = 0 <= b1 < 1 and 0 <= b2 < 1 and weight_decay >= 0
                require(holds, rule, (b1, b2, weight_decay))
        rule = "grids.kadam.settings must be empty: ks and the strategies are k-Adam's settings"
        require(not self.grids.kadam.settings, rule, self.grids.kadam.settings)
        sizes = {
            name: (
                len(self.grid(name).rates),
                sum(len(arm.settings) for arm in self.arms if arm.optimizer == name),
            )
            for name in names
        }
        rule = (
            "grids must give every optimizer the same number of tuning members, rates x settings "
            "(k-Adam: strategies of all ks)"
        )
        found = ", ".join(f"{name} {rates} x {rows}" for name, (rates, rows) in sizes.items())
        require(len(set(sizes.values())) == 1, rule, found)
        check_least(self, num_tuning_seeds=2)
        rates, num_arms = sizes[KADAM]  # each of k-Adam's arms has one setting
        few, most = self.num_finalists, rates * num_arms
        rule = f"num_finalists must be a multiple of {num_arms}, k-Adam's arms, and at most {most}"
        require(few % num_arms == 0 and 0 < few <= most, rule, few)


def _setting(k: int, strategy: str) -> Setting:
    decays = strategy_decays(k, strategy)
    return decays["b1"], decays["b2"], USUAL["weight_decay"]


def compute(config: Config, run: Run) -> xr.Dataset:
    """Tune and test every arm, with one program for each optimizer and k; then `analyze`."""
    trial = text_trial(config, run.corpus)
    parts = [
        _train(config, run, trial, list(arms))
        for _, arms in itertools.groupby(config.arms, lambda arm: (arm.optimizer, arm.k))
    ]
    return analyze(xr.concat(parts, "arm", join="outer"))


def _train(config: Config, run: Run, trial: Trial, arms: list[Arm]) -> xr.Dataset:
    """Tune the arms of one program, then train what was picked with fresh seeds."""
    _, optimizer, k, _ = arms[0]
    schedule = config.num_steps, config.warmup_steps, config.final_rate
    fn = optimizer_trial(optimizer, trial, *schedule, k=k)
    train = trainer(run, f"{optimizer}_{k}", fn, config.chunk_size)

    settings = np.array([arm.settings for arm in arms])
    rates = config.learning_rate * np.array(config.grid(optimizer).rates)
    tried = dict(zip(SETTING, np.moveaxis(settings.repeat(len(rates), 1), -1, 0), strict=True))
    tried["learning_rate"] = np.tile(rates, settings.shape[:2])
    each = config.num_finalists // sum(arm.optimizer == optimizer for arm in config.arms)
    tuned = tune(train, tried, config.tuning_seeds, each)
    test = train("fresh", tuned.picked, config.seeds)["test"]

    setting, place = np.divmod(tuned.places, len(rates))
    picked_setting, picked_place = np.divmod(tuned.chosen, len(rates))
    validation = tuned.first["validation"].reshape(*settings.shape[:2], len(rates))
    finalists = {
        "finalist_setting": (setting, "setting of a finalist"),
        "finalist_place": (place, "index of a finalist's learning rate"),
        "finalist_validation": (
            tuned.losses.mean(-1),
            "validation loss of the arm's finalists, mean over tuning seeds; NaN where it has "
            "fewer",
            NATS,
        ),
    }
    picked = {
        "picked_setting": (
            picked_setting,
            "setting of the finalist with the lowest validation loss",
        ),
        "picked_place": (picked_place, "index of that finalist's learning rate"),
    }
    optimizers = [arm.optimizer for arm in arms]
    return xr.Dataset(
        {
            "validation": named(
                (("arm", "setting", "place"), validation),
                "validation loss, first tuning seed; NaN where an arm has fewer settings",
                NATS,
            ),
            "rate": named((("arm", "place"), np.tile(rates, (len(arms), 1))), "learning rate η"),
            **{
                key: named((("arm", "setting"), settings[..., column]), label)
                for column, (key, label) in enumerate(SETTING.items())
            },
            **over(("arm", "finalist"), finalists),
            **over("arm", picked),
            "test": (("arm", "seed"), test),
        },
        coordinates(
            arm=([arm.name for arm in arms], "rival, or strategy and k of k-Adam"),
            setting=(np.arange(settings.shape[1]), "setting of b1, b2 and weight decay"),
            finalist=(np.arange(each), "finalist of the arm"),
            seed=(config.seeds, "fresh seed"),
        )
        | over(
            "arm", {"optimizer": (optimizers, "optimizer, each tuned with equally many members")}
        ),
    )
