"""Loss versus learning rate for each optimizer, and 2-Adam's best rate over AdamW's (§4.3).

This is not in the paper, which sweeps Adam and every k-Adam over the same learning rates. An arm is
an optimizer at its usual hyperparameters; 2-Adam has one arm for each strategy. Every arm's rates
are a section of one ladder, so that AdamW's best can be a rate of the others. The choices for a
seed are made by the other seeds' validation losses, and measured on the test split.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import xarray as xr

from experiments.core.config import check_between, check_least, check_names, require
from experiments.core.run import Run
from experiments.figures.optimizer.rate_sensitivity.noise_response import noise_response
from experiments.figures.optimizer.rate_sensitivity.optima import analyze
from experiments.figures.optimizer.strategy_comparison import label
from experiments.training.config import ContendersConfig
from experiments.training.optimizers import ADAMW, OPTIMIZERS, USUAL, strategy_decays
from experiments.training.trials import optimizer_trial, text_trial
from experiments.training.tuning import trainer
from kadam_jax import STRATEGIES, points

KADAM = "kadam"
SHIFTS = {"rmsprop": -1, "lion": -3, "muon": -1, "inverse_exp": -1, "exp": -1, "scaled": -1}
"""Powers of `factor` from AdamW's lowest rate to that of an optimizer or a strategy of 2-Adam; for
those that are not here, 0."""


@dataclass(frozen=True)
class Config(ContendersConfig):
    """The configuration, where rates are learning_rate times powers of `factor`.

    Attributes:
      optimizers: AdamW, then the others.
      strategies: The strategies of 2-Adam.
      first_power: The power of `factor` at AdamW's lowest rate; `SHIFTS` has the others'.
      num_rates: Number of rates of each arm.
      factor: Ratio of a rate to the next lower one.
      tolerance: Nats per token above the lowest loss that a basin includes.
      noise_steps: Steps on noise; the second half is measured.
      noise_entries: Entries of the noise gradient.
    """

    chunk_size: int = 5
    optimizers: tuple[str, ...] = (
        *(ADAMW, "nadamw", "rmsprop", "lion", "muon", "schedule_free_adamw"),
    )
    strategies: tuple[str, ...] = ("inverse_exp", "exp", "scaled")
    first_power: int = -1
    num_rates: int = 7
    factor: float = 2.5
    tolerance: float = 0.05
    noise_steps: int = 2000
    noise_entries: int = 4096

    def __post_init__(self):
        super().__post_init__()
        check_names(self, "optimizers", [name for name in OPTIMIZERS if name != KADAM])
        holds = self.optimizers[0] == ADAMW
        require(holds, f"optimizers must begin with {ADAMW}", self.optimizers)
        check_names(self, "strategies", STRATEGIES)
        check_least(self, num_rates=3, num_seeds=2, noise_steps=2, noise_entries=2)
        check_between(self, factor=(1, math.inf), tolerance=(0, math.inf))

    @property
    def switches(self) -> tuple[str, ...]:
        """Names of 2-Adam's arms."""
        return tuple(label(strategy, 2) for strategy in self.strategies)

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of all arms."""
        return (*self.optimizers, *self.switches)

    @property
    def rates(self) -> np.ndarray:
        """η, (num_arms, num_rates); rates that arms share are equal to the bit."""
        names = *self.optimizers, *self.strategies
        first = self.first_power + np.array([SHIFTS.get(name, 0) for name in names])
        powers = np.add.outer(first, np.arange(self.num_rates))
        return self.learning_rate * self.factor ** powers.astype(float)


def compute(config: Config, run: Run) -> xr.Dataset:
    """Sweep each optimizer, 2-Adam's strategies together; then noise, and `analyze`."""
    rates = dict(zip(config.arms, config.rates, strict=True))
    decays = [USUAL | strategy_decays(2, strategy) for strategy in config.strategies]
    trial = text_trial(config, run.corpus)

    def losses(name, arms):
        """Return `validation` and `test` of an optimizer's arms, over arm, rate and seed."""
        schedule = config.num_steps, config.warmup_steps, config.final_rate
        fn = optimizer_trial(name, trial, *schedule, k=2)
        columns = {
            key: np.repeat([[values[key]] for values in arms.values()], config.num_rates, 1)
            for key in USUAL
        }
        columns["learning_rate"] = np.stack([rates[arm] for arm in arms])
        return trainer(run, name, fn, config.chunk_size)("all", columns, config.seeds)

    swept = [losses(name, {name: OPTIMIZERS[name].usual}) for name in config.optimizers]
    swept.append(losses(KADAM, dict(zip(config.switches, decays, strict=True))))
    responses = [_response(config, run, 1, [USUAL]), _response(config, run, 2, decays)]
    return analyze(config, _joined(swept), _joined(responses))


def _joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _response(
    config: Config, run: Run, k: int, decays: list[Mapping[str, float]]
) -> dict[str, np.ndarray]:
    """Sweep `noise_response` over some decays."""
    members = points(**{name: np.array([of[name] for of in decays]) for name in ("b1", "b2")})
    sizes = {"num_steps": config.noise_steps, "num_entries": config.noise_entries}
    return run.sweep(
        f"noise_{k}",
        lambda member: noise_response(k, member["b1"], member["b2"], **sizes),
        members,
    )
