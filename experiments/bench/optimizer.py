"""k-Adam's step versus AdamW's and versus a chain of optax's own stages, on a whole model.

A step is the update and its application, jitted, with parameters and state donated, as in a
training loop without the model. Time, compile time, memory traffic and peak memory come from one
run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import SingleDeviceSharding

from experiments.bench import _topologies
from experiments.bench._measuring import Bench, BenchConfig, Table, environment, interleave
from experiments.bench._programs import peak_bytes, traffic
from kadam_jax import kadam
from models.functional import functional
from models.nanogpt import GPTConfig, NanoGPT

LEARNING_RATE, WEIGHT_DECAY = 1e-3, 1e-4

Key = tuple[str, int]
"""An optimizer's name and its k."""


@dataclass(frozen=True)
class OptimizerBenchConfig(BenchConfig):
    """The configuration.

    Attributes:
      model: The network whose parameters are updated; the paper's 30M nanoGPT.
      ks: Numbers of stages for which the step and its compilation are timed.
      compile_ks: Numbers of stages for which only the compilation is timed.
      repeats: Steps of each optimizer that are measured.
      compile_repeats: Compilations of each optimizer that are measured.
      chip: The accelerator for which steps are compiled too, where its compiler is installed.
    """

    model: GPTConfig = field(default_factory=GPTConfig)
    ks: tuple[int, ...] = (1, 2, 5)
    compile_ks: tuple[int, ...] = (10,)
    repeats: int = 25
    compile_repeats: int = 3
    chip: str = "v5e:2x2"

    def __post_init__(self):
        super().__post_init__()
        _topologies.platform_of(self.chip)


LIMITS = {1: 1.0, 2: 2.0, 5: 5.0}
"""At most this many times AdamW's step, by k."""
COMPILE_LIMITS = {10: 4.0}
"""At most this many times the compile time of k=1."""


def chain_of_adams(k: int) -> optax.GradientTransformation:
    """Return k-Adam as it would be without this library."""
    return optax.chain(
        *(optax.scale_by_adam() for _ in range(k)),
        optax.add_decayed_weights(WEIGHT_DECAY),
        optax.scale_by_learning_rate(LEARNING_RATE),
    )


OPTIMIZERS: dict[str, Callable[[int], optax.GradientTransformation]] = {
    "kadam": lambda k: kadam(LEARNING_RATE, k, weight_decay=WEIGHT_DECAY),
    "chain of k scale_by_adam": chain_of_adams,
}
ADAMW: Key = ("optax.adamw", 1)


def make(key: Key) -> optax.GradientTransformation:
    """Return the optimizer of a row."""
    name, k = key
    if key == ADAMW:
        return optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    return OPTIMIZERS[name](k)


def parameters(model: GPTConfig) -> Any:
    """Return the shapes of a network's parameters."""
    init = functional(lambda rngs: NanoGPT(model, rngs=rngs)).init
    return jax.eval_shape(init, jax.random.key(0))[0]


def compile_step(key: Key, params: Any, device: jax.Device | None = None) -> jax.stages.Compiled:
    """Trace, lower and compile one step for parameters of these shapes, on the first device."""
    optimizer = make(key)

    def step(params, state, gradients):
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.eval_shape(optimizer.init, params)
    where = SingleDeviceSharding(device or jax.devices()[0])
    jitted = jax.jit(step, donate_argnums=(0, 1), in_shardings=where, out_shardings=where)
    return jitted.lower(params, state, params).compile()


def compile_seconds(keys: list[Key], params: Any, repeats: int) -> dict[Key, float]:
    """Return the median seconds to compile each step, with nothing traced in advance."""

    def fresh(key):
        jax.clear_caches()
        compile_step(key, params)

    return interleave({key: partial(fresh, key) for key in keys}, repeats)


class Training:
    """A step that continues from the last one and donates its buffers every time."""

    def __init__(self, step: jax.stages.Compiled, key: Key, params: Any, gradients: Any):
        self.step, self.gradients = step, gradients
        self.params = jax.tree.map(lambda p: jnp.full(p.shape, 0.02, p.dtype), params)
        self.state = make(key).init(self.params)

    def __call__(self) -> Any:
        """Take one step and return the parameters."""
        self.params, self.state = self.step(self.params, self.state, self.gradients)
        return self.params


def normal_like(params: Any, key: jax.Array) -> Any:
    """Return standard normal numbers in the shapes of a tree."""
    leaves, treedef = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    return treedef.unflatten(
        [jax.random.normal(k, p.shape, p.dtype) for k, p in zip(keys, leaves, strict=True)]
    )


def run(config: OptimizerBenchConfig) -> list[Table]:
    """Measure steps, compilation, memory traffic and peak memory of all optimizers."""
    params = parameters(config.model)
    num_params = sum(p.size for p in jax.tree.leaves(params))
    num_bytes = sum(p.size * p.dtype.itemsize for p in jax.tree.leaves(params))

    ks = sorted({1, *config.ks, *config.compile_ks})
    keys = [ADAMW, *((name, k) for k in ks for name in OPTIMIZERS)]
    to_compile = compile_seconds(keys, params, config.compile_repeats)
    steps = {key: compile_step(key, params) for key in keys}
    gradients = normal_like(params, jax.random.key(1))
    timed = {key: step for key, step in steps.items() if key == ADAMW or key[1] in config.ks}
    seconds = interleave(
        {key: Training(step, key, params, gradients) for key, step in timed.items()},
        config.repeats,
    )

    chip = _topologies.kind_of(config.chip)
    on_chip = {}
    if not _topologies.missing(config.chip, None):
        device = _topologies.devices(config.chip, None)[0]
        on_chip = {key: traffic(compile_step(key, params, device).as_text())[0] for key in keys}

    rows = []
    for key, step in steps.items():
        name, k = key
        ours, one = name == "kadam", (name if key != ADAMW else "kadam", 1)
        time = seconds.get(key)
        floats = step.cost_analysis()["bytes accessed"] / 4 / num_params
        rows.append(
            (
                name,
                k,
                "" if time is None else 1e3 * time,
                "" if time is None else time / seconds[ADAMW],
                LIMITS.get(k, "") if ours else "",
                to_compile[key],
                to_compile[key] / to_compile[one],
                COMPILE_LIMITS.get(k, "") if ours else "",
                floats,
                on_chip[key] / 4 / num_params if key in on_chip else "",
                4 * k + 3,
                peak_bytes(step) / 2**20,
                1.1 * (2 + 2 * k) * num_bytes / 2**20,
            )
        )
    return [
        Table(
            f"One optimizer step on {num_params / 1e6:.2f}M parameters",
            (
                "optimizer",
                "k",
                "step, ms",
                "over adamw",
                "limit",
                "compile, s",
                "over k=1",
                "limit",
                "floats per parameter",
                f"on a {chip}",
                "floor 4k+3",
                "peak, MiB",
                "limit",
            ),
            rows,
            note=f"Medians of {config.repeats} steps and {config.compile_repeats} compilations, "
            "interleaved. Floats are the bytes that XLA says are accessed, divided by 4; those on "
            "a TPU are what the fusions of a program compiled for it read and write. The peak is "
            "arguments, outputs and temporaries, with donated ones counted once; its limit is "
            f"parameters, gradients and 2k copies, plus ten percent. {environment()}",
        )
    ]


BENCH = Bench("optimizer", OptimizerBenchConfig(), run)
