"""The host's loop: feed blocks of batches to the compiled program, evaluate, save, stop, resume."""

import contextlib
import dataclasses
import itertools
import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.core.errors import ConfigError, Failed, Stopped, say
from experiments.core.processes import from_first, is_first
from experiments.core.progress import progress
from experiments.core.store import atomic
from experiments.data.loading import Batches, Data, training_batches
from experiments.train.checkpoints import Checkpoints
from experiments.train.config import TrainConfig, identity
from experiments.train.evaluation import evaluate
from experiments.train.metrics_log import MetricsLog
from experiments.train.programs import programs_of
from experiments.train.run_folder import CHECKPOINTS, CONFIG, METRICS, owned_folder
from experiments.train.stopping import agreed, caught_signals
from experiments.training.meshes import MeshConfig, place_batch, process_share
from experiments.training.tasks import Task
from experiments.training.train import Programs, TrainState

VALIDATION = "validation"


class _Block(NamedTuple):
    """Batches for one call to the device."""

    end: int
    """Steps done after the block."""
    batches: Any
    """The batches on the devices; leaves are (num_steps, batch, ...)."""
    position: Mapping[str, Any]
    """The position in the data after these batches."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A training job: its configuration, its data, and where to write.

    Attributes:
      config: The configuration.
      data: The source of batches.
      task: The task that is learned.
      unit: The units of an example, in the plural: "tokens" or "images".
      units_per_example: The number of units in an example.
      folder: The run's own folder, for metrics, configuration and checkpoints.
      augment: As in `training_batches`.
      sweep: As in `sweep_members`.
      tensorboard: Whether to write TensorBoard files as well.
      profile: Where JAX's profiler writes a trace of the second call to the device, if anywhere.
    """

    config: TrainConfig
    data: Data
    task: Task
    unit: str
    units_per_example: int
    folder: Path
    augment: Callable[[Any, np.random.Generator], Any] | None = None
    sweep: Sequence[str] = ()
    tensorboard: bool = False
    profile: Path | None = None


def train(
    job: Job, devices: Sequence[jax.Device], *, resume: bool = False, force: bool = False
) -> Path:
    """Train one run or all members of a sweep to the end.

    `metrics.jsonl` gets the training losses, validation metrics and, at the last step, the metrics
    of all held-out splits. A checkpoint has everything that determines what follows. The numbers of
    a resumed run are those of an uninterrupted one: to the bit on CPUs, and up to rounding if steps
    or members are divided into other calls or devices are laid out differently.

    Args:
      job: What to train.
      devices: The devices of all processes.
      resume: Whether to resume from the newest checkpoint in the folder, if there is one.
      force: Whether to remove an earlier run from the folder first.

    Returns:
      The path of the metrics.

    Raises:
      ConfigError: Before anything is written, if the folder has an earlier run and neither `resume`
        nor `force` is given, mesh, members, batch and microbatches don't fit together, or a batch
        is larger than the training split; also if the checkpoints belong to another configuration.
      Failed: If no member is left with a finite loss; also, before anything is written, if another
        process is using the folder.
      Stopped: After SIGINT or SIGTERM, with a checkpoint; the second signal interrupts at once.
    """
    config = job.config
    if config.batch_size > len(job.data.train):
        raise ConfigError(
            f"batch_size={config.batch_size} is above the {len(job.data.train)} training examples"
        )
    programs, labels, mesh = programs_of(config, job.task, job.sweep, devices)
    _warn_of_whole_parameters(config.mesh, mesh, programs)
    facts = identity(config) | {"data.sha256": job.data.sha256, "sweep": list(job.sweep)}
    index, count = process_share(mesh)
    batches = training_batches(
        job.data,
        batch_size=config.batch_size,
        seed=config.data_seed,
        process_index=index,
        process_count=count,
        num_workers=config.workers,
        prefetch=config.prefetch,
        augment=job.augment,
    )
    # Signals are caught until the last checkpoint is written.
    with contextlib.ExitStack() as stack:
        stack.enter_context(owned_folder(job.folder, resume=resume, force=force))
        signals = stack.enter_context(caught_signals())
        stack.enter_context(contextlib.closing(batches))
        checkpoints = Checkpoints(job.folder / CHECKPOINTS, config=facts, keep=config.keep)
        stack.enter_context(contextlib.closing(checkpoints))
        loop = _Loop(job, labels, mesh, programs, batches, checkpoints, signals)
        loop.run(facts, resume=resume)
    return job.folder / METRICS


