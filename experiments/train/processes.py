"""A run of several processes: how they find each other, and how they fail together."""

import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.core.errors import ConfigError, Failed

T = TypeVar("T")


def start_processes(coordinator: str | None, num: int | None, index: int | None) -> None:
    """Joins the other processes of a run; JAX finds out what is None.

    Args:
      coordinator: HOST:PORT of process 0.
      num: How many processes there are.
      index: Which of them this is.

    Raises:
      ConfigError: If the three are not known or make no sense, or the processes don't find each
        other.
    """
    if coordinator is not None and not re.fullmatch(r".+:\d+", coordinator):
        raise ConfigError(f"--coordinator {coordinator}: give HOST:PORT")
    flags = {"coordinator_address": coordinator, "num_processes": num, "process_id": index}
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    try:
        for name in ("num_processes", "process_id"):  # the address JAX reads itself
            if name not in given and (value := os.environ.get(f"JAX_{name.upper()}")):
                given[name] = int(value)
        jax.distributed.initialize(**given)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the processes of this run do not find each other ({error}); outside of SLURM, MPI, "
            "Kubernetes and TPU pods give --coordinator, --num-processes and --process-id"
        ) from error


def together(act: Callable[[], T]) -> T:
    """What `act` gives here, as soon as all processes are through with it.

    Without it, those that go on would wait for ever for one that has failed.

    Raises:
      Failed: Where it went well, if it did not in another process; there, what it raised.
    """
    if jax.process_count() == 1:
        return act()
    error, result = None, None
    try:
        result = act()
    except Exception as raised:
        error = raised
    failed = multihost_utils.process_allgather(np.array(error is not None))
    if error is not None:
        raise error
    if failed.any():
        raise Failed(f"process {int(failed.argmax())} of this run has failed; it says why")
    return result


def from_first(flag: bool) -> bool:
    """The flag of the first process, in all of them."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.broadcast_one_to_all(np.array(flag)))
