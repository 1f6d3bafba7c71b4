"""One second moment for a whole query or key matrix: is Assumption 2 harmless? (Fig. 9).

Three runs start from the same weights: Adam, Adam with coarse-graining on the same batches and
dropout, and Adam again on other batches, which shows how much a difference means.

Queries and keys end as far from Adam's as Adam's have moved. With coarse-graining the loss falls a
little later and ends where it does without it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr

from experiments.core.config import check_least, require
from experiments.core.run import Run
from experiments.core.stats import Statistics, means_over_seeds
from experiments.core.store import coordinates, labeled, named
from experiments.figures.invariance.queries_and_keys import others, stacked
from experiments.training.config import TrainingConfig
from experiments.training.tasks import Task, language_task
from kadam_jax import grid, scale_by_coarse_grained_normalization
from models.nanogpt import GPTConfig

RUNS = {"adam": "Adam", "coarse": "coarse-grained", "reordered": "Adam, other batches"}
"""The label of every run."""

QUERIES_AND_KEYS = np.array([True, True, False]).reshape(3, 1, 1)
"""Mask of a (width, 3, heads, head_size) leaf."""
PARTS = {"slices": "queries and keys", "others": "all other parameters"}
"""The label of every part of the parameters."""
DONE = ("optimizer steps done, n", "step")


@dataclass(frozen=True)
class Config(TrainingConfig):
    """The training setup.

    Attributes:
      b1: γ.
      b2: β.
      num_parameters: Single entries of queries and keys whose trajectories are kept.
      eval_every: Steps between two evaluations, a divisor of num_steps.
      eval_batches: Held-out batches in an evaluation, the same in every evaluation.
    """

    model: GPTConfig = field(default_factory=lambda: GPTConfig(qk_norm=True))
    b1: float = 0.9
    b2: float = 0.999
    num_parameters: int = 16
    eval_every: int = 50
    eval_batches: int = 16

    def __post_init__(self):
        super().__post_init__()
        check_least(self, num_parameters=1, eval_batches=1, eval_every=1)
        divides = self.num_steps % self.eval_every == 0
        require(divides, f"eval_every must divide num_steps={self.num_steps}", self.eval_every)


def compute(config: Config, run: Run) -> xr.Dataset:
    """Run one sweep over seeds, with all three runs in each member, and `analyze` it."""
    task = language_task(config.model, run.corpus, config.batch)
    seeds = grid(seed=config.seeds)
    trained = run.sweep("runs", member(config, task), seeds, chunk_size=config.chunk_size)
    return analyze(config, trained)


def optimizer(config: Config, coarse: jax.Array) -> optax.GradientTransformation:
    """Build Adam; each query and key matrix shares one second moment if `coarse`, traced."""
    return optax.chain(
        scale_by_coarse_grained_normalization(
            lambda path, leaf: (0, 3) if path.endswith("qkv") else (),
            config.b1,
            config.b2,
            config.eps,
            where=lambda path, leaf: coarse & QUERIES_AND_KEYS if path.endswith("qkv") else True,
        ),
        optax.scale_by_learning_rate(config.learning_rate),
    )


def member(config: Config, task: Task) -> Callable[[Mapping], dict[str, jax.Array]]:
    """Return a member function that does the three runs in step.

    Args:
      config: The configuration of the optimizer, and of the values that are kept.
      task: The training task.

    Returns:
      A function of a member with `seed` to `loss` (num_steps, 3), of the training batches;
      `trajectory` (num_steps, 3, num_parameters), parameters after each step; `distance` and
      `moved` (num_steps, 3, 2), norms, over the queries and keys and over all else, of the
      difference from the first run and from the initial weights; and `heldout_loss` (num_evals, 3).
    """

    def fn(member):
        init_key, run_key = jax.random.split(jax.random.key(member["seed"]))
        other_key, heldout_key = jax.random.split(jax.random.fold_in(run_key, config.num_steps))
        params, model_state = task.init(init_key)
        runs = jnp.array([False, True, False]), jnp.stack([run_key, run_key, other_key])
        heldout = jax.vmap(task.sample_heldout)(jax.random.split(heldout_key, config.eval_batches))
        kept = chosen_entries(config, stacked(params))

        def start(coarse, run_key):
            return params, model_state, optimizer(config, coarse).init(params)

        def step(coarse, run_key, carry, index):
            params, model_state, opt_state = carry
            sample_key, dropout_key = jax.random.split(jax.random.fold_in(run_key, index))
            (loss, model_state), grads = jax.value_and_grad(task.loss, has_aux=True)(
                params, model_state, task.sample(sample_key), dropout_key
            )
            updates, opt_state = optimizer(config, coarse).update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), model_state, opt_state), loss

        def step_all(carry, index):
            carry, loss = jax.vmap(step, (0, 0, 0, None))(*runs, carry, index)
            after = carry[0]
            first = jax.tree.map(lambda x: x[:1], after)
            return carry, {
                "loss": loss,
                "trajectory": jax.vmap(stacked)(after)[:, *kept],
                "distance": _norms(after, first),
                "moved": _norms(after, jax.tree.map(lambda x: x[None], params)),
            }

        def evaluate(carry):
            def of_run(params, model_state):
                losses = jax.lax.map(lambda b: task.evaluate(params, model_state, b), heldout)
                return losses.mean()

            return jax.vmap(of_run)(*carry[:2])

        def until_evaluation(carry, indices):
            carry, records = jax.lax.scan(step_all, carry, indices)
            return carry, (records, evaluate(carry))

        indices = jnp.arange(config.num_steps).reshape(-1, config.eval_every)
        _, (records, heldout_loss) = jax.lax.scan(until_evaluation, jax.vmap(start)(*runs), indices)
        records = {name: x.reshape(config.num_steps, *x.shape[2:]) for name, x in records.items()}
        return records | {"heldout_loss": heldout_loss}

    return fn


def chosen_entries(config: Config, slices: jax.Array) -> tuple[np.ndarray, ...]:
    """Draw places of single entries among all slices, the same for all members."""
    flat = np.random.default_rng(0).choice(slices.size, config.num_parameters, replace=False)
    return np.unravel_index(flat, slices.shape)


def _norms(trees: Mapping, origin: Mapping) -> jax.Array:
    """Compute norms of trees minus `origin`, over both parts, shape (num_runs, 2)."""
    differences = jax.tree.map(jnp.subtract, trees, origin)

    def of_parts(tree):
        return jnp.stack([optax.tree.norm(part(tree)) for part in (stacked, others)])

    return jax.vmap(of_parts)(differences)


def analyze(config: Config, trained: Mapping[str, np.ndarray]) -> xr.Dataset:
    """Compute trajectories and losses of all three runs, and the distances between them.

    Args:
      config: The configuration, which determines the seeds.
      trained: The result of `member`'s function, seeds first.

    Returns:
      The figure's dataset.
    """
    every, norms = config.eval_every, ("seed", "step", "run", "part")
    moved = trained["moved"][:, :, :1]  # of the first run
    data = xr.Dataset(
        {
            "loss": named(
                (("seed", "step", "run"), trained["loss"]),
                "mean cross-entropy of the training batch",
                "nat/token",
            ),
            "trajectory": named(
                (("seed", "step", "run", "parameter"), trained["trajectory"]),
                "value of a single entry of a query or key matrix",
            ),
            "moved": named((norms, trained["moved"]), "norm of θ_n - θ_0"),
            "distance": named(
                (norms, trained["distance"] / moved),
                "distance from the first run over that run's displacement",
            ),
            "heldout_loss": named(
                (("seed", "eval_step", "run"), trained["heldout_loss"]),
                "mean cross-entropy of held-out batches",
                "nat/token",
            ),
        },
        coordinates(
            seed=(config.seeds, "seed"),
            step=(np.arange(1, config.num_steps + 1), *DONE),
            eval_step=(np.arange(every, config.num_steps + 1, every), *DONE),
            run=(list(RUNS), "run"),
            part=(list(PARTS), "queries and keys, or all other parameters"),
            parameter=(
                np.arange(trained["trajectory"].shape[-1]),
                "place among the entries that were drawn",
            ),
        ),
    )
    data["training_loss"] = named(
        data.loss.coarsen(step=every).mean().drop_vars("step").rename(step="eval_step"),
        "mean cross-entropy of the eval_every batches before",
        "nat/token",
    )
    return labeled(data.assign(means_over_seeds(_statistics(data))))


def _statistics(data: xr.Dataset) -> Statistics:
    distance, loss = data.distance.isel(step=-1), data.heldout_loss.isel(eval_step=-1)
    training = data.training_loss.isel(eval_step=-1)
    stated = {}
    for run in ("coarse", "reordered"):
        for part, where in PARTS.items():
            what = f"distance from Adam over its displacement at the end, {where}"
            values = distance.sel(run=run, part=part)
            stated[f"distance_{run}_{part}"] = values, f"{RUNS[run]}: {what}", "1"
        what = f"held-out loss at the end, {RUNS[run]} minus Adam"
        stated[f"harm_{run}"] = loss.sel(run=run) - loss.sel(run="adam"), what, "nat/token"
    stated["training_harm_coarse"] = (  # the control has other batches, so nothing is paired
        training.sel(run="coarse") - training.sel(run="adam"),
        "training loss of the last steps, coarse-grained minus Adam",
        "nat/token",
    )
    return stated
