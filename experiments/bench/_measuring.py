"""Parts that all benchmarks share: configuration, rounds and tables."""

import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import jax
import optax
import xarray as xr

from experiments.core.errors import ConfigError
from experiments.core.progress import progress
from experiments.core.store import git_commit, named


@dataclass(frozen=True)
class BenchConfig:
    """Configuration of a benchmark; all numbers in a subclass's fields are positive."""

    def __post_init__(self):
        def is_number(x):
            return isinstance(x, int | float) and not isinstance(x, bool)

        for field in fields(self):
            value = getattr(self, field.name)
            numbers = value if isinstance(value, tuple) else (value,)
            if not numbers or any(is_number(x) and not x > 0 for x in numbers):
                raise ConfigError(f"{field.name} must be positive, got {value!r}")


@dataclass(frozen=True)
class Table:
    """A table that a benchmark prints.

    Attributes:
      title: The quantity that is measured, with units.
      columns: The headings.
      rows: The cells; a float is printed with three digits.
      note: Information that a reader needs to judge the numbers.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""


@dataclass(frozen=True)
class Bench:
    """A benchmark as data.

    Attributes:
      name: The name on the command line and of the file.
      config: A frozen dataclass instance; `--set field=value` replaces fields.
      run: `run(config)` measures and returns tables.
    """

    name: str
    config: Any
    run: Callable[[Any], Sequence[Table]]


def interleave(candidates: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each candidate, all of which run once in every round.

    Args:
      candidates: Functions without arguments, whose results are waited for.
      repeats: Rounds that are measured; one more runs first and is discarded.

    Returns:
      Seconds by name.

    >>> sorted(interleave({"short": lambda: None, "long": lambda: time.sleep(0.01)}, 3).items(),
    ...        key=lambda item: item[1])[-1][0]
    'long'
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    with progress("bench", (repeats + 1) * len(candidates)) as advance:
        for _ in range(repeats + 1):
            for name, candidate in candidates.items():
                start = time.perf_counter()
                jax.block_until_ready(candidate())
                seconds[name].append(time.perf_counter() - start)
                advance(1)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def environment() -> str:
    """Describe what the numbers depend on: processor or device, load, versions, commit."""
    device = jax.devices()[0]
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{_processor() if device.platform == 'cpu' else device.device_kind} ({device.platform}), "
        f"{os.cpu_count()} cores{load}; jax {jax.__version__}, optax {optax.__version__}, commit "
        f"{git_commit()}; GLIBC_TUNABLES={os.environ.get('GLIBC_TUNABLES', '')!r}."
    )


def _processor() -> str:
    """Return the processor's name if Linux gives it, otherwise its architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def markdown(table: Table) -> str:
    """Format a table as aligned Markdown, readable in a terminal and in a README.

    >>> print(markdown(Table("Speed", ["what", "ms"], [["one", 1.5], ["two", 12345.6]])))
    ### Speed
    <BLANKLINE>
    | what | ms       |
    | ---- | -------- |
    | one  | 1.5      |
    | two  | 1.23e+04 |
    """
    cells = [
        [f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row]
        for row in (table.columns, *table.rows)
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(map(str.ljust, row, widths)) + " |"

    rule = ["-" * width for width in widths]
    lines = [f"### {table.title}", "", line(cells[0]), line(rule), *map(line, cells[1:])]
    return "\n".join([*lines, "", table.note] if table.note else lines)


def dataset(table: Table, config: Any) -> xr.Dataset:
    """Return a table as a dataset with a variable for each column, over its rows.

    A variable is named as its heading, with "per" for a slash; a second one of the same heading
    gets the number of its column. An empty cell among numbers is NaN.

    >>> table = Table("Speed", ["what", "images/s"], [["one", 1.5], ["two", ""]])
    >>> print(dataset(table, BenchConfig())["images per s"].values)
    [1.5 nan]
    """
    variables = {}
    for number, heading in enumerate(table.columns):
        cells = [row[number] for row in table.rows]
        numbers = [math.nan if cell == "" else cell for cell in cells]
        texts = any(isinstance(cell, str) for cell in numbers)
        name = heading.replace("/", " per ")
        name = f"{name} ({number + 1})" if name in variables else name
        values = [str(cell) for cell in cells] if texts else numbers
        variables[name] = named(("row", values), heading)
    facts = {
        **{"title": table.title, "note": table.note, "git_commit": git_commit()},
        "config": json.dumps(asdict(config), sort_keys=True, default=str),
    }
    return xr.Dataset(variables, attrs=facts)
