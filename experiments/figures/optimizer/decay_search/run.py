"""A search for decays of each stage with which 2-Adam beats tuned AdamW; not in the paper."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from experiments.core.config import check_between, check_least, check_rising, require
from experiments.core.run import Run
from experiments.figures.optimizer.decay_search.analysis import analyze
from experiments.figures.optimizer.decay_search.box import Box
from experiments.figures.optimizer.decay_search.stages import stages, trainers
from experiments.training.config import ContendersConfig, ImagesConfig
from experiments.training.trials import image_trial, text_trial
from experiments.training.tuning import Candidates, TunedConfig
from models.cnn import CNNConfig


@dataclass(frozen=True)
class Config(TunedConfig, ImagesConfig, ContendersConfig):
    """The configuration, where all rates multiply learning_rate.

    The schedule ends at the same share of the learning rate on both tasks.

    Attributes:
      weight_decay: Decoupled weight decay of all members.
      highest_b1: The box's highest γ; the lowest is 0.
      b2: The box's lowest and highest β.
      rates: The box's lowest and highest learning rate, as multiples of learning_rate.
      zero_share: The share of a γ's axis on which γ is 0.
      num_searched: Members of each optimizer in the whole box, a power of 2.
      num_refined: Members of each optimizer around the best of those, a power of 2.
      refined_width: Width of the boxes around the best, as a share of the whole box's.
      num_finalists: Number of the best members, which are trained with more seeds.
      sobol_seed: Seed that scrambles the sequences.
      strategy_rates: Learning rates of the paper's strategies, as multiples of learning_rate.
      confirmed: Whether what is chosen is also trained on the second task.
      second_model: The second task's network.
      second_batch: Images in a batch of the second task.
      second_steps: Optimizer steps on the second task.
      second_warmup: Warm-up steps on the second task, part of second_steps.
      second_rates: The second task's learning rates, as multiples of learning_rate.
    """

    num_seeds: int = 10
    weight_decay: float = 1e-2
    highest_b1: float = 0.97
    b2: tuple[float, float] = (0.4, 0.9999)
    rates: tuple[float, float] = (0.1, 30.0)
    zero_share: float = 0.1
    num_searched: int = 64
    num_refined: int = 64
    refined_width: float = 0.4
    num_finalists: int = 8
    sobol_seed: int = 0
    strategy_rates: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    confirmed: bool = True
    second_model: CNNConfig = field(default_factory=lambda: CNNConfig(width=1 / 16))
    second_batch: int = 4
    second_steps: int = 400
    second_warmup: int = 40
    second_rates: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)

    @property
    def box(self) -> Box:
        """The box that is searched."""
        low, high = (self.learning_rate * rate for rate in self.rates)
        return Box(self.highest_b1, self.b2, (low, high), self.zero_share)

    def __post_init__(self):
        super().__post_init__()
        check_least(self, num_tuning_seeds=2, sobol_seed=0, second_batch=1, second_steps=1)
        for name in ("num_searched", "num_refined"):
            number = getattr(self, name)
            holds = number >= 2 and number & (number - 1) == 0
            require(holds, f"{name} must be a power of 2 above 1", number)
        rule = f"num_finalists must be from 1 to num_searched={self.num_searched}"
        require(1 <= self.num_finalists <= self.num_searched, rule, self.num_finalists)
        check_rising(
            rates=self.rates, strategy_rates=self.strategy_rates, second_rates=self.second_rates
        )
        rule = "b2 must be two numbers that increase from 0 to below 1"
        require(0 <= self.b2[0] < self.b2[1] < 1, rule, self.b2)
        check_between(self, highest_b1=(0, 1), refined_width=(0, 1))
        for name in ("zero_share", "weight_decay"):
            value = getattr(self, name)
            require(0 <= value < 1, f"{name} must be from 0 to below 1", value)
        rule = f"second_warmup must be from 0 to below second_steps={self.second_steps}"
        require(0 <= self.second_warmup < self.second_steps, rule, self.second_warmup)


def compute(config: Config, run: Run) -> xr.Dataset:
    """Run the stages on text and train what is chosen on images; then `analyze`."""
    first = trainers(
        config, run, "text", text_trial(config, run.corpus), config.num_steps, config.warmup_steps
    )
    if not config.confirmed:
        return analyze(config, stages(config, first, dict.fromkeys(first, _untrained)))
    images = image_trial(
        config.second_model,
        run.images,
        batch=config.second_batch,
        num_steps=config.second_steps,
        measure="loss",
    )
    second = trainers(config, run, "images", images, config.second_steps, config.second_warmup)
    return analyze(config, stages(config, first, second))


def _untrained(stage: str, candidates: Candidates, seeds: Sequence[int]) -> dict:
    """Train nothing and return losses of NaN."""
    del stage
    shape = *candidates["learning_rate"].shape, len(seeds)
    return dict.fromkeys(("validation", "test"), np.full(shape, np.nan))
