"""A checkpoint on disk: its two items, their checksums, and the contents of run.json.

FOLDER/STEP/arrays/   the arrays, in orbax's own format, one entry for each leaf
FOLDER/STEP/run/      run.json: schema, configuration, data position, type and shape of each leaf
.../checksums.json    in both: the SHA-256 of every file, written before the step counts
FOLDER/scores.json    metrics by step, which come after a checkpoint, and their SHA-256
"""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import orbax.checkpoint as ocp

from experiments.core.errors import ConfigError, DamagedFile, say
from experiments.core.store import file_sha256, read_checked, write_checked

ARRAYS, RUN = ITEMS = ("arrays", "run")
RUN_FILE = "run.json"
CHECKSUMS = "checksums.json"
ORBAX_MARK = "_CHECKPOINT_METADATA"
SETTLED, PATIENCE = 0.2, 5.0
"""Seconds without anything new after a failed write, and how long to wait for that."""
SCORES = "scores.json"
SCHEMA = 3
"""Schema of run.json; it changes whenever the meaning of a checkpoint's contents changes."""


def check_steps(folder: Path) -> None:
    """Check that a folder has only checkpoints that this version can read, or damaged ones.

    Raises:
      ConfigError: If something is not a checkpoint or has another schema; the message names it.
    """
    for path in sorted(folder.iterdir()):
        if ocp.utils.TMP_DIR_SUFFIX in path.name or SCORES in path.name:
            continue  # files that a kill left half-written are replaced
        inside = {item.name for item in path.iterdir()} if path.is_dir() else {""}
        inside.discard(ORBAX_MARK)  # all that a kill may leave of a checkpoint being removed
        if not path.name.isdecimal() or (inside and inside.isdisjoint(ITEMS)):
            raise ConfigError(f"{path} is not a checkpoint; checkpoints need their own folder")
        if damaged_file(path, (RUN,)) is None:  # otherwise it is reported when it is restored
            run = json.loads((path / RUN / RUN_FILE).read_text())
            if (schema := run.get("schema", "absent")) != SCHEMA:
                raise ConfigError(
                    f"{path} is a checkpoint of another version (schema: {schema} in the "
                    f"checkpoint, {SCHEMA} in this version); continue with that version, or start "
                    "over in another folder"
                )


def read_scores(folder: Path) -> dict[int, dict[str, float]]:
    """Return the metrics of each step that has some; a damaged file is reported."""
    try:
        scores = json.loads(read_checked(folder / SCORES))
    except FileNotFoundError:
        return {}
    except DamagedFile as error:
        say(f"{error}; it is not known which checkpoint is best")
        return {}
    return {int(step): metrics for step, metrics in scores.items()}


def write_scores(folder: Path, scores: Mapping[int, Mapping[str, float]]) -> None:
    """Replace the metrics of all steps."""
    write_checked(folder / SCORES, json.dumps(scores).encode())


def damaged_file(path: Path, items: Sequence[str] = ITEMS) -> str | None:
    """Return what is wrong with the files of a checkpoint, or None if they are as written."""
    for item in items:
        try:
            checksums = dict(json.loads((path / item / CHECKSUMS).read_bytes()))
            for name, checksum in checksums.items():
                if file_sha256(path / item / name) != checksum:
                    return f"{item}/{name} is not what was written"
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
        except (ValueError, TypeError):
            return f"{item}/{CHECKSUMS} is not what was written"
    return None


def remove_unfinished(folder: Path) -> None:
    """Remove what a failed write has left, and for a while what its other threads still add."""
    seen = start = time.monotonic()
    while time.monotonic() < min(seen + SETTLED, start + PATIENCE):
        for path in folder.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*"):
            shutil.rmtree(path, ignore_errors=True)
            seen = time.monotonic()
        time.sleep(SETTLED / 10)


class _Checked(ocp.CheckpointHandler):
    """Writes checksums after all processes have written and before the step counts."""

    def finalize(self, directory):
        super().finalize(directory)
        _write_checksums(Path(directory))


class _CheckedArrays(_Checked, ocp.StandardCheckpointHandler):
    """Orbax's handler of arrays, with checksums."""


class _CheckedJson(_Checked, ocp.JsonCheckpointHandler):
    """Orbax's handler of JSON, with checksums."""


def handlers() -> ocp.CheckpointHandlerRegistry:
    """Return orbax's own handlers for both items, with checksums."""
    arrays, run = _CheckedArrays(), _CheckedJson(RUN_FILE)
    registry = ocp.DefaultCheckpointHandlerRegistry()
    registry.add(ARRAYS, ocp.args.StandardSave, arrays)
    registry.add(ARRAYS, ocp.args.StandardRestore, arrays)
    registry.add(RUN, ocp.args.JsonSave, run)
    return registry


def _write_checksums(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    checksums = {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}
    (folder / CHECKSUMS).write_text(json.dumps(checksums, indent=1))
