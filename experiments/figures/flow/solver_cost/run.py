"""The cost of a solution of the flow in gradients (not in the paper; Appendix I has only Euler's).

The two methods of `solve_flow`, and diffrax's methods on `flow_vector_field`, solve a quadratic, a
logistic regression with minibatches and nanoGPT. Everything is in float64, because float32's
rounding is as large as the better methods' errors on the network. The stages of Tsit5 put second
moments below 0 where these start from 0, and u is then large, so on the network its errors are not
yet in the regime of its order.
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
from experiments.core.store import COORDINATES, coordinates, labeled, over
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
    """The flows that are solved, and the numbers of substeps per step; dropout is off.

    Attributes:
      small_rate: Learning rate of the quadratic and the logistic regression.
      small_steps: Optimizer steps of the flows of these two; `num_steps` is the network's.
      b1: γ.
      b2: β.
      goal: One of `euler`: the exponential integrator must reach the error of Euler's scheme at
        this K.
      reference: K of the exponential integrator for the network's converged solution, at least
        twice the largest of `exponential`.
      small_reference: The same for the other two, where better methods have smaller errors.
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
        most = f"must be at least twice the largest of exponential={self.exponential}"
        for name in ("reference", "small_reference"):
            found = getattr(self, name)
            require(found >= 2 * max(self.exponential), f"{name} {most}", found)
        check_least(self, small_steps=1)
        for name in ("b1", "b2"):
            require(0 < getattr(self, name) < 1, f"{name} must be in (0, 1)", getattr(self, name))


class Method(NamedTuple):
    """A way to solve the flow."""

    substeps: str
    """The configuration's field that holds its values of K."""
    each: int
    """Gradients per substep."""
    once: int
    """Further gradients per step."""


SOLVERS = {"heun": diffrax.Heun(), "tsit5": diffrax.Tsit5()}
VARIABLES = ("t", "x")
"""Variables in which diffrax's substeps are evenly spaced; t = (n + x²)η within step n."""
METHODS: Mapping[str, Method] = {
    "euler": Method("euler", 1, 0),
    "exponential": Method("exponential", 1, 1),
    "heun_t": Method("heun", 2, 0),
    "heun_x": Method("heun", 2, 0),
    "tsit5_t": Method("tsit5", 6, 1),
    "tsit5_x": Method("tsit5", 6, 1),
}


def errors(config: Config, problem: FlowProblem, reference: int) -> dict[str, jax.Array]:
    """Compute distances to the converged solution at the end over displacements from the start.

    Args:
      config: The configuration, which gives the numbers of substeps.
      problem: The flow to solve.
      reference: Number of substeps of the converged solution.

    Returns:
      For each method an array of shape (num_substeps,); and `reference`, the same for the converged
      solution itself, estimated from its distance to the exponential integrator with most substeps.
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
    # At order 2 the distance is c(1/K² - 1/R²), and the converged solution's own error is c/R².
    ratio = reference / config.exponential[-1]
    found["reference"] = found["exponential"][-1] / (ratio**2 - 1)
    moved = distance(problem.start)
    return {method: distances / moved for method, distances in found.items()}


def problems(config: Config, run: Run) -> dict[str, tuple[Callable[..., FlowProblem], int]]:
    """Return, by name, a function from a key to a problem, and the substeps of its reference."""
    task = language_task(replace(config.model, dtype="float64"), run.corpus, config.batch)
    small = {"rate": config.small_rate, "num_steps": config.small_steps}
    large = {"rate": config.learning_rate, "num_steps": config.num_steps}
    return {
        "quadratic": (partial(quadratic, **small), config.small_reference),
        "logistic regression": (partial(logistic, **small), config.small_reference),
        "nanoGPT": (partial(network, task=task, **large), config.reference),
    }


def compute(config: Config, run: Run) -> xr.Dataset:
    """Run one sweep over seeds for each problem, in float64, and `analyze` them."""

    def sweep(name, make, reference):
        return run.sweep(
            name.replace(" ", "_"),
            lambda member: errors(config, make(jax.random.key(member["seed"])), reference),
            grid(seed=config.seeds),
            chunk_size=config.chunk_size,
        )

    with jax.enable_x64(True):
        found = {name: sweep(name, *how) for name, how in problems(config, run).items()}
    return analyze(config, found)


def analyze(config: Config, found: Mapping[str, Mapping[str, np.ndarray]]) -> xr.Dataset:
    """Return the figure's dataset: orders, and how many gradients reach the goal.

    Args:
      config: The configuration, which determines the runs.
      found: For each problem, what `errors` returns, seeds first.
    """
    problems, each = list(found), list(found.values())
    found = {key: np.stack([arrays[key] for arrays in each]) for key in each[0]}
    substeps = {name: np.array(getattr(config, m.substeps)) for name, m in METHODS.items()}
    gradients = {name: m.each * substeps[name] + m.once for name, m in METHODS.items()}
    goal = found["euler"][..., config.euler.index(config.goal)]
    reached = [
        np.where(found[name] <= goal[..., None], cost, np.inf).min(-1)
        for name, cost in gradients.items()
    ]
    orders = [
        -np.polyfit(np.log(each), np.log(found[name].reshape(-1, len(each)).T), 1)[0]
        for name, each in substeps.items()
    ]
    errors = np.concatenate([found[name] for name in METHODS], -1)
    error = (errors, "distance to the converged solution at the end, over displacement")
    by_member = {
        "reference_error": (
            found["reference"],
            "error of the converged solution itself, estimated",
        ),
        "goal_error": (goal, "error of Euler's scheme at the goal's K"),
    }
    fewest = "fewest gradients for the goal's error; infinite where no K reaches it"
    order = "observed order, minus the slope of ln error over ln K"
    by_solver = {
        "fewest": (reached, fewest, "1/step"),
        "order": (np.reshape(orders, (-1, *goal.shape)), order),
    }
    largest = (found["reference"].max(), "largest error of a converged solution")
    methods = np.repeat(list(METHODS), [len(x) for x in substeps.values()])
    by_run = {
        "run": (np.arange(len(methods)), "number of the run"),
        "run_solver": (methods, "method of the run"),
        "substeps": (np.concatenate(list(substeps.values())), "substeps K per step"),
        "gradients": (np.concatenate(list(gradients.values())), "gradients per step", "1/step"),
    }
    axes = coordinates(
        problem=(problems, "problem that is minimized"),
        seed=(np.array(config.seeds), *COORDINATES["seed"]),
        solver=(list(METHODS), "method"),
    )
    member = ("problem", "seed")
    data = xr.Dataset(
        over((*member, "run"), {"error": error})
        | over(member, by_member)
        | over(("solver", *member), by_solver)
        | over((), {"largest_reference_error": largest}),
        axes | over("run", by_run),
    )
    exponential = data.sel(solver="exponential")
    columns = {
        "goal": (data.goal_error, "error of Euler's scheme with the goal's K", "1"),
        "fewest": (exponential.fewest, "gradients that the exponential integrator needs", "1/step"),
        "order": (exponential.order, "order of the exponential integrator", "1"),
    }
    stated = {
        f"{key}_{name}".replace(" ", "_"): (values.sel(problem=name), f"{name}: {label}", units)
        for name in problems
        for key, (values, label, units) in columns.items()
    }
    return labeled(data.assign(means_over_seeds(stated)))
