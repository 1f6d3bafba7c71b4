"""Every figure with the paper's networks, for 20 steps on this machine's CPU: does it run?

The members are those of the figure's preset `smoke`, and a batch is a single example. Each figure
runs in a process of its own, by the command that is printed when it starts.
"""

import dataclasses
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from experiments.bench import _figures
from experiments.bench._measuring import Bench, BenchConfig, Table, environment
from experiments.core.config import FigureConfig, difference
from experiments.core.errors import say
from experiments.core.figure import Figure
from experiments.core.progress import progress
from experiments.core.store import read_dataset
from experiments.figures import discover
from models.cnn import CNNConfig
from models.nanogpt import GPTConfig
from models.ngram import NGramConfig

STEPS = 20
NETWORKS = (GPTConfig, CNNConfig, NGramConfig)
BASE = "smoke"
WHOLE = {"num_steps": 21, "eval_every": 7}
"""An evaluation falls on a third of the steps."""
EXCEPTIONS: Mapping[str, Mapping[str, Any]] = {
    "annealing": {**WHOLE, "slope_first": 10, "slope_last": 20},
    "bounded_updates": {"num_steps": 102},
    "contenders": {"tasks": ("text", "images", "text_deep"), "num_rounds": 0},
    "decay_search": {"confirmed": True, "second_warmup": 2},
    "kadam_stability": {"dead_steps": 200},
    "level_curve": WHOLE,
    "max_update": {"slope_first": 10, "slope_last": 19},
    "noise_robustness": {"batch": 16},
    "normal_curves": WHOLE,
    "solver_cost": {"num_steps": 2},
    "two_adam_analogy": {"averaging_steps": 2},
}
"""Fields that a figure's own rules demand, or that every one of its networks needs to be trained;
a step of `solver_cost` takes dozens of gradients."""


@dataclass(frozen=True)
class PaperBenchConfig(BenchConfig):
    """The configuration.

    Attributes:
      figures: Names of figures, or "all".
    """

    figures: tuple[str, ...] = (_figures.ALL,)

    def __post_init__(self):
        super().__post_init__()
        _figures.check(self.figures)


def networks(config: FigureConfig) -> dict[str, Any]:
    """Return the networks of a configuration by field."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: value for name, value in fields.items() if isinstance(value, NETWORKS)}


def full_width(figure: Figure) -> FigureConfig:
    """Return the figure's `smoke` with the networks of `paper`, a batch of 1 and 20 steps."""
    config = figure.presets[BASE]
    names = [field.name for field in dataclasses.fields(config)]
    batches = {name: 1 for name in names if name == "batch" or name.endswith("_batch")}
    steps = {name: min(getattr(config, name), STEPS) for name in names if name.endswith("_steps")}
    if "num_steps" in names:
        steps["num_steps"] = STEPS
    own = EXCEPTIONS.get(figure.name, {})
    return dataclasses.replace(
        config, **networks(figure.presets["paper"]), **{**batches, **steps, **own}
    )


def arguments(figure: Figure) -> list[str]:
    """Return the arguments of `python -m experiments` that run a figure at full width."""
    changes = difference(full_width(figure), figure.presets[BASE])
    return ["run", figure.name, "--preset", BASE, *(f"--set={change}" for change in changes)]


def run(config: PaperBenchConfig) -> Sequence[Table]:
    """Run the figures that have networks, one after the other."""
    every, rows = discover(), []
    chosen = _figures.chosen(config.figures, "paper")
    names = [name for name in chosen if networks(every[name].presets["paper"])]
    if without := [name for name in chosen if name not in names]:
        say(f"left out, without a network: {', '.join(without)}")
    with progress("bench paper", len(names)) as advance:
        for name in names:
            rows.append((name, *measured(every[name])))
            advance(1)
    columns = ("figure", "outcome", "seconds", "peak, GiB", "losses")
    return [Table("Figures with the paper's networks, 20 steps", columns, rows, environment())]


def measured(figure: Figure) -> tuple[str, float, float, str]:
    """Run a figure at full width; return the outcome, seconds, GiB, and whether losses are finite.

    One member runs at a time. Linux counts this process's own memory as the figure's at its start,
    so a figure that takes less than this benchmark shows the benchmark's.
    """
    command = ["python", "-m", "experiments", *arguments(figure), "--devices", "1"]
    say(shlex.join(command))
    with tempfile.TemporaryDirectory() as folder, Path(folder, "stderr").open("w+") as stderr:
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *command[1:], "--results", folder],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        with process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        costs = time.monotonic() - start, usage.ru_maxrss / 2**20
        if process.returncode < 0:
            return f"does not fit: ended by signal {-process.returncode}", *costs, ""
        if process.returncode:
            stderr.seek(0)
            return stderr.read().strip().rpartition("\n")[2], *costs, ""
        return "runs", *costs, losses(read_dataset(Path(folder, BASE, figure.name, "data.nc")))


def losses(data: xr.Dataset) -> str:
    """Say whether all losses of a dataset are finite.

    >>> losses(xr.Dataset({"test_loss": ("seed", [2.0, np.nan]), "best_loss": 2.0}))
    'not finite: test_loss'
    """
    named = {
        name: column
        for name, column in data.items()
        if "loss" in f"{name} {column.attrs.get('long_name', '')}"
    }
    bad = [str(name) for name, column in named.items() if not np.isfinite(column).all()]
    return f"not finite: {', '.join(bad)}" if bad else "finite" if named else "none"


BENCH = Bench("paper", PaperBenchConfig(), run)
