"""A run's metrics, written as they come: always JSON lines, and TensorBoard files on request."""

import contextlib
import errno
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from experiments.core.errors import ConfigError, say
from experiments.core.store import atomic
from experiments.train.run_folder import DAMAGED, METRICS, TENSORBOARD

LONGEST_LINE = 2**20
"""Bytes that are read at once; one of our lines has a few hundred."""
MOST_SHOWN = 10
"""Damaged lines that a message describes."""


class MetricsLog:
    """Appends to `metrics.jsonl`, one object per line: step, split, member, swept values, metrics.

    Nothing in a line depends on the clock or on how often a run was stopped, so a resumed run's
    file equals an uninterrupted one's. Numbers that are not finite become null.

    Attributes:
      splits: The splits in lines of step `done` that were already there.
    """

    def __init__(
        self,
        folder: Path,
        labels: Sequence[Mapping[str, Any]],
        *,
        done: int = 0,
        tensorboard: bool = False,
    ):
        """Open the file and remove the lines of steps after `done`, which will be written again.

        Lines that cannot be read are moved to `metrics.damaged`. A message says what was removed
        and what was moved.

        Args:
          folder: The run's folder, which exists.
          labels: What the lines of each member say about it: its number as "member", and its swept
            values.
          done: The step from which the run continues.
          tensorboard: Whether to write TensorBoard files as well, a folder for each member.

        Raises:
          ConfigError: If TensorBoard is requested but its writer is not installed.
          OSError: If the folder can't be written to.
        """
        self._path = folder / METRICS
        self._labels = labels
        self._writers = [
            _tensorboard_writer(folder / TENSORBOARD / f"{label['member']:03d}", done)
            for label in labels
            if tensorboard
        ]
        self.splits = _keep_until(self._path, done) if self._path.exists() else set()
        self._file = self._path.open("ab", buffering=0)

    def write(self, step: int, split: str, values: Mapping[str, np.ndarray]) -> None:
        """Write one line for each member.

        Args:
          step: Steps done.
          split: "train", "validation" or "test".
          values: (num_members,) by name.

        Raises:
          OSError: If the lines can't be written; the file then ends where it ended before.
        """
        rows = [
            {name: float(column[label["member"]]) for name, column in values.items()}
            for label in self._labels
        ]
        self._append(
            {"step": step, "split": split, **label, **{name: finite(x) for name, x in row.items()}}
            for label, row in zip(self._labels, rows, strict=True)
        )
        for writer, row in zip(self._writers, rows, strict=False):
            for name in filter(lambda name: math.isfinite(row[name]), row):
                writer.add_scalar(f"{split}/{name}", row[name], step)

    def write_divergence(self, step: int, member: int) -> None:
        """Write the step at which a member's loss was first not finite."""
        self._append([{"step": step, "event": "diverged", **self._labels[member]}])

    def close(self) -> None:
        """Close all files."""
        self._file.close()
        for writer in self._writers:
            writer.close()

    def _append(self, objects: Any) -> None:
        text = "".join(f"{json.dumps(line, allow_nan=False)}\n" for line in objects).encode()
        length = self._file.tell()
        try:
            if self._file.write(text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(length)
            raise OSError(error.errno, error.strerror, str(self._path)) from error


def finite(value: float) -> float | None:
    """Return the value, or None if it is infinite or not a number, which JSON cannot express."""
    return value if math.isfinite(value) else None


def _keep_until(path: Path, done: int) -> set[str]:
    """Keep the readable lines of steps up to `done`; return the splits of that step."""
    damaged = path.with_name(DAMAGED)
    faults: dict[int, str] = {}
    splits, num_later = set(), 0
    with atomic(path) as temporary, path.open("rb") as old, temporary.open("wb") as kept:
        for number, piece in _pieces(old):
            try:
                if number in faults:  # the rest of a damaged line
                    raise ValueError(faults[number])
                line = _read(piece)
            except ValueError as error:
                faults[number] = str(error)
                with damaged.open("ab") as file:
                    file.write(piece)
                continue
            if line["step"] > done:
                num_later += 1
                continue
            kept.write(piece if piece.endswith(b"\n") else piece + b"\n")
            if line["step"] == done:
                splits.add(str(line.get("split")))
    if num_later:
        say(f"{path}: {num_later} lines of steps after {done} are removed, to be written again")
    if faults:
        shown = [f"line {number} ({fault})" for number, fault in faults.items()]
        more = f" and {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
        say(
            f"{path}: what cannot be read was moved to {damaged.name}: "
            f"{', '.join(shown[:MOST_SHOWN])}{more}"
        )
    return splits


def _pieces(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their numbers, from 1; lines too long to be ours come in pieces."""
    number, ended = 0, True
    while piece := file.readline(LONGEST_LINE):
        number += ended
        ended = piece.endswith(b"\n")
        yield number, piece


def _read(line: bytes) -> dict[str, Any]:
    """Return the contents of a line, which include at least its step.

    Raises:
      ValueError: If the line does not belong in this file; the message says why.

    >>> _read(b'{"step": 10, "split": "train"}')
    {'step': 10, 'split': 'train'}
    """
    if not line.strip():
        raise ValueError("blank")
    try:
        found = json.loads(line.decode(), parse_constant=_refused)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg}, column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not (isinstance(found, dict) and type(found.get("step")) is int and found["step"] >= 0):
        raise ValueError("without a step that is a whole number")
    return found


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _tensorboard_writer(folder: Path, done: int) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "--tensorboard needs tensorboardX, which is not installed: pip install tensorboardX"
        ) from error
    return SummaryWriter(str(folder), purge_step=done + 1)
