"""What a checkpoint is on disk: its two items, their checksums, and what run.json says.

FOLDER/STEP/arrays/   the arrays, in orbax's own format, one entry for each leaf
FOLDER/STEP/run/      run.json: schema, configuration, data position, what each leaf is
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
"""Seconds without anything new after a failed write, and how long that is waited for."""
SCORES = "scores.json"
SCHEMA = 2
"""Of run.json; another number for another meaning of what is in a checkpoint."""


def check_steps(folder: Path) -> None:
    """Checks that a folder has nothing but checkpoints that this version can read, or damaged ones.

    Raises:
      ConfigError: That names what is not a checkpoint, or one of another schema.
    """
    for path in sorted(folder.iterdir()):
        if ocp.utils.TMP_DIR_SUFFIX in path.name or SCORES in path.name:
            continue  # those that a kill left half-written are replaced
        inside = {item.name for item in path.iterdir()} if path.is_dir() else {""}
        inside.discard(ORBAX_MARK)  # all that a kill may leave of one that was being removed
        if not path.name.isdecimal() or (inside and inside.isdisjoint(ITEMS)):
            raise ConfigError(f"{path} is not a checkpoint; checkpoints need a folder of their own")
        if damaged_file(path, (RUN,)) is None:  # else it is reported when it is to be restored
            run = json.loads((path / RUN / RUN_FILE).read_text())
            if (schema := run.get("schema", "absent")) != SCHEMA:
                raise ConfigError(
                    f"{path} is a checkpoint of another version (schema: {schema} in the "
                    f"checkpoint, {SCHEMA} in this version); go on with that version, or anew in "
                    "another folder"
                )


def read_scores(folder: Path) -> dict[int, dict[str, float]]:
    """The metrics of each step, those that there are; a damaged file of them is reported."""
    try:
        scores = json.loads(read_checked(folder / SCORES))
    except FileNotFoundError:
        return {}
    except DamagedFile as error:
        say(f"{error}; which of the checkpoints is the best is not known")
        return {}
    return {int(step): metrics for step, metrics in scores.items()}


def write_scores(folder: Path, scores: Mapping[int, Mapping[str, float]]) -> None:
    """Replaces the metrics of all steps."""
    write_checked(folder / SCORES, json.dumps(scores).encode())


def damaged_file(path: Path, items: Sequence[str] = ITEMS) -> str | None:
    """What is wrong with the files of a checkpoint; None if they are those that were written."""
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
    """Removes what a failed write has left, and what its other threads still add, for a while."""
    seen = start = time.monotonic()
    while time.monotonic() < min(seen + SETTLED, start + PATIENCE):
        for path in folder.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*"):
            shutil.rmtree(path, ignore_errors=True)
            seen = time.monotonic()
        time.sleep(SETTLED / 10)


class _Checked(ocp.CheckpointHandler):
    """Writes checksums when all processes have written and before the step counts."""

    def finalize(self, directory):
        super().finalize(directory)
        _write_checksums(Path(directory))


class _CheckedArrays(_Checked, ocp.StandardCheckpointHandler):
    """Orbax's own otherwise."""


class _CheckedJson(_Checked, ocp.JsonCheckpointHandler):
    """Orbax's own otherwise."""


def handlers() -> ocp.CheckpointHandlerRegistry:
    """Orbax's own for both items, with checksums."""
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