def _warn_of_whole_parameters(
    config: MeshConfig, mesh: jax.sharding.Mesh, programs: Programs
) -> None:
    """Warn if parameters that should be sharded have no axis that can be cut."""
    if config.shard_above is None or mesh.shape["data"] == 1:
        return
    leaves = jax.tree.leaves(programs.template.params)
    large = [leaf for leaf in leaves if leaf.size // leaf.shape[0] > config.shard_above]
    whole = [leaf for leaf in large if "data" not in leaf.sharding.spec]
    if whole and is_first():
        share = sum(leaf.size for leaf in whole) / sum(leaf.size for leaf in large)
        say(
            f"mesh.data={mesh.shape['data']} has no factor in common with any axis of {len(whole)} "
            f"of {len(large)} parameters above mesh.shard_above, {share:.0%} of their entries, "
            "which every device holds whole; choose a mesh.data that divides the model's sizes"
        )


def next_end(done: int, config: TrainConfig) -> int:
    """Return the step at which the device returns to the host, however often a run has stopped.

    >>> config = TrainConfig(num_steps=104, steps_per_call=10, eval_every=25, save_every=100)
    >>> [next_end(done, config) for done in (0, 10, 20, 25, 100)]
    [10, 20, 25, 30, 104]
    """
    rhythms = (config.steps_per_call, config.eval_every, config.save_every)
    return min(config.num_steps, *((done // every + 1) * every for every in rhythms))


def _of(label: Mapping[str, float]) -> str:
    """Name the member that a message is about, or nothing if there is only one.

    >>> _of({"member": 3, "learning_rate": 1e-3, "seed": 1})
    ' of member 3 (learning_rate=0.001, seed=1)'
    """
    swept = ", ".join(f"{name}={value:g}" for name, value in label.items() if name != "member")
    return f" of member {label['member']} ({swept})" if swept else ""


class _Loop:
    """One run from its start or its newest checkpoint to its end."""

    def __init__(
        self,
        job: Job,
        labels: Sequence[Mapping[str, float]],
        mesh: jax.sharding.Mesh,
        programs: Programs,
        batches: Batches,
        checkpoints: Checkpoints,
        signals: list[int],
    ):
        self._job, self._config, self._mesh, self._programs = job, job.config, mesh, programs
        self._batches, self._checkpoints, self._signals = batches, checkpoints, signals
        self._labels = [{"member": number, **label} for number, label in enumerate(labels)]
        self._diverged_at = np.zeros(len(labels), int)  # step of the first bad loss; 0: none
        self._is_writer = is_first()

    def run(self, facts: Mapping[str, Any], *, resume: bool) -> None:
        """Train until the last step, a signal, or the last member's divergence."""
        state, done = self._restored() if resume else (None, 0)
        if state is None:
            state = self._programs.start()
        if done > self._config.num_steps:
            say(f"{self._job.folder} has {done} steps already")
            return
        with contextlib.ExitStack() as stack:
            written = set()
            if self._is_writer:
                with atomic(self._job.folder / CONFIG) as path:
                    record = {**facts, "data.name": self._job.data.name}
                    path.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
                log = MetricsLog(
                    self._job.folder, self._labels, done=done, tensorboard=self._job.tensorboard
                )
                self._log, written = stack.enter_context(contextlib.closing(log)), log.splits
                self._advance = stack.enter_context(self._progress(done))
            due = self._due(done)
            missing = from_first(lambda: [split for split in due if split not in written])
            if missing:
                self._evaluate(state, done, due, missing)
            elif done == self._config.num_steps:
                say(f"{self._job.folder} has all of its {done} steps already")
            if done < self._config.num_steps:
                self._train(state, done)

    def _train(self, state: TrainState, done: int) -> None:
        config = self._config
        blocks = self._blocks(done)
        block = next(blocks)
        for call in itertools.count():
            with self._profiled(call):
                state, records = self._programs.steps(state, block.batches, np.int32(done))
                upcoming = next(blocks, None)  # while the devices compute
                records = jax.device_get(records)
            done, start = block.end, done
            self._report(start, records)
            stop = upcoming is not None and agreed(self._signals)
            if upcoming is None or stop or done % config.save_every == 0:
                position = {
                    "batches": dict(block.position),
                    "diverged_at": self._diverged_at.tolist(),
                }
                self._checkpoints.save(done, state, position)
            if stop:
                raise Stopped(
                    stop,
                    f"stopped by {signal.Signals(stop).name} and saved at step {done} of "
                    f"{config.num_steps}; the same command with --resume continues",
                )
            if due := self._due(done):  # after the save: if this fails, a resumed run does it
                self._evaluate(state, done, due, due)
            if upcoming is None:
                return
            block = upcoming

    def _due(self, done: int) -> list[str]:
        """Return the held-out splits that are evaluated after `done` steps."""
        if done == self._config.num_steps:
            return list(self._job.data.heldout)
        return [VALIDATION] if done and done % self._config.eval_every == 0 else []

    def _blocks(self, done: int) -> Iterator[_Block]:
        """Yield the blocks that follow `done` steps; each request takes batches from the data."""
        while done < self._config.num_steps:
            end = next_end(done, self._config)
            batches = itertools.islice(self._batches, end - done)
            stacked = jax.tree.map(lambda *rows: np.stack(rows), *batches)
            yield _Block(end, place_batch(self._mesh, stacked, 1), self._batches.get_state())
            done = end

    def _report(self, start: int, records: Mapping[str, np.ndarray]) -> None:
        """Write what the steps after `start` recorded, (num_members, num_steps) each."""
        bad = ~np.isfinite(records["loss"])
        for place in range(bad.shape[1]):
            step = start + place + 1
            for member in np.flatnonzero(bad[:, place] & (self._diverged_at == 0)):
                self._diverged_at[member] = step
                if self._is_writer:
                    self._log.write_divergence(step, member)
                    of = _of(self._labels[member])
                    say(f"the loss{of} has not been finite since step {step}")
            if self._is_writer and step % self._config.log_every == 0:
                self._log.write(
                    step, "train", {name: values[:, place] for name, values in records.items()}
                )
        if self._diverged_at.all():
            raise Failed(
                f"no loss has been finite since step {self._diverged_at.max()}; try a smaller "
                f"learning_rate, a warm-up or clip_norm ({self._job.folder / METRICS})"
            )
        if self._is_writer:
            self._advance(bad.shape[1], f"loss {np.nanmin(records['loss'][:, -1]):.4f}")

    def _evaluate(
        self, state: TrainState, done: int, splits: Sequence[str], wanted: Sequence[str]
    ) -> None:
        """Measure held-out splits, score the checkpoint, and write the wanted splits."""
        share, sources = process_share(self._mesh), self._job.data.heldout
        measured = {
            split: evaluate(self._programs, state, sources[split], self._config, self._mesh, share)
            for split in splits
        }
        losses = measured[VALIDATION]["loss"]
        if (finite := losses[np.isfinite(losses)]).size:
            self._checkpoints.score(done, {"loss": float(finite.min())})
        if not self._is_writer:
            return
        for split in wanted:
            self._log.write(done, split, measured[split])
        if done == self._config.num_steps:
            best = int(np.nan_to_num(losses, nan=np.inf).argmin())
            of = _of(self._labels[best])
            of += of and ", the best there"
            for split, values in measured.items():
                text = ", ".join(f"{name} {column[best]:.4f}" for name, column in values.items())
                say(f"{split}, step {done}: {text}{of}")

    def _restored(self) -> tuple[TrainState | None, int]:
        found = self._checkpoints.restore(self._programs.template)
        if found is None:
            say(f"{self._job.folder} has no checkpoint: starting from the first step")
            return None, 0
        done, state, position = found
        self._batches.set_state(position["batches"])
        self._diverged_at[:] = position["diverged_at"]
        say(f"resuming from step {done}")
        return state, done

    def _progress(self, done: int) -> Any:
        size = len(self._labels) * self._config.batch_size * self._job.units_per_example
        label, num_steps = f"{self._job.folder.name}, steps", self._config.num_steps
        return progress(label, num_steps, done, unit=self._job.unit, size=size)

    def _profiled(self, call: int) -> Any:
        """Return JAX's profiler for the second call, since the first one compiles."""
        if self._job.profile is None or call != 1:
            return contextlib.nullcontext()
        return jax.profiler.trace(str(self._job.profile))
