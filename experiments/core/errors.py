"""Messages of commands, and the exceptions with which a command ends early."""

import contextlib
import os
import sys
from typing import TextIO


def say(message: str) -> None:
    """Print a line for the person at the terminal; standard output is reserved for results."""
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:  # nobody reads it anymore, and the work goes on
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """Discard everything that is written from now on to a stream that no longer accepts output."""
    with contextlib.suppress(OSError, ValueError):  # it has no file, as in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


stopped: list[int] = []
"""Signals that have asked this process to stop, in case their exception is lost."""


def stop(signum: int, frame: object) -> None:
    """Handle SIGINT as Python does, and remember it."""
    del frame
    stopped.append(signum)
    raise KeyboardInterrupt


class Stopped(Exception):
    """A signal has ended the run; the message says what is kept and how to continue.

    Attributes:
      signum: The signal's number; the process exits with 128 more, as in shells.
    """

    def __init__(self, signum: int, message: str):
        super().__init__(message)
        self.signum = signum


class ConfigError(ValueError):
    """The request cannot be fulfilled; the message names the field or the argument."""


class DamagedFile(Exception):
    """A result cannot be read and must be computed again; the message names it."""


class Failed(Exception):
    """The run cannot go on: data, disk, network, divergence; the message says what to do."""
