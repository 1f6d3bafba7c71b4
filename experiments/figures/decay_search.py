"""Are there decays of each stage with which 2-Adam beats tuned AdamW? Not in the paper."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from experiments.config import (
    LAPTOP_MINIMUM,
    LAPTOP_MODEL,
    SMOKE_MODEL,
    ConfigError,
    ContendersConfig,
    ImagesConfig,
    check_least,
    check_rising,
)
from experiments.decay_analysis import analyse
from experiments.decay_box import Box
from experiments.decay_search_plot import plot
from experiments.decay_stages import stages, trainer
from experiments.figures import Figure
from experiments.running import Run
from experiments.trials import image_trial, text_trial
from experiments.tuning import TunedConfig
from models.cnn import CNNConfig


@dataclass(frozen=True)
class Config(TunedConfig, ImagesConfig, ContendersConfig):
    """What is searched and trained: learning_rate is what all rates multiply.

    The schedule ends at the same share on both tasks.

    Attributes:
      weight_decay: Decoupled, of all members.
      highest_b1: The box's highest γ; the lowest is 0.
      b2: Its lowest and highest β.
      rates: Its lowest and highest learning rate, as multiples of learning_rate.
      zero_share: The share of a γ's axis that is 0.
      num_searched: Members in the whole box, a power of 2, of each optimizer.
      num_refined: Members around the best of those, a power of 2, of each optimizer.
      refined_width: Width of the boxes around them, as a share of the whole one's.
      num_finalists: The best, which are trained with more seeds.
      sobol_seed: Scrambles the sequences.
      strategy_rates: Learning rates of the paper's strategies, as multiples of learning_rate.
      confirmed: Whether what is chosen is trained on the second task too.
      second_model: Its network.
      second_batch: Images in a batch.
      second_steps: Its optimizer steps.
      second_warmup: Of them.
      second_rates: Its learning rates, as multiples of learning_rate.
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
        """What is searched."""
        low, high = (self.learning_rate * rate for rate in self.rates)
        return Box(self.highest_b1, self.b2, (low, high), self.zero_share)

    def __post_init__(self):
        super().__post_init__()
        check_least(self, num_tuning_seeds=2, sobol_seed=0, second_batch=1, second_steps=1)
        for name in ("num_searched", "num_refined"):
            number = getattr(self, name)
            if number < 2 or number & (number - 1):
                raise ConfigError(f"{name} must be a power of 2 above 1, got {number}")
        if not 1 <= self.num_finalists <= self.num_searched:
            raise ConfigError(
                f"num_finalists must be from 1 to num_searched={self.num_searched}, got "
                f"{self.num_finalists}"
            )
        check_rising(
            rates=self.rates, strategy_rates=self.strategy_rates, second_rates=self.second_rates
        )
        if not 0 <= self.b2[0] < self.b2[1] < 1:
            raise ConfigError(f"b2 must be two that increase from 0 to below 1, got {self.b2}")
        for name in ("highest_b1", "refined_width"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        for name in ("zero_share", "weight_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must be from 0 to below 1, got {getattr(self, name)}")
        if not 0 <= self.second_warmup < self.second_steps:
            raise ConfigError(
                f"second_warmup must be from 0 to below second_steps={self.second_steps}, got "
                f"{self.second_warmup}"
            )


def compute(config: Config, run: Run) -> xr.Dataset:
    """The stages on text, what is chosen on images; then `analyse`."""
    text = text_trial(
        config.model,
        run.corpus,
        batch=config.batch,
        num_steps=config.num_steps,
        eval_batches=config.eval_batches,
    )
    first = trainer(config, run, "text", text, config.num_steps, config.warmup_steps)
    if not config.confirmed:
        return analyse(config, stages(config, first, _untrained))
    images = image_trial(
        config.second_model,
        run.images,
        batch=config.second_batch,
        num_steps=config.second_steps,
        measure="loss",
    )
    second = trainer(config, run, "images", images, config.second_steps, config.second_warmup)
    return analyse(config, stages(config, first, second))


def _untrained(stage: str, name: str, settings: np.ndarray, seeds: Sequence[int]) -> dict:
    """Trains nothing: every loss is NaN."""
    del stage, name
    return dict.fromkeys(("validation", "test"), np.full((len(settings), len(seeds)), np.nan))


FIGURE = Figure(
    name="decay_search",
    title="A search for decays with which 2-Adam beats tuned AdamW",
    paper="not in the paper",
    caption="nanoGPT ({model.num_layers} layers, width {model.width}) on the {corpus} corpus, "
    "batch {batch}, {num_steps} steps with warm-up and cosine, {eval_batches} batches to evaluate, "
    "λ = {weight_decay:g}. 2-Adam's four decays and learning rate, and AdamW's two and its own, "
    "are searched alike: {num_searched} members of a scrambled Sobol sequence with γ from 0 to "
    "{highest_b1:g}, β from {b2[0]:g} to {b2[1]:g}, learning rates {rates[0]:g} to {rates[1]:g} "
    "times {learning_rate:g}, then {num_refined} around the best, one seed each; the best "
    "{num_finalists} with {num_tuning_seeds} seeds; the lowest mean validation loss is chosen. (a) "
    "Validation loss of all members of one seed, no higher than 1.5 nat above the best, and of the "
    "paper's five strategies at {strategy_rates} times the same; stars are chosen, grey the outer "
    "tenth of the range. (b) 2-Adam's members by decay, the better the darker, the chosen one and "
    "the strategies; grey as before. (c) Test loss of tuned AdamW less that of 2-Adam (of the "
    "strategies inverse exp and the best on validation), {num_seeds} fresh seeds, mean and paired "
    "95% interval (bootstrap, no narrower than Student's t); on images (CNN at "
    "{second_model.width:g} of its width, {dataset}, {second_steps} steps, cross-entropy) the "
    "decays are kept and the learning rate alone is tuned again. Where rates alone are tuned, the "
    "best two have all {num_tuning_seeds} seeds. A ring marks a learning rate near an end of its "
    "range. (d) Spearman's correlation of each coordinate with validation loss over the members of "
    "the whole box that did not diverge: below 0, more is better.",
    presets={
        "smoke": Config(
            model=SMOKE_MODEL,
            batch=2,
            num_steps=10,
            warmup_steps=2,
            num_seeds=2,
            eval_batches=2,
            num_searched=8,
            num_refined=4,
            num_finalists=2,
            num_tuning_seeds=2,
            strategy_rates=(1.0, 4.0),
            confirmed=False,
            chunk_size=2,  # of the smallest sweep: one more would be one more program
        ),
        "laptop": Config(
            model=LAPTOP_MODEL,
            strategy_rates=(0.25, 0.5, 1.0, 2.0, 4.0),
            second_rates=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0),
            chunk_size=4,  # of the smallest sweep, as above
        ),
        # As the figure of k-Adam's strategies on text, and the paper's images.
        "paper": Config(
            batch=64,
            num_steps=20_000,
            warmup_steps=2000,
            eval_batches=200,
            num_searched=256,
            num_refined=256,
            dataset="cifar10",
            second_model=CNNConfig(),
            second_batch=512,
            second_steps=8789,
            second_warmup=176,
            chunk_size=1,
        ),
    },
    compute=compute,
    plot=plot,
    minimum={
        **LAPTOP_MINIMUM,
        "eval_batches": 32,
        "num_searched": 64,
        "num_refined": 64,
        "num_finalists": 8,
        "num_tuning_seeds": 3,
        "confirmed": 1,
        "second_model.width": 1 / 16,
        "second_batch": 4,
        "second_steps": 400,
    },
)
