"""The `train` command, from its arguments to the loop."""

import argparse
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax

from experiments.core.config import override, preset_of
from experiments.core.errors import ConfigError, Failed
from experiments.core.folders import make_folder
from experiments.core.processes import from_first, in_turn
from experiments.train.loop import Job, train
from experiments.train.presets import TRAININGS
from models.dtypes import check_enabled

OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory")
"""Words that mark running out of memory, in messages of accelerators and of CPUs."""


def run(
    arguments: argparse.Namespace,
    prog: str,
    devices: Callable[[argparse.Namespace], AbstractContextManager[Sequence[jax.Device]]],
) -> None:
    """Run `train TASK`: one run or a sweep, from its start or its newest checkpoint.

    Args:
      arguments: The parsed arguments.
      prog: The program's name in messages.
      devices: Joins the other processes, if there are any, and yields the devices of all.

    Raises:
      ConfigError: If the arguments ask for something impossible.
      Failed: If data are missing or damaged, or training cannot go on.
      Stopped: After a signal, with a checkpoint.
    """
    task, preset = arguments.task or "text", arguments.preset
    training = TRAININGS[task]
    config = override(
        preset_of(training.presets, preset, f"train {task}"), arguments.set, f"{prog} train {task}"
    )
    try:
        check_enabled(config.model.dtype)
    except ValueError as error:
        raise ConfigError(f"model.{error}") from error
    for folder in (arguments.compilation_cache, arguments.profile):  # since JAX notices too late
        if folder is not None:
            make_folder(folder)
    if arguments.compilation_cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(arguments.compilation_cache))
    try:
        with devices(arguments) as chosen:
            job = Job(
                config=config,
                data=in_turn(lambda: training.load(config)),
                task=training.task(config),
                unit=training.unit,
                units_per_example=training.units_per_example(config),
                folder=arguments.output or arguments.results / preset / f"train_{task}",
                augment=training.augment(config),
                sweep=arguments.sweep,
                tensorboard=arguments.tensorboard,
                profile=arguments.profile,
            )
            path = train(job, chosen, resume=arguments.resume, force=arguments.force)
            from_first(lambda: print(path))
    except jax.errors.JaxRuntimeError as error:
        if not any(words in str(error) for words in OUT_OF_MEMORY):
            raise
        raise Failed(
            f"the devices are out of memory ({str(error).splitlines()[0]}); lower batch_size or "
            "members_at_once, raise microbatches, or shard parameters with mesh.shard_above"
        ) from error


def fields(task: str, preset: str) -> Any:
    """Return the configuration whose fields `--set` replaces."""
    return preset_of(TRAININGS[task].presets, preset, f"train {task}")
