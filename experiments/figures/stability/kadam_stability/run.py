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
from experiments.core.store import labeled, named
from experiments.figures.stability.kadam_stability.worst_cases import (
    constructed_updates,
    last_stage_bounds,
)
from experiments.figures.stability.max_updates import (
    GIVEN,
    GROWING,
    growth_slopes,
    largest_ratio,
    theory,
    trajectories,
)
from experiments.training.config import TrainingConfig
from experiments.training.tasks import Task, language_task
from experiments.training.train import train_member
from kadam_jax import grid, normal_curve, points, record_max_update, scale_by_adaptive_normalization

STAGES = (1, 2, 3)

MemberFunction = Callable[[Mapping[str, jax.Array]], dict[str, jax.Array]]


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
        b1, b2 = (np.asarray(b, np.float32) for b in normal_curve(*GIVEN, self.num_curve))
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
        arrays = run.sweep(name, fn, members, chunk_size=config.chunk_size)
        return {key: x.reshape(*members.shape, -1) for key, x in arrays.items()}

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
    """Compare each number of stages with its last stage's bound.

    Args:
      config: The configuration, which determines the points.
      trained: `max_update` and `loss`, shape (num_k, num_points, num_seeds, num_steps).
      dead: ‖u_n‖∞ on dying gradients, shape (num_k, dead_seeds, dead_steps).
      constructed: From `constructed_updates`, shape (num_k, num_worst_points, num_lengths).

    Returns:
      The figure's dataset.
    """
    b1, b2 = config.points
    predicted = theory(b1, b2, config.num_steps)
    exact, paper = predicted["log_exact_bound"], predicted["log_paper_bound"]
    updates = trained["max_update"]
    dead_b1, dead_b2 = np.array(config.dead_point)[:, None]
    dead_theory = theory(dead_b1, dead_b2, config.dead_steps)
    second_half = (config.dead_steps // 2, config.dead_steps - 1)
    dead_slopes = growth_slopes(dead[None], dead_b1, dead_b2, second_half)[0]
    worst_bound = last_stage_bounds(config.worst_lengths, *np.array(config.worst_points).T)
    member, worst = ("k", "point", "seed"), ("worst_point", "length")
    data = trajectories(config, b1, b2, predicted, trained, ("k", "point")).assign(
        {
            "exact_ratio": named(
                (member, np.stack([largest_ratio(u, exact) for u in updates])),
                "largest max-update over the last stage's exact bound",
            ),
            "paper_ratio": named(
                (member, np.stack([largest_ratio(u, paper) for u in updates])),
                "largest max-update over Theorem 3's bound",
            ),
            "log10_largest": named(
                (member, np.log10(updates.max(-1))),
                "log10 of the largest max-update",
                "log10(learning rate)",
            ),
            "dead_update": named(
                (("k", "dead_seed", "dead_step"), dead),
                "max-update ‖u_n‖∞ on dying gradients",
                "learning rate",
            ),
            "dead_log_exact_bound": named(
                ("dead_step", dead_theory["log_exact_bound"][0]),
                "ln of the last stage's exact bound",
                "ln(learning rate)",
            ),
            "dead_growth": named(
                (("k", "dead_seed"), dead_slopes / dead_theory["exact_rate"]),
                "slope of ln ‖u_n‖∞ in the second half, over ln(γ/√β)",
            ),
            "constructed": named(
                (("k", *worst), constructed),
                "update at the last constructed gradient",
                "learning rate",
            ),
            "worst_bound": named(
                (worst, worst_bound),
                "exact supremum of the last stage at that step",
                "learning rate",
            ),
            "constructed_ratio": named(
                (("k", *worst), constructed / worst_bound),
                "update at the last constructed gradient over the last stage's supremum",
            ),
        }
    )
    data = data.assign_coords(
        {
            "k": named(("k", list(STAGES)), "number of stages"),
            "dead_seed": named(("dead_seed", np.arange(config.dead_seeds)), "seed of the noise"),
            "dead_step": named(
                ("dead_step", np.arange(config.dead_steps)),
                "optimizer steps done before, n",
                "step",
            ),
            "length": named(
                ("length", np.array(config.worst_lengths)),
                "number N of constructed gradients",
                "step",
            ),
            "worst_b1": named(
                ("worst_point", np.array(config.worst_points)[:, 0]),
                "γ of every stage for the constructed gradients",
            ),
            "worst_b2": named(
                ("worst_point", np.array(config.worst_points)[:, 1]),
                "β of every stage for the constructed gradients",
            ),
        }
    )
    return labeled(data.assign(_numbers(data)))


def _numbers(data: xr.Dataset) -> dict[str, xr.DataArray]:
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
    for k in STAGES:
        last = data.dead_update.sel(k=k).isel(dead_step=-1)
        numbers[f"dead_{k}"] = named(
            last.median(),
            f"max-update at the last step with dead gradients, k = {k}, median over seeds",
            "learning rates",
        )
        numbers[f"constructed_{k}"] = named(
            data.constructed_ratio.sel(k=k).isel(length=-1).min(),
            f"update at the last constructed gradient over the last stage's bound, k = {k}, "
            "longest sequences, smallest of all points",
            "1",
        )
    return numbers
