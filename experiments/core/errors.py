"""What a command tells a person, and how one ends that does not reach its end."""

import contextlib
import os
import sys
from typing import TextIO


def say(message: str) -> None:
    """One line for the person at the terminal; standard output is kept for results."""
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:  # nobody reads it any more, and the work goes on
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """What goes to a stream that cannot be written to is thrown away from here on."""
    with contextlib.suppress(OSError, ValueError):  # it has no file, as in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


stopped: list[int] = []
"""Signals that have asked this process to stop, for those whose exception got lost."""


def stop(signum: int, frame: object) -> None:
    """Handles SIGINT as Python does, and remembers it."""
    del frame
    stopped.append(signum)
    raise KeyboardInterrupt


class Stopped(Exception):
    """A signal has ended the run; the message says what is kept and how to go on.

    Attributes:
      signum: Which signal; the process exits with 128 more, as shells count.
    """

    def __init__(self, signum: int, message: str):
        super().__init__(message)
        self.signum = signum


class ConfigError(ValueError):
    """What was asked for cannot be done; the message names the field or the argument."""


class DamagedFile(Exception):
    """A result of ours that cannot be read, so it is to be computed again; the message names it."""


class Failed(Exception):
    """The run cannot go on: data, disk, network, divergence; the message says what to do."""
