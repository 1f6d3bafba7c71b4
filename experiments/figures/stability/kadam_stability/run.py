"""Is k-Adam more stable than Adam? Training, dead gradients and worst cases with k stages (§4.3).

This is not in the paper, which calls its bound on k-Adam a stronger guarantee without comparing
the two. Every stage has Adam's decays, so the last stage's bound is Adam's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr
from jax.typing import ArrayLike

from experiments.core.config import check_least, require
from experiments.core.run import Run
from experiments.core.stats import means_over_seeds
from experiments.core.store import COORDINATES, coordinates, labeled, over
from experiments.figures.stability.kadam_stability.worst_cases import (
    constructed_updates,
    last_stage_bounds,
)
from experiments.figures.stability.max_updates import (
    BOUNDS,
    GROWING,
    Member,
    growth_slopes,
    largest_ratio,
    theory,
    trajectories,
    usual_curve,
)
from experiments.training.config import TrainingConfig
from experiments.training.tasks import Task, language_task
from experiments.training.train import train_member
from kadam_jax import grid, points, record_max_update, scale_by_adaptive_normalization

STAGES = (1, 2, 3)

MemberFunction = Callable[[Member], dict[str, jax.Array]]


@dataclass(frozen=True)
class Config(TrainingConfig):
    """The training setup, and the gradients that are fed to the optimizers without a model.

    Attributes:
      num_curve: Points, uniform in arc length, from the usual point to γ = 1 (that end excluded).
      num_stable: How many of them with C > 0 are trained, evenly spaced from the usual point on.
      num_unstable: How many of the curve's last points are trained.
      dead_point: γ, β of every stage in the runs whose gradients die.
      dead_after: Steps whose gradients are normal noise; all later gradients are 0.
      dead_steps: Steps in all.
      dead_entries: Number of entries of these gradients.
      dead_seeds: Seeds of the noise.
      worst_points: γ, β of every stage for the constructed gradients, one pair after the other.
      worst_lengths: Numbers of constructed gradients, rising.
    """

    num_curve: int = 40
    num_stable: int = 4
    num_unstable: int = 5
    dead_point: tuple[float, float] = (0.9983, 0.9525)
    dead_after: int = 50
    dead_steps: int = 1000
    dead_entries: int = 256
    dead_seeds: int = 20
    worst_points: tuple[tuple[float, float], ...] = (
        (0.9, 0.999),
        (0.68377, 0.96838),
        (0.98, 0.9623),
        (0.9983, 0.9525),
    )
    worst_lengths: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

    def __post_init__(self):
        super().__post_init__()
        check_least(self, num_stable=1, num_unstable=1, dead_entries=1, dead_seeds=1)
        rule = f"dead_after must be from 1 to half of dead_steps={self.dead_steps}"
        require(1 <= self.dead_after <= self.dead_steps // 2, rule, self.dead_after)
        for point in (self.dead_point, *self.worst_points):
            inside = all(0 < decay < 1 for decay in point)
            require(inside, "dead_point and worst_points must be pairs γ, β in (0, 1)", point)
        require(self.worst_points, "worst_points must not be empty", self.worst_points)
        long = self.worst_lengths and min(self.worst_lengths) >= 1
        require(long, "worst_lengths must be one or more, each at least 1", self.worst_lengths)

    @property
    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """γ and β of the trained points, float32."""
        b1, b2 = usual_curve(self.num_curve)
        num_inside = int((2 / b1 - 1 / b2 - 1 > 0).sum())
        stable = np.arange(self.num_stable) * num_inside // self.num_stable
        chosen = np.r_[stable, self.num_curve - self.num_unstable : self.num_curve]
        return b1[chosen], b2[chosen]


def compute(config: Config, run: Run) -> xr.Dataset:
    """Run a sweep of training, one of dying gradients, and the worst cases; `analyze` them."""
    task = language_task(config.model, run.corpus, config.batch)
    b1, b2 = config.points
    members = grid(k=STAGES, point=points(b1=b1, b2=b2), seed=config.seeds)
    dead_members = grid(k=STAGES, seed=range(config.dead_seeds))

    def sweep(name, fn, members):
        return run.sweep(name, fn, members, chunk_size=config.chunk_size)

    trained = sweep("training", training_member(config, task), members)
    dead = sweep("dying", dying_member(config), dead_members)
    worst = np.array(config.worst_points).T
    constructed = [constructed_updates(k, config.worst_lengths, *worst) for k in STAGES]
    return analyze(config, trained, dead["max_update"], np.stack(constructed))


def first_stages(
    k: ArrayLike, b1: ArrayLike, b2: ArrayLike, eps: ArrayLike
) -> optax.GradientTransformation:
    """Build k-Adam with equal stages and a traced k from `STAGES`: one program for all k."""
    stage = scale_by_adaptive_normalization(b1, b2, eps)

    def update(updates, states, params=None):
        del params
        outputs, new_states = [], []
        for state in states:
            updates, state = stage.update(updates, state)
            outputs.append(updates)
            new_states.append(state)
        chosen = jax.tree.map(lambda *leaves: jax.lax.select_n(k - 1, *leaves), *outputs)
        return chosen, tuple(new_states)

    return optax.GradientTransformation(
        lambda params: tuple(stage.init(params) for _ in STAGES), update
    )


def training_member(config: Config, task: Task) -> MemberFunction:
    """Map a member `k`, `b1`, `b2`, `seed` to `loss` and `max_update` by step, (num_steps,)."""

    def fn(member):
        optimizer = optax.chain(
            first_stages(member["k"], member["b1"], member["b2"], config.eps),
            record_max_update(),
            optax.scale_by_learning_rate(config.learning_rate),
        )
        result = train_member(
            task,
            optimizer,
            seed=member["seed"],
            num_steps=config.num_steps,
            read=lambda opt_state: opt_state[1].max_update,
        )
        return {"loss": result.loss, "max_update": result.read}

    return fn


def dying_member(config: Config) -> MemberFunction:
    """Map a member `k`, `seed` to `max_update`, (dead_steps,), on normal noise, then on 0."""

    def fn(member):
        optimizer = first_stages(member["k"], *config.dead_point, config.eps)
        key = jax.random.key(member["seed"])

        def step(state, n):
            noise = jax.random.normal(jax.random.fold_in(key, n), (config.dead_entries,))
            updates, state = optimizer.update(jnp.where(n < config.dead_after, noise, 0), state)
            return state, jnp.abs(updates).max()

        start = optimizer.init(jnp.zeros(config.dead_entries))
        return {"max_update": jax.lax.scan(step, start, jnp.arange(config.dead_steps))[1]}

    return fn


def analyze(
    config: Config, trained: Mapping[str, np.ndarray], dead: np.ndarray, constructed: np.ndarray
) -> xr.Dataset:
    """Return the figure's dataset: each number of stages and its last stage's bound.

    Args:
      config: The configuration, which determines the points.
      trained: `max_update` and `loss`, shape (num_k, num_points, num_seeds, num_steps).
      dead: ‖u_n‖∞ on dying gradients, shape (num_k, dead_seeds, dead_steps).
      constructed: From `constructed_updates`, shape (num_k, num_worst_points, num_lengths).
    """
    (b1, b2), updates = config.points, trained["max_update"]
    predicted = theory(b1, b2, config.num_steps)
    exact, paper = (
        np.stack([largest_ratio(of_k, predicted[bound]) for of_k in updates]) for bound in BOUNDS
    )
    ratios = {
        "exact_ratio": (exact, "largest max-update over the last stage's exact bound"),
        "paper_ratio": (paper, "largest max-update over Theorem 3's bound"),
        "log10_largest": (
            np.log10(updates.max(-1)),
            "log10 of the largest max-update",
            "log10(learning rate)",
        ),
    }
    k, worst, length = "k", "worst_point", "length"
    data = trajectories(config, b1, b2, predicted, trained, ("k", "point")).assign(
        over((k, "point", "seed"), ratios) | _dying(config, dead)
    )
    points = np.array(config.worst_points).T
    bound = last_stage_bounds(config.worst_lengths, *points)
    at_last = "update at the last constructed gradient"
    driven = {
        "constructed": (constructed, at_last, "learning rate"),
        "constructed_ratio": (constructed / bound, f"{at_last} over the last stage's supremum"),
    }
    supremum = (bound, "exact supremum of the last stage at that step", "learning rate")
    data = data.assign(
        over((k, worst, length), driven) | over((worst, length), {"worst_bound": supremum})
    )
    where = "of every stage for the constructed gradients"
    decays = {"worst_b1": (points[0], f"γ {where}"), "worst_b2": (points[1], f"β {where}")}
    axes = coordinates(
        k=(STAGES, "number of stages"),
        dead_seed=(np.arange(config.dead_seeds), "seed of the noise"),
        dead_step=(np.arange(config.dead_steps), *COORDINATES["step"]),
        length=(config.worst_lengths, "number N of constructed gradients", "step"),
    )
    data = data.assign_coords(axes | over(worst, decays))
    return labeled(data.assign(_numbers(data)))


def _dying(config: Config, dead: np.ndarray) -> dict[str, xr.Variable]:
    """Return the max-updates on dying gradients, their bound and their growth."""
    b1, b2 = np.array(config.dead_point)[:, None]
    predicted = theory(b1, b2, config.dead_steps)
    second_half = (config.dead_steps // 2, config.dead_steps - 1)
    growth = growth_slopes(dead[None], b1, b2, second_half)[0] / predicted["exact_rate"]
    update = (dead, "max-update ‖u_n‖∞ on dying gradients", "learning rate")
    label = "ln of the last stage's exact bound"
    bound = (predicted["log_exact_bound"][0], label, "ln(learning rate)")
    slope = (growth, "slope of ln ‖u_n‖∞ in the second half, over ln(γ/√β)")
    return (
        over(("k", "dead_seed", "dead_step"), {"dead_update": update})
        | over("dead_step", {"dead_log_exact_bound": bound})
        | over(("k", "dead_seed"), {"dead_growth": slope})
    )


def _numbers(data: xr.Dataset) -> dict[str, xr.DataArray | xr.Variable]:
    """Return the numbers that the report states."""
    regions = {"b_plus": (data.C > 0, "C > 0"), "b_minus": (data.C <= GROWING, f"C ≤ {GROWING}")}
    trained = {
        f"{region}_{k}": (
            data.log10_largest.sel(k=k).isel(point=chosen.values).median("point"),
            f"log10 of the largest max-update, k = {k}, median over points with {condition}",
            "log10(learning rates)",
        )
        for k in STAGES
        for region, (chosen, condition) in regions.items()
    }
    numbers = means_over_seeds(trained)
    last = data.isel(dead_step=-1, length=-1)
    dead_label = "max-update at the last step with dead gradients, k = {}, median over seeds"
    label = (
        "update at the last constructed gradient over the last stage's bound, k = {}, longest "
        "sequences, smallest of all points"
    )
    for k in STAGES:
        dead, ratio = last.dead_update.sel(k=k).median(), last.constructed_ratio.sel(k=k).min()
        rows = {
            f"dead_{k}": (dead, dead_label.format(k), "learning rates"),
            f"constructed_{k}": (ratio, label.format(k)),
        }
        numbers |= over((), rows)
    return numbers
