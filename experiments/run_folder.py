"""The folder of one training run.

metrics.jsonl   what was measured, a JSON object a line
config.json     what was trained
checkpoints/    what the run goes on from
tensorboard/    the metrics once more, where asked for
"""

import errno
import os
import shutil
from pathlib import Path

import jax

from experiments.config import ConfigError
from experiments.outcomes import Failed
from experiments.processes import together

METRICS = "metrics.jsonl"
CONFIG = "config.json"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"


def make_folder(folder: Path) -> None:
    """Makes a folder if need be.

    Raises:
      Failed: If there can be none, or it may not be read and written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        effective = os.access in os.supports_effective_ids
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=effective):
            raise PermissionError(errno.EACCES, "not writable")
    except OSError as error:
        raise Failed(f"{folder} cannot be written to ({error.strerror})") from error


def prepare_folder(folder: Path, *, resume: bool, force: bool) -> None:
    """Makes the run's folder, or clears it of an earlier run with `force`.

    Raises:
      ConfigError: If something is in it and neither `resume` nor `force` is given.
      Failed: As `make_folder`.
    """
    together(lambda: _prepare(folder, resume=resume, force=force))


def _prepare(folder: Path, *, resume: bool, force: bool) -> None:
    if force and resume:
        raise ConfigError("--resume goes on with what --force would remove; give one of them")
    if folder.is_dir() and any(folder.iterdir()) and not (resume or force):
        raise ConfigError(
            f"{folder} is not empty: --resume goes on from what is there, --force starts anew, "
            "--output names another folder"
        )
    if jax.process_index() == 0:
        make_folder(folder)
        if force:
            (folder / METRICS).unlink(missing_ok=True)
            (folder / CONFIG).unlink(missing_ok=True)
            for name in (CHECKPOINTS, TENSORBOARD):
                shutil.rmtree(folder / name, ignore_errors=True)
