"""What a solution of the flow costs in gradients (not in the paper, whose Appendix I has Euler's).

`solve_flow`'s two methods and diffrax's on `flow_vector_field`, on a quadratic, a logistic
regression with minibatches and a nanoGPT. All of it in float64: float32's rounding is as large as
the better methods' errors on the network.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from experiments.core.config import check_least, check_rising, require
from experiments.core.run import Run
from experiments.core.stats import means_over_seeds
from experiments.core.store import labelled, named
from experiments.figures.flow.solver_cost.problems import (
    FlowProblem,
    by_diffrax,
    logistic,
    network,
    quadratic,
)
from experiments.training.config import TrainingConfig
from experiments.training.tasks import language_task
from kadam_jax import grid, solve_flow

Substeps = tuple[int, ...]


@dataclass(frozen=True)
class Config(TrainingConfig):
    """What is solved, and with how many substeps a step; dropout is off.

    Attributes:
      small_rate: Learning rate of the quadratic and the logistic regression.
      small_steps: Optimizer steps that their flows last; `num_steps` is the network's.
      b1: γ.
      b2: β.
      goal: K of Euler's scheme whose error others are measured by, one of `euler`.
      reference: K of the exponential integrator for the network's converged solution, at least
        twice as many as the most of `exponential`.
      small_reference: The same for the others, where better methods have smaller errors.
      euler: K of the paper's Euler scheme.
      exponential: K of the exponential integrator.
      heun: K of Heun's method.
      tsit5: K of Tsitouras's method, of order 5.
    """

    num_steps: int = 3
    small_rate: float = 0.03
    small_steps: int = 12
    b1: float = 0.9
    b2: float = 0.999
    goal: int = 100
    reference: int = 64
    small_reference: int = 1024
    euler: Substeps = (10, 30, 100, 300)
    exponential: Substeps = (1, 2, 3, 4, 8, 16)
    heun: Substeps = (4, 8, 16, 32)
    tsit5: Substeps = (2, 4, 8, 16)

    def __post_init__(self):
        super().__post_init__()
        check_rising(**{name: getattr(self, name) for name in ("euler", "exponential", *SOLVERS)})
        require(self.goal in self.euler, f"goal must be one of euler={self.euler}", self.goal)
        most = f"must be twice the most of exponential={self.exponential} or more"
        for name in ("reference", "small_reference"):
            found = getattr(self, name)
            require(found >= 2 * max(self.exponential), f"{name} {most}", found)
        check_least(self, small_steps=1)
        for name in ("b1", "b2"):
            require(0 < getattr(self, name) < 1, f"{name} must be in (0, 1)", getattr(self, name))


class Method(NamedTuple):
    """A way to solve the flow."""

    substeps: str
    """The configuration's field that has its K."""
    each: int
    """Gradients a substep."""
    once: int
    """Gradients that every step adds."""


SOLVERS = {"heun": diffrax.Heun(), "tsit5": diffrax.Tsit5()}
VARIABLES = ("t", "x")
"""In which diffrax's substeps are even; t = (n + x²)η within step n."""
METHODS: Mapping[str, Method] = {
    "euler": Method("euler", 1, 0),
    "exponential": Method("exponential", 1, 1),
    "heun_t": Method("heun", 2, 0),
    "heun_x": Method("heun", 2, 0),
    "tsit5_t": Method("tsit5", 6, 1),
    "tsit5_x": Method("tsit5", 6, 1),
}


def errors(config: Config, problem: FlowProblem, reference: int) -> dict[str, jax.Array]:
    """Distance to the converged solution at the end, over the displacement from the start.

    Args:
      config: Says how many substeps.
      problem: What is solved.
      reference: Substeps of the converged solution.

    Returns:
      For each method an array of shape (num_substeps,); and `reference`, the same of the converged
      solution itself, estimated from its distance to the exponential integrator's of most substeps.
    """
    decays = {"b1": config.b1, "b2": config.b2}

    def solve(method, substeps):
        return solve_flow(
            problem.grad_fn,
            problem.start,
            learning_rate=problem.rate,
            num_steps=problem.num_steps,
            substeps=substeps,
            batches=problem.batches,
            save=lambda state: state.time,
            method=method,
            **decays,
        ).state.params

    def distance(params):
        return jnp.linalg.norm(params - converged)

    converged = solve("exponential", reference)
    found = {
        method: jnp.stack([distance(solve(method, num)) for num in getattr(config, method)])
        for method in ("euler", "exponential")
    }
    for name, solver in SOLVERS.items():
        in_x, substeps = jnp.meshgrid(jnp.arange(2), jnp.array(getattr(config, name)))
        distances = jax.lax.map(
            lambda how, solver=solver: distance(by_diffrax(problem, solver, *how, **decays)),
            (in_x.T.ravel(), substeps.T.ravel()),
        )
        for variable, of_all in zip(VARIABLES, jnp.split(distances, 2), strict=True):
            found[f"{name}_{variable}"] = of_all
    # The distance is c(1/K² - 1/R²) at order 2, and c/R² the converged solution's own error.
    ratio = reference / config.exponential[-1]
    found["reference"] = found["exponential"][-1] / (ratio**2 - 1)
    moved = distance(problem.start)
    return {method: distances / moved for method, distances in found.items()}


