"""Parts of plots that figures share, and the page of test losses along a curve."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from matplotlib import axes, cm, colors, figure

from experiments.core import plot as plotting

HORIZONS = {"early": ("o", "none", "tab:orange"), "whole": ("s", "full", "tab:blue")}
"""Marker, fill and color."""
UPDATES = {"yscale": "log", "xlabel": "step n", "ylabel": "‖uₙ‖∞ (learning rates)"}
"""The axes of max-updates."""


def shading(C: xr.DataArray, highest: float) -> cm.ScalarMappable:
    """Return colors from the lowest C to `highest`, for C beyond the boundary.

    The usual point's C is far above that of the other points, so it gets the darkest color.
    """
    norm = colors.Normalize(1.15 * C.min().item(), highest, clip=True)
    return cm.ScalarMappable(norm, plotting.STABILITY_COLORMAP)


def curves(panel: axes.Axes, x: xr.DataArray, values: xr.DataArray, shades, **style) -> None:
    """Draw the median over seeds at each point, in its shade."""
    seed = next(dim for dim in values.dims if "seed" in str(dim))
    for line, color in zip(values.median(seed).values, shades, strict=True):
        panel.plot(x, line, color=color, **{"linewidth": 1.0, **style})


def points(panel: axes.Axes, data: xr.Dataset, shades, lowest: float = 0.9) -> None:
    """Draw the points, and both boundaries from the `lowest` γ on."""
    b1 = np.linspace(lowest, 1, 1000)
    panel.plot(b1 / (2 - b1), b1, ":", color="black", label="C = 0")
    panel.plot(b1**2, b1, "--", color="black", label="γ² = β")
    panel.scatter(data.b2, data.b1, c=shades, **plotting.DOT)
    panel.set(xlabel="β (b2)", ylabel="γ (b1)", xlim=(0.94, 1.002))
    panel.legend(loc="best")


class Axis(NamedTuple):
    """The quantity that orders and colors the points."""

    name: str
    """A coordinate over `point`."""
    symbol: str
    """Its label on axes."""
    reference: int
    """Place of the point that the others are compared with."""
    reference_name: str
    """The name of that point."""
    colormap: str
    """A color map."""
    levels: Sequence[float]
    """Values of C whose level curves are drawn."""


def page(data: xr.Dataset, axis: Axis) -> figure.Figure:
    """Draw the paper's three panels, and the points with C > 0 compared with one of them.

    Args:
      data: From `experiments.figures.stability.losses`, `losses` and `optimum`, over `point` alone.
      axis: The order of the points.

    Returns:
      Panels (a) to (d).
    """
    x = data[axis.name]
    mappable = cm.ScalarMappable(colors.Normalize(x.min().item(), x.max().item()), axis.colormap)
    canvas, grid = plotting.canvas(10.2, 7.6, nrows=2, ncols=2)
    panels = (_trajectories, _best, _plane, _differences)
    plotting.draw_panels(grid, data, panels, axis, mappable)
    canvas.colorbar(mappable, ax=grid, label=axis.symbol, aspect=45)
    return canvas


def _trajectories(panel: axes.Axes, data: xr.Dataset, axis: Axis, mappable) -> str:
    for place, value in enumerate(data[axis.name].values):
        style = "-" if data.C[place] > 0 else "--"
        line = data.test_loss.isel(point=place).median("seed", skipna=False)
        panel.plot(data.evaluation, line, style, color=mappable.to_rgba(value), linewidth=1)
    for steps in data.horizon_steps.values[:-1]:
        panel.axvline(steps, color="0.8", linewidth=0.8, zorder=0)
    untrained = data.test_loss.isel(evaluation=0).max().item()
    lowest = data.best_loss.min().item()
    top = untrained + 0.25 * (untrained - lowest)
    panel.set(xlabel="step n", ylabel="test loss (nats/token)")
    plotting.set_heights(panel, lowest - 0.1 * (top - lowest), top)
    sides = {"C > 0": (data.C > 0, "-"), "C < 0": (data.C < 0, "--")}
    styles = {
        name: {"color": "0.4", "linestyle": line}
        for name, (side, line) in sides.items()
        if side.any()
    }
    plotting.legend_of(panel, styles, loc="upper right")
    return "test loss, median over seeds"


def _best(panel: axes.Axes, data: xr.Dataset, axis: Axis, mappable) -> str:
    del mappable
    x = data[axis.name]
    for at, steps, color in _each_horizon(data):
        place = at.best_point.item()
        label = f"first {steps} steps, lowest at {axis.symbol} = {x[place].item():.3g}"
        label += " (an end)" if at.best_at_edge else ""
        _means(panel, x, at.best_loss, label)
        star = {"color": color, "markeredgecolor": "black", "markersize": 11, "zorder": 4}
        panel.plot(x[place], at.best_loss.mean("seed")[place], "*", **star)
    diverged = data.diverged.sum("seed")
    if diverged.any():
        top = np.full(int((diverged > 0).sum()), data.best_loss.max().item() * 1.03)
        label = f"diverged by the end: {int(diverged.sum())} members"
        panel.plot(x[diverged.values > 0], top, "x", color="tab:red", label=label)
    if axis.name == "C":
        panel.axvline(0, color="0.8", linewidth=0.8, zorder=0)
    panel.set(xlabel=axis.symbol, ylabel="best test loss (nats/token)")
    panel.legend(loc="best")
    return "best test loss; a star at the lowest mean"


def _differences(panel: axes.Axes, data: xr.Dataset, axis: Axis, mappable) -> str:
    del mappable
    stable = data.isel(point=data.C.values > 0)
    for at, steps, _ in _each_horizon(stable):
        difference = at.best_loss - at.best_loss.isel(point=axis.reference)
        _means(panel, stable[axis.name], difference, f"first {steps} steps")
    panel.axhline(0, color="0.6", linewidth=0.8, zorder=0)
    panel.set(xlabel=axis.symbol, ylabel=f"loss minus that at {axis.reference_name} (nats/token)")
    panel.legend(loc="best")
    return f"C > 0: difference from {axis.reference_name}, paired by seed"


def _each_horizon(data: xr.Dataset):
    """Yield the dataset up to each horizon, its number of steps and its color."""
    for horizon, (_, _, color) in HORIZONS.items():
        at = data.sel(horizon=horizon)
        yield at, at.horizon_steps.item(), color


def _means(panel: axes.Axes, x: xr.DataArray, values: xr.DataArray, label: str) -> None:
    marker, fill, color = HORIZONS[values.horizon.item()]
    style = {"fmt": marker, "linestyle": "-", "linewidth": 0.9, "color": color, "fillstyle": fill}
    plotting.seed_means(panel, x, values, markersize=4, capsize=2, label=label, **style)


def _plane(panel: axes.Axes, data: xr.Dataset, axis: Axis, mappable) -> str:
    b1 = np.linspace(1e-3, 1, 400)
    for level in axis.levels:
        b2 = 1 / (2 / b1 - 1 - level)
        inside = (b2 > 0) & (b2 < 1)
        style = "--" if level == 0 else ":"
        panel.plot(b2[inside], b1[inside], style, color="0.5", label=f"C = {level:.3g}")
    panel.scatter(data.b2, data.b1, c=mappable.to_rgba(data[axis.name]), **plotting.DOT)
    room_b2, room_b1 = (0.08 * np.ptp(b) for b in (data.b2.values, data.b1.values))
    panel.set(
        xlabel="β (b2)",
        ylabel="γ (b1)",
        xlim=(data.b2.min().item() - room_b2, data.b2.max().item() + room_b2),
        ylim=(data.b1.min().item() - room_b1, data.b1.max().item() + room_b1),
    )
    panel.legend(loc="best")
    return "the points"
