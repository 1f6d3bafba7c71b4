"""k-Adam by k and strategy on text (Fig. 16)."""

from dataclasses import dataclass

import optax
import xarray as xr

from experiments.core.config import check_least
from experiments.core.run import Run
from experiments.figures.optimizer.strategy_comparison import ComparisonConfig, analyze, compare
from experiments.training.config import TrainingConfig
from experiments.training.trials import text_trial


@dataclass(frozen=True)
class Config(ComparisonConfig, TrainingConfig):
    """The configuration, where `rates` multiply learning_rate and num_seeds counts fresh seeds.

    Attributes:
      eval_batches: Batches of crops from each held-out split, the same for all members.
    """

    chunk_size: int = 2
    eval_batches: int = 64

    def __post_init__(self):
        super().__post_init__()
        self.check_comparison()
        check_least(self, eval_batches=2)


def compute(config: Config, run: Run) -> xr.Dataset:
    """Sweep over the grid and over fresh seeds for each k; then `analyze`."""
    trial = text_trial(config, run.corpus)
    swept, fresh = compare(config, run, trial, optax.constant_schedule(1.0))
    return analyze(config, swept, fresh, "test loss", "nat/token")
