"""⟨W_N, g_n⟩ of queries and keys over a run: is Assumption 1 true? (Fig. 8).

The run is made twice, W_N being known in the second, so that no gradient is ever kept.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr
from matplotlib import axes, figure

from experiments import plotting
from experiments.config import TrainingConfig
from experiments.figures import Figure
from experiments.intervals import END_LABEL, ENDS, means_over_seeds
from experiments.max_updates import SMOKE_MODEL
from experiments.results import labelled
from experiments.running import Run
from experiments.tasks import Task, language_task
from experiments.train import train_member
from kadam_jax.invariance import radial_inner_products
from kadam_jax.optimizer import scale_by_kadam
from models.nanogpt import GPTConfig, query_key_slices

EXACT_EPS = 1e-12
"""qk-norm's ε where Lemma 2 is to hold to rounding."""


@dataclass(frozen=True)
class Config(TrainingConfig):
    """What is trained.

    Attributes:
      num_steps: N.
      b1: γ.
      b2: β.
      exact_steps: Steps of the run whose qk-norm has an ε of next to nothing.
    """

    num_steps: int = 1000
    b1: float = 0.9
    b2: float = 0.999
    exact_steps: int = 100

    def __post_init__(self):
        super().__post_init__()
        if not 1 <= self.exact_steps <= self.num_steps:
            raise ValueError(
                f"exact_steps must be from 1 to num_steps={self.num_steps}, got {self.exact_steps}"
            )

    @property
    def networks(self) -> dict[str, GPTConfig]:
        """The networks, by name."""
        return {
            "qk_norm": replace(self.model, qk_norm=True),
            "no_qk_norm": replace(self.model, qk_norm=False),
        }


def compute(config: Config, run: Run) -> xr.Dataset:
    """Two sweeps over seeds, with and without qk-norm, and a short one for Lemma 2."""
    if run.corpus is None:
        raise ValueError("run.corpus must be a corpus to train on, got None")
    seeds = {"seed": np.array(config.seeds)}

    def sweep(name: str, model: GPTConfig, num_steps: int) -> dict[str, np.ndarray]:
        task = language_task(model, run.corpus, config.batch)
        fn = member(config, task, num_steps)
        return run.sweep(name, fn, seeds, chunk_size=config.chunk_size)

    trained = {
        name: sweep(name, model, config.num_steps) for name, model in config.networks.items()
    }
    exact_model = replace(config.model, qk_norm=True, qk_norm_eps=EXACT_EPS)
    exact = sweep("exact", exact_model, config.exact_steps)
    return analyse(config, trained, exact)


def member(config: Config, task: Task, num_steps: int) -> Callable[..., dict[str, jax.Array]]:
    """A member function: both passes and what is taken from the second.

    Args:
      config: Of the optimizer.
      task: What is trained.
      num_steps: N.

    Returns:
      A function of a member with `seed` to `inner`, `cosine` (W_N and g_n), `own_cosine` (W_n and
      g_n), `update_cosine` (W_N and u_n), `radial_share` (2⟨W_n, u_n⟩ over η‖u_n‖²), each of shape
      (num_steps, num_slices), and `repeat_error`, the largest difference of both passes' W_N.
    """

    def one_pass(end, seed):
        optimizer = optax.chain(
            _products(end),
            scale_by_kadam(1, (config.b1,), (config.b2,), config.eps),
            _products(end),
            optax.scale_by_learning_rate(config.learning_rate),
        )

        def read(opt_state):
            gradient, _, update, _ = opt_state
            growth = config.learning_rate * update["square"]
            return {
                "inner": gradient["end"].inner,
                "cosine": gradient["end"].cosine,
                "own_cosine": gradient["own"].cosine,
                "update_cosine": update["end"].cosine,
                "radial_share": 2 * update["own"].inner / jnp.where(growth == 0, jnp.inf, growth),
            }

        result = train_member(task, optimizer, seed=seed, num_steps=num_steps, read=read)
        return _stack(result.params), result.read

    def fn(member):
        params = jax.eval_shape(task.init, jax.random.key(0))[0]
        unknown = jnp.zeros(jax.eval_shape(_stack, params).shape)

        def repeat(end, _):
            end, read = one_pass(end, member["seed"])
            return end, (end, read)

        # One program for both passes: two would differ in rounding, which training amplifies.
        _, (ends, reads) = jax.lax.scan(repeat, unknown, length=2)
        second = {name: array[1] for name, array in reads.items()}
        return second | {"repeat_error": jnp.abs(ends[1] - ends[0]).max()}

    return fn


def _stack(tree: Mapping) -> jax.Array:
    """Queries and keys of all heads, (num_slices, width, head_size)."""
    return jnp.stack(list(query_key_slices(tree).values()))


