"""Fields that figures with training share, and the sizes of networks."""

import dataclasses
import math

from experiments.core.config import FigureConfig, check_least
from experiments.core.errors import ConfigError
from models.nanogpt import GPTConfig

LAPTOP_MODEL = GPTConfig(vocab_size=256, context=32, num_layers=1, num_heads=1, width=64)
"""One layer with a head of the paper's size, the smallest network that verdicts may rest on."""
DEEP_MODEL = dataclasses.replace(LAPTOP_MODEL, num_layers=4, num_heads=2, width=128, qk_norm=True)
"""Four layers, for what may depend on depth."""
SMOKE_MODEL = dataclasses.replace(LAPTOP_MODEL, context=16, width=16)
PAPER_CORPUS = "c4:gpt2"
"""What the paper's network is trained on (Appendix H)."""
CACHE = "~/.cache/kadam_jax"
"""Folder for downloads, and for texts as tokens."""
LAPTOP_MINIMUM = {
    "model.num_layers": 1,
    "model.width": 64,
    "model.context": 32,
    "batch": 8,
    "num_steps": 400,
    "num_seeds": 5,
}
"""The minimum on which verdicts of figures on text may rest."""


@dataclasses.dataclass(frozen=True)
class TrainingConfig(FigureConfig):
    """The fields shared by figures that train nanoGPT members.

    Attributes:
      corpus: The text: CPython's own documentation, "embedded" by bytes or "embedded_pairs" by
        4,096 byte pairs; or a file, a pattern of files, "tinyshakespeare" or "c4", by bytes or with
        a tokenizer after a colon, as in "c4:gpt2" and "my.txt:pairs". The model.vocab_size must be
        at least the tokenizer's: 256 for bytes, 4096 for pairs, 50257 for gpt2.
      model: The network; if its vocabulary is larger than the corpus's, some rows get no gradient.
      batch: Sequences in a batch.
      num_steps: Optimizer steps of every member.
      num_seeds: Seeds 0, 1, ... for every point, which differ in initial weights, batches and
        dropout.
      learning_rate: Constant learning rate.
      eps: Added to the bias-corrected root mean square.
      chunk_size: Members between two writes to disk, the most that Ctrl-C can lose.
    """

    corpus: str = "embedded"
    model: GPTConfig = dataclasses.field(default_factory=GPTConfig)
    batch: int = 8
    num_steps: int = 400
    num_seeds: int = 5
    learning_rate: float = 1e-3
    eps: float = 1e-30
    chunk_size: int = 8

    @property
    def seeds(self) -> range:
        """The seeds of every point."""
        return range(self.num_seeds)

    def __post_init__(self):
        check_least(self, batch=1, num_steps=1, num_seeds=1, chunk_size=1)
        for name in ("learning_rate", "eps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(
                    f"{name} must be finite and not negative, got {getattr(self, name)}"
                )


def check_schedule(config: FigureConfig) -> None:
    """Raise ConfigError for a warm-up or a cosine that does not fit a run."""
    if not config.learning_rate > 0:
        raise ConfigError(f"learning_rate must be above 0, got {config.learning_rate}")
    if not 0 <= config.warmup_steps < config.num_steps:
        raise ConfigError(
            f"warmup_steps must be from 0 to below num_steps={config.num_steps}, got "
            f"{config.warmup_steps}"
        )
    if not 0 <= config.final_rate <= 1:
        raise ConfigError(f"final_rate must be from 0 to 1, got {config.final_rate}")


@dataclasses.dataclass(frozen=True)
class ScheduledConfig(TrainingConfig):
    """`TrainingConfig` with a warm-up and a cosine; learning rates are the schedule's highest.

    Attributes:
      warmup_steps: Steps in which the learning rate rises linearly from 0; a cosine follows.
      final_rate: Learning rate at the cosine's end, as a share of the highest.
    """

    warmup_steps: int = 40
    final_rate: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        check_schedule(self)


@dataclasses.dataclass(frozen=True)
class ContendersConfig(ScheduledConfig):
    """`ScheduledConfig` for comparisons of optimizers, where each has its own epsilon.

    Attributes:
      eval_batches: Batches of crops from each held-out split, the same for all members.
    """

    eval_batches: int = 32

    def __post_init__(self):
        super().__post_init__()
        check_least(self, eval_batches=1)
        if self.eps != TrainingConfig.eps:
            raise ConfigError(
                f"eps has no effect, since every optimizer has its own; got {self.eps}"
            )


@dataclasses.dataclass(frozen=True)
class ImagesConfig(FigureConfig):
    """The fields shared by figures that train on images.

    Attributes:
      dataset: "digits" is scikit-learn's, upsampled; "cifar10" is downloaded; otherwise the folder
        or the .tar.gz file of CIFAR-10's binary release.
      cache: Folder for downloads.
    """

    dataset: str = "digits"
    cache: str = CACHE
