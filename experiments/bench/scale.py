"""The resources that programs need on accelerators, read from the compiled programs.

This shows that programs compile, how they are partitioned, and their memory and traffic. It shows
neither speed nor numbers.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from experiments.bench import _topologies
from experiments.bench._measuring import Bench, BenchConfig, Table, environment
from experiments.bench._programs import collectives, peak_bytes, traffic
from experiments.bench.optimizer import compile_step, parameters
from experiments.core.errors import ConfigError, say
from experiments.core.progress import progress
from experiments.train.config import TrainConfig
from experiments.train.presets import TRAININGS
from experiments.train.programs import programs_of
from experiments.training.meshes import MeshConfig, sharding
from experiments.training.train import Programs
from models.cnn import IMAGE_SHAPE
from models.dtypes import Dtype
from models.nanogpt import GPTConfig

MIB = 2**20
SHARD_ABOVE = 1000
MOST_SHARDS = 64
"""Chips that share a member's state, where there are several members."""


def _members_and_data(chips: int) -> tuple[MeshConfig, int]:
    data = min(MOST_SHARDS, chips // 2)
    return MeshConfig(chips // data, data, SHARD_ABOVE), chips // data


LAYOUTS: Mapping[str, Callable[[int], tuple[MeshConfig, int]]] = {
    "data": lambda chips: (MeshConfig(1, chips), 1),
    "sharded": lambda chips: (MeshConfig(1, chips, SHARD_ABOVE), 1),
    "members-sharded": _members_and_data,
    "members": lambda chips: (MeshConfig(chips, 1), chips),
}
"""The mesh and the number of members for a number of chips."""


@dataclass(frozen=True)
class ScaleBenchConfig(BenchConfig):
    """The configuration.

    Attributes:
      topologies: Slices of TPUs such as v5e:2x2, and numbers of GPUs such as h100:8; one whose
        compiler is not installed is skipped with a sentence.
      gpu_target: A GPU's facts in XLA's text format, needed for GPUs.
      ks: Numbers of k-Adam's stages whose update is compiled for one chip of each kind.
      tasks: Training steps that are compiled, first for one chip of each kind.
      layouts: How several chips are laid out.
      preset: The size of the tasks; a batch has at least one example for each chip.
      dtype: The dtype of activations.
      loss_parts: As for `train text`.
      microbatches: As for `train`.
    """

    topologies: tuple[str, ...] = ("v5e:2x2", "v5e:16x16", "v5p:8x8x16", "h100:1", "h100:256")
    gpu_target: Path | None = None
    ks: tuple[int, ...] = (1, 2, 5, 10)
    tasks: tuple[str, ...] = ("text", "images")
    layouts: tuple[str, ...] = tuple(LAYOUTS)
    preset: str = "paper"
    dtype: Dtype = "float32"
    loss_parts: int = 1
    microbatches: int = 1

    def __post_init__(self):
        super().__post_init__()
        for name in self.topologies:
            _topologies.platform_of(name)
        tables = (("tasks", TRAININGS), ("layouts", LAYOUTS), ("preset", TRAININGS["text"].presets))
        for field, known in tables:
            values = getattr(self, field)
            for value in (values,) if isinstance(values, str) else values:
                if value not in known:
                    raise ConfigError(f"{field} must be among {', '.join(known)}; got {value!r}")


@dataclass(frozen=True)
class Job:
    """A training step on a mesh of chips."""

    topology: str
    task: str
    layout: str
    mesh: MeshConfig
    num_members: int


def jobs(config: ScaleBenchConfig, topologies: Mapping[str, int]) -> list[Job]:
    """Return the training steps to compile, given each topology's number of chips.

    >>> config = ScaleBenchConfig(tasks=("text",), layouts=("data", "members-sharded"))
    >>> for job in jobs(config, {"v5e:2x2": 4, "h100:1": 1}):
    ...     print(job.topology, job.layout, job.mesh.members, job.mesh.data, job.num_members)
    v5e:2x2 one chip 1 1 1
    v5e:2x2 data 1 4 1
    v5e:2x2 members-sharded 2 2 2
    h100:1 one chip 1 1 1
    """
    found, kinds = [], set()
    for topology, chips in topologies.items():
        kind = _topologies.kind_of(topology)
        for task in config.tasks:
            if kind not in kinds:
                found.append(Job(topology, task, "one chip", MeshConfig(1, 1), 1))
            if chips > 1:
                for name in config.layouts:
                    found.append(Job(topology, task, name, *LAYOUTS[name](chips)))
        kinds.add(kind)
    return found


def training(config: ScaleBenchConfig, job: Job) -> TrainConfig:
    """Return the training configuration of a job, whose batch its chips divide."""
    base = TRAININGS[job.task].presets[config.preset]
    changes = {"loss_parts": config.loss_parts} if job.task == "text" else {}
    parts = job.mesh.data * config.microbatches * config.loss_parts
    return dataclasses.replace(
        base,
        mesh=job.mesh,
        model=dataclasses.replace(base.model, dtype=config.dtype),
        batch_size=max(base.batch_size, parts),
        microbatches=config.microbatches,
        **changes,
    )


def lowered(
    config: TrainConfig, job: Job, devices: Sequence[jax.Device]
) -> tuple[Programs, jax.stages.Lowered]:
    """Return the programs of `train` on described devices, and its lowered step."""
    task = TRAININGS[job.task].task(config)
    seeds = ",".join(map(str, range(job.num_members)))
    programs, _, mesh = programs_of(config, task, [f"seed={seeds}"], devices)
    return programs, programs.lower(_batches(job.task, config, sharding(mesh, None, "data")))


def _batches(task: str, config: TrainConfig, where: jax.sharding.Sharding) -> object:
    """Return the shapes of `steps_per_call` batches."""
    leading = config.steps_per_call, config.batch_size

    def described(*shape, dtype):
        return jax.ShapeDtypeStruct((*leading, *shape), dtype, sharding=where)

    if task == "text":
        return described(config.model.context + 1, dtype=np.int32)
    image = described(*IMAGE_SHAPE, dtype=np.float32)
    return {"image": image, "label": described(dtype=np.int32)}


def measure(config: ScaleBenchConfig, job: Job, devices: Sequence[jax.Device]) -> dict[str, object]:
    """Compile a job and return its row, by column."""
    train = training(config, job)
    start = time.perf_counter()
    programs, program = lowered(train, job, devices)
    row = {
        "chips": job.topology,
        "task": job.task,
        "layout": job.layout,
        "members x data": f"{job.mesh.members} x {job.mesh.data}",
        "batch": train.batch_size,
        "state": sum(_bytes_on_a_chip(leaf) for leaf in jax.tree.leaves(programs.template)) / MIB,
    }
    try:
        compiled = program.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return row | {"peak": "does not fit", "compile, s": time.perf_counter() - start}
    memory, moved = compiled.memory_analysis(), collectives(compiled.as_text())
    params = sum(
        leaf.size // leaf.shape[0] * 4 for leaf in jax.tree.leaves(programs.template.params)
    )
    gathered, reduced = moved.pop("all-gather", 0), moved.pop("all-reduce", 0)
    reduced += moved.pop("reduce-scatter", 0)
    others = sum(moved.values())
    capacity = _topologies.MEMORY[_topologies.kind_of(job.topology)] * 2**30
    free = capacity - memory.argument_size_in_bytes
    return row | {
        "peak": peak_bytes(compiled) / MIB,
        "temporaries": memory.temp_size_in_bytes / MIB,
        "batch that fills a chip": _examples(train.batch_size, memory.temp_size_in_bytes, free),
        "gathered": gathered / MIB,
        "reduced": reduced / MIB,
        "other": others / MIB,
        "over parameters": (gathered + reduced + others) / params,
        "compile, s": time.perf_counter() - start,
    }


def _examples(batch_size: int, temporaries: int, free: int) -> int | str:
    """Return the batch whose temporaries fill a memory, if they are more than noise."""
    return int(batch_size * free / temporaries) if temporaries > 16 * MIB else ""


def _bytes_on_a_chip(leaf: jax.ShapeDtypeStruct) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def update(topology: str, k: int, device: jax.Device) -> dict[str, object]:
    """Compile k-Adam's update of the paper's network and return its row, by column."""
    params = parameters(GPTConfig())
    start = time.perf_counter()
    compiled = compile_step(("kadam", k), params, device)
    moved, kernels = traffic(compiled.as_text())
    return {
        "chip": _topologies.kind_of(topology),
        "k": k,
        "floats per parameter": moved / 4 / sum(leaf.size for leaf in jax.tree.leaves(params)),
        "floor 4k+3": 4 * k + 3,
        "temporaries": compiled.memory_analysis().temp_size_in_bytes / MIB,
        "fusions": kernels,
        "parameters' arrays": len(jax.tree.leaves(params)),
        "compile, s": time.perf_counter() - start,
    }


def run(config: ScaleBenchConfig) -> list[Table]:
    """Compile updates and training steps for all topologies whose compiler is installed."""
    missing = {name: _topologies.missing(name, config.gpu_target) for name in config.topologies}
    for name, what in missing.items():
        if what:
            say(f"{name} is skipped: it needs {what}")
    devices = {
        name: _topologies.devices(name, config.gpu_target)
        for name, what in missing.items()
        if not what
    }
    steps = jobs(config, {name: len(found) for name, found in devices.items()})
    chips = [
        job.topology for job in steps if job.layout == "one chip" and job.task == config.tasks[0]
    ]
    with progress("bench scale", len(chips) * len(config.ks) + len(steps)) as advance:
        updates, rows = [], []
        for topology, k in itertools.product(chips, config.ks):
            updates.append(update(topology, k, devices[topology][0]))
            advance(1)
        for job in steps:
            rows.append(measure(config, job, devices[job.topology]))
            advance(1)
    return [
        _table("k-Adam's update of 30.02M parameters, compiled", updates, UPDATE_NOTE),
        _table("Training steps, compiled: MiB on a chip", rows, STEP_NOTE + environment()),
    ]


UPDATE_NOTE = "Floats are what the compiled program's fusions read and write."
STEP_NOTE = (
    "Memory and traffic of one chip. Gathered, reduced (all-reduce and reduce-scatter) and other "
    "traffic is the size of what a step's collective operations gather or reduce, stated also in "
    "units of a member's parameters. The batch that fills a chip is an estimate: temporaries grow "
    "in proportion. Compiled, not run. "
)


def _table(title: str, rows: list[dict[str, object]], note: str) -> Table:
    columns = list(max(rows, key=len, default={}))
    return Table(title, columns, [[row.get(name, "") for name in columns] for row in rows], note)


BENCH = Bench("scale", ScaleBenchConfig(), run)
