"""A run of several processes: how they find each other, communicate, and fail together."""

import contextlib
import os
import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.core.errors import ConfigError, Failed

T = TypeVar("T")

LEAVING_SECONDS = 10.0
"""Seconds that a failed process waits for the others, which may have failed with it."""
LOST_SECONDS = 1.0
"""The same wait if another process has already ended: time to print the message."""
LOST = ("Gloo", "NCCL", "Connection closed by peer")
"""Words in the messages of collective operations in which another process no longer takes part."""
LENGTH_BYTES = 8


@contextlib.contextmanager
def joined(
    distributed: bool, coordinator: str | None, num: int | None, index: int | None
) -> Iterator[None]:
    """Make this process one of several in the block, if any of the arguments says so.

    A failure in `together`, `from_first` or `in_turn` ends all of them with a message. A process
    that fails elsewhere exits after `LEAVING_SECONDS`, and the others exit when they notice.

    Args:
      distributed: Whether there are other processes.
      coordinator, num, index: As in `start_processes`.

    Raises:
      ConfigError: As `start_processes`.
      Failed: If another process has ended.
    """
    if not distributed and (coordinator, num, index) == (None,) * 3:
        yield
        return
    start_processes(coordinator, num, index)
    try:
        yield
    except BaseException as error:
        # At exit JAX waits for all processes to exit, but those that need this one never do.
        lost = isinstance(error, RuntimeError | ValueError) and any(w in str(error) for w in LOST)
        timer = threading.Timer(LOST_SECONDS if lost else LEAVING_SECONDS, os._exit, [1])
        timer.daemon = True
        timer.start()
        if lost:
            first_line = str(error).partition("\n")[0]
            raise Failed(
                f"another process of this run has ended early ({first_line}); what that "
                "process has printed may say why"
            ) from error
        raise


def start_processes(coordinator: str | None, num: int | None, index: int | None) -> None:
    """Join the other processes of a run; JAX determines the arguments that are None.

    Args:
      coordinator: HOST:PORT of process 0.
      num: The number of processes.
      index: The number of this process.

    Raises:
      ConfigError: If the three are unknown or make no sense, or the processes cannot find each
        other.
    """
    if coordinator is not None:
        found = re.fullmatch(r".+:(\d{1,5})", coordinator, re.ASCII)
        if not (found and 0 < int(found[1]) < 2**16):
            raise ConfigError(f"--coordinator {coordinator}: give HOST:PORT, PORT from 1 to 65535")
    flags = {"coordinator_address": coordinator, "num_processes": num, "process_id": index}
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    jax.config.update("jax_enable_preemption_service", False)  # it keeps SIGTERM to itself
    try:
        for name in ("num_processes", "process_id"):  # JAX reads the address itself
            if name not in given and (value := os.environ.get(f"JAX_{name.upper()}")):
                given[name] = int(value)
            if not 0 <= given.get(name, 0) < 2**31:  # JAX would raise a TypeError
                raise ValueError(f"{name}={given[name]} must be at least 0 and below 2^31")
        jax.distributed.initialize(**given)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the processes of this run cannot find each other ({error}); outside of SLURM, MPI, "
            "Kubernetes and TPU pods, give --coordinator, --num-processes and --process-id"
        ) from error


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def is_first() -> bool:
    """Whether this is the process that writes files and messages for all."""
    return jax.process_index() == 0


def together(act: Callable[[], T]) -> T:
    """Return what `act` returns here, as soon as all processes are done with it.

    Without this, processes that continue would wait forever for one that has failed.

    Raises:
      Failed: If it failed in another process; where it failed, what it raised.
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
        raise Failed(f"process {int(failed.argmax())} of this run has failed; see its output")
    return result


def from_first(act: Callable[[], T]) -> T:
    """Return in all processes what `act` returns in the first one; the others do not call it.

    Raises:
      Failed: In the others, if it failed in the first one; in that one, what it raised.
    """
    if jax.process_count() == 1:
        return act()
    content = together(lambda: pickle.dumps(act()) if is_first() else b"")
    length = len(content).to_bytes(LENGTH_BYTES, "big")
    length = _of_first(np.frombuffer(length, np.uint8)).tobytes()
    padded = content.ljust(int.from_bytes(length, "big"), b"\0")
    return pickle.loads(_of_first(np.frombuffer(padded, np.uint8)).tobytes())


def _of_first(array: np.ndarray) -> np.ndarray:
    return np.asarray(multihost_utils.broadcast_one_to_all(array))


def in_turn(load: Callable[[], T]) -> T:
    """Return what `load` returns here; process 0 goes first and writes files for the others."""
    loaded = together(lambda: [load()] if is_first() else [])
    return together(lambda: loaded[0] if loaded else load())
