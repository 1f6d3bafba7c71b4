"""⟨W_N, g_n⟩ of queries and keys over a run: is Assumption 1 true? (Fig. 8).

The run is done twice: W_N is known in the second pass, so no gradient has to be stored.

The products themselves, which the paper draws, are hardly smaller with qk-norm than without; their
cosines are a third as large. This is still more than chance: W_n is orthogonal to g_n, but by step
N the weights have moved by -η(1-γ^(N-n)) g_n/√v_n and, where gradients of different steps are
correlated, by more or less. This is why the term -2⟨W, u⟩, which the assumption drops, is larger
than the term that is kept.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr

from experiments.core.config import require
from experiments.core.run import Run
from experiments.core.stats import Statistics, means_over_seeds
from experiments.core.store import coordinates, labeled, named, over
from experiments.figures.invariance.queries_and_keys import inner, stacked
from experiments.training.config import TrainingConfig
from experiments.training.tasks import Task, language_task
from experiments.training.train import train_member
from kadam_jax import grid, radial_inner_products, scale_by_kadam
from models.nanogpt import GPTConfig

NETWORKS = {"qk_norm": "qk-norm", "no_qk_norm": "no qk-norm"}
"""The label of every network."""

EXACT_EPS = 1e-12
"""qk-norm's ε where Lemma 2 should hold up to rounding."""


@dataclass(frozen=True)
class Config(TrainingConfig):
    """The training setup.

    Attributes:
      num_steps: N.
      b1: γ.
      b2: β.
      exact_steps: Steps of the run whose qk-norm has a vanishing ε.
    """

    num_steps: int = 1000
    b1: float = 0.9
    b2: float = 0.999
    exact_steps: int = 100

    def __post_init__(self):
        super().__post_init__()
        rule = f"exact_steps must be from 1 to num_steps={self.num_steps}"
        require(1 <= self.exact_steps <= self.num_steps, rule, self.exact_steps)

    @property
    def networks(self) -> dict[str, GPTConfig]:
        """The networks, by name."""
        return {
            "qk_norm": replace(self.model, qk_norm=True),
            "no_qk_norm": replace(self.model, qk_norm=False),
        }


def compute(config: Config, run: Run) -> xr.Dataset:
    """Run two sweeps over seeds, with and without qk-norm, and a short one for Lemma 2."""
    seeds = grid(seed=config.seeds)

    def sweep(name: str, model: GPTConfig, num_steps: int) -> dict[str, np.ndarray]:
        task = language_task(model, run.corpus, config.batch)
        fn = member(config, task, num_steps)
        return run.sweep(name, fn, seeds, chunk_size=config.chunk_size)

    trained = {
        name: sweep(name, model, config.num_steps) for name, model in config.networks.items()
    }
    exact_model = replace(config.model, qk_norm=True, qk_norm_eps=EXACT_EPS)
    exact = sweep("exact", exact_model, config.exact_steps)
    return analyze(config, trained, exact)


def member(config: Config, task: Task, num_steps: int) -> Callable[..., dict[str, jax.Array]]:
    """Return a member function that does both passes and records the second.

    Args:
      config: The configuration of the optimizer.
      task: The training task.
      num_steps: N.

    Returns:
      A function of a member with `seed` to what `_products` returns, each of shape (num_steps,
      num_slices), and `repeat_error`, the largest difference between the two passes' W_N.
    """

    def fn(member):
        def one_pass(end, _):
            optimizer = optax.chain(
                _observed_adam(config, end), optax.scale_by_learning_rate(config.learning_rate)
            )
            result = train_member(
                task,
                optimizer,
                seed=member["seed"],
                num_steps=num_steps,
                read=lambda opt_state: opt_state[0].products,
            )
            end = stacked(result.params)
            return end, (end, result.read)

        params = jax.eval_shape(task.init, jax.random.key(0))[0]
        unknown = jnp.zeros_like(jax.eval_shape(stacked, params))
        # Both passes are one program: two would differ in rounding, which training amplifies.
        _, (ends, reads) = jax.lax.scan(one_pass, unknown, length=2)
        second = {name: array[1] for name, array in reads.items()}
        return second | {"repeat_error": jnp.abs(ends[1] - ends[0]).max()}

    return fn


class _ObservedState(NamedTuple):
    adam: optax.OptState
    normalize: optax.OptState  # state of Adam with γ = 0: g/√v
    products: dict[str, jax.Array]


def _observed_adam(config: Config, end: jax.Array) -> optax.GradientTransformation:
    """Build Adam that records each step's products with the weights and with `end`."""
    adam, normalize = (
        scale_by_kadam(1, (b1,), (config.b2,), config.eps) for b1 in (config.b1, 0.0)
    )

    def products(params, g, u, normalized):
        return _products(config.learning_rate, end, *map(stacked, (params, g, u, normalized)))

    def init(params):
        empty = jax.tree.map(jnp.zeros_like, params)
        return _ObservedState(
            adam.init(params), normalize.init(params), products(params, empty, empty, empty)
        )

    def update(updates, state, params):
        u, adam_state = adam.update(updates, state.adam)
        normalized, normalize_state = normalize.update(updates, state.normalize)
        return u, _ObservedState(
            adam_state, normalize_state, products(params, updates, u, normalized)
        )

    return optax.GradientTransformation(init, update)


