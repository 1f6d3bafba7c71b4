"""Training steps of nanoGPT, and of a PyTorch twin if there is one.

The twin is any program that takes `--layers --heads --width --vocab --batch --length`, and
`--compile` and `--bf16`, and prints a line of JSON with `step_ms`. It runs in its own process, in
turn with this one.
"""

import json
import statistics
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from experiments.bench._measuring import Bench, BenchConfig, Table, environment, interleave
from models.dtypes import Dtype, check_enabled
from models.functional import functional
from models.nanogpt import GPTConfig, NanoGPT, next_token_loss

NANOGPT = GPTConfig(vocab_size=256, dropout=0.0)
SIZES = {
    "6 layers, 6 heads, width 384, batch 4x256": (NANOGPT, 4),
    "2 layers, 2 heads, width 64, batch 16x64": (
        replace(NANOGPT, context=64, num_layers=2, num_heads=2, width=64),
        16,
    ),
}
PAPER = {"the paper's, batch 64x256": (GPTConfig(dropout=0.0), 64)}
PEAK_FLOPS = {"NVIDIA H100": 989e12, "NVIDIA H200": 989e12, "NVIDIA A100": 312e12}
"""Dense bfloat16 products per second, by the start of a device's name (from data sheets)."""
SECONDS = 0.5
"""Minimum duration of the steps in one round."""


@dataclass(frozen=True)
class TrainBenchConfig(BenchConfig):
    """The configuration.

    Attributes:
      twin: The PyTorch program's path; empty for none.
      twin_python: The Python that runs it, one that has torch.
      repeats: Rounds that are measured.
      dtype: The dtype of activations and products.
      attention: As in the model's configuration.
      paper: Whether to time the paper's network at its batch of 64 too, which needs an accelerator.
    """

    twin: str = ""
    twin_python: str = "python"
    repeats: int = 5
    dtype: Dtype = "float32"
    attention: Literal["plain", "cudnn"] = "plain"
    paper: bool = False

    def __post_init__(self):
        super().__post_init__()
        replace(NANOGPT, dtype=self.dtype, attention=self.attention)  # raises if invalid
        check_enabled(self.dtype)


def flops(config: GPTConfig, batch: int) -> float:
    """Count the floating-point operations of a training step's matrix products.

    There are six for each weight of a product and token (two forward, four backward), and 12 L W
    per layer and token for the scores and what they mix, without a discount for causality.

    >>> f"{flops(GPTConfig(), 64) / (64 * 256) / 1e6:.0f} million a token"
    '187 million a token'
    """
    weights = config.vocab_size * config.width + config.num_layers * 12 * config.width**2
    attention = 12 * config.num_layers * config.context * config.width
    return batch * config.context * (6 * weights + attention)


def training_step(config: GPTConfig, batch: int) -> Callable[[], float]:
    """Return a step of AdamW as a function that keeps its state and waits for the loss."""
    init, apply = functional(lambda rngs: NanoGPT(config, rngs=rngs))
    optimizer = optax.adamw(1e-3)
    tokens = jax.random.randint(
        jax.random.key(1), (batch, config.context + 1), 0, config.vocab_size
    )

    def start():
        params, _ = init(jax.random.key(0))
        return params, optimizer.init(params)

    @partial(jax.jit, donate_argnums=0)
    def step(state):
        def loss_of(params):
            logits, _ = apply(params, {}, tokens[:, :-1])
            return next_token_loss(logits, tokens[:, 1:])

        params, opt_state = state
        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    state = jax.jit(start)()

    def run() -> float:
        nonlocal state
        state, loss = step(state)
        return float(loss)

    return run


def twin_step(config: TrainBenchConfig, model: GPTConfig, batch: int, *flags: str) -> float:
    """Return the milliseconds per step that the twin reports."""
    sizes = {
        "layers": model.num_layers,
        "heads": model.num_heads,
        "width": model.width,
        "vocab": model.vocab_size,
        "batch": batch,
        "length": model.context,
    }
    options = [f"--{name}={size}" for name, size in sizes.items()]
    half = ["--bf16"] if jnp.dtype(config.dtype).itemsize == 2 else []
    command = [config.twin_python, config.twin, *options, *half, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(
            f"twin={config.twin!r} failed under twin_python={config.twin_python!r}: "
            f"{(done.stderr.strip().splitlines() or ['no message'])[-1]}"
        )
    return json.loads(done.stdout.splitlines()[-1])["step_ms"]


def measure(config: TrainBenchConfig, model: GPTConfig, batch: int) -> dict[str, float]:
    """Return milliseconds per step by variant, medians of rounds where all variants run in turn."""
    step = training_step(model, batch)
    step()
    once = interleave({"step": step}, 1)["step"]
    steps = max(1, round(SECONDS / once))

    def ours() -> float:
        return 1e3 * interleave({"step": step}, steps)["step"]

    ways: dict[str, Callable[[], float]] = {"flax, jit": ours}
    if config.twin:
        ways["torch, eager"] = partial(twin_step, config, model, batch)
        ways["torch.compile"] = partial(twin_step, config, model, batch, "--compile")
    rounds = [{way: run() for way, run in ways.items()} for _ in range(config.repeats)]
    return {way: statistics.median(times[way] for times in rounds) for way in ways}


def rows(size: str, milliseconds: Mapping[str, float], model: GPTConfig, batch: int) -> list[tuple]:
    """Return one row for each variant."""
    ours, kind = milliseconds["flax, jit"], jax.devices()[0].device_kind
    peaks = [peak for name, peak in PEAK_FLOPS.items() if kind.startswith(name)]

    def row(way: str, ms: float) -> tuple[Any, ...]:
        rate = flops(model, batch) / (ms / 1e3)
        used = f"{rate / peaks[0]:.0%}" if peaks else ""
        return size, way, ms, batch * model.context / (ms / 1e3), ms / ours, rate / 1e12, used

    return [row(way, ms) for way, ms in milliseconds.items()]


def run(config: TrainBenchConfig) -> list[Table]:
    """Measure every size."""
    sizes = {
        size: (replace(model, dtype=config.dtype, attention=config.attention), batch)
        for size, (model, batch) in (SIZES | (PAPER if config.paper else {})).items()
    }
    measured = [
        row
        for size, (model, batch) in sizes.items()
        for row in rows(size, measure(config, model, batch), model, batch)
    ]
    columns = ("network", "variant", "ms", "tokens/s", "over ours", "TFLOP/s", "of the peak")
    note = (
        f"A step of AdamW, {config.dtype}, no dropout, vocabulary 256 except for the paper's. "
        f"Medians of {config.repeats} rounds, every variant in turn. {environment()}"
    )
    return [Table("A training step of nanoGPT", columns, measured, note=note)]


BENCH = Bench("train", TrainBenchConfig(), run)
