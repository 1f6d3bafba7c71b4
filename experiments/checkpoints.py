"""Checkpoints of a run on orbax: whole or not there, checked before use, restored strictly.

FOLDER/STEP/arrays/   the arrays, in orbax's own format, one entry for each leaf
FOLDER/STEP/run/      run.json: schema, configuration, data position, metrics, what each leaf is
.../checksums.json    in both: the SHA-256 of every file, written before the step counts
"""

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import SingleDeviceSharding

from experiments.outcomes import Failed
from experiments.results import DamagedFile
from experiments.running import say

ARRAYS, RUN = ITEMS = ("arrays", "run")
RUN_FILE = "run.json"
CHECKSUMS = "checksums.json"
ORBAX_MARK = "_CHECKPOINT_METADATA"
SCHEMA = 1
"""Of run.json; another number for another meaning of what is in a checkpoint."""


class ResumeError(ValueError):
    """The checkpoints are not those of this run; the message names every difference."""


class Checkpoints:
    """The checkpoints of one run: the newest ones and the best.

    Saving waits for the one before, copies the arrays to the host, and writes them in the
    background. With several processes all of them make every call; the folder is shared.

    Args:
      folder: For checkpoints alone; made if it is not there.
      config: What a run must have in common with a checkpoint to go on from it; JSON-able.
      keep: How many of the newest are kept.
      best: A metric's name and whether "min" or "max" of it is best. The best one is kept however
        old it is; one with a metric that is absent or not finite never is.
      async_: Whether to write in the background.

    Raises:
      ResumeError: If something else lies in the folder, or checkpoints of another schema.
      Failed: If there can be no such folder, or it may not be written to.
      ValueError: If `keep` or `best` is out of range.

    >>> import tempfile
    >>> checkpoints = Checkpoints(Path(tempfile.mkdtemp()), config={"k": 2})
    >>> checkpoints.save(10, {"w": jnp.arange(3.0)}, {"epoch": 1}, {"loss": 0.5})
    >>> template = {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}
    >>> step, arrays, position = checkpoints.restore(template)
    >>> step, arrays["w"].tolist(), position
    (10, [0.0, 1.0, 2.0], {'epoch': 1})
    >>> checkpoints.close()
    """

    def __init__(
        self,
        folder: Path,
        *,
        config: Mapping[str, Any],
        keep: int = 2,
        best: tuple[str, Literal["min", "max"]] = ("loss", "min"),
        async_: bool = True,
    ):
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        if best[1] not in ("min", "max"):
            raise ValueError(f'best must be a metric and "min" or "max", got {best}')
        self._folder = Path(folder).absolute()
        self._config, self._best = dict(config), best
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            effective = os.access in os.supports_effective_ids
            if not os.access(self._folder, os.W_OK | os.X_OK, effective_ids=effective):
                raise PermissionError(errno.EACCES, "not writable")
            runs = read_runs(self._folder)
        except OSError as error:
            raise Failed(f"{folder} cannot hold checkpoints ({error.strerror})") from error
        self._manager = ocp.CheckpointManager(
            self._folder,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=_NewestAndBest(keep, self._best_of),
                cleanup_tmp_directories=True,
                enable_async_checkpointing=async_,
                # Else a folder that cannot be made is an error after ten minutes.
                async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
                lightweight_initialize=True,
            ),
            handler_registry=_handlers(),
        )
        self._quiet = _NotOrbax()
        logging.getLogger("absl").addFilter(self._quiet)
        self._metrics = {step: run["metrics"].get(best[0]) for step, run in runs.items()}
        self._given_up: list[int] = []  # steps passed over in the last restore

    def save(
        self,
        step: int,
        arrays: Any,
        position: Mapping[str, Any],
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Saves; after it the arrays may be donated.

        Checkpoints that are newer than the one restored, damaged or passed over, are removed first.

        Args:
          step: Steps done, more than in any checkpoint so far.
          arrays: Pytree of arrays, typed keys among them.
          position: JSON-able, such as the data iterator's state.
          metrics: The best one is chosen by them.

        Raises:
          ValueError: If a checkpoint is of this step or a later one and was not passed over.
          TypeError: If a leaf is no array, or `position` is not JSON-able.
          Failed: If this one, or the one before in the background, could not be written.
        """
        self.wait()
        leaves = _named_leaves(arrays)
        run = {
            "schema": SCHEMA,
            "config": self._config,
            "position": position,
            "metrics": {name: float(value) for name, value in (metrics or {}).items()},
            "leaves": _kinds(leaves),
        }
        items = {
            ARRAYS: ocp.args.StandardSave(
                {name: _raw(leaf) for name, leaf in leaves.items() if leaf.size}
            ),
            RUN: ocp.args.JsonSave(_as_json(run)),
        }
        with self._written():
            while self._given_up:
                self._manager.delete(self._given_up.pop())
        latest = self._manager.latest_step()
        if latest is not None and step <= latest:
            raise ValueError(
                f"step must be above {latest}, of which {self._folder} has a checkpoint, got "
                f"{step}; restore it first, or give an empty folder"
            )
        self._metrics[step] = run["metrics"].get(self._best[0])
        with self._written():
            self._manager.save(step, args=ocp.args.Composite(**items), force=True)

    def restore(
        self, template: Any, *, which: Literal["latest", "best"] | int = "latest"
    ) -> tuple[int, Any, dict[str, Any]] | None:
        """The newest, the best or a given checkpoint; a damaged one is reported and the next used.

        Args:
          template: Pytree of `jax.ShapeDtypeStruct` (or arrays) whose shardings, on whatever
            devices, the arrays get; one without goes to the first device.
          which: "latest", "best", or a step, which is then the only one tried.

        Returns:
          (step, arrays, position), or None if there is no checkpoint.

        Raises:
          ResumeError: If configuration or leaves differ, or there is none of that step or with a
            metric.
          DamagedFile: If none of them is whole.
        """
        self.wait()
        steps = sorted(self._manager.all_steps(), reverse=True)
        if not steps:
            return None
        step = self._first_whole(self._candidates(steps, which))
        path = self._folder / str(step)
        run = json.loads((path / RUN / RUN_FILE).read_text())
        leaves = _named_leaves(template)
        different = [
            *differences(_dotted(run["config"]), _dotted(_as_json(self._config))),
            *differences(run["leaves"], _kinds(leaves)),
        ]
        if different:
            raise ResumeError("\n  ".join([f"{path} is of another run:", *different]))
        wanted = {name: _raw_template(leaf) for name, leaf in leaves.items()}
        saved = {name: leaf for name, leaf in wanted.items() if leaf.size}
        items = ocp.args.Composite(**{ARRAYS: ocp.args.StandardRestore(saved)})
        found = self._manager.restore(step, args=items)[ARRAYS]
        empty = {
            name: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding)
            for name, leaf in wanted.items()
            if not leaf.size
        }
        arrays = [_typed((found | empty)[name], leaf) for name, leaf in leaves.items()]
        self._given_up = [newer for newer in steps if newer > step]
        return step, jax.tree.unflatten(jax.tree.structure(template), arrays), run["position"]

    def latest_step(self) -> int | None:
        """The newest checkpoint's; waits for the one being written."""
        self.wait()
        return self._manager.latest_step()

    def best_step(self) -> int | None:
        """The best checkpoint's; waits for the one being written."""
        self.wait()
        return self._best_of(self._manager.all_steps())

    def wait(self) -> None:
        """Waits for the checkpoint being written.

        Raises:
          Failed: If it could not be written.
        """
        with self._written():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for the checkpoint being written and ends the threads.

        Raises:
          Failed: If it could not be written.
        """
        try:
            self.wait()
        finally:
            self._manager.close()
            logging.getLogger("absl").removeFilter(self._quiet)

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """Turns what orbax raises into a sentence, and leaves nothing half-written."""
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            if jax.process_index() == 0:
                for path in self._folder.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*"):
                    shutil.rmtree(path, ignore_errors=True)
            self._manager.reload()  # it has forgotten those that the lost one was to replace
            raise Failed(
                f"a checkpoint in {self._folder} was not written: {_reason(error)}"
            ) from error

    def _best_of(self, steps: Sequence[int]) -> int | None:
        return next(iter(self._ranked(steps)), None)

    def _ranked(self, steps: Sequence[int]) -> list[int]:
        """Those with a finite metric, the best first; of equals the earliest."""
        sign = 1 if self._best[1] == "min" else -1
        scores = {step: sign * self._metrics[step] for step in steps if self._has_metric(step)}
        return sorted(scores, key=lambda step: (scores[step], step))

    def _has_metric(self, step: int) -> bool:
        metric = self._metrics.get(step)
        return metric is not None and math.isfinite(metric)

    def _candidates(self, steps: Sequence[int], which: str | int) -> Sequence[int]:
        """The steps to try, in this order."""
        if which == "latest":
            return steps
        if which == "best":
            if ranked := self._ranked(steps):
                return ranked
            raise ResumeError(f"no checkpoint in {self._folder} has a finite {self._best[0]}")
        if which in steps:
            return [which]
        raise ResumeError(f"{self._folder} has no step {which!r}; there are {sorted(steps)}")

    def _first_whole(self, candidates: Sequence[int]) -> int:
        """The first of these steps whose files are those that were written, on all processes."""
        whole = -1
        if jax.process_index() == 0:
            for step in candidates:
                damage = damaged_file(self._folder / str(step))
                if damage is None:
                    whole = step
                    break
                say(f"the checkpoint {self._folder / str(step)} is damaged: {damage}")
        if jax.process_count() > 1:
            whole = int(multihost_utils.broadcast_one_to_all(np.int32(whole)))
        for step in candidates[: candidates.index(whole) if whole >= 0 else None]:
            self._metrics.pop(step, None)  # a damaged one is not kept as the best
        if whole < 0:
            tried = ", ".join(map(str, candidates))
            raise DamagedFile(
                f"{self._folder} has no whole checkpoint, steps tried: {tried}; start anew"
            )
        return whole


def read_runs(folder: Path) -> dict[int, dict[str, Any]]:
    """run.json of each step in a folder of checkpoints, the damaged ones left out.

    Raises:
      ResumeError: That names what is not a checkpoint, or one of another schema.
    """
    runs = {}
    for path in sorted(folder.iterdir()):
        if ocp.utils.TMP_DIR_SUFFIX in path.name:  # a kill has left it; orbax removes it
            continue
        inside = {item.name for item in path.iterdir()} if path.is_dir() else {""}
        inside.discard(ORBAX_MARK)  # all that a kill may leave of one that was being removed
        if not path.name.isdecimal() or (inside and inside.isdisjoint(ITEMS)):
            raise ResumeError(f"{path} is not a checkpoint; checkpoints need a folder of their own")
        if damaged_file(path, (RUN,)) is None:  # else it is reported when it is to be restored
            run = runs[int(path.name)] = json.loads((path / RUN / RUN_FILE).read_text())
            if (schema := run.get("schema", "absent")) != SCHEMA:
                raise ResumeError(
                    f"{path} is a checkpoint of another version (schema: {schema} in the "
                    f"checkpoint, {SCHEMA} in this version); go on with that version, or anew in "
                    "another folder"
                )
    return runs


def damaged_file(path: Path, items: Sequence[str] = ITEMS) -> str | None:
    """What is wrong with the files of a checkpoint; None if they are those that were written."""
    for item in items:
        try:
            checksums = dict(json.loads((path / item / CHECKSUMS).read_bytes()))
            for name, checksum in checksums.items():
                if _checksum(path / item / name) != checksum:
                    return f"{item}/{name} is not what was written"
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
        except (ValueError, TypeError):
            return f"{item}/{CHECKSUMS} is not what was written"
    return None


def differences(theirs: Mapping[str, str], ours: Mapping[str, str]) -> list[str]:
    """One line for each name that differs.

    >>> differences({"k": "1", "b1": "0.9"}, {"k": "2", "b1": "0.9", "b2": "0.99"})
    ['k: 1 in the checkpoint, 2 in this run', 'b2: absent in the checkpoint, 0.99 in this run']
    """
    return [
        f"{name}: {theirs.get(name, 'absent')} in the checkpoint, "
        f"{ours.get(name, 'absent')} in this run"
        for name in theirs | ours
        if theirs.get(name) != ours.get(name)
    ]


class _NewestAndBest(ocp.checkpoint_managers.PreservationPolicy):
    """Keeps the newest steps and the best one."""

    def __init__(self, keep, best_of):
        self._keep, self._best_of = keep, best_of

    def should_preserve(self, checkpoints, *, context):
        del context
        steps = [checkpoint.step for checkpoint in checkpoints]
        kept = {*steps[-self._keep :], self._best_of(steps)}
        return [step in kept for step in steps]


class _Checked(ocp.CheckpointHandler):
    """Writes checksums when all processes have written and before the step counts."""

    def finalize(self, directory):
        super().finalize(directory)
        _write_checksums(Path(directory))


class _CheckedArrays(_Checked, ocp.StandardCheckpointHandler):
    """Orbax's own otherwise."""


class _CheckedJson(_Checked, ocp.JsonCheckpointHandler):
    """Orbax's own otherwise."""


def _handlers() -> ocp.CheckpointHandlerRegistry:
    arrays, run = _CheckedArrays(), _CheckedJson(RUN_FILE)
    registry = ocp.DefaultCheckpointHandlerRegistry()
    registry.add(ARRAYS, ocp.args.StandardSave, arrays)
    registry.add(ARRAYS, ocp.args.StandardRestore, arrays)
    registry.add(RUN, ocp.args.JsonSave, run)
    return registry


def _write_checksums(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    checksums = {path.relative_to(folder).as_posix(): _checksum(path) for path in files}
    (folder / CHECKSUMS).write_text(json.dumps(checksums, indent=1))


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _NotOrbax(logging.Filter):
    """Orbax logs the traceback of every error that it raises as well."""

    def filter(self, record):
        return "orbax" not in Path(record.pathname).parts


def _reason(error: Exception) -> str:
    """The system's own words, which TensorStore puts as a number behind a paragraph."""
    found = re.search(r"os_error_code='(\d+)'", str(error))
    code = int(found[1]) if found else getattr(error, "errno", None)
    return os.strerror(code) if code else str(error).splitlines()[0]


def _as_json(value: Any) -> Any:
    """What a reader of the file would find, and a copy that nobody changes."""
    return json.loads(json.dumps(value))


def _dotted(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Values as JSON by their dotted names."""
    flat = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= _dotted(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = json.dumps(value)
    return flat


def _named_leaves(tree: Any) -> dict[str, Any]:
    """Leaves by their paths, in the tree's order."""
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}
    for name, leaf in leaves.items():
        if not hasattr(leaf, "dtype"):
            raise TypeError(f"leaf {name} must be an array, got {leaf!r}; wrap it in jnp.asarray")
    return leaves


def _kinds(leaves: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in leaves.items()}


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    """What orbax saves: a typed key as its integers."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _raw_template(leaf: Any) -> jax.ShapeDtypeStruct:
    where = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.local_devices()[0])
    raw = jax.eval_shape(_raw, leaf)
    return jax.ShapeDtypeStruct(raw.shape, raw.dtype, sharding=where)


def _typed(array: jax.Array, leaf: Any) -> jax.Array:
    """The inverse of `_raw`, given the template's leaf."""
    if not _is_key(leaf):
        return array
    return jax.random.wrap_key_data(array, impl=jax.random.key_impl(jnp.empty((), leaf.dtype)))
