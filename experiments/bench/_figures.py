"""The figures that a benchmark is asked for."""

from collections.abc import Sequence

from experiments.core.errors import ConfigError
from experiments.figures import discover

ALL = "all"


def check(names: Sequence[str]) -> None:
    """Raise ConfigError unless every name is a figure's or "all"."""
    for name in names:
        if name not in (known := (ALL, *discover())):
            raise ConfigError(f"figures must be among {', '.join(known)}; got {name!r}")


def chosen(names: Sequence[str], preset: str) -> Sequence[str]:
    """Return the names, or those of all figures that have a preset."""
    having = [name for name, figure in discover().items() if preset in figure.presets]
    return having if ALL in names else names
