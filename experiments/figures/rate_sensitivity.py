"""Loss over the learning rate for each optimizer, and which one 2-Adam wants beside AdamW (§4.3).

Not in the paper, which sweeps Adam and every k-Adam over the same learning rates. An arm is an
optimizer at its usual hyperparameters; 2-Adam has one for each strategy. Every arm's rates are a
stretch of one ladder, so that AdamW's best can be a rate of the others. What is chosen for a seed
is chosen by the other seeds' validation losses, and measured on the test split.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import xarray as xr

from experiments.config import (
    LAPTOP_MINIMUM,
    LAPTOP_MODEL,
    SMOKE_MODEL,
    ConfigError,
    ContendersConfig,
    check_least,
)
from experiments.contenders import ADAMW, CONTENDERS, USUAL, contender_trial, strategy_decays
from experiments.figures import Figure
from experiments.noise_response import noise_response
from experiments.rate_optima import analyse
from experiments.rate_sensitivity_plot import plot
from experiments.running import Run
from experiments.strategy_comparison import label
from experiments.trials import text_trial
from kadam_jax.members import grid, points
from kadam_jax.strategies import STRATEGIES

TWO_ADAM = "kadam_2"
OPTIMIZERS = tuple(name for name in CONTENDERS if not name.startswith("kadam"))


@dataclass(frozen=True)
class Config(ContendersConfig):
    """What is trained: rates are learning_rate times powers of `factor`.

    Attributes:
      optimizers: AdamW, then others.
      strategies: 2-Adam's.
      first_powers: The power of `factor` of the lowest rate of each optimizer, then of each
        strategy.
      num_rates: Rates of each.
      factor: Between one rate and the next.
      tolerance: Nats per token above the lowest loss that a basin includes.
      noise_steps: Steps on noise, the second half of which is measured.
      noise_entries: Entries of that gradient.
    """

    chunk_size: int = 5
    optimizers: tuple[str, ...] = OPTIMIZERS
    strategies: tuple[str, ...] = ("inverse_exp", "exp", "scaled")
    first_powers: tuple[int, ...] = (-1, -1, -2, -4, -2, -1, -2, -2, -2)
    num_rates: int = 7
    factor: float = 2.5
    tolerance: float = 0.05
    noise_steps: int = 2000
    noise_entries: int = 4096

    def __post_init__(self):
        super().__post_init__()
        if self.optimizers[:1] != (ADAMW,) or not set(self.optimizers) <= set(OPTIMIZERS):
            raise ConfigError(
                f"optimizers must be {ADAMW} and then others of {OPTIMIZERS}, got {self.optimizers}"
            )
        if not self.strategies or not set(self.strategies) <= set(STRATEGIES):
            raise ConfigError(
                f"strategies must be one or more of {tuple(STRATEGIES)}, got {self.strategies}"
            )
        for name in ("optimizers", "strategies"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ConfigError(f"{name} must differ, got {getattr(self, name)}")
        if len(self.first_powers) != len(self.optimizers) + len(self.strategies):
            raise ConfigError(
                "first_powers must be one for each of optimizers and strategies, got "
                f"{len(self.first_powers)}"
            )
        check_least(self, num_rates=3, num_seeds=2, noise_steps=2, noise_entries=2)
        for name, above in (("factor", 1), ("tolerance", 0)):
            if not getattr(self, name) > above:
                raise ConfigError(f"{name} must be above {above}, got {getattr(self, name)}")

    @property
    def switches(self) -> tuple[str, ...]:
        """2-Adam's arms."""
        return tuple(label(strategy, 2) for strategy in self.strategies)

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of all arms."""
        return (*self.optimizers, *self.switches)

    @property
    def rates(self) -> np.ndarray:
        """η, (num_arms, num_rates); what arms have in common is equal to the bit."""
        powers = np.add.outer(np.array(self.first_powers), np.arange(self.num_rates))
        return self.learning_rate * self.factor ** powers.astype(float)


def compute(config: Config, run: Run) -> xr.Dataset:
    """One sweep for each optimizer, 2-Adam's strategies together; then noise, and `analyse`."""
    rates = dict(zip(config.arms, config.rates, strict=True))
    alone = [({name: CONTENDERS[name].usual}, name) for name in config.optimizers]
    decays = [USUAL | strategy_decays(2, strategy) for strategy in config.strategies]
    swept = [
        _losses(config, run, name, hyperparameters, rates)
        for hyperparameters, name in (
            *alone,
            (dict(zip(config.switches, decays, strict=True)), TWO_ADAM),
        )
    ]
    losses = {name: np.concatenate([arrays[name] for arrays in swept]) for name in swept[0]}
    responses = [_response(config, run, 1, [USUAL]), _response(config, run, 2, decays)]
    response = {name: np.concatenate([of_k[name] for of_k in responses]) for name in responses[0]}
    return analyse(config, losses, response)


