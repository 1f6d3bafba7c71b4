"""Plots of the costs of solving the flow."""

from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from matplotlib import axes, figure, lines

from experiments.core import plot as plotting

IN_T = {"linestyle": "--", "marker": "s", "markersize": 3}
IN_X = {"linestyle": "-", "marker": "o", "markersize": 3}
STYLES: dict[str, dict[str, Any]] = {
    "euler": {"label": "Euler (App. I)", "color": "black", **IN_X},
    "exponential": {"label": "exponential integrator", "color": "tab:red", **IN_X, "linewidth": 2},
    "heun_t": {"label": "Heun in t", "color": "tab:blue", **IN_T},
    "heun_x": {"label": "Heun in x", "color": "tab:blue", **IN_X},
    "tsit5_t": {"label": "Tsit5 in t", "color": "tab:green", **IN_T},
    "tsit5_x": {"label": "Tsit5 in x", "color": "tab:green", **IN_X},
}


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw error versus gradients for each problem, and all orders."""
    canvas, grid = plotting.canvas(10, 7.6, nrows=2, ncols=2)
    errors = [partial(_errors, problem=problem) for problem in dataset.problem.values]
    plotting.draw_panels(grid, dataset, [*errors, _orders])
    handles = [lines.Line2D([], [], **style) for style in STYLES.values()]
    goal = lines.Line2D([], [], color="black", linestyle=":", label="Euler's error at the goal's K")
    canvas.legend(handles=[*handles, goal], loc="outside lower center", ncols=4)
    return {"": canvas}


def _errors(panel: axes.Axes, data: xr.Dataset, problem: str) -> str:
    data = data.sel(problem=problem)
    for method, style in STYLES.items():
        runs = data.isel(run=data.run_solver.values == method)
        plotting.seed_band(panel, runs.gradients, runs.error, **style)
    panel.axhline(data.goal_error.median("seed"), color="black", linestyle=":", linewidth=1)
    panel.axhspan(0, data.reference_error.max(), color="0.9", linewidth=0)
    lowest = min(data.error.min(), data.reference_error.max())
    panel.set(xscale="log", yscale="log", ylim=(lowest / 2, None))
    panel.set(xlabel="gradients per step", ylabel="relative error at the end")
    fewest = data.fewest.sel(solver="exponential").median("seed")
    return f"{problem}: {fewest:g} for the exponential integrator"


def _orders(panel: axes.Axes, data: xr.Dataset) -> str:
    rows = np.arange(data.sizes["solver"])[::-1]
    for shift, marker, problem in zip((0.2, 0, -0.2), "o^s", data.problem.values, strict=True):
        orders = data.order.sel(problem=problem)
        middle = orders.median("seed")
        reach = np.stack([middle - orders.min("seed"), orders.max("seed") - middle])
        colors = [STYLES[name]["color"] for name in data.solver.values]
        panel.errorbar(middle, rows + shift, xerr=reach, fmt="none", ecolor=colors)
        panel.scatter(middle, rows + shift, c=colors, marker=marker, s=16, label=problem)
    panel.set_yticks(rows, [style["label"] for style in STYLES.values()])
    panel.set(xlabel="observed order", xlim=(0, None))
    panel.grid(axis="x", color="0.9")
    panel.legend(loc="upper right")
    return "orders, median and range over seeds"
