"""The folder of one training run.

metrics.jsonl   what was measured, a JSON object a line
config.json     what was trained
checkpoints/    what the run goes on from
tensorboard/    the metrics once more, where asked for
"""

import shutil
from pathlib import Path

import jax
from jax.experimental import multihost_utils

from experiments.config import ConfigError

METRICS = "metrics.jsonl"
CONFIG = "config.json"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"


def prepare_folder(folder: Path, *, resume: bool, force: bool) -> None:
    """Makes the run's folder, or clears it of an earlier run with `force`.

    Raises:
      ConfigError: If something is in it and neither `resume` nor `force` is given.
    """
    if force and resume:
        raise ConfigError("--resume goes on with what --force would remove; give one of them")
    if folder.is_dir() and any(folder.iterdir()) and not (resume or force):
        raise ConfigError(
            f"{folder} is not empty: --resume goes on from what is there, --force starts anew, "
            "--output names another folder"
        )
    if jax.process_index() == 0:
        if force:
            (folder / METRICS).unlink(missing_ok=True)
            (folder / CONFIG).unlink(missing_ok=True)
            for name in (CHECKPOINTS, TENSORBOARD):
                shutil.rmtree(folder / name, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("folder")
