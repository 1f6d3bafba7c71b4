"""The progress of a task: a bar on a terminal, a plain line now and then elsewhere."""

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from experiments.core.errors import say

QUIET_SECONDS = 2.0
"""Tasks shorter than this show no line."""
LINE_SECONDS = 15.0
"""Time between two lines of progress where there is no terminal on which to redraw one."""


@contextlib.contextmanager
def progress(
    label: str, total: int, done: int = 0, *, unit: str = "", size: int = 1
) -> Iterator[Callable[..., None]]:
    """Show how many of `total` pieces of work are done and the time left.

    The first call, which may include compilation, counts only toward the first estimate of the time
    left, and not even toward that if the speed is shown.

    Args:
      label: The task's name.
      total: Number of pieces of work.
      done: How many of them are already done.
      unit: The unit of the speed, in the plural, if the speed is shown.
      size: How many units a piece of work has.

    Yields:
      `advance(pieces, status="")`, which also shows a status.
    """
    console = Console(stderr=True)
    meter = _Meter(total, done, unit, size)
    if console.is_terminal:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[said]}"))
        with Progress(
            TextColumn("{task.description}"), *columns, console=console, transient=True
        ) as bar:
            task = bar.add_task(label, total=total, completed=done, said="")

            def move(pieces: int, status: str = "") -> None:
                bar.update(task, advance=pieces, said=meter.read(pieces, status))

            yield move
    else:
        due = meter.start + QUIET_SECONDS

        def print_line(pieces: int, status: str = "") -> None:
            nonlocal due
            said = meter.read(pieces, status)
            if said and meter.done < total and meter.now >= due:
                say(f"{label}: {meter.done}/{total}, {said}")
                due = meter.now + LINE_SECONDS

        yield print_line


class _Meter:
    """Speed and time left, measured from the first reading on."""

    def __init__(self, total: int, done: int, unit: str, size: int):
        self._total, self._unit, self._size = total, unit, size
        self.done, self._begun = done, done
        self.start = self.now = time.monotonic()
        self._is_first = True

    def read(self, pieces: int, status: str) -> str:
        """Return what to show after more pieces are done."""
        self.done, self.now = self.done + pieces, time.monotonic()
        words = [status] if status else []
        compiled = self._unit and self._is_first
        if self.done > self._begun and self.now > self.start and not compiled:
            speed = (self.done - self._begun) / (self.now - self.start)
            if self._unit:
                words.append(f"{speed * self._size:,.0f} {self._unit}/s")
            left = round((self._total - self.done) / speed)
            words.append(f"{datetime.timedelta(seconds=left)} left")
        if self._is_first and pieces:
            self._is_first, self._begun, self.start = False, self.done, self.now
        return ", ".join(words)
