"""Plots of runs with and without coarse-graining (Fig. 9 and its checks)."""

import xarray as xr
from matplotlib import axes, colormaps, figure

from experiments.core import plot as plotting
from experiments.figures.invariance.coarse_graining.run import PARTS, RUNS

STYLES = {"adam": ("black", "-"), "coarse": ("tab:red", "--"), "reordered": ("tab:blue", ":")}
"""The color and line of every run."""
COLORS = colormaps["tab20"].colors
"""Colors of single parameters."""


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw trajectories as in the paper, distances compared with chance, and the loss."""
    canvas, grid = plotting.canvas(13, 7.2, nrows=2, ncols=3)
    panels = (
        lambda panel, data: _trajectories(panel, data, "coarse"),
        lambda panel, data: _distances(panel, data, "slices"),
        lambda panel, data: _distances(panel, data, "others"),
        lambda panel, data: _trajectories(panel, data, "reordered"),
        _losses,
        _differences,
    )
    plotting.draw_panels(grid, dataset, panels)
    for panel in grid.flat:
        panel.set_xlabel("step n")
    return {"": canvas}


def _trajectories(panel: axes.Axes, data: xr.Dataset, other: str) -> str:
    first = data.trajectory.isel(seed=0)
    for run in ("adam", other):
        _, line = STYLES[run]
        for place, values in enumerate(first.sel(run=run).transpose("parameter", "step")):
            panel.plot(first.step, values, line, color=COLORS[place % len(COLORS)], linewidth=1)
        panel.plot([], [], line, color="0.3", label=RUNS[run])
    panel.set(ylabel="$W_{ij}$")
    plotting.legend_above(panel, 0.2, loc="upper left", ncols=2)
    return f"{first.sizes['parameter']} entries of queries and keys, one seed"


def _distances(panel: axes.Axes, data: xr.Dataset, part: str) -> str:
    for run in ("coarse", "reordered"):
        color, line = STYLES[run]
        values = data.distance.sel(run=run, part=part)
        style = {"color": color, "linestyle": line, "label": RUNS[run]}
        plotting.seed_band(panel, data.step, values, "mean", **style)
    panel.set(ylabel="distance from Adam / displacement", ylim=(0, None))
    panel.legend(loc="lower right")
    return f"{PARTS[part]}: mean and range over seeds"


def _losses(panel: axes.Axes, data: xr.Dataset) -> str:
    for run, (color, line) in STYLES.items():
        values = data.heldout_loss.sel(run=run)
        panel.plot(data.eval_step, values.mean("seed"), line, color=color, label=RUNS[run])
    panel.set(ylabel="held-out loss (nat/token)")
    panel.legend(loc="upper right")
    return "held-out loss, mean over seeds"


def _differences(panel: axes.Axes, data: xr.Dataset) -> str:
    series = (
        ("heldout_loss", "reordered", "", {"fmt": "o-"}),
        ("heldout_loss", "coarse", "", {"fmt": "o-"}),
        ("training_loss", "coarse", ", training", {"fmt": "s--", "mfc": "white"}),
    )
    shift = 0.12 * (data.eval_step[0].item())  # intervals side by side
    for place, (loss, run, what, style) in enumerate(series):
        color, _ = STYLES[run]
        difference = data[loss].sel(run=run) - data[loss].sel(run="adam")
        style |= {"color": color, "label": RUNS[run] + what, "capsize": 2, "markersize": 4}
        plotting.seed_means(panel, data.eval_step + (place - 1) * shift, difference, **style)
    panel.axhline(0, color="black", linewidth=0.8)
    panel.set(ylabel="loss minus Adam's (nat/token)")
    plotting.legend_above(panel, 0.3, loc="upper left")
    return "paired differences: mean and 95% interval"
