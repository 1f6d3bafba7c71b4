"""The look that figures share: one style, one colour scale for C, PNG and SVG on disk."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure

from experiments.results import atomic

STYLE: Mapping[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "kadam_jax",  # the same figure is the same file
}
STABILITY_COLOURS = "viridis_r"
"""Its lightness falls steadily with C, so it reads in grey: dark is stable, as in the paper."""


def stability_norm(lowest: float, highest: float, linear: float = 1.0) -> SymLogNorm:
    """Colours for C from `lowest` to `highest`: linear within ±`linear`, logarithmic outside."""
    return SymLogNorm(linthresh=linear, vmin=lowest, vmax=highest)


def canvas(width: float, height: float, **subplots: Any) -> tuple[Figure, Any]:
    """A figure of that size in inches and its axes, as `pyplot.subplots` without pyplot's state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(**subplots)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Writes `<stem>.png` and `<stem>.svg` atomically and returns their paths."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    metadata = {"png": {}, "svg": {"Date": None}}
    for path in paths:
        with atomic(path) as temporary, matplotlib.rc_context(STYLE):
            figure.savefig(temporary, metadata=metadata[path.suffix[1:]])
    return paths
