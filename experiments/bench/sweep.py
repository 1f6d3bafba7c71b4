"""One compiled sweep versus compiling every member, and versus a loop over one jitted function.

Compile time counts: every round starts from new function objects and empty caches. The time that a
program takes beyond its compilation is measured by calling it again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.bench._measuring import Bench, BenchConfig, Table, environment, interleave
from experiments.core.errors import ConfigError, Failed
from experiments.data import load_corpus
from experiments.training.tasks import Task, language_task
from experiments.training.train import train_member
from kadam_jax import grid, kadam, sweep
from kadam_jax.members import Members
from models.nanogpt import GPTConfig

LOOP = "loop over one jitted function"
APART = "each member compiled"
COLUMNS = (
    "network",
    "members",
    "method",
    "first call",
    "second call",
    "over the loop's",
    "at most",
    "times faster than compiling each",
    "at least",
    "steps from which compiling no longer matters",
)
LIMITS = {"sweep, map": (1.1, {16: 8})}
"""Limits for `batching="auto"` on CPUs: first call over the loop's, and times faster than compiling
each, by number of members."""
COMPILE_SHARE = 0.1
SMALL_GPT = GPTConfig(vocab_size=256, context=16, num_layers=1, num_heads=2, width=32, dropout=0.0)


@dataclass(frozen=True)
class SweepBenchConfig(BenchConfig):
    """The configuration.

    Attributes:
      num_members: Sizes of the sweeps, multiples of 8.
      num_steps: Optimizer steps of every member.
      repeats: Rounds that are measured.
      compiled_apart: Limit on the members that are compiled separately; times for more are
        scaled from these, since they share nothing.
      batch: Examples or sequences in a batch.
      width: Hidden units of the MLP's two layers.
      model: The nanoGPT.
    """

    num_members: tuple[int, ...] = (16, 64)
    num_steps: int = 20
    repeats: int = 3
    compiled_apart: int = 16
    batch: int = 8
    width: int = 32
    model: GPTConfig = SMALL_GPT


def mlp_task(width: int, batch: int) -> Task:
    """Return regression on sin(sum of 8 normal inputs) with two tanh layers."""
    sizes = [(8, width), (width, width), (width, 1)]

    def init(key):
        keys = jax.random.split(key, len(sizes))
        return [jax.random.normal(k, s) / s[0] ** 0.5 for k, s in zip(keys, sizes, strict=True)], ()

    def sample(key):
        inputs = jax.random.normal(key, (batch, 8))
        return inputs, jnp.sin(inputs.sum(1, keepdims=True))

    def loss(params, state, data, key):
        del key
        hidden, targets = data
        for weights in params[:-1]:
            hidden = jnp.tanh(hidden @ weights)
        return jnp.mean((hidden @ params[-1] - targets) ** 2), state

    return Task(init, loss, sample=sample)


def hyperparameters(num_members: int) -> Members:
    """Return four learning rates, two b1 and as many seeds as needed."""
    if num_members < 8 or num_members % 8:
        raise ConfigError(f"num_members must be multiples of 8, got {num_members}")
    return grid(learning_rate=[3e-4, 1e-3, 3e-3, 1e-2], b1=[0.8, 0.9], seed=range(num_members // 8))


def ways(
    task: Task, members: Members, config: SweepBenchConfig
) -> dict[str, tuple[Callable[[], Any], float]]:
    """Return methods to train all members, nothing traced yet, and the scale of their seconds."""
    num_members = len(members["seed"])
    rows = [{name: c[i].item() for name, c in members.items()} for i in range(num_members)]
    num_apart = min(config.compiled_apart, num_members)

    def new_fn():
        def train(member):
            optimizer = kadam(member["learning_rate"], k=2, b1=member["b1"])
            run = train_member(task, optimizer, seed=member["seed"], num_steps=config.num_steps)
            return run.loss

        return train

    swept, looped = new_fn(), jax.jit(new_fn())
    apart = [jax.jit(partial(new_fn(), row)) for row in rows[:num_apart]]
    return {
        "sweep, map": (lambda: sweep(swept, members, batching="map"), 1.0),
        "sweep, vmap": (lambda: sweep(swept, members, batching="vmap"), 1.0),
        LOOP: (lambda: [looped(row) for row in rows], 1.0),
        APART: (lambda: [fn() for fn in apart], num_members / num_apart),
    }


def measure(
    task: Task, members: Members, config: SweepBenchConfig
) -> dict[str, tuple[float, float]]:
    """Return median seconds of the first call, which compiles, and of the second, by method."""
    current: dict[str, Callable[[], Any]] = {}

    def first(way):
        jax.clear_caches()
        current[way], _ = ways(task, members, config)[way]
        return current[way]()

    scales = {way: scale for way, (_, scale) in ways(task, members, config).items()}
    calls: dict[str, Callable[[], Any]] = {}
    for way in scales:
        calls[f"{way}: first"] = partial(first, way)
        calls[f"{way}: second"] = lambda way=way: current[way]()
    seconds = interleave(calls, config.repeats)
    return {
        way: (scale * seconds[f"{way}: first"], scale * seconds[f"{way}: second"])
        for way, scale in scales.items()
    }


def table_rows(
    network: str, seconds: Mapping[str, tuple[float, float]], num_members: int, num_steps: int
) -> list[tuple]:
    """Return one row for each method, with the columns of `COLUMNS`."""
    none = ("", {})
    return [
        (
            network,
            num_members,
            way,
            first,
            second,
            first / seconds[LOOP][0],
            LIMITS.get(way, none)[0],
            seconds[APART][0] / first,
            LIMITS.get(way, none)[1].get(num_members, ""),
            # compiling = COMPILE_SHARE * (compiling + running), and running grows with the steps
            f"{max(first - second, 0) / second * num_steps * (1 / COMPILE_SHARE - 1):,.0f}",
        )
        for way, (first, second) in seconds.items()
    ]


def run(config: SweepBenchConfig) -> list[Table]:
    """Measure every method of training, for both networks and all numbers of members."""
    if jax.config.jax_compilation_cache_dir:
        raise Failed("unset JAX_COMPILATION_CACHE_DIR: with it, compiling isn't measured")
    tasks = {
        "MLP": mlp_task(config.width, config.batch),
        "nanoGPT": language_task(config.model, load_corpus("embedded"), config.batch),
    }
    rows = []
    for network, task in tasks.items():
        for num_members in config.num_members:
            seconds = measure(task, hyperparameters(num_members), config)
            rows += table_rows(network, seconds, num_members, config.num_steps)
    return [
        Table(
            f"All members trained for {config.num_steps} steps of 2-Adam: seconds",
            COLUMNS,
            rows,
            note="The first call compiles, and the second doesn't. Compiling no longer matters "
            f"when it falls to {COMPILE_SHARE:.0%} of the total. At most {config.compiled_apart} "
            "members are compiled separately; times for more are extrapolated. "
            'batching="auto" is map on CPUs, vmap elsewhere. '
            f"Medians of {config.repeats} rounds, interleaved. {environment()}",
        )
    ]


BENCH = Bench("sweep", SweepBenchConfig(), run)
