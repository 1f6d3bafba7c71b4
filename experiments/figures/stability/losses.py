"""Test losses of nanoGPT along points of the (β, γ) plane; shared by the figures of §3.3.

Every point is trained by Adam with a warm-up and a cosine; the loss on the same held-out crops is
taken at regular intervals. A member that diverges stays in the arrays: its last loss is not finite
or is no better than before training, and its best loss is the best it reached up to then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr

from experiments.core.config import check_least, require
from experiments.core.run import Run
from experiments.core.store import COORDINATES, coordinates, named, over
from experiments.figures.stability.max_updates import Member, Schedule, stored_rms, theory
from experiments.training.config import ScheduledConfig
from experiments.training.schedules import warmup_cosine
from experiments.training.tasks import Task, language_task
from experiments.training.train import train_member
from kadam_jax.members import Members

HORIZONS = {"early": "first third", "whole": "whole run"}
"""The paper's first 1000 of 3000 steps, and all steps."""
NAT = "nat/token"


@dataclass(frozen=True)
class Config(ScheduledConfig):
    """The fields shared by figures of test losses; learning_rate is the peak value.

    Attributes:
      num_points: Points on a curve.
      eval_every: Steps between two test losses.
      eval_batches: Held-out batches that a test loss is averaged over, the same for all members.
    """

    num_points: int = 16
    warmup_steps: int = 100
    eval_every: int = 100
    eval_batches: int = 200

    def __post_init__(self):
        super().__post_init__()
        rule = "num_seeds must be at least 2, because a point is chosen on the other seeds"
        require(self.num_seeds >= 2, rule, self.num_seeds)
        check_least(self, num_points=3, eval_batches=1, eval_every=1)
        rule = f"eval_every must divide a third of num_steps={self.num_steps}"
        require(self.num_steps % (3 * self.eval_every) == 0, rule, self.eval_every)

    @property
    def horizon_steps(self) -> tuple[int, int]:
        """Number of steps of each horizon."""
        return self.num_steps // 3, self.num_steps

    @property
    def evaluations(self) -> np.ndarray:
        """Number of steps done before each test loss, from 0 to num_steps."""
        return np.arange(0, self.num_steps + 1, self.eval_every)

    @property
    def warmup_cosine(self) -> optax.Schedule:
        """The paper's learning rate: a linear warm-up, then a cosine (appendix H)."""
        return warmup_cosine(self.num_steps, self.warmup_steps, self.final_rate, self.learning_rate)


class RecordLossState(NamedTuple):
    """State of `record_loss`."""

    count: jax.Array  # shape=(), dtype=int32: steps done
    loss: jax.Array  # shape=(), of the parameters before the latest step; NaN if it was not taken


def record_loss(
    evaluate: Callable[[optax.Params], jax.Array], every: int
) -> optax.GradientTransformation:
    """Leave updates unchanged and evaluate the parameters before step 0, `every`, 2 `every`, ...

    The step count is the same for all members of a sweep, so members that run in parallel skip the
    evaluation together.

    Args:
      evaluate: `evaluate(params)` returns a scalar.
      every: Steps between two evaluations.

    Returns:
      A transformation whose state holds the loss, NaN after the other steps.

    >>> optimizer = optax.chain(record_loss(lambda w: w**2, every=2), optax.sgd(1.0))
    >>> w = jnp.array(3.0)
    >>> state = optimizer.init(w)
    >>> for _ in range(3):
    ...     updates, state = optimizer.update(jnp.array(1.0), state, w)
    ...     w = w + updates
    >>> float(state[0].loss), float(w)
    (1.0, 0.0)
    """

    def update(updates, state, params=None):
        loss = jax.lax.cond(
            state.count % every == 0,
            lambda params: evaluate(params).astype(state.loss.dtype),
            lambda _: jnp.full_like(state.loss, jnp.nan),
            params,
        )
        return updates, RecordLossState(state.count + 1, loss)

    return optax.GradientTransformation(
        lambda params: RecordLossState(jnp.zeros([], jnp.int32), jnp.full([], jnp.nan)), update
    )


def member_function(
    config: Config, task: Task, schedule: Schedule
) -> Callable[[Member], dict[str, jax.Array]]:
    """Return a function of a member (`b1`, `b2`, `seed`): `test_loss` at `config.evaluations`.

    Args:
      config: The configuration; its held-out batches are the same at every step of every member.
      task: The training task; its evaluation must not depend on the model's state.
      schedule: The member's learning rate; it may read other columns of the member.
    """
    keys = jax.random.split(jax.random.key(0), config.eval_batches)

    def fn(member):
        batches = jax.vmap(task.sample_heldout)(keys)
        _, state = task.init(keys[0])

        def evaluate(params):
            return jax.lax.map(lambda batch: task.evaluate(params, state, batch), batches).mean()

        optimizer = optax.chain(
            record_loss(evaluate, config.eval_every),
            stored_rms(member["b1"], member["b2"], config.eps),
            optax.scale_by_learning_rate(schedule(member)),
        )
        result = train_member(
            task,
            optimizer,
            seed=member["seed"],
            num_steps=config.num_steps,
            read=lambda opt_state: opt_state[0].loss,
        )
        during, end = result.read[:: config.eval_every], evaluate(result.params)
        return {"test_loss": jnp.append(during, end)}

    return fn


def train(
    run: Run, name: str, config: Config, members: Members, schedule: Schedule | None = None
) -> np.ndarray:
    """Train members, by default with `config.warmup_cosine`, in one compiled sweep.

    Returns:
      Test losses, shape (*members.shape, num_evaluations).
    """
    task = language_task(config.model, run.corpus, config.batch)
    fn = member_function(config, task, schedule or (lambda member: config.warmup_cosine))
    return run.sweep(name, fn, members, chunk_size=config.chunk_size)["test_loss"]


def dataset(
    config: Config, dims: Sequence[str], b1: np.ndarray, b2: np.ndarray, test_loss: np.ndarray
) -> xr.Dataset:
    """Return test losses at their points, the best one up to each horizon, and which runs diverged.

    Args:
      config: The training setup.
      dims: Dimensions of the points; the last one is "point".
      b1, b2: Decays over those dimensions.
      test_loss: From `train`, over those dimensions, the seeds and the evaluations.
    """
    data = xr.Dataset(
        over(
            (*dims, "seed", "evaluation"),
            {"test_loss": (test_loss, "mean cross-entropy on held-out text, dropout off", NAT)},
        ),
        {
            "b1": (dims, b1),
            "b2": (dims, b2),
            "C": (dims, theory(b1.ravel(), b2.ravel(), 1)["C"].reshape(b1.shape)),
            "seed": np.array(config.seeds),
            **coordinates(
                evaluation=(config.evaluations, *COORDINATES["step"]),
                horizon=(list(HORIZONS), "part of the run: its first third or all of it"),
            ),
            **over(
                "horizon",
                {"horizon_steps": (config.horizon_steps, "number of steps of that part", "step")},
            ),
        },
    )
    finite = data.test_loss.where(np.isfinite(data.test_loss), np.inf)
    best = [finite.sel(evaluation=slice(n)).min("evaluation") for n in config.horizon_steps]
    return data.assign(
        best_loss=named(xr.concat(best, data.horizon), "lowest test loss up to a horizon", NAT),
        diverged=named(
            ~(finite.isel(evaluation=-1) < finite.isel(evaluation=0)),
            "whether the last test loss is not below the one before training",
        ),
    )
