"""k-Adam by k and strategy on images (Figs 6 and 15): CIFAR-10 where it is given, else digits."""

from dataclasses import dataclass, field

import numpy as np
import optax
import xarray as xr

from experiments.config import ImagesConfig, check_least
from experiments.figures import Figure
from experiments.running import Run
from experiments.strategy_comparison import ADAM, ComparisonConfig, analyse, compare
from experiments.strategy_comparison_plot import plot
from experiments.trials import image_trial
from models.cnn import CNNConfig


@dataclass(frozen=True)
class Config(ComparisonConfig, ImagesConfig):
    """What is trained.

    Attributes:
      model: The network.
      batch: Images in a batch, drawn with replacement.
      num_steps: Optimizer steps of every member.
      warmup_steps: Steps in which the learning rate rises from 0, linearly; a cosine follows.
      final_rate: Learning rate at the cosine's end, as a share of the highest.
      num_seeds: Fresh seeds: initial weights and batches differ.
      learning_rate: What `rates` multiply.
      eps: Added to the bias-corrected root mean square.
      chunk_size: Members between two writes to disk: what Ctrl-C can lose at most.
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
        if not 0 <= self.warmup_steps < self.num_steps:
            raise ValueError(
                f"warmup_steps must be from 0 to num_steps={self.num_steps} - 1, got "
                f"{self.warmup_steps}"
            )
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}")


def compute(config: Config, run: Run) -> xr.Dataset:
    """Sweeps over the grid and over fresh seeds for each k; then `analyse`."""
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, 1.0, config.warmup_steps, config.num_steps, config.final_rate
    )
    trial = image_trial(config.model, run.images, batch=config.batch, num_steps=config.num_steps)
    swept, fresh = compare(config, run, trial, schedule)
    data = analyse(config, swept, fresh, "test error", "%")
    data.attrs["note"] = _coarseness(data)
    return data


def _coarseness(data: xr.Dataset) -> str:
    """What the test split's size leaves open."""
    num_test = data.sizes["example"]
    error = data.mean_test.sel(arm=ADAM, end="value").item() / 100
    uncertain = 196 * np.sqrt(error * (1 - error) / num_test)
    return (
        f"{num_test} test images: one of them is {100 / num_test:.2g} points, and a run at Adam's "
        f"error of {100 * error:.1f}% is known to ±{uncertain:.2g} points (95%)"
    )


FIGURE = Figure(
    name="strategies_images",
    title="k-Adam by number of stages and strategy on images",
    paper="Figs 6 and 15",
    caption="The CNN at {model.width:g} of its width on {dataset}, batch {batch}, {num_steps} "
    "steps with a linear warm-up in the first {warmup_steps} and a cosine to {final_rate:g} of "
    "the learning rate, decays of k stages from (β, γ) = ({b2:g}, {b1:g}). Every strategy and k "
    "is trained with one seed at learning rates {learning_rate:g} times {rates}, λ in "
    "{weight_decays}, {decays}; the error on the validation split chooses, then the loss there. "
    "(a) Test error (100% less the paper's accuracy) of what was chosen, {num_seeds} fresh seeds; "
    "(b) the same, all of it, as Fig. 15; (c) the paper's statistic, the lowest test error over "
    "the sweep, its one seed, at the last step; (d) how much lower the test error is than Adam's "
    "(k = 1), paired by seed and test image. Bars are 95% intervals for other seeds and other test "
    "images. A ring marks a chosen learning rate at an end of the sweep: beyond it the arm might "
    "be better. Second page: validation loss over the learning rate, lowest over λ and the way of "
    "decaying, the chosen one filled.",
    presets={
        "smoke": Config(
            model=CNNConfig(width=1 / 32),
            num_steps=8,
            warmup_steps=2,
            num_seeds=2,
            ks=(1, 2),
            rates=(1.0, 10.0),
        ),
        "laptop": Config(
            model=CNNConfig(width=1 / 16),
            ks=(1, 2, 4),
            rates=(0.01, 0.04, 0.16, 0.64, 2.5, 10.0, 40.0),
            weight_decays=(1e-3,),
            decays=("decoupled", "coupled"),
        ),
        # Appendix H: 100 epochs, warm-up in the first 2.
        "paper": Config(
            dataset="cifar10",
            batch=512,
            num_steps=8789,
            warmup_steps=176,
            ks=tuple(range(1, 11)),
            rates=(0.06, 0.1, 0.3, 0.6, 1.0, 3.0),
            weight_decays=(1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
            decays=("decoupled", "coupled"),
            chunk_size=1,
        ),
    },
    compute=compute,
    plot=plot,
    minimum={"model.width": 1 / 16, "batch": 4, "num_steps": 400, "num_seeds": 5},
)
