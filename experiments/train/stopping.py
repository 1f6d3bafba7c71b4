"""Signals that end a training run after the current step."""

import contextlib
import signal
import threading
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in the list that is yielded; a second one interrupts at once.

    A signal that the parent process had ignored, as a script does for background jobs, stays
    ignored.
    """
    received: list[int] = []

    def remember(signum, frame):
        if received:
            raise KeyboardInterrupt
        received.append(signum)

    if threading.current_thread() is not threading.main_thread():  # only it has handlers
        yield received
        return
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    before = {signum: old for signum, old in before.items() if old is not signal.SIG_IGN}
    for signum in before:
        signal.signal(signum, remember)
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def agreed(signals: list[int]) -> int:
    """Return the signal to stop for, 0 for none; all processes stop at the same step."""
    signum = signals[0] if signals else 0
    if jax.process_count() == 1:
        return signum
    return int(multihost_utils.process_allgather(np.int32(signum)).max())
