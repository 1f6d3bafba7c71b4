"""2-Adam with γ₂ = 0 versus Adam with a normalization layer: the paper's analogy, measured (§4.2).

A layer that makes queries and keys scale-invariant divides their update u by ‖W‖, whose square
follows a moving average of ‖u‖²; 2-Adam's second stage divides directly by the root of such an
average. Only queries and keys decay: with λ = 1/(2ηT) the average in ‖W‖² spans T steps at every η.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr
from jax.typing import ArrayLike
from scipy import signal

from experiments.core.config import check_least, require
from experiments.core.run import Run
from experiments.core.stats import Statistics, best_on_other_seeds, means_over_seeds
from experiments.core.store import coordinates, labeled, named, over
from experiments.figures.invariance.queries_and_keys import (
    observed,
    on_queries_and_keys,
    without_qk_norm,
)
from experiments.figures.invariance.two_adam_analogy.second_stages import (
    SECOND_STAGES,
    one_of,
    stage_effects,
)
from experiments.training.config import TrainingConfig
from experiments.training.tasks import Task, language_task
from experiments.training.train import train_member
from kadam_jax import grid, scale_by_kadam
from kadam_jax.invariance import momentum_factor, squared_norm_average

RUNNING_MEAN = 1 - 1e-6
"""β₂ where λ = 0 requires 1, for which a bias-corrected average is 0/0; its limit is a mean."""
SPLITS = ("train", "heldout")
DECAY = (["λ = 0", "λ > 0"], "decoupled weight decay of queries and keys")
STEP = ("optimizer steps done before, n", "step")

MemberFunction = Callable[[Mapping[str, jax.Array]], dict[str, jax.Array]]


@dataclass(frozen=True)
class Config(TrainingConfig):
    """The training setup.

    Attributes:
      learning_rates: The rates at which the optimizers are compared, from the lowest; the run whose
        norms are recorded has learning_rate.
      b1: γ of the first stage.
      b2: β of the first stage.
      averaging_steps: T = 1/(2λη), the number of steps over which ‖W‖² averages where λ > 0.
      norm_steps: Steps of the run whose norms are recorded.
      eval_batches: Batches of each split that a final loss is averaged over.
    """

    num_steps: int = 600
    learning_rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3, 1e-2)
    b1: float = 0.9
    b2: float = 0.999
    averaging_steps: int = 100
    norm_steps: int = 1000
    eval_batches: int = 16

    def __post_init__(self):
        super().__post_init__()
        rule = "model.qk_norm must be false, because the runs that need it switch it on"
        require(not self.model.qk_norm, rule, True)
        rule = "num_seeds must be at least 2, because a learning rate is chosen on the other seeds"
        require(self.num_seeds >= 2, rule, self.num_seeds)
        rates = self.learning_rates
        require(rates and min(rates) > 0, "learning_rates must be positive numbers", rates)
        check_least(self, averaging_steps=1, eval_batches=1)
        rule = "norm_steps must be at least ten averaging_steps, so that ‖W_0‖ is forgotten"
        require(self.norm_steps >= 10 * self.averaging_steps, rule, self.norm_steps)

    def weight_decay(self, rate: ArrayLike, decayed: ArrayLike) -> Any:
        """Return λ of queries and keys: 1/(2ηT) where `decayed` is 1, 0 where it is 0."""
        return decayed / (2 * rate * self.averaging_steps)

    def second_b2(self, rate: ArrayLike, decayed: ArrayLike) -> jax.Array:
        """Return β₂ = 1/(1+2λη), or `RUNNING_MEAN` where that is 1."""
        average = squared_norm_average(rate, self.weight_decay(rate, decayed))
        return jnp.minimum(average.decay, RUNNING_MEAN)


ARMS = ("adam_qk_norm", *SECOND_STAGES)
"""Adam with qk-norm; then, in a model without it, Adam alone and with each second stage."""


def compute(config: Config, run: Run) -> xr.Dataset:
    """Run a sweep whose norms are recorded and one for each model, and `analyze` them."""
    plain, with_qk_norm = (
        language_task(replace(config.model, qk_norm=qk_norm), run.corpus, config.batch)
        for qk_norm in (False, True)
    )

    def init_plain(key):  # the same initial weights as the other model
        params, state = with_qk_norm.init(key)
        return without_qk_norm(params), state

    def sweep(name, fn, **axes):
        members = grid(**axes, decayed=np.array([0.0, 1.0]), seed=config.seeds)
        return run.sweep(name, fn, members, chunk_size=config.chunk_size)

    followed = sweep("norms", norms_member(config, with_qk_norm))
    stages = list(SECOND_STAGES.values())
    models = {
        "qk_norm": (with_qk_norm, stages[:1]),  # without a second stage
        "plain": (plain._replace(init=init_plain), stages),
    }
    rates = np.array(config.learning_rates)
    trained = [
        sweep(name, losses_member(config, task, of), stage=np.arange(len(of)), rate=rates)
        for name, (task, of) in models.items()
    ]
    loss, final = (np.concatenate([x[key] for x in trained]) for key in ("loss", "final"))
    return analyze(config, followed, loss, final)


def norms_member(config: Config, task: Task) -> MemberFunction:
    """Return a member function: Adam with qk-norm, `stage_effects` as (norm_steps, num_slices)."""

    def fn(member):
        rate, decayed = config.learning_rate, member["decayed"]
        effects = observed(stage_effects(config.second_b2(rate, decayed), config.eps))
        return train_member(
            task,
            _optimizer(config, rate, decayed, effects),
            seed=member["seed"],
            num_steps=config.norm_steps,
            read=lambda opt_state: opt_state[1].seen,
        ).read

    return fn


def losses_member(config: Config, task: Task, stages: Sequence[Callable]) -> MemberFunction:
    """Return a member function: `loss` by step, (num_steps,), and `final` by split, dropout off.

    The second stage is the one in `stages` at the member's place.
    """

    def fn(member):
        rate, decayed, seed = member["rate"], member["decayed"], member["seed"]
        second_b2 = config.second_b2(rate, decayed)
        second = one_of([stage(second_b2, config.eps) for stage in stages], member["stage"])
        optimizer = _optimizer(config, rate, decayed, second)
        result = train_member(task, optimizer, seed=seed, num_steps=config.num_steps)
        keys = jax.random.split(jax.random.key(seed), config.eval_batches)
        batches = jnp.concatenate([jax.vmap(f)(keys) for f in (task.sample, task.sample_heldout)])
        losses = jax.lax.map(
            lambda batch: task.evaluate(result.params, result.state, batch), batches
        )
        final = losses.reshape(len(SPLITS), config.eval_batches).mean(axis=1)
        return {"loss": result.loss, "final": final}

    return fn


def _optimizer(config: Config, rate, decayed, second: optax.GradientTransformation) -> Any:
    decay = optax.add_decayed_weights(config.weight_decay(rate, decayed))
    return optax.chain(
        scale_by_kadam(1, (config.b1,), (config.b2,), config.eps),
        second,
        on_queries_and_keys(decay),
        optax.scale_by_learning_rate(rate),
    )


def analyze(
    config: Config, followed: Mapping[str, np.ndarray], loss: np.ndarray, final: np.ndarray
) -> xr.Dataset:
    """Compare norms with averages, and losses at each arm's best learning rate.

    Args:
      config: The configuration, which determines the members.
      followed: `squared_norm`, `squared_update`, `scale`, `cosine`, each (2, num_seeds, norm_steps,
        num_slices), λ = 0 first.
      loss: The loss of every step, (num_arms, num_rates, 2, num_seeds, num_steps).
      final: The final loss of each split, (num_arms, num_rates, 2, num_seeds, 2).

    Returns:
      The figure's dataset.
    """
    data = _norms(config, followed).merge(_losses(config, loss, final))
    return labeled(data.assign(means_over_seeds(_statistics(data))))


def _norms(config: Config, followed: Mapping[str, np.ndarray]) -> xr.Dataset:
    """Compare ‖W‖ with what the paper says it is, at each step and in parts of the run."""
    norms = {key: np.moveaxis(array.astype(float), -1, -2) for key, array in followed.items()}
    squared_norm = norms["squared_norm"][..., 1:]
    averages = []
    for place, squared_updates in enumerate(norms["squared_update"]):
        weight_decay = config.weight_decay(config.learning_rate, place)
        decay, weight, _ = map(float, squared_norm_average(config.learning_rate, weight_decay))
        averages.append(signal.lfilter([weight], [1, -decay], squared_updates)[..., :-1])
    by_step = {
        "ratio": (
            squared_norm / np.stack(averages),
            "‖W‖² over the moving average of ‖u‖² that it is said to be",
        ),
        "inverse_norm": (squared_norm**-0.5, "scale 1/‖W‖ that a scale-invariant weight gives u"),
        "scale": (norms["scale"][..., 1:], "scale that a coarse-grained second stage gives u"),
        "cosine": (
            norms["cosine"][..., 1:],
            "cosine of u and the elementwise second stage's output",
        ),
    }
    data = xr.Dataset(
        over(("decay", "seed", "slice", "norm_step"), by_step),
        coordinates(
            decay=DECAY,
            seed=(config.seeds, "seed"),
            norm_step=(np.arange(1, config.norm_steps), *STEP),
        ),
    )
    tenth, half = config.norm_steps // 10, config.norm_steps // 2
    late, middle, second_half = (
        data.sel(norm_step=steps)
        for steps in (
            slice(config.norm_steps - tenth, None),
            slice(half, half + tenth - 1),
            slice(half, None),
        )
    )
    late_scale, middle_scale = (
        (part.scale / part.inverse_norm).mean("norm_step") for part in (late, middle)
    )
    return data.assign(
        momentum_factor=named(float(momentum_factor(config.b1)), "(1+γ)/(1-γ)"),
        drift=named(
            late_scale / middle_scale,
            "‖W‖ times the second stage's scale, last tenth over the tenth after the middle",
        ),
        final_ratio=named(
            late.ratio.mean("norm_step"),
            "‖W‖² over the moving average of ‖u‖², last tenth of the run",
        ),
        final_cosine=named(
            second_half.cosine.mean("norm_step"),
            "cosine of u and the elementwise stage's output, second half",
        ),
    )


def _losses(config: Config, loss: np.ndarray, final: np.ndarray) -> xr.Dataset:
    """Label losses, and choose each arm's learning rate on the other seeds."""
    members = ("arm", "rate", "decay", "seed")
    data = xr.Dataset(
        {
            "loss": named(
                ((*members, "step"), loss), "mean cross-entropy of the training batch", "nat/token"
            ),
            "final_loss": named(
                ((*members, "split"), final), "loss at the end, dropout off", "nat/token"
            ),
        },
        coordinates(
            decay=DECAY,
            seed=(config.seeds, "seed"),
            step=(np.arange(config.num_steps), *STEP),
            arm=(ARMS, "optimizer and model"),
            split=(SPLITS, "split of the corpus"),
            rate=(config.learning_rates, "learning rate η"),
        ),
    )
    best = best_on_other_seeds(data.final_loss.sel(split="heldout", drop=True), "rate")
    return data.assign(
        tuned_rate=named(
            data.rate[best].drop_vars("rate"), "learning rate that is best on the other seeds"
        ),
        tuned_loss=named(
            data.final_loss.isel(rate=best).drop_vars("rate"),
            "loss at the learning rate that is best on the other seeds",
            "nat/token",
        ),
    )


def _statistics(data: xr.Dataset) -> Statistics:
    """Return the numbers that the report states."""
    measured = {
        "drift": "‖W‖ times the second stage's scale, at the end over its value after the middle",
        "final_ratio": "‖W‖² over the average of ‖u‖² at the end",
        "final_cosine": "cosine of u and the elementwise second stage's output",
    }
    heldout = {
        "best": (data.tuned_loss.sel(split="heldout"), "each at its best learning rate"),
        "fast": (data.final_loss.sel(split="heldout").isel(rate=-1), "at the last learning rate"),
    }
    stated = {
        f"{name}_{place}": (data[name][place].median("slice"), f"{label}, {decay}", "1")
        for name, label in measured.items()
        for place, decay in enumerate(data.decay.values)
    }
    return stated | {
        f"gain_{arm}_{name}_{place}": (
            (loss.sel(arm="adam") - loss.sel(arm=arm)).isel(decay=place),
            f"held-out loss of Adam minus that of {arm}, {label}, {decay}",
            "nat/token",
        )
        for name, (loss, label) in heldout.items()
        for arm in ARMS
        if arm != "adam"
        for place, decay in enumerate(data.decay.values)
    }