def problems(config: Config, run: Run) -> dict[str, tuple[Callable[..., FlowProblem], int]]:
    """By name what makes a problem of a key, and the substeps of its converged solution."""
    task = language_task(replace(config.model, dtype="float64"), run.corpus, config.batch)
    small = {"rate": config.small_rate, "num_steps": config.small_steps}
    large = {"rate": config.learning_rate, "num_steps": config.num_steps}
    return {
        "quadratic": (partial(quadratic, **small), config.small_reference),
        "logistic regression": (partial(logistic, **small), config.small_reference),
        "nanoGPT": (partial(network, task=task, **large), config.reference),
    }


def compute(config: Config, run: Run) -> xr.Dataset:
    """One sweep over seeds for each problem, in float64; then `analyse`."""

    def sweep(name, make, reference):
        return run.sweep(
            name.replace(" ", "_"),
            lambda member: errors(config, make(jax.random.key(member["seed"])), reference),
            grid(seed=config.seeds),
            chunk_size=config.chunk_size,
        )

    with jax.enable_x64(True):
        found = {name: sweep(name, *how) for name, how in problems(config, run).items()}
    return analyse(config, found)


def analyse(config: Config, found: Mapping[str, Mapping[str, np.ndarray]]) -> xr.Dataset:
    """Orders, and how many gradients reach the goal.

    Args:
      config: Names the runs.
      found: For each problem what `errors` returns, seeds first.

    Returns:
      The figure's dataset; `run` counts all substeps of all methods.
    """
    names, each = list(found), list(found.values())
    found = {key: np.stack([arrays[key] for arrays in each]) for key in each[0]}
    substeps = {name: np.array(getattr(config, m.substeps)) for name, m in METHODS.items()}
    gradients = {name: m.each * substeps[name] + m.once for name, m in METHODS.items()}
    member = ("problem", "seed")
    goal = found["euler"][..., config.euler.index(config.goal)]
    reached = [
        np.where(found[name] <= goal[..., None], cost, np.inf).min(-1)
        for name, cost in gradients.items()
    ]
    orders = [
        -np.polyfit(np.log(each), np.log(found[name].reshape(-1, len(each)).T), 1)[0]
        for name, each in substeps.items()
    ]
    data = xr.Dataset(
        {
            "error": named(
                ((*member, "run"), np.concatenate([found[name] for name in METHODS], -1)),
                "distance to the converged solution at the end over displacement",
            ),
            "reference_error": named(
                (member, found["reference"]), "the same of the converged solution itself, estimated"
            ),
            "largest_reference_error": named(
                found["reference"].max(), "largest error of a converged solution"
            ),
            "goal_error": named((member, goal), "error of Euler's scheme at the goal's K"),
            "fewest": named(
                (("solver", *member), np.stack(reached)),
                "fewest gradients for the goal's error; infinite where no K has it",
                "1/step",
            ),
            "order": named(
                (("solver", *member), np.reshape(orders, (-1, *goal.shape))),
                "observed order, minus the slope of ln error over ln K",
            ),
        },
        {
            "problem": named(("problem", names), "what is minimised"),
            "seed": np.array(config.seeds),
            "solver": named(("solver", list(METHODS)), "method"),
            "run": named(("run", np.arange(sum(map(len, substeps.values())))), "number of the run"),
            "run_solver": named(
                ("run", np.repeat(list(METHODS), [len(x) for x in substeps.values()])),
                "method of the run",
            ),
            "substeps": named(
                ("run", np.concatenate(list(substeps.values()))), "substeps K of a step"
            ),
            "gradients": named(
                ("run", np.concatenate(list(gradients.values()))), "gradients a step", "1/step"
            ),
        },
    )
    exponential = data.sel(solver="exponential")
    columns = {
        "goal": (data.goal_error, "error of Euler's scheme with the goal's K", "1"),
        "fewest": (exponential.fewest, "gradients that the exponential integrator needs", "1/step"),
        "order": (exponential.order, "order of the exponential integrator", "1"),
    }
    numbers = means_over_seeds(
        {
            f"{key}_{problem}".replace(" ", "_"): (
                values.sel(problem=problem),
                f"{problem}: {label}",
                units,
            )
            for problem in data.problem.values
            for key, (values, label, units) in columns.items()
        }
    )
    return labelled(data.assign(numbers))
