"""One file for each figure family; every file exposes `FIGURE` and is found by walking the package.

A figure file holds its configuration class, its presets as data, `compute(config, run)` and
`plot(dataset)`. Figures never import each other.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import xarray as xr
from matplotlib.figure import Figure as Canvas

from experiments.config import FigureConfig
from experiments.running import Run


@dataclass(frozen=True)
class Figure:
    """A figure as data.

    Attributes:
      name: The name on the command line and on disk; the file's name.
      title: One line.
      paper: Where the paper has it, "Fig. 2", or "not in the paper".
      caption: What is drawn, with the set-up; may contain `{field}` of the configuration, dotted
        names included: `{model.width}`.
      presets: A configuration for each of "smoke", "laptop", "paper".
      compute: `compute(config, run)` gives a labelled dataset: every variable and coordinate with
        `long_name` and, where it has one, `units` in its attrs. Variables without dimensions are
        printed in the report as the figure's numbers. The configuration and provenance are added
        afterwards.
      plot: `plot(dataset)` gives `{suffix: matplotlib figure}`; "" is the plain `<name>.png`, "a"
        is `<name>_a.png`. It reads nothing but the dataset, `dataset.attrs["config"]` (JSON)
        included, and draws with `matplotlib.figure.Figure`, never pyplot.
      minimum: The laptop minimum of fields that decide how far a verdict can be trusted; below
        it every verdict reads "inconclusive".
    """

    name: str
    title: str
    paper: str
    caption: str
    presets: Mapping[str, FigureConfig]
    compute: Callable[[Any, Run], xr.Dataset]
    plot: Callable[[xr.Dataset], dict[str, Canvas]]
    minimum: Mapping[str, float] = field(default_factory=dict)


def discover() -> dict[str, Figure]:
    """All figures by name, sorted: `FIGURE` of every module of this package."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = (importlib.import_module(f"{__name__}.{name}") for name in names)
    return {module.FIGURE.name: module.FIGURE for module in modules}
