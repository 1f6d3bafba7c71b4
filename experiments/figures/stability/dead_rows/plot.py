"""Plots of rows without gradients."""

import numpy as np
import xarray as xr
from matplotlib import figure

from experiments.core import plot as plotting

STYLES = {
    "defaults": ("tab:red", "-"),
    "defaults, small ε": ("tab:red", "--"),
    "inside": ("tab:blue", "-"),
    "inside, small ε": ("tab:blue", "--"),
    "clipped": ("tab:green", "-"),
    "clipped, small ε": ("tab:green", "--"),
    "inside, clipped": ("tab:cyan", "-"),
    "inside by β": ("0.35", "-"),
    "ademamix": ("tab:orange", "-"),
    "ademamix inside": ("tab:purple", "-"),
}


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw updates by step in unused rows and elsewhere, by tensor, and losses."""
    canvas, grid = plotting.canvas(11.0, 7.6, nrows=2, ncols=2)
    plotting.draw_panels(grid, dataset, (_unused, _others, _tensors, _losses))
    handles, labels = grid[0, 0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=len(labels) // 2)
    return {"": canvas}


def _unused(panel, data: xr.Dataset) -> str:
    return _steps(panel, data, 0)


def _others(panel, data: xr.Dataset) -> str:
    return _steps(panel, data, 1)


def _steps(panel, data: xr.Dataset, place: int) -> str:
    for arm, (color, line) in STYLES.items():
        values = data.max_update.isel(where=place).sel(arm=arm)
        style = {"color": color, "linestyle": line, "label": arm}
        plotting.seed_band(panel, data.step + 1, values, **style)
    moves = bool((data.max_update.isel(where=place) > 0).any())
    panel.set(xscale="log", yscale="log" if moves else "linear")
    panel.set(xlabel="step n + 1", ylabel="largest |u| (learning rates)")
    return f"{data['where'].values[place]}"


def _tensors(panel, data: xr.Dataset) -> str:
    rows = np.arange(data.sizes["tensor"])
    shifts = np.linspace(-0.3, 0.3, len(STYLES))
    for shift, (arm, (color, line)) in zip(shifts, STYLES.items(), strict=True):
        values = data.largest.sel(arm=arm).median("seed")
        fill = "none" if line == "--" else "full"
        panel.plot(values, rows + shift, "o", color=color, fillstyle=fill, markersize=4)
    plotting.label_rows(panel, data.tensor.values, fontsize=7)
    panel.set(xscale="log", xlabel="largest |u| (learning rates)", ylabel="tensor")
    panel.grid(axis="x", linewidth=0.3)
    return "by tensor, median over seeds"


def _losses(panel, data: xr.Dataset) -> str:
    for row, (arm, (color, line)) in enumerate(STYLES.items()):
        loss = data.loss.sel(arm=arm)
        panel.hlines(row, loss.min(), loss.max(), color="0.4", linewidth=0.9)
        fill = "none" if line == "--" else "full"
        panel.plot(loss.median(), row, "o", color=color, fillstyle=fill, markersize=5)
    plotting.label_rows(panel, list(STYLES), fontsize=8)
    panel.set(xlabel="training loss (nats per token)", ylabel="arm")
    return "loss at the end, median and range over seeds"
