"""k-Adam by number of stages with small batches, with noise in gradients, and with wrong labels."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import jax
import numpy as np
import optax
import xarray as xr

from experiments.core.config import check_between, check_ks, check_least, require, rises
from experiments.core.run import Run
from experiments.core.stats import at_end, mean, number
from experiments.core.store import coordinates, labeled, named, over
from experiments.figures.optimizer.noise_robustness.contrasts import (
    Condition,
    gain,
    larger,
    trend,
)
from experiments.figures.optimizer.noise_robustness.noisy_training import noisy_trial
from experiments.figures.optimizer.rate_basins import optimum
from experiments.training.optimizers import USUAL, make_optimizer
from experiments.training.schedules import warmup_cosine
from experiments.training.tuning import TunedConfig, trainer
from models.ngram import NGramConfig


@dataclass(frozen=True)
class Config(TunedConfig):
    """The configuration, where `batch` without added noise is the plain condition.

    Attributes:
      model: The network; its context is how much of the text it sees.
      batch: Examples in a batch when noise is added.
      learning_rate: The lowest rate of the grid; all rates of the grid are peaks of the schedule.
      ks: Numbers of stages, starting with 1.
      strategy: How a stage's decays follow from Adam's usual decays.
      batch_sizes: Batch sizes without any added noise.
      gradient_noises: Levels of noise in the gradients: its root mean square over that of the
        gradients.
      label_noises: Shares of training labels that are replaced.
      num_rates: Learning rates that each k is tuned over in each condition.
      rate_step: Ratio of a learning rate to the next lower one.
      eval_examples: Predictions in each held-out split, drawn once.
    """

    model: NGramConfig = field(default_factory=NGramConfig)
    batch: int = 32
    learning_rate: float = 1e-3
    num_seeds: int = 12
    chunk_size: int = 3
    ks: tuple[int, ...] = (1, 2, 3, 5)
    strategy: Literal["inverse_exp", "exp", "scaled", "naive", "root"] = "inverse_exp"
    batch_sizes: tuple[int, ...] = (8, 32, 128, 512)
    gradient_noises: tuple[float, ...] = (1.0, 3.0)
    label_noises: tuple[float, ...] = (0.1, 0.3)
    num_rates: int = 7
    rate_step: float = 2.0
    eval_examples: int = 8192

    def __post_init__(self):
        super().__post_init__()
        check_ks(self.ks)
        for name, least, most in (
            ("batch_sizes", 0, np.inf),
            ("gradient_noises", 0, np.inf),
            ("label_noises", 0, 1),
        ):
            values = getattr(self, name)
            rule = f"{name} must increase and be between {least} and {most}"
            require(rises(least, *values, most), rule, values)
        rule = f"batch={self.batch} must be one of batch_sizes"
        require(self.batch in self.batch_sizes, rule, self.batch_sizes)
        check_least(self, num_rates=3, eval_examples=1)
        check_between(self, rate_step=(1, np.inf))

    @property
    def learning_rates(self) -> np.ndarray:
        """Learning rates of the grid, from the lowest."""
        return self.learning_rate * self.rate_step ** np.arange(self.num_rates, dtype=float)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The plain condition, then those that differ from it in one way."""
        return (
            Condition(self.batch, 0.0, 0.0),
            *(Condition(batch, 0.0, 0.0) for batch in self.batch_sizes if batch != self.batch),
            *(Condition(self.batch, level, 0.0) for level in self.gradient_noises),
            *(Condition(self.batch, 0.0, share) for share in self.label_noises),
        )


def compute(config: Config, run: Run) -> xr.Dataset:
    """Tune every k in every condition, then train it with fresh seeds; then `analyze`.

    There is a program for each k and batch size.
    """
    conditions, rates = config.conditions, config.learning_rates
    shape = len(conditions), len(config.ks)
    validation = np.empty((*shape, config.num_rates))
    test = np.empty((*shape, config.num_seeds))
    for (column, k), batch in itertools.product(enumerate(config.ks), config.batch_sizes):
        places = [place for place, at in enumerate(conditions) if at.batch == batch]
        _, *noise = np.array([conditions[place] for place in places]).T
        noise = dict(zip(("gradient_noise", "label_noise"), noise, strict=True))
        fn = noisy_trial(
            config.model,
            run.corpus,
            partial(_optimizer, config, k),
            batch=batch,
            num_steps=config.num_steps,
            eval_examples=config.eval_examples,
        )
        train = trainer(run, f"{k}_{batch}", fn, config.chunk_size)
        tried = {name: np.repeat(x[:, None], len(rates), 1) for name, x in noise.items()}
        tried["learning_rate"] = np.tile(rates, (len(places), 1))
        losses = train("tuning", tried, config.tuning_seeds)["validation"].mean(-1)
        chosen = noise | {"learning_rate": _chosen(rates, losses)}
        validation[places, column] = losses
        test[places, column] = train("fresh", chosen, config.seeds)["test"]
    return analyze(config, validation, test)


