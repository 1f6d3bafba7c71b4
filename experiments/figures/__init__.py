"""Families of figures, one for each part of the theory, with a folder for each figure.

A figure's folder has four files: `__init__.py` with `FIGURE`, its words and presets; `run.py` with
`Config` and `compute(config, run)`, and further parts named by subject; `plot.py` with
`plot(dataset)`; and `claims.py` with `CLAIMS`. Code shared by the figures of a family is in the
family's folder. Figures never import each other, nor do families.

`tests/figures/test_every_figure.py` tests what holds for every figure. It reads `CONTRACT` in the
module of a figure's own tests, `tests/figures/<family>/test_<figure>.py`: the smallest
configuration, the configurations that are refused, and data that support and refute each claim.
"""

import importlib
import pkgutil

from experiments.core.figure import Figure


def discover() -> dict[str, Figure]:
    """Return all figures by name, sorted: `FIGURE` of every package in a family."""
    names = (name for family in _packages(__name__) for name in _packages(family))
    figures = [importlib.import_module(name).FIGURE for name in names]
    return {figure.name: figure for figure in sorted(figures, key=lambda figure: figure.name)}


def _packages(name: str) -> list[str]:
    """Return the names of the packages in a package."""
    path = importlib.import_module(name).__path__
    return [module.name for module in pkgutil.iter_modules(path, f"{name}.") if module.ispkg]
