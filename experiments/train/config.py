"""Configurations of the `train` command's tasks, and sweeps over them."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optax
from jax.typing import ArrayLike

from experiments.core.config import flatten
from experiments.core.errors import ConfigError
from experiments.data.tokenizers import TOKENIZERS
from experiments.training.config import CACHE
from experiments.training.meshes import MeshConfig
from experiments.training.optimizers import OPTIMIZERS, make_optimizer
from experiments.training.schedules import SCHEDULES
from models.cnn import CNNConfig
from models.nanogpt import GPTConfig

NUMERIC = ("seed", "learning_rate", "b1", "b2", "eps", "weight_decay", "clip_norm")
"""Fields that are arguments of the compiled program, so members of one sweep may differ in them."""

MACHINE = {
    "steps_per_call",
    "members_at_once",
    "mesh",
    "save_every",
    "keep",
    "workers",
    "prefetch",
    "cache",
}
"""Fields that say how a run is carried out but, except for rounding, do not change what it
computes: a resumed run may change them."""

SOURCES = {"corpus", "dataset", "num_shards"}
"""Fields that say where data are; the data are identified by their hash."""

LARGEST = float(np.finfo(np.float32).max)
ROUNDED_TO_ONE = 1 - 2**-25
"""The lowest number that rounds to 1 in float32."""
COUNTS = (
    *(
        "num_steps",
        "batch_size",
        "microbatches",
        "k",
        "log_every",
        "eval_every",
        "eval_batches",
        "steps_per_call",
    ),
    *("save_every", "keep", "members_at_once", "prefetch"),
)
FROM_ZERO = ("workers", "warmup_steps", "seed", "data_seed")
"""Integers of at least 0; those of `COUNTS` are at least 1."""
MOST = {"k": 1000, "steps_per_call": 10_000, "prefetch": 1000, "workers": 1000, "num_shards": 1024}
"""Upper limits of numbers of stages in a program, batches in memory, processes or files."""


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """The fields that both tasks share.

    Attributes:
      seed: Seed of the initial weights and the dropout.
      data_seed: Seed of the order of the training examples, the same for all members.
      num_steps: Optimizer steps.
      batch_size: Examples in a batch, over all devices and processes.
      microbatches: Equal parts of a batch whose gradients are computed in turn and averaged, which
        takes less memory; BatchNorm's statistics are those of a part.
      optimizer: kadam is this project's; the others are optax's. Muon is for matrices that
        multiply, with an Adam of the same b1, b2 and learning rate for other parameters;
        Schedule-free AdamW is evaluated through its averaged parameters.
      learning_rate: The highest learning rate, which the schedule multiplies.
      schedule: The part that follows the warm-up; a cosine ends at the last step.
      warmup_steps: Steps in which the learning rate rises linearly from 0.
      final_rate: Where the cosine ends, as a share of learning_rate.
      k: Number of stages of kadam.
      strategy: How b1 and b2 become the decays of kadam's stages (Section 4.3).
      b1: Decay of the average of gradients; also lion's, and sgd's and muon's momentum.
      b2: Decay of the average of squared gradients, or lion's second decay.
      eps: Added to the bias-corrected root mean square; None for the optimizer's own, 1e-30 for
        kadam and 1e-8 for optax's.
      weight_decay: Decoupled decay, multiplied by the learning rate and not normalized.
      coupled: Whether kadam's weight decay passes through the normalization instead.
      clip_norm: Largest global norm of a gradient; None for no clipping.
      log_every: Steps between two training losses in the metrics.
      eval_every: Steps between two evaluations on the validation split.
      eval_batches: Held-out batches in an evaluation, always the first ones; None for all.
      steps_per_call: Steps that the device takes without returning to the host.
      save_every: Steps between two checkpoints.
      keep: Number of the newest checkpoints that are kept in addition to the best one.
      members_at_once: Members of a sweep that a device computes side by side; None for 1 on a CPU
        and all elsewhere.
      workers: Processes that prepare batches in addition to the main one; 0 for threads.
      prefetch: Batches prepared ahead.
      mesh: How devices are laid out.
    """

    seed: int = 0
    data_seed: int = 0
    num_steps: int = 1000
    batch_size: int = 64
    microbatches: int = 1
    optimizer: Literal[tuple(OPTIMIZERS)] = "kadam"
    learning_rate: float = 1e-3
    schedule: Literal[tuple(SCHEDULES)] = "cosine"
    warmup_steps: int = 100
    final_rate: float = 0.1
    k: int = 2
    strategy: Literal["inverse_exp", "exp", "scaled", "naive", "root"] = "inverse_exp"
    b1: float = 0.9
    b2: float = 0.999
    eps: float | None = None
    weight_decay: float = 0.0
    coupled: bool = False
    clip_norm: float | None = None
    log_every: int = 10
    eval_every: int = 100
    eval_batches: int | None = None
    steps_per_call: int = 10
    save_every: int = 100
    keep: int = 2
    members_at_once: int | None = None
    workers: int = 0
    prefetch: int = 16
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)

    def __post_init__(self):
        for names, least in ((COUNTS, 1), (FROM_ZERO, 0)):
            for name in names:
                self._check_integer(name, least)
        for name, table in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
            self._check(name, table.__contains__, f"one of {', '.join(table)}")
        for name in ("learning_rate", "eps", "weight_decay"):
            self._check(
                name, lambda value: 0 <= value <= LARGEST, "finite and not negative in float32"
            )
        for name in ("b1", "b2"):
            self._check(name, lambda value: 0 <= value < ROUNDED_TO_ONE, "in [0, 1) in float32")
        self._check("clip_norm", lambda value: value > 0, "positive")
        self._check("final_rate", lambda value: 0 <= value <= 1, "in [0, 1]")
        below = f"below num_steps={self.num_steps}"
        self._check("warmup_steps", lambda value: value < self.num_steps, below)
        if self.coupled and self.optimizer != "kadam":
            raise ConfigError(f"coupled=True is for optimizer=kadam, got {self.optimizer}")
        if not OPTIMIZERS[self.optimizer].decays_rate:  # its average replaces a decay
            its = f"for optimizer={self.optimizer}"
            self._check("schedule", "constant".__eq__, f"constant {its}")
            self._check("b1", lambda value: value > 0, f"above 0 {its}")

    @property
    def parts(self) -> int:
        """Parts of a batch that take turns on a device."""
        return self.microbatches

    def _check_integer(self, name, least):
        most = MOST.get(name, 2**31 - 1)
        end = f"{most}]" if name in MOST else "2^31)"
        self._check(
            name,
            lambda value: isinstance(value, Integral) and least <= value <= most,
            f"an integer in [{least}, {end}",
        )

    def _check(self, name, is_valid, what):
        value = getattr(self, name)
        if value is not None and not is_valid(value):
            raise ConfigError(f"{name} must be {what}, got {value!r}")


@dataclasses.dataclass(frozen=True)
class TextTraining(TrainConfig):
    """Language modeling with nanoGPT; the loss is in nats per token.

    Attributes:
      corpus: "embedded" is CPython's own documentation; "tinyshakespeare" and "c4" are downloaded;
        otherwise a UTF-8 file, or a pattern of files, where *.json.gz are shards of C4.
      tokenizer: Whether a token is a byte, one of GPT-2's byte pairs, or one of 4,096 byte pairs of
        the embedded text.
      num_shards: Number of C4's training shards that are downloaded.
      cache: Folder for downloads and tokens.
      loss_parts: Equal parts of a batch, of which only one's logits are in memory at a time; they
        are computed again for the gradient.
      model: The network, whose context is the length of an example.
    """

    corpus: str = "embedded"
    tokenizer: Literal[tuple(TOKENIZERS)] = "bytes"
    num_shards: int = 1
    cache: Path = Path(CACHE)
    loss_parts: int = 1
    model: GPTConfig = dataclasses.field(default_factory=GPTConfig)

    def __post_init__(self):
        super().__post_init__()
        self._check_integer("num_shards", 1)
        self._check_integer("loss_parts", 1)
        if self.batch_size % self.parts:
            raise ConfigError(
                f"batch_size={self.batch_size} must be a multiple of microbatches="
                f"{self.microbatches} x loss_parts={self.loss_parts}, {self.parts}"
            )

    @property
    def parts(self) -> int:
        """Parts of a batch that take turns on a device."""
        return self.microbatches * self.loss_parts


@dataclasses.dataclass(frozen=True)
class ImageTraining(TrainConfig):
    """Image classification with the CNN; the loss is in nats per image.

    Attributes:
      dataset: "digits" is scikit-learn's, upsampled; "cifar10" is downloaded; otherwise the folder
        or the .tar.gz file of CIFAR-10's binary release.
      cache: Folder for downloads.
      augment: Whether training images are flipped and cropped at random.
      model: The network.
    """

    dataset: str = "digits"
    cache: Path = Path(CACHE)
    augment: bool = False
    model: CNNConfig = dataclasses.field(default_factory=CNNConfig)


def hyperparameters(config: TrainConfig) -> dict[str, float]:
    """Return the numbers that are arguments of the program, by name; `clip_norm` only if set.

    >>> hyperparameters(TrainConfig(learning_rate=1e-2))["learning_rate"]
    0.01
    """
    numbers = {name: getattr(config, name) for name in NUMERIC}
    numbers["eps"] = OPTIMIZERS[config.optimizer].eps if config.eps is None else config.eps
    return {name: value for name, value in numbers.items() if value is not None}


def optimizer_of(
    config: TrainConfig, member: Mapping[str, ArrayLike]
) -> optax.GradientTransformation:
    """Return the optimizer of a member, whose `hyperparameters` may be traced."""
    static = {name: getattr(config, name) for name in ("k", "strategy", "coupled")}
    shape = SCHEDULES[config.schedule](config.num_steps, config.warmup_steps, config.final_rate)
    return make_optimizer(config.optimizer, static | {**member}, shape)


def sweep_members(
    config: TrainConfig, assignments: Sequence[str]
) -> tuple[dict[str, np.ndarray], list[dict[str, float]]]:
    """Return all members of a sweep, or the single member of a run.

    Args:
      config: Has the values that are not swept.
      assignments: Strings `"field=value,value,..."`; every combination is a member, with the first
        field varying slowest. Empty for a single run.

    Returns:
      A column, (num_members,), for every name in `hyperparameters`; and for each member the values
      that distinguish it from the others, `{}` for a single run.

    Raises:
      ConfigError: If a field cannot vary within one program, is named twice, or a value is invalid.

    >>> members, labels = sweep_members(TrainConfig(), ["learning_rate=1e-3,3e-3", "seed=0,1,2"])
    >>> members["seed"].tolist(), labels[-1]
    ([0, 1, 2, 0, 1, 2], {'learning_rate': 0.003, 'seed': 2})
    """
    axes: dict[str, list[float]] = {}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        if name not in NUMERIC:
            raise ConfigError(
                f"--sweep {assignment}: one program sweeps over {', '.join(NUMERIC)}; for other "
                "fields start a run with --set for each value"
            )
        if name in axes:
            raise ConfigError(f"--sweep names {name} twice; give all its values at once")
        axes[name] = [_value(config, name, word) for word in text.split(",")]
    labels = [dict(zip(axes, row, strict=True)) for row in itertools.product(*axes.values())]
    rows = [hyperparameters(config) | label for label in labels]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}, labels


def _value(config: TrainConfig, name: str, word: str) -> float:
    """Return one value of a sweep, checked as the configuration checks it."""
    try:
        value = (int if name == "seed" else float)(word)
        dataclasses.replace(config, **{name: value})
    except ValueError as error:
        raise ConfigError(f"--sweep {name}: {error}") from error
    return value


def identity(config: TrainConfig) -> dict[str, Any]:
    """Return what a resumed run must have in common with the run that it continues, as JSON.

    This is everything except how the run is carried out and where its data are. If the learning
    rate does not depend on the number of steps, that may change too, so that a finished run can be
    made longer.
    """
    free = MACHINE | SOURCES | ({"num_steps"} if config.schedule == "constant" else set())
    return {
        name: value for name, value in flatten(config).items() if name.partition(".")[0] not in free
    }
