"""k-Adam by k and strategy on images (Figs. 6 and 15): CIFAR-10 if given, otherwise digits."""

from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from experiments.core.config import check_least
from experiments.core.run import Run
from experiments.figures.optimizer.strategy_comparison import (
    ADAM,
    ComparisonConfig,
    analyze,
    compare,
)
from experiments.training.config import ImagesConfig, check_schedule
from experiments.training.schedules import warmup_cosine
from experiments.training.trials import image_trial
from models.cnn import CNNConfig


@dataclass(frozen=True)
class Config(ComparisonConfig, ImagesConfig):
    """The configuration.

    Attributes:
      model: The network.
      batch: Images in a batch, drawn with replacement.
      num_steps: Optimizer steps of every member.
      warmup_steps: Steps in which the learning rate rises linearly from 0; a cosine follows.
      final_rate: Learning rate at the cosine's end, as a share of the highest.
      num_seeds: Fresh seeds, which differ in initial weights and batches.
      learning_rate: The learning rate that `rates` multiply.
      eps: Added to the bias-corrected root mean square.
      chunk_size: Members between two writes to disk, the most that Ctrl-C can lose.
    """

    model: CNNConfig = field(default_factory=CNNConfig)
    batch: int = 4
    num_steps: int = 400
    warmup_steps: int = 8
    final_rate: float = 0.1
    num_seeds: int = 5
    learning_rate: float = 1e-3
    eps: float = 1e-30
    chunk_size: int = 2

    def __post_init__(self):
        self.check_comparison()
        check_least(self, batch=1, num_steps=1, chunk_size=1)
        check_schedule(self)


def compute(config: Config, run: Run) -> xr.Dataset:
    """Sweep over the grid and over fresh seeds for each k; then `analyze`."""
    schedule = warmup_cosine(config.num_steps, config.warmup_steps, config.final_rate)
    trial = image_trial(config.model, run.images, batch=config.batch, num_steps=config.num_steps)
    swept, fresh = compare(config, run, trial, schedule)
    data = analyze(config, swept, fresh, "test error", "%")
    data.attrs["note"] = _coarseness(data)
    return data


def _coarseness(data: xr.Dataset) -> str:
    """Say what the test split's size leaves open."""
    num_test = data.sizes["example"]
    error = data.mean_test.sel(arm=ADAM, end="value").item() / 100
    uncertain = 196 * np.sqrt(error * (1 - error) / num_test)
    return (
        f"{num_test} test images: one of them is {100 / num_test:.2g} percentage points, and a run "
        f"at Adam's error of {100 * error:.1f}% is known to ±{uncertain:.2g} percentage points "
        "(95%)"
    )
