"""‖W‖² of scale-invariant weights: what Theorem 2 predicts, and what it leaves out (Fig. 5).

The theorem drops -2⟨W, u⟩, which for gradients that are noise is 2γ/(1-γ) times what it keeps.
On the discrete run at λ = 0 the full form is an identity: its error there is rounding and proves
nothing, so it is tested on the flow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import xarray as xr

from experiments.core.config import require
from experiments.core.run import Run
from experiments.core.stats import Statistics, means_over_seeds
from experiments.core.store import coordinates, labeled, named, over
from experiments.figures.invariance.norm_dynamics.norms import TERMS, discrete_norms, flow_norms
from experiments.training.config import LAPTOP_MODEL, SMOKE_MODEL, TrainingConfig
from experiments.training.tasks import language_task
from kadam_jax import grid, points
from kadam_jax.invariance import momentum_factor
from models.nanogpt import GPTConfig

LARGE = GPTConfig(qk_norm=True)
FORMS = ("theorem", "full", "velocity")
"""Theorem 2; with -2⟨W, u⟩; and with both that and ‖dW/dt‖² in place of ‖u‖²."""


@dataclass(frozen=True)
class Config(TrainingConfig):
    """The training setup, and the flows that are solved.

    Attributes:
      b1: γ of the trajectories.
      b1s: Values of γ of the runs without decay whose growth is compared; b1 is one of them.
      b2: β.
      weight_decay: λ > 0 of the runs with decoupled decay, on matrices.
      initial_scale: Factor on W_0 in the runs that test whether ‖W‖² forgets it.
      num_slices: Queries and keys of single heads, chosen at random.
      flow_model: The network on the flow, without dropout; its slices should have 4096 entries or
        more.
      flow_b1s: Values of γ on the flow.
      flow_steps: Optimizer steps that the flow lasts.
      substeps: Substeps of the exponential integrator in a step.
    """

    model: GPTConfig = LARGE
    num_steps: int = 300
    b1: float = 0.9
    b1s: tuple[float, ...] = (0.0, 0.5, 0.8, 0.9, 0.95)
    b2: float = 0.999
    weight_decay: float = 3.0
    initial_scale: float = 2.0
    num_slices: int = 16
    flow_model: GPTConfig = field(default_factory=lambda: LARGE)
    flow_b1s: tuple[float, ...] = (0.01, 0.5, 0.8, 0.9)
    flow_steps: int = 256
    substeps: int = 8

    def __post_init__(self):
        super().__post_init__()
        for name in ("model", "flow_model"):
            rule = f"{name}.qk_norm must be true, otherwise no weight is scale-invariant"
            require(getattr(self, name).qk_norm, rule, False)
        require(self.b1 in self.b1s, f"b1 must be one of b1s={self.b1s}", self.b1)
        inside = all(0 < b1 < 1 for b1 in self.flow_b1s)
        require(inside, "flow_b1s must be in (0, 1)", self.flow_b1s)
        require(self.weight_decay > 0, "weight_decay must be above 0", self.weight_decay)
        other = self.initial_scale > 0 and self.initial_scale != 1
        require(other, "initial_scale must be positive, not 1", self.initial_scale)
        most = self.num_available
        rule = f"num_slices must be from 1 to {most}, the number of queries and keys in the model"
        require(1 <= self.num_slices <= most, rule, self.num_slices)

    @property
    def num_available(self) -> int:
        """Number of queries and keys of single heads in the model."""
        return 2 * self.model.num_layers * self.model.num_heads

    @property
    def chosen(self) -> np.ndarray:
        """Places of the recorded queries and keys, the same for all members."""
        chosen = np.random.default_rng(0).choice(self.num_available, self.num_slices, replace=False)
        return np.sort(chosen)


def compute(config: Config, run: Run) -> xr.Dataset:
    """Run a sweep of discrete runs and one of flows, and `analyze` them."""
    b1, decay, scale = config.b1, config.weight_decay, config.initial_scale
    rows = [(b1, 0, 1) for b1 in config.b1s] + [(b1, 0, scale), (b1, decay, 1), (b1, decay, scale)]
    b1, weight_decay, scale = np.array(rows, float).T
    runs = grid(point=points(b1=b1, weight_decay=weight_decay, scale=scale), seed=config.seeds)
    flows = grid(b1=np.array(config.flow_b1s), seed=config.seeds)
    common = {"learning_rate": config.learning_rate, "b2": config.b2, "eps": config.eps}
    task, flow_task = (
        language_task(model, run.corpus, config.batch)
        for model in (config.model, config.flow_model)
    )
    discrete = discrete_norms(task, config.chosen, num_steps=config.num_steps, **common)
    flow = flow_norms(flow_task, num_steps=config.flow_steps, substeps=config.substeps, **common)

    def sweep(name, fn, members):
        return run.sweep(name, fn, members, chunk_size=config.chunk_size)

    return analyze(config, sweep("discrete", discrete, runs), sweep("flow", flow, flows))


def analyze(
    config: Config, discrete: Mapping[str, np.ndarray], flow: Mapping[str, np.ndarray]
) -> xr.Dataset:
    """Compare trajectories and growths with what each form predicts.

    Args:
      config: The configuration, which determines the members.
      discrete: `decayed`, `growth`, `radial`, `true`, each (num_points, num_seeds, num_steps,
        num_slices), with the points in the order of `compute`.
      flow: `initial`, `true` and a growth for each of `FORMS`, each (num_flow_b1s, num_seeds,
        num_flow_slices).

    Returns:
      The figure's dataset.
    """
    num_b1s, place = len(config.b1s), config.b1s.index(config.b1)
    scaled, plain = [num_b1s, num_b1s + 2], [place, num_b1s + 1]
    rates = np.r_[np.zeros(num_b1s + 1), [config.weight_decay] * 2]
    per_step = {key: np.moveaxis(array.astype(float), -1, -2) for key, array in discrete.items()}
    one_step = np.exp(2 * rates * config.learning_rate)
    initial = per_step["decayed"][..., :1] * one_step[:, None, None, None]
    start = {"decayed": initial, "true": initial, "growth": 0 * initial, "radial": 0 * initial}
    true, decayed, growth, radial = (
        np.concatenate([start[key], per_step[key]], axis=-1) for key in ("true", *TERMS)
    )
    grown = (true - initial)[:num_b1s, ..., -1]
    factor = np.asarray(momentum_factor(np.array(config.b1s)), float)
    apart = true[scaled] - true[plain]
    trajectories = {
        "true": (true[plain], "‖W‖² of a query or key matrix"),
        "theorem": ((decayed + growth)[plain], "‖W‖² by Theorem 2"),
        "corrected": (
            (decayed + factor[place] * growth)[plain],
            "‖W‖² by Theorem 2 with its growth times (1+γ)/(1-γ)",
        ),
        "full": ((decayed + growth + radial)[plain], "‖W‖² by the full form, with -2⟨W,u⟩"),
        "memory": (apart / apart[..., :1], "share of a difference in ‖W_0‖² that is left in ‖W‖²"),
    }
    growth_ratio = grown / growth[:num_b1s, ..., -1]
    flow_growth = np.stack([flow[form] / flow["true"] for form in FORMS])
    flow_share, of_flow = flow["true"] / flow["initial"], ("flow_b1", "seed", "flow_slice")
    data = xr.Dataset(
        {
            **over(("decay", "seed", "slice", "step"), trajectories),
            "growth_ratio": named(
                (("b1", "seed", "slice"), growth_ratio),
                "growth of ‖W‖² over Theorem 2's at the last step, λ = 0",
            ),
            "momentum_factor": named(("b1", factor), "(1+γ)/(1-γ)"),
            "flow_growth": named(
                (("form", *of_flow), flow_growth),
                "predicted growth of ‖W‖² over the true one at the flow's end",
            ),
            "flow_share": named((of_flow, flow_share), "growth of ‖W‖² on the flow over ‖W_0‖²"),
            "flow_smallest_share": named(
                flow_share.min(), "smallest growth of a slice on the flow over ‖W_0‖²"
            ),
        },
        coordinates(
            decay=(["λ = 0", "λ > 0"], "decoupled weight decay"),
            seed=(config.seeds, "seed"),
            slice=(config.chosen, "place among the queries and keys of all layers and heads"),
            step=(np.arange(config.num_steps + 1), "optimizer steps done, n", "step"),
            b1=(config.b1s, "γ"),
            form=(FORMS, "prediction"),
            flow_b1=(config.flow_b1s, "γ on the flow"),
        )
        | over("decay", {"weight_decay": ([0.0, config.weight_decay], "λ", "1/learning rate")}),
    )
    return labeled(data.assign(means_over_seeds(_statistics(data))))


def _statistics(data: xr.Dataset) -> Statistics:
    """Return the numbers that the report states."""
    last = data.isel(step=-1)
    stated = {
        f"{form}_error_{place}": (
            abs(last[form] / last.true - 1)[place].median("slice"),
            f"relative error of ‖W‖² at the end, {form}, {decay}",
        )
        for form in ("theorem", "corrected")
        for place, decay in enumerate(data.decay.values)
    }
    stated |= {
        f"growth_ratio_{b1:g}": (
            data.growth_ratio.sel(b1=b1).median("slice"),
            f"growth over Theorem 2's at γ = {b1:g}, where (1+γ)/(1-γ) = {momentum_factor(b1):.3g}",
        )
        for b1 in data.b1.values
    }
    stated |= {
        f"flow_{form}_{b1:g}": (
            data.flow_growth.sel(form=form, flow_b1=b1).median("flow_slice"),
            f"predicted over true growth on the flow, {form}, γ = {b1:g}",
        )
        for form in FORMS
        for b1 in data.flow_b1.values
    }
    return {name: (*entry, "1") for name, entry in stated.items()}


TINY = replace(SMOKE_MODEL, num_heads=2, qk_norm=True)
SMALL = replace(LAPTOP_MODEL, qk_norm=True)
