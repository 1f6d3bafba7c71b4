"""A run of several processes: how they find each other, speak, and fail together."""

import contextlib
import os
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.core.errors import ConfigError, Failed

T = TypeVar("T")

LEAVING_SECONDS = 10.0
"""How long a process that has failed waits for the others, which may have failed with it."""
LOST_SECONDS = 1.0
"""The same where another has ended already: time to say so."""
LOST = ("Gloo", "NCCL", "Connection closed by peer")
"""In the messages of collective operations that another process no longer takes part in."""
LENGTH_BYTES = 8


@contextlib.contextmanager
def joined(
    distributed: bool, coordinator: str | None, num: int | None, index: int | None
) -> Iterator[None]:
    """Makes this process one of several in the block, if any of the arguments says so.

    What fails in `together`, `from_first` or `in_turn` ends all of them with a sentence. A process
    that fails elsewhere exits after `LEAVING_SECONDS`, and the others when they notice.

    Args:
      distributed: Whether there are others.
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
        # When a process exits, JAX waits for all to do so; those that need this one never would.
        lost = isinstance(error, RuntimeError | ValueError) and any(w in str(error) for w in LOST)
        timer = threading.Timer(LOST_SECONDS if lost else LEAVING_SECONDS, os._exit, [1])
        timer.daemon = True
        timer.start()
        if lost:
            first_line = str(error).partition("\n")[0]
            raise Failed(
                f"another process of this run has ended before its end ({first_line}); what that "
                "process has printed may say why"
            ) from error
        raise


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
    if coordinator is not None:
        found = re.fullmatch(r".+:(\d{1,5})", coordinator, re.ASCII)
        if not (found and 0 < int(found[1]) < 2**16):
            raise ConfigError(f"--coordinator {coordinator}: give HOST:PORT, PORT from 1 to 65535")
    flags = {"coordinator_address": coordinator, "num_processes": num, "process_id": index}
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    jax.config.update("jax_enable_preemption_service", False)  # it keeps SIGTERM to itself
    try:
        for name in ("num_processes", "process_id"):  # the address JAX reads itself
            if name not in given and (value := os.environ.get(f"JAX_{name.upper()}")):
                given[name] = int(value)
            if not 0 <= given.get(name, 0) < 2**31:  # JAX would raise a TypeError
                raise ValueError(f"{name}={given[name]} must be at least 0 and below 2^31")
        jax.distributed.initialize(**given)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the processes of this run do not find each other ({error}); outside of SLURM, MPI, "
            "Kubernetes and TPU pods give --coordinator, --num-processes and --process-id"
        ) from error


def is_first() -> bool:
    """Whether this is the process that writes files and speaks for all."""
    return jax.process_index() == 0


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


def from_first(act: Callable[[], T]) -> T:
    """What `act` gives in the first process, in all of them; the others do not call it.

    Raises:
      Failed: In the others, if it failed there; there, what it raised.
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
    """What `load` gives here; files that the first process writes are there for the others."""
    loaded = together(lambda: [load()] if is_first() else [])
    return together(lambda: loaded[0] if loaded else load())
