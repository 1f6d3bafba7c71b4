"""Plots of gains over AdamW, for all targets and for rare and frequent ones."""

import numpy as np
import xarray as xr
from matplotlib import axes, figure

from experiments.core import plot as plotting
from experiments.figures.optimizer.plot import (
    by_gain,
    contender_rows,
    contender_style,
    legend_on_top,
    searched_rates,
)
from experiments.figures.optimizer.rare_tokens.run import ROWS
from experiments.training.optimizers import ADAMW

TARGETS = "occurrences of the target in training, at most"
LINEAR = 0.1
"""Nats per token up to which axes of gains are linear; beyond it they are logarithmic."""
DODGE = 0.6
"""The share of the distance between two bins over which contenders are spread."""


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw gains over AdamW, losses and gains by bin; then losses by learning rate."""
    edge = "η or memory at an edge" if dataset.at_edge.any() else ""
    legend = {ROWS[name].label: contender_style(name) for name in dataset.arm.values}
    main, grid = plotting.canvas(12, 4, ncols=3)
    plotting.draw_panels(grid, dataset, [_gains, _losses, _gains_by_bin])
    search, panel = plotting.canvas(12, 4.6)
    searched_rates(panel, dataset)
    for canvas in (main, search):
        legend_on_top(canvas, legend, edge)
    return {"": main, "search": search}


def _gains(panel: axes.Axes, data: xr.Dataset) -> str:
    panel.set_xscale("symlog", linthresh=LINEAR)
    contender_rows(panel, by_gain(data, data.gain), "gain", ROWS)
    panel.xaxis.set_major_formatter("{x:g}")
    panel.set(xlabel="gain over AdamW (nats per token)", ylabel="contender")
    return "all test targets"


def _losses(panel: axes.Axes, data: xr.Dataset) -> str:
    for name in data.arm.values:
        loss = data.bin_loss.sel(arm=name).mean("seed", skipna=False)
        panel.plot(data.bin, loss, **contender_style(name), linewidth=0.9)
    _label_bins(panel, data)
    panel.set_ylabel("test loss (nats per token)")
    return "loss, rare to frequent"


def _gains_by_bin(panel: axes.Axes, data: xr.Dataset) -> str:
    others = [name for name in data.arm.values if name != ADAMW]
    panel.set_yscale("symlog", linthresh=LINEAR)
    offsets = DODGE * ((np.arange(len(others)) + 0.5) / max(len(others), 1) - 0.5)
    for name, offset in zip(others, offsets, strict=True):
        ends = data.bin_gain.sel(arm=name).transpose("end", "bin")
        style = {**contender_style(name), "linewidth": 0.9, "capsize": 2}
        plotting.intervals(panel, data.bin + offset, ends, **style)
    panel.axhline(0, color="0.4", linestyle=":", linewidth=0.8)
    panel.grid(axis="y", linewidth=0.3)
    panel.yaxis.set_major_formatter("{x:g}")
    _label_bins(panel, data)
    panel.set_ylabel("gain over AdamW (nats per token)")
    return "gain, rare to frequent"


def _label_bins(panel: axes.Axes, data: xr.Dataset) -> None:
    panel.set_xticks(data.bin.values, [f"{most:,}" for most in data.bin_count.values])
    panel.set_xlabel(TARGETS)