def _losses(
    config: Config,
    run: Run,
    name: str,
    hyperparameters: Mapping[str, Mapping[str, float]],
    rates: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """`validation` and `test` of an optimizer's arms, (num_arms, num_rates, num_seeds)."""
    trial = text_trial(
        config.model,
        run.corpus,
        batch=config.batch,
        num_steps=config.num_steps,
        eval_batches=config.eval_batches,
    )
    columns = {
        key: np.repeat([values[key] for values in hyperparameters.values()], config.num_rates)
        for key in USUAL
    }
    rate = np.concatenate([rates[arm] for arm in hyperparameters])
    members = grid(point=points(rate=rate, **columns), seed=config.seeds)
    fn = contender_trial(name, trial, config.num_steps, config.warmup_steps, config.final_rate)
    arrays = run.sweep(name, fn, members, chunk_size=config.chunk_size)
    shape_of_arms = (len(hyperparameters), config.num_rates, config.num_seeds)
    return {key: x.reshape(shape_of_arms) for key, x in arrays.items()}


def _response(
    config: Config, run: Run, k: int, decays: list[Mapping[str, float]]
) -> dict[str, np.ndarray]:
    """`noise_response` at each of some decays."""
    members = points(**{name: np.array([of[name] for of in decays]) for name in ("b1", "b2")})
    return run.sweep(
        f"noise_{k}",
        lambda member: noise_response(
            k,
            member["b1"],
            member["b2"],
            num_steps=config.noise_steps,
            num_entries=config.noise_entries,
        ),
        members,
    )


FIGURE = Figure(
    name="rate_sensitivity",
    title="How sensitive is each optimizer to its learning rate, and where does 2-Adam start?",
    paper="not in the paper",
    caption="nanoGPT ({model.num_layers} layers, {model.num_heads} heads, width {model.width}) on "
    "the {corpus} corpus, batch {batch}, {num_steps} steps: {warmup_steps} of warm-up, then a "
    "cosine down to {final_rate:g} of the learning rate (Schedule-free: none). Every optimizer has "
    "its usual hyperparameters and {num_rates} learning rates that rise by {factor:g}; {num_seeds} "
    "seeds, the same for all. (a) Loss on the first half of the held-out text, mean and range over "
    "seeds; the filled mark is at the best rate, the geometric mean over seeds of the vertices of "
    "parabolas through the lowest loss and its neighbours. (b) How many decades of learning rates "
    "are within {tolerance:g} nat of the lowest loss, interpolated between rates: differences far "
    "below a step of the grid are the interpolation's too; a triangle: the grid ends inside the "
    "basin of some seed. (c) Best rate over AdamW's, paired by seed, and what two properties of "
    "updates on normal noise predict for 2-Adam: their size, and how far many of them carry. (d) "
    "2-Adam's test loss, on the second half of the held-out text, at the rate that is AdamW's "
    "best and at that rate times the ratio of (c), between trained rates interpolated as in (b), "
    "less that at its own best rate; then less AdamW's. Rates and ratios for a seed are from the "
    "other seeds' validation losses. Dots are seeds, bars 95% t intervals of the mean. A ring "
    "marks an arm whose best rate is at an end of its grid: it may lie beyond.",
    presets={
        "smoke": Config(
            model=SMOKE_MODEL,
            batch=2,
            num_steps=30,
            num_seeds=2,
            optimizers=(ADAMW,),
            strategies=("inverse_exp",),
            first_powers=(1, 0),
            num_rates=3,
            warmup_steps=5,
            eval_batches=4,
            noise_steps=200,
            noise_entries=100,
        ),
        "laptop": Config(model=LAPTOP_MODEL),
        # Fig. 16's steps and batch on the embedded text in place of C4; a warm-up as in Fig. 4.
        "paper": Config(
            batch=64,
            num_steps=20_000,
            first_powers=(-3, -3, -4, -6, -4, -3, -4, -4, -4),
            num_rates=8,
            warmup_steps=100,
            eval_batches=200,
            chunk_size=1,
        ),
    },
    compute=compute,
    plot=plot,
    minimum={
        **LAPTOP_MINIMUM,
        "num_rates": 7,
        "eval_batches": 32,
        "noise_steps": 2000,
        "noise_entries": 4096,
    },
)