def _products(learning_rate, end, w, g, u, normalized) -> dict[str, jax.Array]:
    """Compute a step's products with W_N = `end` and with its own W_n, one for each slice.

    Args:
      learning_rate: η.
      end, w, g, u, normalized: W_N, W_n, g_n, u_n and g_n/√v_n, (num_slices, width, head_size).

    Returns:
      `inner` ⟨W_N, g_n⟩; the cosines `cosine` (W_N and g_n), `own_cosine` (W_n and g_n) and
      `update_cosine` (W_N and u_n); `own_share`, the part of the cosine of W_N and g_n that -η
      g_n/√v_n in W_N contributes; `growth` η‖u_n‖²; and `radial` -2⟨W_n, u_n⟩.
    """

    with_end = radial_inner_products(end, g, axes=(1, 2))
    norms = jnp.sqrt(inner(end, end) * inner(g, g))
    return {
        "inner": with_end.inner,
        "cosine": with_end.cosine,
        "own_cosine": radial_inner_products(w, g, axes=(1, 2)).cosine,
        "update_cosine": radial_inner_products(end, u, axes=(1, 2)).cosine,
        "own_share": -learning_rate * inner(g, normalized) / jnp.where(norms == 0, jnp.inf, norms),
        "growth": learning_rate * inner(u, u),
        "radial": -2 * inner(w, u),
    }


PRODUCTS = {
    "inner": "⟨W_N, g_n⟩ of a query or key matrix",
    "cosine": "cosine of W_N and g_n",
    "own_cosine": "cosine of W_n and g_n",
    "update_cosine": "cosine of W_N and u_n",
    "own_share": "cosine of W_N and g_n that the contribution of g_n to W_N makes",
    "growth": "η‖u_n‖²",
    "radial": "-2⟨W_n, u_n⟩",
}
"""The label of each quantity that is recorded at every step."""
STEP = ("optimizer steps done before, n", "step")


def analyze(
    config: Config,
    trained: Mapping[str, Mapping[str, np.ndarray]],
    exact: Mapping[str, np.ndarray],
) -> xr.Dataset:
    """Compute products over steps and their statistics.

    Args:
      config: The configuration, which determines the networks.
      trained: For each network, the result of `member`'s function, seeds first.
      exact: The same for the short run.

    Returns:
      The figure's dataset.
    """
    runs = {
        key: np.stack([arrays[key] for arrays in trained.values()])
        for key in next(iter(trained.values()))
    }
    dims = ("network", "seed", "step", "slice")
    data = xr.Dataset(
        {
            **over(dims, {name: (runs[name], label) for name, label in PRODUCTS.items()}),
            "repeat_error": named(
                (dims[:2], runs["repeat_error"]), "largest difference between the two passes' W_N"
            ),
            "exact_cosine": named(
                (("seed", "exact_step", "slice"), exact["own_cosine"]),
                "cosine of W_n and g_n where qk-norm's ε vanishes",
            ),
            "chance": named(
                (config.model.width * config.model.head_size) ** -0.5,
                "root mean square cosine of random directions, 1/√entries",
            ),
            "noise_share": named(
                2 * config.b1 / (1 - config.b1),
                "-2⟨W_n, u_n⟩ over η‖u_n‖² for gradients that are noise, 2γ/(1-γ)",
            ),
        },
        coordinates(
            network=(list(trained), "network"),
            seed=(config.seeds, "seed"),
            step=(np.arange(config.num_steps), *STEP),
            exact_step=(np.arange(config.exact_steps), *STEP),
            slice=(
                np.arange(runs["inner"].shape[-1]),
                "place among the queries and keys of all layers and heads",
            ),
        ),
    )
    # By step N momentum has let through 1 - γ^(N-n) of g_n.
    data["own_share"] *= 1 - config.b1 ** (config.num_steps - data.step)
    data["radial_share"] = named(
        abs(data.radial / data.growth.where(data.growth != 0)).median("slice"),
        "|2⟨W_n, u_n⟩| over η‖u_n‖², median over slices",
    )
    return labeled(data.assign(means_over_seeds(_statistics(data))))


def _statistics(data: xr.Dataset) -> Statistics:
    over, statistics = ("step", "slice"), {}
    for network, label in NETWORKS.items():
        run = data.sel(network=network)
        total = (run.radial.sum("step") / run.growth.sum("step")).median("slice")
        rows = {
            "inner": (abs(run.inner).median(over), "median |⟨W_N, g_n⟩|"),
            "cosine": (_size(run.cosine), "root mean square cosine of W_N and g_n"),
            "mean_cosine": (run.cosine.mean(over), "mean cosine of W_N and g_n"),
            "mean_own_share": (run.own_share.mean(over), "part of it due to g_n within W_N"),
            "own_cosine": (_size(run.own_cosine), "root mean square cosine of W_n and g_n"),
            "update_cosine": (_size(run.update_cosine), "root mean square cosine of W_N and u_n"),
            "radial": (total, "sum of -2⟨W_n, u_n⟩ over sum of η‖u_n‖², median over slices"),
        }
        statistics |= {
            f"{name}_{network}": (values, f"{what}, {label}", "1")
            for name, (values, what) in rows.items()
        }
    largest = abs(data.exact_cosine).max(("exact_step", "slice"))
    what = f"largest |cosine| of W_n and g_n, ε of qk-norm {EXACT_EPS:g}"
    return statistics | {"largest_exact": (largest, what, "1")}


def _size(values: xr.DataArray) -> xr.DataArray:
    return np.sqrt((values**2).mean(("step", "slice")))
