"""What the `train` command does between its arguments and the loop."""

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental import multihost_utils

from experiments.checkpoints import ResumeError
from experiments.config import ConfigError, override
from experiments.data.loading import Data
from experiments.outcomes import Failed
from experiments.train_presets import TRAININGS
from experiments.training import Job, train


def run(
    arguments: argparse.Namespace, prog: str, devices: Callable[[str], Sequence[jax.Device]]
) -> None:
    """`train TASK`: one run or a sweep, from its start or its newest checkpoint.

    Args:
      arguments: As parsed.
      prog: What messages call the program.
      devices: The devices that `--devices` stands for; starts JAX.

    Raises:
      ConfigError: If what was typed cannot be done.
      Failed: If data are missing or damaged, or training cannot go on.
      Stopped: After a signal, with a checkpoint.
    """
    task, preset = arguments.task or "text", arguments.preset
    training = TRAININGS[task]
    config = override(training.presets[preset], arguments.set, f"{prog} train {task}")
    if arguments.compilation_cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(arguments.compilation_cache))
    start_processes(arguments)
    chosen = devices(arguments.devices)
    chosen = chosen if jax.process_count() == 1 else jax.devices()
    try:
        job = Job(
            config=config,
            data=load_in_turn(lambda: training.load(config)),
            problem=training.problem(config),
            unit=training.unit,
            units_per_example=training.units_per_example(config),
            folder=arguments.output or arguments.results / preset / f"train_{task}",
            augment=training.augment(config),
            sweep=arguments.sweep,
            tensorboard=arguments.tensorboard,
            profile=arguments.profile,
        )
        print(train(job, chosen, resume=arguments.resume, force=arguments.force))
    except ResumeError as error:
        raise ConfigError(str(error)) from error
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise Failed(
            f"the devices' memory is too small ({str(error).splitlines()[0]}); lower batch_size or "
            "members_at_once, or share parameters out with mesh.shard_above"
        ) from error


def load_in_turn(load: Callable[[], Data]) -> Data:
    """Process 0 loads first: the files that it downloads and writes are there for the others."""
    first = jax.process_index() == 0
    data = load() if first else None
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("data")
    return data if first else load()


def start_processes(arguments: argparse.Namespace) -> None:
    """Joins the other processes of the run, if any of its flags is given.

    Raises:
      ConfigError: If the three numbers are not all given, or the processes don't find each other.
    """
    flags = {
        "coordinator_address": arguments.coordinator,
        "num_processes": arguments.num_processes,
        "process_id": arguments.process_id,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    if not (given or arguments.distributed):
        return
    for name in ("num_processes", "process_id"):  # the coordinator's address JAX reads itself
        if name not in given and (value := os.environ.get(f"JAX_{name.upper()}")):
            given[name] = int(value)
    try:
        jax.distributed.initialize(**given)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the processes of this run do not find each other ({error}); outside of SLURM, MPI, "
            "Kubernetes and TPU pods give --coordinator, --num-processes and --process-id"
        ) from error


def fields(task: str, preset: str) -> Any:
    """The configuration whose fields `--set` replaces."""
    return TRAININGS[task].presets[preset]
