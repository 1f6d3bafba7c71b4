"""A training step of the CNN inside a loop, versus the same step alone."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.bench._measuring import Bench, BenchConfig, Table, environment, interleave
from experiments.training.tasks import image_task
from kadam_jax import kadam
from models.cnn import IMAGE_SHAPE, CNNConfig
from models.dtypes import Dtype, check_dtype, check_enabled

SIZES = {
    "width 1/8, batch 64": (CNNConfig(width=1 / 8), 64),
    "width 1/16, batch 64": (CNNConfig(width=1 / 16), 64),
}
PAPER = {"the paper's, batch 512": (CNNConfig(), 512)}
NUM_MEMBERS = 2
IN_TURN = f"in a loop, {NUM_MEMBERS} members in turn"
COLUMNS = ("network", "variant", "ms per step", "over lax.conv alone", "images/s")


@dataclass(frozen=True)
class CNNBenchConfig(BenchConfig):
    """The configuration.

    Attributes:
      steps: Steps of each variant in a round, which is the loops' length.
      repeats: Rounds that are measured.
      dtype: The dtype of activations and convolutions.
      paper: Whether to time the paper's network too, which needs an accelerator.
    """

    steps: int = 4
    repeats: int = 15
    dtype: Dtype = "float32"
    paper: bool = False

    def __post_init__(self):
        super().__post_init__()
        check_dtype(self.dtype)
        check_enabled(self.dtype)


def training_run(
    model: CNNConfig, batch: int
) -> tuple[Callable[[jax.Array], Any], Callable[[Any], Any]]:
    """Return `start(key) -> carry` and `step(carry) -> carry` of k-Adam on one batch."""
    task, optimizer = image_task(model), kadam(1e-3)
    data = {
        "image": jax.random.normal(jax.random.key(1), (batch, *IMAGE_SHAPE)),
        "label": jnp.arange(batch) % model.num_classes,
    }

    def start(key):
        params, state = task.init(key)
        return params, state, optimizer.init(params)

    def step(carry):
        params, state, opt_state = carry
        grad_fn = jax.grad(task.loss, has_aux=True)
        grads, state = grad_fn(params, state, data, jax.random.key(0))
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), state, opt_state

    return start, step


def seconds_a_step(model: CNNConfig, batch: int, config: CNNBenchConfig) -> dict[str, float]:
    """Return seconds per step by variant, with everything compiled in advance."""
    num_steps = config.steps
    start, step = training_run(model, batch)
    _, plain = training_run(replace(model, conv="lax"), batch)
    members = jax.jit(jax.vmap(start))(jax.random.split(jax.random.key(0), NUM_MEMBERS))
    one = jax.tree.map(lambda x: x[0], members)

    def alone(step):
        step = jax.jit(step)

        def run(carry):
            for _ in range(num_steps):
                carry = step(carry)
            return carry

        return run

    def loop(step):
        return lambda carry: jax.lax.scan(
            lambda carry, _: (step(carry), None), carry, length=num_steps
        )[0]

    in_turn = partial(jax.lax.map, loop(step))
    compared = {
        "lax.conv, alone": partial(alone(plain), one),
        "alone": partial(alone(step), one),
        "in a loop": partial(jax.jit(loop(step)), one),
        IN_TURN: partial(jax.jit(in_turn), members),
    }
    slow = {"lax.conv, in a loop": partial(jax.jit(loop(plain)), one)}
    seconds = interleave(compared, config.repeats) | interleave(slow, 1)
    seconds[IN_TURN] /= NUM_MEMBERS
    return {way: time / num_steps for way, time in seconds.items()}


def table_rows(size: str, model: CNNConfig, batch: int, config: CNNBenchConfig) -> list[tuple]:
    """Return one row for each variant, with the columns of `COLUMNS`."""
    seconds = seconds_a_step(model, batch, config)
    first = seconds["lax.conv, alone"]
    return [(size, way, 1e3 * time, time / first, batch / time) for way, time in seconds.items()]


def run(config: CNNBenchConfig) -> list[Table]:
    """Measure every size."""
    rows = [
        row
        for size, (model, batch) in (SIZES | (PAPER if config.paper else {})).items()
        for row in table_rows(size, replace(model, dtype=config.dtype), batch, config)
    ]
    note = (
        f"A step of k-Adam, {config.dtype}; loops of {config.steps} steps. Medians of "
        f"{config.repeats} rounds, every variant in turn, the last one once. {environment()}"
    )
    return [Table("A training step of the CNN", COLUMNS, rows, note=note)]


BENCH = Bench("cnn", CNNBenchConfig(), run)
