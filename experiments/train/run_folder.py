"""The folder of one training run.

metrics.jsonl   what was measured, a JSON object a line
metrics.damaged lines of it that could not be read when a run went on, as they were
config.json     what was trained
checkpoints/    what the run goes on from
tensorboard/    the metrics once more, where asked for
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
    """Makes the run's folder, clears it of an earlier run with `force`, and keeps others out.

    Of several processes of one run the first one does it for all.

    Raises:
      ConfigError: If something is in it and neither `resume` nor `force` is given.
      Failed: If another run is using it, or it cannot be written to.
    """
    with contextlib.ExitStack() as stack:
        from_first(lambda: _own(stack, folder, resume, force))
        yield


def _own(stack: contextlib.ExitStack, folder: Path, resume: bool, force: bool) -> None:
    if force and resume:
        raise ConfigError("--resume goes on with what --force would remove; give one of them")
    stack.enter_context(locked(folder))
    if not (resume or force) and any(path.name != LOCK for path in folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty: --resume goes on from what is there, --force starts anew, "
            "--output names another folder"
        )
    if force:
        for path in (folder / METRICS, folder / DAMAGED, folder / CONFIG):
            path.unlink(missing_ok=True)
        for path in (folder / CHECKPOINTS, folder / TENSORBOARD):
            if path.exists():
                shutil.rmtree(path)
