"""Plots of the stability of k-Adam versus Adam's."""

from functools import partial

import numpy as np
import xarray as xr
from matplotlib import axes, figure

from experiments.core import plot as plotting
from experiments.figures.stability.plot import UPDATES, curves, shading

STAGES = {1: ("tab:blue", "o"), 2: ("tab:orange", "s"), 3: ("tab:green", "^")}
"""Color and marker of each k."""
MARKS = {
    k: dict(color=c, marker=m, linestyle="none", fillstyle="none", markersize=4 + 2 * k)
    for k, (c, m) in STAGES.items()
}
"""Rings for each k, of different sizes, so that one can surround another."""


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw training with 1, 2 and 3 stages in the top row and the comparisons in the bottom row."""
    mappable = shading(dataset.C, 0.07)
    canvas, grid = plotting.canvas(13.9, 7.4, nrows=2, ncols=3)
    trajectories = [partial(_trajectories, mappable=mappable, k=k) for k in STAGES]
    plotting.draw_panels(grid, dataset, [*trajectories, _largest, _dead, _constructed])
    low, high = np.array([panel.get_ylim() for panel in grid[0]]).T
    for panel in grid[0]:
        panel.set_ylim(low.min(), high.max())
    canvas.colorbar(mappable, ax=grid[0], label="C(β, γ)", aspect=25, extend="max")
    return {"": canvas}


def _trajectories(panel: axes.Axes, data: xr.Dataset, mappable, k: int) -> str:
    shades = mappable.to_rgba(data.C)
    curves(panel, data.step, data.max_update.sel(k=k), shades, linewidth=1.2)
    panel.plot(data.step, np.exp(data.log_exact_bound[-1]), "--", color="black", linewidth=0.9)
    styles = {
        "trained, median over seeds": {"color": "0.5"},
        "exact bound, last point": {"color": "black", "linestyle": "--"},
    }
    plotting.legend_of(panel, styles, loc="upper left")
    panel.set(**UPDATES)
    return f"training, k = {k}"


def _largest(panel: axes.Axes, data: xr.Dataset) -> str:
    shift = 0.006 * np.ptp(data.C.values)
    for k, (color, marker) in STAGES.items():
        largest = 10 ** data.log10_largest.sel(k=k)
        style = {"marker": marker, "color": color, "bar": color, "label": f"k = {k}"}
        plotting.seed_dots(panel, data.C + (k - 2) * shift, largest, markersize=5, **style)
    panel.axvline(0, color="0.8", linewidth=0.8, zorder=0)
    panel.set(yscale="log", xlabel="C(β, γ)", ylabel="largest ‖uₙ‖∞ (learning rates)")
    panel.legend(loc="best")
    return f"training, largest max-update in {data.sizes['step']} steps"


def _dead(panel: axes.Axes, data: xr.Dataset) -> str:
    for k, (color, _) in STAGES.items():
        update = data.dead_update.sel(k=k)
        plotting.seed_band(panel, data.dead_step, update, color=color, label=f"k = {k}")
    bound = np.exp(data.dead_log_exact_bound)
    panel.plot(data.dead_step, bound, "--", color="black", linewidth=0.9, label="exact bound")
    panel.set(**UPDATES)
    panel.legend(loc="upper left")
    return "gradients that die"


def _constructed(panel: axes.Axes, data: xr.Dataset) -> str:
    styles = ("-", "--", "-.", ":")
    for place, style in zip(range(data.sizes["worst_point"]), styles * 3, strict=False):
        point = data.isel(worst_point=place)
        label = f"bound, β = {point.worst_b2:.4g}, γ = {point.worst_b1:.4g}"
        panel.plot(data.length, point.worst_bound, style, color="0.4", label=label)
        for k, style in MARKS.items():
            panel.plot(data.length, point.constructed.sel(k=k), **style)
    for k, style in MARKS.items():
        panel.plot([], [], label=f"reached, k = {k}", **style)
    panel.set(xscale="log", xlabel="number of gradients N")
    panel.set(yscale="log", ylabel="last update |u| (learning rates)")
    panel.legend(loc="upper left")
    return "gradients made to be the worst case"