def _products(end: jax.Array) -> optax.GradientTransformation:
    """Has as its state what passes through it against `end` and against the weights themselves."""

    def state_of(updates, params):
        passing = _stack(updates)
        return {
            "end": radial_inner_products(end, passing, axes=(1, 2)),
            "own": radial_inner_products(_stack(params), passing, axes=(1, 2)),
            "square": jnp.sum(passing**2, axis=(1, 2)),
        }

    return optax.GradientTransformation(
        lambda params: state_of(params, params),
        lambda updates, state, params: (updates, state_of(updates, params)),
    )


def analyse(
    config: Config,
    trained: Mapping[str, Mapping[str, np.ndarray]],
    exact: Mapping[str, np.ndarray],
) -> xr.Dataset:
    """Products over steps and what they come to.

    Args:
      config: Names the networks.
      trained: For each network what `member`'s function returns, seeds first.
      exact: The same of the short run.

    Returns:
      The figure's dataset.
    """
    runs = {
        key: np.stack([arrays[key] for arrays in trained.values()])
        for key in next(iter(trained.values()))
    }
    member_dims, dims = ("network", "seed"), ("network", "seed", "step", "slice")
    entries = config.model.width * config.model.head_size
    data = xr.Dataset(
        {
            name: (dims, runs[name])
            for name in ("inner", "cosine", "own_cosine", "update_cosine", "radial_share")
        }
        | {
            "exact_cosine": (("seed", "exact_step", "slice"), exact["own_cosine"]),
            "repeat_error": (member_dims, runs["repeat_error"]),
            "chance": ((), entries**-0.5),
        },
        {
            "network": list(trained),
            "seed": np.array(config.seeds),
            "step": np.arange(runs["inner"].shape[2]),
            "exact_step": np.arange(exact["own_cosine"].shape[1]),
            "slice": np.arange(runs["inner"].shape[3]),
            "end": list(ENDS),
        },
    )
    # The median over slices and steps of what has no meaningful mean: a small ‖u‖ makes it huge.
    data["radial_share"] = abs(data.radial_share).median("slice")
    numbers, labels = means_over_seeds(_statistics(data))
    return labelled(data.assign(numbers), LABELS | labels | END_LABEL)


def _statistics(data: xr.Dataset) -> dict[str, tuple[xr.DataArray, str, str]]:
    def size(name: str, network: str) -> xr.DataArray:
        return np.sqrt((data[name].sel(network=network) ** 2).mean(("step", "slice")))

    return {
        f"{name}_{network}": (size(name, network), f"root mean square {what}, {label}", "1")
        for name, what in (
            ("cosine", "cosine of W_N and g_n"),
            ("own_cosine", "cosine of W_n and g_n"),
            ("update_cosine", "cosine of W_N and u_n"),
        )
        for network, (label, _) in NETWORKS.items()
    } | {
        "largest_exact": (
            abs(data.exact_cosine).max(("exact_step", "slice")),
            f"largest |cosine| of W_n and g_n, ε of qk-norm {EXACT_EPS:g}",
            "1",
        ),
        "radial": (
            data.radial_share.sel(network="qk_norm").median("step"),
            "median of |2⟨W_n, u_n⟩| over η‖u_n‖², qk-norm",
            "1",
        ),
    }


NETWORKS = {"qk_norm": ("qk-norm", "tab:blue"), "no_qk_norm": ("no qk-norm", "tab:red")}

LABELS = {
    "inner": ("⟨W_N, g_n⟩ of a query or key matrix", "1"),
    "cosine": ("cosine of W_N and g_n", "1"),
    "own_cosine": ("cosine of W_n and g_n", "1"),
    "update_cosine": ("cosine of W_N and u_n", "1"),
    "radial_share": ("|2⟨W_n, u_n⟩| over η‖u_n‖², median over slices", "1"),
    "exact_cosine": ("cosine of W_n and g_n where qk-norm's ε is next to nothing", "1"),
    "repeat_error": ("largest difference between W_N of both passes", "1"),
    "chance": ("root mean square cosine of random directions, 1/√entries", "1"),
    "network": ("network", "1"),
    "seed": ("seed", "1"),
    "step": ("optimizer steps done before, n", "step"),
    "exact_step": ("optimizer steps done before, n", "step"),
    "slice": ("place among the queries and keys of all layers and heads", "1"),
}


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """The paper's two panels, then cosines, the end of the run, Lemma 2 and the radial term."""
    canvas, grid = plotting.canvas(13, 7.2, nrows=2, ncols=3)
    panels = (
        lambda panel, data: _products_of(panel, data, "qk_norm"),
        lambda panel, data: _products_of(panel, data, "no_qk_norm"),
        _cosines,
        _towards_the_end,
        _own,
        _radial,
    )
    for letter, panel, draw in zip("abcdef", grid.flat, panels, strict=True):
        panel.set_title(f"({letter}) {draw(panel, dataset)}", loc="left")
        panel.set(yscale="log")
    with_and_without = grid.flat[:2]
    limits = [panel.get_ylim() for panel in with_and_without]
    for panel in with_and_without:
        panel.set_ylim(np.min(limits), np.max(limits))
    return {"": canvas}


