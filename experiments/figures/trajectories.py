"""Adam's trajectories beside those of its continuous-time model (Fig. 1), and how far they part.

Both start from the same weights and see the same minibatches, each held for a step, without
dropout. The paper shows sixteen parameters at one learning rate.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr
from jax.flatten_util import ravel_pytree

from experiments.config import TrainingConfig
from experiments.figures import Figure
from experiments.judging import median
from experiments.results import labelled
from experiments.running import Run
from experiments.tasks import Task, language_task
from experiments.trajectories_plot import plot
from kadam_jax.flow import solve_flow
from kadam_jax.members import grid
from kadam_jax.optimizer import kadam
from models.nanogpt import GPTConfig

FLOWS = {"paper": "discrete", "self-consistent": "continuous"}
"""The flows beside the discrete run and their `bias_correction`."""
GROUPS = ("all", "rest", "drawn")
"""Parameters that distances are taken over: all measured ones, those of them outside of the
embedding, whose rows of unused tokens move as one; those that are drawn."""

Member = Mapping[str, jax.Array]
Solvers = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Config(TrainingConfig):
    """What is trained and solved.

    Attributes:
      learning_rate: η of the paper's panel and of Euler's method; one of learning_rates.
      learning_rates: η that the agreement is compared over, rising.
      b1: γ.
      b2: β.
      num_drawn: Parameters whose trajectories are drawn, chosen at random.
      num_measured: Parameters that distances are taken over, chosen at random; all if there are no
        more.
      compared_steps: Steps N after which learning rates are compared, and of Euler's method.
      early_steps: Steps after which the bias corrections are compared.
      substeps: Substeps in a step of the exponential integrator.
      reference_substeps: Its substeps where Euler's error and its own are taken.
      euler_substeps: K of the paper's solver.
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
        rates = self.learning_rates
        if len(rates) < 2 or min(np.diff([0, *rates])) <= 0:
            raise ValueError(f"learning_rates must be two or more, rising, above 0, got {rates}")
        if self.learning_rate not in rates:
            raise ValueError(
                f"learning_rate must be one of learning_rates={rates}, got {self.learning_rate}"
            )
        if min(self.steps_at_equal_time) < 1:
            raise ValueError(
                f"num_steps must be larger, got {self.num_steps}: at the smallest of "
                f"learning_rates={rates} they don't last as long as one step at the largest"
            )
        for name in ("compared_steps", "early_steps"):
            steps = getattr(self, name)
            if not 1 <= steps <= self.num_steps:
                raise ValueError(f"{name} must be from 1 to {self.num_steps=}, got {steps}")
        for name in ("num_drawn", "num_measured"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def steps_at_equal_time(self) -> tuple[int, ...]:
        """N of each learning rate at which Nη is what the smallest one comes to."""
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
    """A sweep over learning rates and one of solvers; then `analyse`."""
    if run.corpus is None:
        raise ValueError("run.corpus must be a corpus to train on, got None")
    task = language_task(config.model, run.corpus, config.batch)
    results = []
    for name, num_steps, solvers, centre, rates in (
        ("learning_rates", config.num_steps, config.flows, "discrete", config.learning_rates),
        ("solvers", config.compared_steps, config.solvers, "reference", (config.learning_rate,)),
    ):
        members = grid(learning_rate=np.array(rates), seed=config.seeds)
        fn = trajectories(config, task, num_steps, solvers, centre)
        arrays = run.sweep(name, fn, members, chunk_size=config.chunk_size)
        results.append({key: x.reshape(*members.shape, *x.shape[1:]) for key, x in arrays.items()})
    params, _ = jax.eval_shape(task.init, jax.random.key(0))
    return analyse(config, leaf_names(params)[places(params, config.num_drawn)], *results)


def leaf_names(params: Any) -> np.ndarray:
    """For every parameter the array that it stands in."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    return np.repeat(names, [leaf.size for _, leaf in leaves])


def places(params: Any, num: int) -> np.ndarray:
    """Where `num` parameters stand, one at random in each of `num` equal stretches of all.

    >>> places({"a": np.zeros(60), "b": np.zeros((8, 5))}, 5) // 20
    array([0, 1, 2, 3, 4])
    >>> places(np.zeros(3), 5)
    array([0, 1, 2])
    """
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    ends = np.arange(min(num, size) + 1) * size // min(num, size)
    return np.random.default_rng(0).integers(ends[:-1], ends[1:])


def trajectories(
    config: Config, task: Task, num_steps: int, solvers: Solvers, centre: str
) -> Callable[[Member], dict[str, jax.Array]]:
    """The discrete run and flows of one member, and their distances from one of these processes.

    Args:
      config: Says which parameters are looked at.
      task: What is trained.
      num_steps: Static.
      solvers: Options of `solve_flow` by the flow's name.
      centre: The name that distances are taken from; the discrete run's is "discrete".

    Returns:
      A function of a member (`learning_rate`, `seed`) to arrays with a leading axis of processes,
      the discrete run and then the flows: `moved`, θ - θ_0 of the drawn parameters, (num_processes,
      num_steps + 1, num_drawn); and over `GROUPS` the root mean squares `distance` from the centre
      and `displacement` from θ_0, (num_processes, num_groups, num_steps + 1).
    """

    def fn(member):
        rate, decays = member["learning_rate"], {"b1": (config.b1,), "b2": (config.b2,)}
        init_key, sample_key = jax.random.split(jax.random.key(member["seed"]))
        params, model_state = task.init(init_key)
        batches = jax.vmap(task.sample)(jax.random.split(sample_key, num_steps))
        drawn, measured = (places(params, n) for n in (config.num_drawn, config.num_measured))
        chosen = np.concatenate([drawn, measured])
        is_measured = np.arange(len(chosen)) >= len(drawn)
        outside = leaf_names(params)[chosen] != "embedding"
        groups = np.stack([is_measured, is_measured & outside, ~is_measured])
        shares = groups / groups.sum(1, keepdims=True)

        def observe(params):
            return ravel_pytree(params)[0][chosen]

        def grad_fn(params, batch):
            return jax.grad(task.evaluate)(params, model_state, batch)

        optimizer = kadam(rate, 1, eps=config.eps, **decays)

        def step(carry, batch):
            params, state = carry
            updates, state = optimizer.update(grad_fn(params, batch), state, params)
            params = optax.apply_updates(params, updates)
            return (params, state), observe(params)

        _, discrete = jax.lax.scan(step, (params, optimizer.init(params)), batches)
        processes = {"discrete": jnp.concatenate([observe(params)[None], discrete])}
        for name, options in solvers.items():
            processes[name] = solve_flow(
                grad_fn,
                params,
                learning_rate=rate,
                num_steps=num_steps,
                eps=config.eps,
                batches=batches,
                save=lambda state: observe(state.params),
                **decays,
                **options,
            ).saved

        def root_mean_squares(difference):
            return jnp.sqrt(jnp.einsum("gi,pni->pgn", shares, jnp.square(difference)))

        theta = jnp.stack(list(processes.values()))
        moved = theta - theta[:, :1]
        return {
            "moved": moved[..., : len(drawn)],
            "distance": root_mean_squares(theta - processes[centre][None]),
            "displacement": root_mean_squares(moved),
        }

    return fn


def analyse(
    config: Config,
    leaves: np.ndarray,
    by_rate: Mapping[str, np.ndarray],
    by_solver: Mapping[str, np.ndarray],
) -> xr.Dataset:
    """Trajectories, relative errors and what they depend on.

    Args:
      config: Names the members.
      leaves: The array that each drawn parameter stands in.
      by_rate: What `trajectories` gives for `config.flows` with the discrete run as the centre,
        each (num_rates, num_seeds, num_processes, ...).
      by_solver: The same for `config.solvers` with the reference as the centre, one learning rate.

    Returns:
      The figure's dataset.
    """
    rates, last = np.array(config.learning_rates), config.compared_steps
    moved = np.moveaxis(by_rate["moved"], 2, 0)
    distance, displacement = (
        by_rate[key].astype(float)[:, :, 1:].transpose(3, 2, 0, 1, 4)  # all but the discrete run
        for key in ("distance", "displacement")
    )
    error = _ratio(distance, displacement)  # (num_groups, num_flows, num_rates, num_seeds, steps)
    steps = np.array([np.full(len(rates), last), config.steps_at_equal_time])
    compared = error[..., np.arange(len(rates)), :, steps]
    early = distance[0, ..., config.early_steps]
    to_reference, of_solvers = (
        by_solver[key].astype(float)[0, :, :, 0].swapaxes(0, 1)
        for key in ("distance", "displacement")
    )
    to_reference = _ratio(to_reference, of_solvers[1])  # (num_processes, num_seeds, steps)
    to_discrete, _, of_exponential, *of_euler = to_reference
    of_flow = ("flow", "learning_rate", "seed")
    data = xr.Dataset(
        {
            "moved": (("process", "learning_rate", "seed", "step", "parameter"), moved),
            "distance": ((*of_flow, "step"), distance[0] / rates[:, None, None]),
            "error": (("group", *of_flow, "step"), error),
            "compared": (("at", "learning_rate", "group", "flow", "seed"), compared),
            "order": (("at", "group", "flow", "seed"), _slope(np.log(rates), np.log(compared))),
            "early_ratio": (of_flow[1:], early[1] / early[0]),
            "exponential_error": (("seed", "solver_step"), of_exponential),
            "euler_error": (("substeps", "seed", "solver_step"), np.array(of_euler)),
            "euler_over_distance": (
                ("substeps", "seed"),
                (of_euler / to_discrete)[..., -1],
            ),
        },
        {
            "process": ["discrete", *config.flows],
            "flow": list(config.flows),
            "group": list(GROUPS),
            "learning_rate": rates,
            "seed": np.array(config.seeds),
            "step": np.arange(config.num_steps + 1),
            "leaf": ("parameter", leaves),
            "at": ["steps", "time"],
            "steps": (("at", "learning_rate"), steps),
            "substeps": np.array(config.euler_substeps),
            "solver_step": np.arange(last + 1),
        },
    )
    numbers, labels = _numbers(data)
    return labelled(data.assign(numbers), LABELS | labels)


def _ratio(distance: np.ndarray, displacement: np.ndarray) -> np.ndarray:
    """NaN where nothing has moved, at n = 0."""
    return distance / np.where(displacement > 0, displacement, np.nan)


def _slope(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the least-squares line through y, x along its second axis."""
    x = x - x.mean()
    return np.einsum("r,ar...->a...", x, y) / (x @ x)


def _numbers(data: xr.Dataset) -> tuple[dict[str, float], dict[str, tuple[str, str]]]:
    """The scalars that the report prints, medians over seeds with intervals, and their labels."""
    last = data.solver_step[-1].item()
    compared, order = data.compared.sel(at="steps"), data.order.sel(group="all")
    by_seed = {
        **{
            f"{flow}_error_{group}_{rate:g}": (
                compared.sel(flow=flow, group=group, learning_rate=rate),
                f"{flow} flow, η = {rate:g}, {group}: relative error at n = {last}",
            )
            for flow in FLOWS
            for group in GROUPS
            for rate in data.learning_rate.values
        },
        **{
            f"{flow}_order_{at}": (order.sel(at=at, flow=flow), f"{flow} flow: order in η, {what}")
            for flow in FLOWS
            for at, what in (("steps", "equal numbers of steps"), ("time", "equal times"))
        },
        **{
            f"early_ratio_{rate:g}": (
                data.early_ratio.sel(learning_rate=rate),
                f"self-consistent over paper's early distance, η = {rate:g}",
            )
            for rate in data.learning_rate.values
        },
        **{
            f"euler_{k}_over_distance": (
                data.euler_over_distance.sel(substeps=k),
                f"error of Euler's method, K = {k}, over the discrete run's distance at n = {last}",
            )
            for k in data.substeps.values
        },
        "solver_error": (
            data.exponential_error[:, -1],
            f"relative error of the exponential integrator at n = {last}",
        ),
    }
    numbers, labels = {}, {}
    for name, (values, label) in by_seed.items():
        estimate = median(values.values)
        for end, key, what in ENDS:
            numbers[name + end] = getattr(estimate, key)
            labels[name + end] = (f"{label}: {what}", "1")
    return numbers, labels


ENDS = (
    ("", "value", "median over seeds"),
    ("_low", "low", "low end of its interval"),
    ("_high", "high", "high end"),
)

LABELS = {
    "moved": ("θ - θ_0 of a drawn parameter", "1"),
    "distance": ("root mean square of θ_discrete - θ_flow", "learning rate"),
    "error": ("‖θ_discrete - θ_flow‖ / ‖θ_flow - θ_0‖", "1"),
    "compared": ("relative error after equal numbers of steps, or equal times", "1"),
    "order": ("slope of log(relative error) over log η", "1"),
    "early_ratio": ("self-consistent flow's distance over the paper's, after early_steps", "1"),
    "exponential_error": ("distance to the reference over ‖θ_flow - θ_0‖, of (a-d, f)", "1"),
    "euler_error": ("distance to the reference over ‖θ_flow - θ_0‖", "1"),
    "euler_over_distance": ("the same over the discrete run's, after compared_steps", "1"),
    "process": ("discrete run or flow", "1"),
    "flow": ("bias correction of the flow: the paper's, discrete, or self-consistent", "1"),
    "group": ("parameters: all measured, those of them outside of the embedding, drawn", "1"),
    "learning_rate": ("η", "1"),
    "seed": ("seed", "1"),
    "step": ("optimizer steps done, n", "step"),
    "leaf": ("array that a drawn parameter stands in", "1"),
    "at": ("what is equal between learning rates", "1"),
    "steps": ("optimizer steps done where learning rates are compared", "step"),
    "substeps": ("Euler's substeps K in a step", "1"),
    "solver_step": ("optimizer steps done, n, where solvers are compared", "step"),
}

SMALL = GPTConfig(vocab_size=256, context=32, num_layers=1, num_heads=1, width=64)

FIGURE = Figure(
    name="trajectories",
    title="Adam's trajectories and those of its continuous-time model",
    paper="Fig. 1",
    caption="nanoGPT ({model.num_layers} layers, width {model.width}, context {model.context}) on "
    "the {corpus} corpus by Adam, (β, γ) = ({b2:g}, {b1:g}), batch {batch}, {num_seeds} seeds, and "
    "the paper's differential equation from the same weights on the same minibatches, each held "
    "for a step; dropout off. (a) {num_drawn} parameters chosen at random, as in the paper, at its "
    "η = {learning_rate:g}, and (b) at the smallest η, one seed. (c) Relative error over at most "
    "{num_measured} parameters chosen at random, median and range over seeds: of the flow with the "
    "paper's bias correction, which is the discrete averages', with that of its own averages "
    "(self-consistent), and the paper's outside of the embedding, most of whose rows belong to "
    "tokens that never occur and move as one. (d) The same over η, after {compared_steps} steps "
    "and after equal times Nη, with the regressed slopes' medians. (e) Euler's method, the paper's "
    "solver, and the exponential integrator of (a-d, f), {substeps} substeps, against one with "
    "{reference_substeps}; beside them the discrete run. (f) The first steps: learning rates "
    "between the flow and the discrete run. Second page: each drawn parameter of one seed, η = "
    "{learning_rate:g}, named by its array.",
    presets={
        "smoke": Config(
            model=GPTConfig(vocab_size=256, context=8, num_layers=1, num_heads=1, width=16),
            batch=2,
            num_steps=40,
            num_seeds=2,
            compared_steps=20,
            substeps=2,
            reference_substeps=4,
            euler_substeps=(4,),
        ),
        "laptop": Config(model=SMALL, batch=4, num_seeds=6, chunk_size=6),
        "paper": Config(batch=64, chunk_size=1),
    },
    compute=compute,
    plot=plot,
    minimum={
        "model.width": 64,
        "model.context": 32,
        "num_steps": 200,
        "num_seeds": 5,
        "num_measured": 16384,
        "compared_steps": 100,
        "early_steps": 10,
        "substeps": 8,
        "reference_substeps": 16,
    },
)
