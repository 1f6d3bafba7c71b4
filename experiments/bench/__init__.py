"""Benchmarks, one per file with `BENCH`, found by walking the package; they print Markdown tables.

Everything that a table compares is measured in one process, interleaved, and stated as medians, so
that a machine that slows down affects every row.
"""

from experiments.core.catalog import Catalog


def discover() -> Catalog:
    """Return all benchmarks by name: `BENCH` of every public module of this package."""
    return Catalog("bench/[!_]*.py", "BENCH")
