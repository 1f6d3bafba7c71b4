"""Plots of losses over learning rates, basins, ratios and prices, as four panels."""

import numpy as np
import xarray as xr
from matplotlib import axes, figure, ticker

from experiments.core import plot as plotting
from experiments.core.stats import mean
from experiments.figures.optimizer.plot import OPTIMIZERS, style_of

SHOWN = 1.0
"""Nats above the lowest mean loss that are drawn."""
PREDICTIONS = {
    "predicted_by_size": ("by the size of updates", "x"),
    "predicted_by_displacement": ("by how far updates move a weight", "+"),
}
PRICES = {
    "price_at_adamws": ("at AdamW's rate, minus that at its own best", "o"),
    "price_at_ratio": ("at the ratio times that, minus that at its own best", "s"),
    "beyond_adamw": ("at the ratio times that, minus AdamW's best", "*"),
}


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw losses over learning rates, widths of basins, ratios to AdamW's rate, and prices."""
    canvas, grid = plotting.canvas(11, 8, nrows=2, ncols=2)
    plotting.draw_panels(grid, dataset, (_losses, _widths, _ratios, _prices))
    handles, labels = grid[0, 0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside upper center", ncols=-(-len(labels) // 2))
    return {"": canvas}


def _losses(panel: axes.Axes, data: xr.Dataset) -> str:
    for arm in data.arm.values.tolist():
        name, color, marker = style_of(arm)
        at = data.sel(arm=arm)
        loss = at.validation
        low, mean, high = (
            of_seeds("seed", skipna=False) for of_seeds in (loss.min, loss.mean, loss.max)
        )
        style = {"color": color, "fillstyle": "none", "markersize": 4, "label": name}
        plotting.band(panel, at.rate, low, mean, high, marker=marker, **style)
        best = at.mean_optimum[0].item()
        height = np.interp(np.log(best), np.log(at.rate), mean)
        panel.plot(best, height, marker, color=color, markersize=8, zorder=3)
        if at.rate_at_lowest | at.rate_at_highest:
            panel.plot(best, height, color=color, **plotting.RING)
    panel.set(xlabel="learning rate η", ylabel="validation loss (nat/token)")
    lowest = data.validation.mean("seed", skipna=False).min()
    if np.isfinite(lowest):
        panel.set_xscale("log")
        panel.set_ylim(lowest - 0.05 * SHOWN, lowest + SHOWN)
    return f"loss versus learning rate, {data.sizes['seed']} seeds"


def _widths(panel: axes.Axes, data: xr.Dataset) -> str:
    arms = data.arm.values.tolist()
    for row, arm in enumerate(arms):
        at = data.sel(arm=arm)
        _dots(panel, row, at.width, mean(at.width).ends, *style_of(arm)[1:])
        if at.basin_open:
            panel.plot(at.width.max(), row + 0.3, ">", color="black", markersize=4)
    _rows(panel, arms)
    panel.set(xlabel="width of the basin (decades)", ylabel="optimizer")
    return "width of the range of almost optimal rates"


def _ratios(panel: axes.Axes, data: xr.Dataset) -> str:
    arms = data.arm.values[1:].tolist()
    for row, arm in enumerate(arms):
        at = data.sel(arm=arm)
        _dots(panel, row, at.ratio, at.mean_ratio.values, *style_of(arm)[1:])
        value, low, high = at.mean_ratio.values
        if np.isfinite(value):
            text = f"{value:.2g} [{low:.2g}, {high:.2g}]"
            panel.text(value, row - 0.2, text, ha="center", va="bottom", fontsize=7)
        if at.rate_at_lowest | at.rate_at_highest:
            panel.plot(value, row, color=style_of(arm)[1], **plotting.RING)
    rows = [arms.index(switch) + 0.3 for switch in data.switch.values]
    for variable, (name, marker) in PREDICTIONS.items():
        panel.plot(data[variable], rows, marker, color="black", label=name)
    panel.axvline(1, color=OPTIMIZERS["adamw"][1], linestyle=":", linewidth=0.8)
    if np.isfinite(data.ratio).any():  # else nothing can be drawn on a logarithmic axis
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter(ticker.LogFormatter(minor_thresholds=(1.2, 0.5)))
    _rows(panel, arms)
    panel.set(xlabel="best learning rate over AdamW's", ylabel="optimizer")
    plotting.legend_above(panel, 0.25, title="predicted for 2-Adam", loc="upper left")
    return "which rate to start from, relative to AdamW's"


def _prices(panel: axes.Axes, data: xr.Dataset) -> str:
    for place, (variable, (name, marker)) in enumerate(PRICES.items()):
        for row, switch in enumerate(data.switch.values.tolist()):
            values = data[variable].sel(switch=switch)
            height = row + 0.25 * (place - 1)
            _dots(panel, height, values, mean(values).ends, style_of(switch)[1], marker)
        panel.plot([], [], marker, color="0.3", label=name)
    panel.axvline(0, color="0.5", linestyle=":", linewidth=0.8)
    _rows(panel, data.switch.values.tolist())
    panel.set(xlabel="difference of test losses (nat/token)", ylabel="optimizer")
    plotting.legend_above(panel, 0.3, loc="upper left")
    return "what switching costs"


def _dots(panel, height, values, interval, color, marker) -> None:
    """Draw the seeds, and their mean with its interval."""
    panel.plot(values, np.full(len(values), height), ".", color=color, alpha=0.4, markersize=4)
    style = {"fmt": marker, "color": color, "markersize": 6, "capsize": 2}
    plotting.intervals(panel, height, interval, "y", **style)


def _rows(panel: axes.Axes, arms: list[str]) -> None:
    """Label one row for each arm, the first one on top."""
    plotting.label_rows(panel, [style_of(arm)[0] for arm in arms])
