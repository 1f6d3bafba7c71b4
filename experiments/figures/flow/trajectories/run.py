"""Trajectories of Adam and of its continuous-time model, and their distances (Fig. 1).

Both start from the same weights and see the same minibatches, each held for a step, without
dropout. The paper shows sixteen parameters at one learning rate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import xarray as xr

from experiments.core.config import check_least, check_rising, require
from experiments.core.run import Run
from experiments.core.stats import medians_over_seeds
from experiments.core.store import COORDINATES, coordinates, labeled, over
from experiments.figures.flow.trajectories.distances import (
    GROUPS,
    flow_distances,
    leaf_names,
    places,
)
from experiments.training.config import TrainingConfig
from experiments.training.tasks import language_task
from kadam_jax import grid

FLOWS = {"paper": "discrete", "self-consistent": "continuous"}
"""The flows that are compared with the discrete run and their `bias_correction`."""

Solvers = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Config(TrainingConfig):
    """The training setup, and the flows that are solved.

    Attributes:
      learning_rate: η of the paper's panel and of Euler's method; one of learning_rates.
      learning_rates: Values of η at which the agreement is compared, rising.
      b1: γ.
      b2: β.
      num_drawn: Parameters whose trajectories are drawn, chosen at random.
      num_measured: Parameters that distances are taken over, chosen at random; all if there are
        fewer.
      compared_steps: Steps N after which learning rates are compared; also Euler's number of steps.
      early_steps: Steps after which the bias corrections are compared.
      substeps: Substeps of the exponential integrator in a step.
      reference_substeps: Substeps of the exponential integrator in the reference for both methods'
        errors.
      euler_substeps: Values of K of the paper's solver.
    """

    num_steps: int = 200
    learning_rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    b1: float = 0.9
    b2: float = 0.999
    num_drawn: int = 16
    num_measured: int = 16384
    compared_steps: int = 100
    early_steps: int = 10
    substeps: int = 8
    reference_substeps: int = 16
    euler_substeps: tuple[int, ...] = (1, 10, 100)

    def __post_init__(self):
        super().__post_init__()
        rates, most = self.learning_rates, self.num_steps
        check_rising(learning_rates=rates)
        rule = f"learning_rate must be one of learning_rates={rates}"
        require(self.learning_rate in rates, rule, self.learning_rate)
        rule = f"num_steps at the smallest of learning_rates={rates} must last at least as long as "
        rule += "one step at the largest"
        require(min(self.steps_at_equal_time) >= 1, rule, self.num_steps)
        for name in ("compared_steps", "early_steps"):
            rule, steps = f"{name} must be from 1 to num_steps={most}", getattr(self, name)
            require(1 <= steps <= most, rule, steps)
        check_least(self, num_drawn=1, num_measured=1)

    @property
    def steps_at_equal_time(self) -> tuple[int, ...]:
        """For each learning rate, the N at which Nη equals that of the smallest rate at the end."""
        time = self.num_steps * self.learning_rates[0]
        return tuple(round(time / rate) for rate in self.learning_rates)

    @property
    def flows(self) -> Solvers:
        """Options of `solve_flow` for both bias corrections."""
        return {
            name: {"method": "exponential", "substeps": self.substeps, "bias_correction": kind}
            for name, kind in FLOWS.items()
        }

    @property
    def solvers(self) -> Solvers:
        """Options for the paper's flow: the reference, the solver of `flows`, Euler's by K."""
        return {
            "reference": self.flows["paper"] | {"substeps": self.reference_substeps},
            "exponential": self.flows["paper"],
            **{f"{k}": {"method": "euler", "substeps": k} for k in self.euler_substeps},
        }


def compute(config: Config, run: Run) -> xr.Dataset:
    """Run a sweep over learning rates and one over solvers, and `analyze` them."""
    task = language_task(config.model, run.corpus, config.batch)

    names = ("num_drawn", "num_measured", "b1", "b2", "eps")
    fields = {name: getattr(config, name) for name in names}

    def sweep(name, num_steps, solvers, center, rates):
        fn = flow_distances(task, solvers, center, num_steps=num_steps, **fields)
        members = grid(learning_rate=np.array(rates), seed=config.seeds)
        return run.sweep(name, fn, members, chunk_size=config.chunk_size)

    rate, rates = config.learning_rate, config.learning_rates
    by_rate = sweep("learning_rates", config.num_steps, config.flows, "discrete", rates)
    by_solver = sweep("solvers", config.compared_steps, config.solvers, "reference", [rate])
    params, _ = jax.eval_shape(task.init, jax.random.key(0))
    leaves = leaf_names(params)[places(params, config.num_drawn)]
    return analyze(config, leaves, by_rate, by_solver)


def analyze(
    config: Config,
    leaves: np.ndarray,
    by_rate: Mapping[str, np.ndarray],
    by_solver: Mapping[str, np.ndarray],
) -> xr.Dataset:
    """Return the figure's dataset: trajectories, relative errors and what these depend on.

    Args:
      config: The configuration, which determines the members.
      leaves: The array that holds each drawn parameter.
      by_rate: The result of `flow_distances` for `config.flows` with the discrete run as the
        center, each (num_rates, num_seeds, num_processes, ...).
      by_solver: The same for `config.solvers`, with the reference as the center, at one learning
        rate.
    """
    steps = np.array(
        [[config.compared_steps] * len(config.learning_rates), config.steps_at_equal_time]
    )
    compared = (steps, "optimizer steps done where learning rates are compared", "step")
    groups = "parameters: all measured, measured ones outside the embedding, drawn"
    kinds = "bias correction of the flow: the paper's, discrete, or self-consistent"
    until = np.arange(config.compared_steps + 1)
    axes = coordinates(
        process=(["discrete", *FLOWS], "discrete run or flow"),
        flow=(list(FLOWS), kinds),
        group=(list(GROUPS), groups),
        learning_rate=(np.array(config.learning_rates), "η"),
        seed=(np.array(config.seeds), *COORDINATES["seed"]),
        step=(np.arange(config.num_steps + 1), "optimizer steps done, n", "step"),
        at=(["steps", "time"], "what is equal between learning rates"),
        substeps=(np.array(config.euler_substeps), "Euler's substeps K in a step"),
        solver_step=(until, "optimizer steps done, n, where solvers are compared", "step"),
    )
    leaf = over("parameter", {"leaf": (leaves, "array that holds a drawn parameter")})
    data = xr.Dataset(
        _of_rates(config, by_rate, steps) | _of_solvers(by_solver),
        axes | leaf | over(("at", "learning_rate"), {"steps": compared}),
    )
    return labeled(data.assign(medians_over_seeds(_statistics(data))))


def _of_rates(
    config: Config, found: Mapping[str, np.ndarray], steps: np.ndarray
) -> dict[str, xr.Variable]:
    """Return distances to the discrete run, and how they depend on the learning rate.

    Args:
      config: The configuration.
      found: `analyze`'s `by_rate`.
      steps: Where learning rates are compared, shape (2, num_rates).
    """
    rates = np.array(config.learning_rates)
    distance, displacement = (
        found[key].astype(float)[:, :, 1:].transpose(3, 2, 0, 1, 4)  # all but the discrete run
        for key in ("distance", "displacement")
    )
    error = _ratio(distance, displacement)  # (num_groups, num_flows, num_rates, num_seeds, steps)
    compared = error[..., np.arange(len(rates)), :, steps]
    order = _slope(np.log(rates), np.log(compared))
    early = distance[0, ..., config.early_steps]
    moved = (np.moveaxis(found["moved"], 2, 0), "θ - θ_0 of a drawn parameter")
    label = "root mean square of θ_discrete - θ_flow"
    apart = (distance[0] / rates[:, None, None], label, "learning rate")
    relative = (error, "‖θ_discrete - θ_flow‖ / ‖θ_flow - θ_0‖")
    equal = (compared, "relative error after equal numbers of steps or equal times")
    slope = (order, "slope of log(relative error) over log η")
    label = "distance of the self-consistent flow over that of the paper's, after early_steps"
    member = ("learning_rate", "seed")
    return (
        over(("process", *member, "step", "parameter"), {"moved": moved})
        | over(("flow", *member, "step"), {"distance": apart})
        | over(("group", "flow", *member, "step"), {"error": relative})
        | over(("at", "learning_rate", "group", "flow", "seed"), {"compared": equal})
        | over(("at", "group", "flow", "seed"), {"order": slope})
        | over(member, {"early_ratio": (early[1] / early[0], label)})
    )


def _of_solvers(found: Mapping[str, np.ndarray]) -> dict[str, xr.Variable]:
    """Return the solvers' distances to the reference, from `analyze`'s `by_solver`."""
    distance, displacement = (
        found[key].astype(float)[0, :, :, 0].swapaxes(0, 1) for key in ("distance", "displacement")
    )
    to_reference = _ratio(distance, displacement[1])  # (num_processes, num_seeds, steps)
    discrete, _, exponential, *euler = to_reference
    label = "distance of {} to the reference over {}"
    moved, euler_name = "‖θ_flow - θ_0‖", "Euler's method"
    last = label.format(euler_name, "the discrete run's, at the end")
    errors = {"exponential_error": (exponential, label.format("the exponential integrator", moved))}
    of_euler = {"euler_error": (euler, label.format(euler_name, moved))}
    share = (np.array(euler) / discrete)[..., -1]
    return (
        over(("seed", "solver_step"), errors)
        | over(("substeps", "seed", "solver_step"), of_euler)
        | over(("substeps", "seed"), {"euler_over_distance": (share, last)})
    )


def _ratio(distance: np.ndarray, displacement: np.ndarray) -> np.ndarray:
    """Return the ratio, NaN where nothing has moved, at n = 0."""
    return distance / np.where(displacement > 0, displacement, np.nan)


def _slope(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Fit the slope of the least-squares line through y, x along its second axis."""
    x = x - x.mean()
    return np.einsum("r,ar...->a...", x, y) / (x @ x)


