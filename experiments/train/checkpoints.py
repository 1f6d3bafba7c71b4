"""Checkpoints of a run, on orbax: complete or absent, checked before use, restored strictly."""

import contextlib
import functools
import gc
import json
import logging
import math
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import jax
import orbax.checkpoint as ocp

from experiments.core.errors import ConfigError, DamagedFile, Failed, say
from experiments.core.folders import make_folder
from experiments.core.processes import from_first, is_first
from experiments.train.checkpoint_contents import (
    as_json,
    differences,
    kinds,
    named_leaves,
    packed,
    packed_template,
    unpacked,
)
from experiments.train.checkpoint_files import (
    ARRAYS,
    RUN,
    RUN_FILE,
    SCHEMA,
    check_steps,
    damaged_file,
    handlers,
    read_scores,
    remove_unfinished,
    write_scores,
)

LOGGERS = ("absl", "asyncio")
"""Where errors of a write are logged, although they are also raised."""


class Checkpoints:
    """The checkpoints of one run: the newest ones and the best.

    Saving waits for the previous save, copies the arrays to the host, and writes them in the
    background. A CPU's arrays are already on the host: they are held unchanged until they are
    written, and a step that would reuse their memory in the meantime copies them instead, once. If
    there are several processes, all of them make every call; the folder is shared.

    Args:
      folder: A folder only for checkpoints; created if it does not exist.
      config: What a run must have in common with a checkpoint to resume from it; JSON-able.
      keep: Number of the newest checkpoints that are kept. The one with the lowest loss, the best,
        is kept however old it is; one whose loss is absent or not finite is never the best.

    Raises:
      ConfigError: If the folder contains something else, or checkpoints of another schema.
      Failed: If the folder cannot be created or written to.
      ValueError: If `keep` is out of range.

    >>> import tempfile
    >>> import jax.numpy as jnp
    >>> checkpoints = Checkpoints(Path(tempfile.mkdtemp()), config={"k": 2})
    >>> checkpoints.save(10, {"w": jnp.arange(3.0)}, {"epoch": 1})
    >>> checkpoints.score(10, {"loss": 0.5})
    >>> template = {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}
    >>> step, arrays, position = checkpoints.restore(template)
    >>> step, arrays["w"].tolist(), position
    (10, [0.0, 1.0, 2.0], {'epoch': 1})
    >>> checkpoints.close()
    """

    def __init__(self, folder: Path, *, config: Mapping[str, Any], keep: int = 2):
        if not (isinstance(keep, Integral) and keep >= 1):
            raise ValueError(f"keep must be an integer of at least 1, got {keep!r}")
        self._folder, self._config = Path(folder).absolute(), dict(config)
        make_folder(self._folder)
        check_steps(self._folder)
        self._manager = ocp.CheckpointManager(
            self._folder,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=_NewestAndBest(keep, self._best_of),
                cleanup_tmp_directories=True,
                # Otherwise a process whose folder has vanished does not end.
                async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
                lightweight_initialize=True,
            ),
            handler_registry=handlers(),
        )
        self._quiet = _NotOrbax()
        for name in LOGGERS:
            logging.getLogger(name).addFilter(self._quiet)
        self._unraisablehook = sys.unraisablehook
        sys.unraisablehook = functools.partial(_not_late, self._unraisablehook)
        self._scores = read_scores(self._folder)
        self._given_up: list[int] = []  # steps passed over in the last restore

    def save(
        self,
        step: int,
        arrays: Any,
        position: Mapping[str, Any],
    ) -> None:
        """Save a checkpoint; afterwards the arrays may be donated.

        Checkpoints newer than the restored one, whether damaged or passed over, are removed first.

        Args:
          step: Steps done, more than in any checkpoint so far.
          arrays: Pytree of arrays, which may include typed keys.
          position: JSON-able, such as the data iterator's state.

        Raises:
          ValueError: If `step` is not a number of steps, there is a checkpoint of that or a later
            step that was not passed over, or `arrays` has no entry.
          TypeError: If a leaf is not an array, or `position` is not JSON-able.
          Failed: If this checkpoint, or the previous one in the background, could not be written.
        """
        if not (isinstance(step, Integral) and step >= 0):
            raise ValueError(f"step must be an integer of at least 0, got {step!r}")
        self.wait()
        leaves = named_leaves(arrays)
        if not packed(leaves):
            raise ValueError(f"arrays must have an entry, got {arrays!r}")
        run = {
            "schema": SCHEMA,
            "config": self._config,
            "position": position,
            "leaves": kinds(leaves),
        }
        items = {
            ARRAYS: ocp.args.StandardSave(packed(leaves)),
            RUN: ocp.args.JsonSave(as_json(run)),
        }
        with self._written():
            while self._given_up:
                self._manager.delete(self._given_up.pop())
        latest = self._manager.latest_step()
        if latest is not None and step <= latest:
            raise ValueError(
                f"step must be above {latest}, the latest checkpoint in {self._folder}, got "
                f"{step}; restore it first, or give an empty folder"
            )
        self._scores.pop(step, None)
        with self._written():
            self._manager.save(step, args=ocp.args.Composite(**items), force=True)

    def score(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record how good the checkpoint of a step is, even while it is still being written.

        Args:
          step: The checkpoint's step; nothing happens if there is no such checkpoint.
          metrics: Its metrics, of which "loss" decides.

        Raises:
          Failed: If it could not be written.
        """
        scores = self._scores | {step: {name: float(value) for name, value in metrics.items()}}
        self._scores = {step: scores[step] for step in self._manager.all_steps() if step in scores}
        if is_first():
            with self._written():
                write_scores(self._folder, self._scores)

    def restore(
        self, template: Any, *, which: Literal["latest", "best"] | int = "latest"
    ) -> tuple[int, Any, dict[str, Any]] | None:
        """Restore the newest, best or given checkpoint; damaged ones are reported and skipped.

        Args:
          template: Pytree of `jax.ShapeDtypeStruct` (or arrays) whose shardings, on any devices,
            the arrays get; a leaf without a sharding goes to the first device.
          which: "latest", "best", or a step, which is then the only one tried.

        Returns:
          (step, arrays, position), or None if there is no checkpoint.

        Raises:
          ConfigError: If configuration or leaves differ, or there is no checkpoint of that step or
            with a loss.
          DamagedFile: If none of the checkpoints is intact.
        """
        self.wait()
        steps = sorted(self._manager.all_steps(), reverse=True)
        if not steps:
            return None
        step = self._first_whole(self._candidates(steps, which))
        path = self._folder / str(step)
        run = json.loads((path / RUN / RUN_FILE).read_text())
        leaves = named_leaves(template)
        # Leaves follow from the configuration: if it differs, naming them would only hide that.
        different = differences(run["config"], as_json(self._config)) or differences(
            run["leaves"], kinds(leaves)
        )
        if different:
            raise ConfigError("\n  ".join([f"{path} belongs to another run:", *different]))
        items = ocp.args.Composite(**{ARRAYS: ocp.args.StandardRestore(packed_template(leaves))})
        arrays = unpacked(self._manager.restore(step, args=items)[ARRAYS], leaves)
        self._given_up = [newer for newer in steps if newer > step]
        return step, jax.tree.unflatten(jax.tree.structure(template), arrays), run["position"]

    def latest_step(self) -> int | None:
        """Return the step of the newest checkpoint, after waiting for the one being written."""
        self.wait()
        return self._manager.latest_step()

    def best_step(self) -> int | None:
        """Return the step of the best checkpoint, after waiting for the one being written."""
        self.wait()
        return self._best_of(self._manager.all_steps())

    def wait(self) -> None:
        """Wait for the checkpoint being written.

        Raises:
          Failed: If it could not be written.
        """
        with self._written():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait for the checkpoint being written and end the threads.

        Raises:
          Failed: If it could not be written.
        """
        try:
            self.wait()
        finally:
            self._manager.close()
            for name in LOGGERS:
                logging.getLogger(name).removeFilter(self._quiet)
            sys.unraisablehook = self._unraisablehook

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """Turn what orbax raises into a sentence, and leave nothing half-written."""
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            if is_first():
                remove_unfinished(self._folder)
            gc.collect()  # tasks that nobody has awaited complain now, and are ignored
            self._manager.reload()  # it has forgotten those that the lost save would have replaced
            raise Failed(
                f"a checkpoint in {self._folder} was not written: {_reason(error)}"
            ) from error

    def _best_of(self, steps: Sequence[int]) -> int | None:
        return next(iter(self._ranked(steps)), None)

    def _ranked(self, steps: Sequence[int]) -> list[int]:
        """Return the steps with a finite loss, the best first; of equals, the earliest first."""
        losses = {step: self._scores.get(step, {}).get("loss", math.nan) for step in steps}
        scored = [step for step in steps if math.isfinite(losses[step])]
        return sorted(scored, key=lambda step: (losses[step], step))

    def _candidates(self, steps: Sequence[int], which: str | int) -> Sequence[int]:
        """Return the steps to try, in order."""
        if which == "latest":
            return steps
        if which == "best":
            if ranked := self._ranked(steps):
                return ranked
            raise ConfigError(f"no checkpoint in {self._folder} has a finite loss")
        if which in steps:
            return [which]
        raise ConfigError(f"{self._folder} has no step {which!r}; there are {sorted(steps)}")

    def _first_whole(self, candidates: Sequence[int]) -> int:
        """Return the first of these steps whose files are as written, on all processes."""

        def find() -> int | None:
            for step in candidates:
                damage = damaged_file(self._folder / str(step))
                if damage is None:
                    return step
                say(f"the checkpoint {self._folder / str(step)} is damaged: {damage}")
            return None

        whole = from_first(find)
        for step in candidates[: None if whole is None else candidates.index(whole)]:
            self._scores.pop(step, None)  # a damaged one is not kept as the best
        if whole is None:
            tried = ", ".join(map(str, candidates))
            raise DamagedFile(
                f"{self._folder} has no intact checkpoint, steps tried: {tried}; start over"
            )
        return whole


class _NewestAndBest(ocp.checkpoint_managers.PreservationPolicy):
    """Keeps the newest steps and the best one."""

    def __init__(self, keep, best_of):
        self._keep, self._best_of = keep, best_of

    def should_preserve(self, checkpoints, *, context):
        del context
        steps = [checkpoint.step for checkpoint in checkpoints]
        kept = {*steps[-self._keep :], self._best_of(steps)}
        return [step in kept for step in steps]


class _NotOrbax(logging.Filter):
    """Drops the tracebacks that orbax logs for its errors, and asyncio for orbax's tasks."""

    def filter(self, record):
        frames = traceback.extract_tb(record.exc_info[2] if record.exc_info else None)
        files = [record.pathname, *(frame.filename for frame in frames)]
        return not any("orbax" in Path(file).parts for file in files)


def _not_late(unraisablehook, unraisable):
    """Suppress the tracebacks of a checkpoint's writes that end after another one has failed."""
    if str(unraisable.exc_value) != "Event loop is closed":
        unraisablehook(unraisable)


def _reason(error: Exception) -> str:
    """Return the system's own words, which TensorStore gives as a number after a paragraph."""
    found = re.search(r"os_error_code='(\d+)'", str(error))
    code = int(found[1]) if found else getattr(error, "errno", None)
    return os.strerror(code) if code else str(error).splitlines()[0]
