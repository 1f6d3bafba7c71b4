"""The cost of a batch of text on one core, and the memory of a long run over a large file."""

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.bench._measuring import Bench, BenchConfig, Table, environment
from experiments.core.progress import progress
from experiments.data.loading import Data, training_batches
from experiments.data.tokens import Crops, open_tokens, write_tokens

VOCAB_SIZE = 50257
BLOCK = 2**22
REPORTS = 4


@dataclass(frozen=True)
class DataBenchConfig(BenchConfig):
    """The configuration.

    Attributes:
      megabytes: Size of the file of tokens, each of two bytes.
      batch: Sequences in a batch.
      context: Tokens of a sequence that a model sees.
      num_batches: Batches of the long run.
      step_ms: How long a training step keeps an accelerator busy while the host waits for it.
      num_steps: Steps of that length.
    """

    megabytes: int = 1000
    batch: int = 64
    context: int = 256
    num_batches: int = 10_000
    step_ms: float = 5.0
    num_steps: int = 400


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keep this thread, and those it starts, on one core, if the system allows it."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def memory() -> tuple[float, float]:
    """Return this process's resident megabytes, in total and without files; NaN except on Linux."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    kilobytes = {line.split(":")[0]: line.split()[1] for line in lines if line.endswith("kB")}
    return tuple(float(kilobytes.get(key, "nan")) / 1e3 for key in ("VmRSS", "RssAnon"))


def random_tokens(folder: Path, config: DataBenchConfig) -> Data:
    """Return a corpus of random ids in a file of the configured size."""
    num_tokens = config.megabytes * 10**6 // 2
    rng = np.random.default_rng(0)
    sizes = [min(BLOCK, num_tokens - start) for start in range(0, num_tokens, BLOCK)]
    blocks = (rng.integers(VOCAB_SIZE, size=size, dtype=np.uint16) for size in sizes)
    write_tokens(folder, {"train": blocks}, VOCAB_SIZE)
    tokens, sha256 = open_tokens(folder)
    return Data("random", sha256, Crops([tokens["train"]], config.context), {}, {})


def long_run(data: Data, config: DataBenchConfig) -> list[tuple]:
    """Return rows of the memory table: batches so far, ms per batch since the last, megabytes."""
    batches = training_batches(data, batch_size=config.batch, seed=0, prefetch=0)
    next(batches)
    rows = [(1, "", *memory())]
    share = max(config.num_batches // REPORTS, 1)
    with progress("batches", config.num_batches) as advance:
        for report in range(1, REPORTS + 1):
            seconds = []
            for _ in range(share):
                start = time.perf_counter()
                next(batches)
                seconds.append(time.perf_counter() - start)
            rows.append((report * share, 1e3 * statistics.median(seconds), *memory()))
            advance(share)
    return rows


def steps(data: Data, config: DataBenchConfig) -> list[tuple]:
    """Return rows of the table of steps: a wait of the step's length, alone and after a batch."""
    batches = training_batches(data, batch_size=config.batch, seed=1)
    rows = []
    for name, take in (
        ("without data", lambda: None),
        ("with a batch each", lambda: next(batches)),
    ):
        take()
        start = time.perf_counter()
        for _ in range(config.num_steps):
            take()
            time.sleep(config.step_ms / 1e3)
        rows.append((name, 1e3 * (time.perf_counter() - start) / config.num_steps))
    batches.close()
    return rows


def run(config: DataBenchConfig) -> list[Table]:
    """Write the file, read it at random and delete it."""
    with tempfile.TemporaryDirectory() as folder, one_core():
        data = random_tokens(Path(folder) / "tokens", config)
        shape = f"{config.batch} x {config.context}"
        return [
            Table(
                f"Batches of {shape} from a file of {config.megabytes} MB, prepared when asked for",
                ("batches so far", "ms per batch (median)", "resident MB", "without files, MB"),
                long_run(data, config),
                note=f"One core. {environment()}",
            ),
            Table(
                f"Steps that keep an accelerator busy for {config.step_ms:g} ms",
                ("steps", "ms per step"),
                steps(data, config),
                note="One core; a thread prepares two batches ahead while the host waits.",
            ),
        ]


BENCH = Bench("data", DataBenchConfig(), run)
