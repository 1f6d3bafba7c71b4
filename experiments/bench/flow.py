"""The cost of `solve_flow` beyond its gradients, and versus diffrax's Euler method."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp

from experiments.bench._measuring import Bench, BenchConfig, Table, interleave
from experiments.data import load_corpus
from experiments.training.tasks import language_task
from kadam_jax import flow_vector_field, solve_flow
from models.nanogpt import GPTConfig

SMALL_GPT = GPTConfig(vocab_size=256, context=64, num_layers=2, num_heads=2, width=64, dropout=0.0)
LEARNING_RATE = 1e-3
COLUMNS = ("method", "gradients", "ms", "over bare gradients", "ns per gradient")


@dataclass(frozen=True)
class FlowBenchConfig(BenchConfig):
    """The configuration.

    Attributes:
      num_steps: Optimizer steps of the network's flow.
      substeps: Euler's substeps in each step.
      quadratic_steps: Optimizer steps of the quadratic's flow.
      repeats: Rounds that are measured.
      batch: Sequences in a minibatch.
      model: The nanoGPT.
    """

    num_steps: int = 2
    substeps: int = 20
    quadratic_steps: int = 200
    repeats: int = 5
    batch: int = 16
    model: GPTConfig = SMALL_GPT


def bare_gradients(grad_fn: Callable, params: Any, batches: Any, *, substeps: int) -> Any:
    """Take as many gradients as Euler's method in the same loops, each moving the parameters."""

    def step(params, batch):
        def substep(params, _):
            return jax.tree.map(lambda x, g: x - 1e-5 * g, params, grad_fn(params, batch)), None

        return jax.lax.scan(substep, params, length=substeps)[0], None

    return jax.lax.scan(step, params, batches)[0]


def network_ways(config: FlowBenchConfig) -> dict[str, tuple[Callable[[], Any], int]]:
    """Return compiled methods for the nanoGPT's flow, and the number of gradients of each."""
    task = language_task(config.model, load_corpus("embedded"), config.batch)
    params, state = task.init(jax.random.key(0))
    batches = jax.vmap(task.sample)(jax.random.split(jax.random.key(1), config.num_steps))

    def grad_fn(params, batch):
        return jax.grad(lambda p: task.evaluate(p, state, batch))(params)

    solve = partial(
        solve_flow, grad_fn, learning_rate=LEARNING_RATE, num_steps=config.num_steps,
        save=lambda state: state.time,
    )  # fmt: skip
    few = config.substeps // 5
    programs = {
        "bare gradients": (partial(bare_gradients, grad_fn, substeps=config.substeps), 0),
        "euler": (lambda p, batches: solve(p, batches=batches, substeps=config.substeps), 0),
        "exponential": (
            lambda p, batches: solve(p, batches=batches, substeps=few, method="exponential"),
            config.num_steps * (few + 1),
        ),
    }
    return {
        name: (partial(jax.jit(fn), params, batches), num or config.num_steps * config.substeps)
        for name, (fn, num) in programs.items()
    }


def quadratic_ways(config: FlowBenchConfig) -> dict[str, tuple[Callable[[], Any], int]]:
    """Return the same for the flow of ten parameters, including diffrax's Euler method."""
    params, curvatures = jnp.ones(10), jnp.linspace(0.5, 2, 10)

    def grad_fn(params):
        return curvatures * params

    num_steps, substeps = config.quadratic_steps, config.substeps
    num_gradients = num_steps * substeps

    def by_diffrax(params):
        f, y0 = flow_vector_field(grad_fn, learning_rate=LEARNING_RATE)
        return diffrax.diffeqsolve(
            diffrax.ODETerm(f), diffrax.Euler(), 0.0, num_steps * LEARNING_RATE,
            LEARNING_RATE / substeps, y0(params), max_steps=None,
        ).ys  # fmt: skip

    def bare(params):
        steps = jnp.arange(num_steps)
        return bare_gradients(lambda x, _: grad_fn(x), params, steps, substeps=substeps)

    solve = partial(solve_flow, grad_fn, learning_rate=LEARNING_RATE, num_steps=num_steps)
    exponential = partial(solve, substeps=4, method="exponential")
    programs = {
        "bare gradients": (bare, num_gradients),
        "euler": (partial(solve, substeps=substeps), num_gradients),
        "diffrax's Euler": (by_diffrax, num_gradients),
        "exponential": (exponential, num_steps * 5),
    }
    return {name: (partial(jax.jit(fn), params), num) for name, (fn, num) in programs.items()}


def table_rows(ways: dict[str, tuple[Callable[[], Any], int]], repeats: int) -> list[tuple]:
    """Return one row for each method, with the columns of `COLUMNS`."""
    seconds = interleave({name: fn for name, (fn, _) in ways.items()}, repeats)
    bare = seconds["bare gradients"] / ways["bare gradients"][1]
    return [
        (name, num, 1e3 * seconds[name], seconds[name] / num / bare, 1e9 * seconds[name] / num)
        for name, (_, num) in ways.items()
    ]


def run(config: FlowBenchConfig) -> list[Table]:
    """Measure both flows."""
    return [
        Table(
            f"The flow of a nanoGPT over {config.num_steps} steps",
            COLUMNS,
            table_rows(network_ways(config), config.repeats),
            note="All compiled in advance. Over bare gradients: time per gradient relative to a "
            "loop that only takes gradients and follows them.",
        ),
        Table(
            f"The flow of ten parameters over {config.quadratic_steps} steps",
            COLUMNS,
            table_rows(quadratic_ways(config), config.repeats),
        ),
    ]


BENCH = Bench("flow", FlowBenchConfig(), run)
