"""The folder of one training run.

metrics.jsonl   the measurements, one JSON object per line
metrics.damaged its lines that could not be read when a run was resumed, unchanged
config.json     the configuration
checkpoints/    the states from which the run can be resumed
tensorboard/    the metrics again, on request
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from experiments.core.errors import ConfigError
from experiments.core.folders import LOCK, locked
from experiments.core.processes import from_first

METRICS = "metrics.jsonl"
DAMAGED = "metrics.damaged"
CONFIG = "config.json"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"


@contextlib.contextmanager
def owned_folder(folder: Path, *, resume: bool, force: bool) -> Iterator[None]:
    """Make the run's folder, clear it of an earlier run with `force`, and keep others out.

    If a run has several processes, the first one does this for all.

    Raises:
      ConfigError: If the folder is not empty and neither `resume` nor `force` is given.
      Failed: If another run is using the folder, or it cannot be written to.
    """
    with contextlib.ExitStack() as stack:
        from_first(lambda: _own(stack, folder, resume, force))
        yield


def _own(stack: contextlib.ExitStack, folder: Path, resume: bool, force: bool) -> None:
    if force and resume:
        raise ConfigError("--resume continues what --force would remove; give one of them")
    stack.enter_context(locked(folder))
    if not (resume or force) and any(path.name != LOCK for path in folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty: --resume continues from what is there, --force starts over, "
            "--output names another folder"
        )
    if force:
        for path in (folder / METRICS, folder / DAMAGED, folder / CONFIG):
            path.unlink(missing_ok=True)
        for path in (folder / CHECKPOINTS, folder / TENSORBOARD):
            if path.exists():
                shutil.rmtree(path)