def _products_of(panel: axes.Axes, data: xr.Dataset, network: str) -> str:
    label, colour = NETWORKS[network]
    inner = abs(data.inner.sel(network=network))
    first = inner.isel(seed=0)
    panel.plot(data.step, first.values, color=colour, linewidth=0.3, alpha=0.35)
    panel.plot(data.step, inner.median(("seed", "slice")), color="black", label="median, all seeds")
    panel.set(xlabel="step n", ylabel="|⟨W_N, gₙ⟩|")
    panel.legend(loc="lower left")
    return f"{label}: every slice of one seed"


def _band(panel: axes.Axes, x: xr.DataArray, values: xr.DataArray, label: str, **style) -> None:
    """Median and middle 80% over seeds and slices."""
    low, middle, high = values.quantile([0.1, 0.5, 0.9], ("seed", "slice")).values
    panel.fill_between(x, low, high, alpha=0.15, linewidth=0, color=style["color"])
    panel.plot(x, middle, label=label, **style)


def _cosines(panel: axes.Axes, data: xr.Dataset) -> str:
    for network, (label, colour) in NETWORKS.items():
        values = abs(data.cosine.sel(network=network))
        _band(panel, data.step, values, label, color=colour, linewidth=0.6)
    panel.axhline(data.chance, color="black", linestyle=":", label="chance, 1/√entries")
    panel.set(xlabel="step n", ylabel="|cosine of W_N and gₙ|")
    panel.legend(loc="lower left")
    return "cosines: median and middle 80%"


def _towards_the_end(panel: axes.Axes, data: xr.Dataset) -> str:
    remaining = data.sizes["step"] - data.step
    for network, (label, colour) in NETWORKS.items():
        values = abs(data.cosine.sel(network=network))
        _band(panel, remaining, values, label, color=colour, linewidth=0.8)
    panel.axhline(data.chance, color="black", linestyle=":", label="chance")
    panel.set(xscale="log", xlabel="steps left, N - n", ylabel="|cosine of W_N and gₙ|")
    panel.invert_xaxis()
    panel.legend(loc="lower left")
    return "the same against the distance to the end"


def _own(panel: axes.Axes, data: xr.Dataset) -> str:
    for network, (label, colour) in NETWORKS.items():
        values = abs(data.own_cosine.sel(network=network))
        _band(panel, data.step, values, label, color=colour, linewidth=0.6)
    exact = abs(data.exact_cosine)
    _band(
        panel, data.exact_step, exact, f"qk-norm, ε = {EXACT_EPS:g}", color="tab:green", linewidth=1
    )
    panel.set(xlabel="step n", ylabel="|cosine of Wₙ and gₙ|")
    panel.legend(loc="lower right", bbox_to_anchor=(1, 0.05))
    return "Lemma 2: 0 for a scale-invariant weight"


def _radial(panel: axes.Axes, data: xr.Dataset) -> str:
    for network, (label, colour) in NETWORKS.items():
        values = data.radial_share.sel(network=network).median("seed")
        panel.plot(data.step, values, label=label, color=colour, linewidth=0.8)
    panel.axhline(1, color="black", linestyle=":", label="equal")
    panel.set(xlabel="step n", ylabel="|2⟨Wₙ, uₙ⟩| / η‖uₙ‖²")
    panel.legend(loc="lower right", bbox_to_anchor=(1, 0.15))
    return "what Theorem 2 drops over what it keeps"


SMALL = GPTConfig(vocab_size=256, context=32, num_layers=2, num_heads=2, width=64)

FIGURE = Figure(
    name="inner_products",
    title="Inner products of queries and keys with gradients of other steps",
    paper="Fig. 8",
    caption="nanoGPT ({model.num_layers} layers, {model.num_heads} heads, width {model.width}) on "
    "the {corpus} corpus by Adam, η = {learning_rate:g}, (β, γ) = ({b2:g}, {b1:g}), batch {batch}, "
    "dropout {model.dropout:g}, N = {num_steps} steps, {num_seeds} seeds; every head's query and "
    "key matrix. W_N stands at the end of the run, g_n is the gradient at step n of the same run. "
    "(a, b) |⟨W_N, g_n⟩| with and without qk-norm. (c) Its cosine, which does not fall with ‖g_n‖, "
    "beside that of random directions. (d) The cosine against the steps that are left. (e) Each "
    "step's own gradient: orthogonal under qk-norm up to LayerNorm's ε. (f) The term -2⟨W, u⟩ that "
    "the assumption is to justify dropping, over the term that is kept.",
    presets={
        "smoke": Config(
            model=replace(SMOKE_MODEL, num_heads=2),
            batch=2,
            num_steps=60,
            num_seeds=2,
            exact_steps=10,
        ),
        "laptop": Config(model=SMALL),
        "paper": Config(batch=64, chunk_size=1),
    },
    compute=compute,
    plot=plot,
    minimum={
        "model.num_layers": 2,
        "model.width": 64,
        "model.context": 32,
        "batch": 8,
        "num_steps": 1000,
        "num_seeds": 5,
    },
)