def _statistics(data: xr.Dataset) -> dict[str, tuple[xr.DataArray, str, str]]:
    """Return the numbers that the report states."""
    last, rates = data.solver_step[-1].item(), data.learning_rate.values
    compared, order = data.compared.sel(at="steps"), data.order.sel(group="all")
    stated = {
        f"{flow}_error_{group}_{rate:g}": (
            compared.sel(flow=flow, group=group, learning_rate=rate),
            f"{flow} flow, η = {rate:g}, {group}: relative error at n = {last}",
        )
        for flow in FLOWS
        for group in GROUPS
        for rate in rates
    }
    for flow in FLOWS:
        for at, what in (("steps", "equal numbers of steps"), ("time", "equal times")):
            label = f"{flow} flow: order in η, {what}"
            stated[f"{flow}_order_{at}"] = (order.sel(at=at, flow=flow), label)
    for rate in rates:
        label = f"early distance, self-consistent over the paper's, η = {rate:g}"
        stated[f"early_ratio_{rate:g}"] = (data.early_ratio.sel(learning_rate=rate), label)
    for k in data.substeps.values:
        label = f"error of Euler's method, K = {k}, over the discrete run's distance at n = {last}"
        ratio = data.euler_over_distance.sel(substeps=k)
        stated[f"euler_{k}_over_distance"] = (ratio, label)
    label = f"relative error of the exponential integrator at n = {last}"
    stated["solver_error"] = (data.exponential_error[:, -1], label)
    return {name: (*entry, "1") for name, entry in stated.items()}