def _optimizer(config: Config, k: int, rate: jax.Array) -> optax.GradientTransformation:
    """Return k-Adam with this peak of its schedule."""
    member = USUAL | {"learning_rate": rate, "weight_decay": 0.0, "eps": config.eps}
    shape = warmup_cosine(config.num_steps, config.warmup_steps, config.final_rate)
    return make_optimizer("kadam", member | {"k": k, "strategy": config.strategy}, shape)


def _chosen(rates: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Return the best rates, (...), from losses (..., num_rates)."""
    return np.apply_along_axis(partial(optimum, rates), -1, losses)


def analyze(config: Config, validation: np.ndarray, test: np.ndarray) -> xr.Dataset:
    """Compute the figure's dataset.

    Args:
      config: The configuration that was trained.
      validation: Validation loss, mean over the tuning seeds, (condition, k, rate).
      test: Test loss of fresh seeds with the chosen rates, (condition, k, seed).

    Returns:
      Losses, what was chosen, and how gains over Adam change with the noise, labeled.
    """
    dims = ("condition", "k")
    test = np.where(np.isfinite(test), test, np.nan)
    validation = np.where(np.isfinite(validation), validation, np.inf)
    batch, gradient_noise, label_noise = zip(*config.conditions, strict=True)
    tuned = {
        "chosen_rate": (
            _chosen(config.learning_rates, validation),
            "learning rate that is best on the validation split",
        ),
        "rate_at_edge": (
            at_end(validation.argmin(-1), config.num_rates),
            "whether the lowest validation loss is at the lowest or the highest learning rate",
        ),
        "tuned_validation": (
            validation.min(-1),
            "lowest validation loss of the grid, mean over tuning seeds",
            NATS,
        ),
    }
    conditions = {
        "batch": (batch, "examples in a batch"),
        "gradient_noise": (
            gradient_noise,
            "noise in the gradients over the gradients, root mean squares",
        ),
        "label_noise": (label_noise, "share of the training labels that are replaced"),
    }

    def means(losses, label):
        return number([list(map(mean, of_k)) for of_k in losses], label, NATS, dims)

    data = xr.Dataset(
        {
            **over(dims, tuned),
            "validation": named(
                ((*dims, "rate"), validation), "validation loss, mean over tuning seeds", NATS
            ),
            "test": named(((*dims, "seed"), test), "test loss", NATS),
            "mean_test": means(test, "test loss, mean over fresh seeds"),
            "excess": means(test - test[:, :1], "test loss minus Adam's, mean over fresh seeds"),
        },
        coordinates(
            condition=(np.arange(len(batch)), "condition of training; 0 is the plain one"),
            k=(config.ks, "stages k"),
            rate=(config.learning_rates, "learning rate"),
            seed=(config.seeds, "fresh seed"),
        )
        | over("condition", conditions),
    )
    numbers = {}
    for axis, (most, unit) in STATED.items():
        numbers[f"gain_{axis}"] = number(gain(data, axis), f"{BETTER}, {most}", NATS)
        slope = trend(data, axis, larger(data))
        numbers[f"trend_{axis}"] = number(slope, f"{SLOPE} {unit}", NATS)
    return labeled(data.assign(numbers))


NATS = "nat/token"
BETTER = "loss of the better of k = 1, 2 minus that of the best k ≥ 3"
SLOPE = "slope of Adam's loss minus that of k-Adam, mean over k ≥ 3, over the"
STATED: Mapping[str, tuple[str, str]] = {
    "batch": ("smallest batch", "halvings of the batch"),
    "gradient_noise": ("most noise in the gradients", "level of noise in the gradients"),
    "label_noise": ("most labels replaced", "tenths of labels replaced"),
}
"""The wording for gains and slopes, by axis."""
