"""Plots of the max-update on B₀ and inside B₊ (Figs. 7 and 11)."""

import numpy as np
import xarray as xr
from matplotlib import axes, cm, colors, figure

from experiments.core import plot as plotting
from experiments.figures.stability.plot import curves, points

PAPER, EXACT = ":", "--"
"""Line styles of the two bounds."""


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw a page for each curve."""
    on, inside = (dataset.isel(point=dataset.curve.values == name) for name in ("B₀", "B₊"))
    return {"boundary": _boundary(on), "inside_b_plus": _inside(inside)}


def _boundary(data: xr.Dataset) -> figure.Figure:
    mappable = cm.ScalarMappable(colors.Normalize(0, 1), "viridis_r")
    canvas, grid = plotting.canvas(10.2, 7.4, nrows=2, ncols=2)
    panels = (_trajectories, _largest, _exponents, _points)
    plotting.draw_panels(grid, data, panels, data.b2, mappable.to_rgba(data.b2))
    grid[0, 0].set(xscale="log", yscale="log", xlim=(0.9, None), ylim=(0.7, 25))
    grid[0, 1].set(yscale="log")
    grid[1, 1].set(xlim=(0, 1), ylim=(0, 1))
    _add_legends(grid)
    canvas.colorbar(mappable, ax=grid, label="β (b2)", aspect=45)
    return canvas


def _inside(data: xr.Dataset) -> figure.Figure:
    norm = colors.Normalize(0, data.C.max().item())
    mappable = cm.ScalarMappable(norm, plotting.STABILITY_COLORMAP)
    canvas, grid = plotting.canvas(13.2, 4.2, ncols=3)
    panels = (_trajectories, _largest, _points)
    plotting.draw_panels(grid, data, panels, data.C, mappable.to_rgba(data.C))
    grid[2].set(xlim=(0.94, 1.002), ylim=(0.89, 1))
    _add_legends(grid)
    canvas.colorbar(mappable, ax=grid, label="C(β, γ)", aspect=30)
    return canvas


def _add_legends(grid) -> None:
    """Add legends at the best places, once the limits are set."""
    for panel in grid.flat:
        panel.legend(loc="best")


def _trajectories(panel: axes.Axes, data: xr.Dataset, x: xr.DataArray, shades) -> str:
    """Draw medians over seeds, and both bounds at three points in the points' colors."""
    del x
    n = data.step + 1
    curves(panel, n, data.max_update, shades, linewidth=0.8, alpha=0.75)
    for point in (0, data.sizes["point"] // 2, -1):
        for kind, style in (("paper", PAPER), ("exact", EXACT)):
            bound = np.exp(data[f"log_{kind}_bound"][point])
            bound = bound.where(bound > 0)  # √n at n = 0
            panel.plot(n, bound, style, color=shades[point], linewidth=1.6)
    panel.plot([], [], color="0.4", linewidth=0.8, label="trained, median over seeds")
    panel.plot([], [], EXACT, color="0.4", label="exact supremum, three points")
    panel.plot([], [], PAPER, color="0.4", label="Theorem 1, the same points")
    panel.set(xlabel="step n + 1", ylabel="‖uₙ‖∞ (learning rates)")
    return f"max-update {_where(data)}"


def _largest(panel: axes.Axes, data: xr.Dataset, x: xr.DataArray, shades) -> str:
    """Draw every seed's largest update and both bounds at the last step."""
    last = data.isel(step=-1)
    for kind, style, name in (("exact", EXACT, "exact supremum"), ("paper", PAPER, "Theorem 1")):
        label = f"{name}, n = {last.step:d}"
        panel.plot(x, np.exp(last[f"log_{kind}_bound"]), style, color="black", label=label)
    for seed in data.seed:
        panel.scatter(x, data.largest.sel(seed=seed), c=shades, s=16, **plotting.DOT)
    panel.plot([], [], "o", color="0.5", markersize=4, label="trained, every seed")
    panel.set(xlabel={"b2": "β (b2)", "C": "C(β, γ)"}[str(x.name)])
    panel.set(ylabel="largest ‖uₙ‖∞, n ≥ 100 (learning rates)")
    panel.locator_params(axis="x", nbins=6)
    return f"largest max-update {_where(data)}"


def _exponents(panel: axes.Axes, data: xr.Dataset, x: xr.DataArray, shades) -> str:
    panel.axhline(0.5, linestyle=PAPER, color="black", label="√n")
    panel.axhline(0, linestyle=EXACT, color="black", label="a constant")
    plotting.seed_dots(panel, x, data.exponent, c=shades)
    panel.plot([], [], "o", color="0.5", label="trained, median and range over seeds")
    panel.set(xlabel="β (b2)", ylabel="p in ‖uₙ‖∞ ∝ nᵖ, n ≥ 100", xlim=(0, 1))
    return f"growth {_where(data)}"


def _points(panel: axes.Axes, data: xr.Dataset, x: xr.DataArray, shades) -> str:
    del x
    panel.plot([0, 1], [0, 1], color="0.7", linewidth=0.8, label="γ = β")
    points(panel, data, shades, lowest=0.0)
    return f"the points {_where(data)}"


def _where(data: xr.Dataset) -> str:
    """Say which curve or region the points lie in."""
    return {"B₀": "on B₀", "B₊": "in B₊"}[data.curve.values[0]]
