"""Plots of an annealed learning rate beyond the boundary (Fig. 14)."""

import json

import numpy as np
import xarray as xr
from matplotlib import axes, figure

from experiments.core import plot as plotting
from experiments.core.stats import mean
from experiments.figures.stability.plot import UPDATES, curves, points, shading

MARKERS = "osD^v"
"""Markers of the strengths, from 0."""


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw updates in the top row, and losses and the points in the bottom row."""
    mappable = shading(dataset.C, 0.01)
    canvas, grid = plotting.canvas(13.9, 7.4, nrows=2, ncols=3)
    panels = (_updates, _changes, _slopes, _losses, _best, _points)
    plotting.draw_panels(grid, dataset, panels, mappable)
    canvas.colorbar(mappable, ax=grid, label="C(β, γ)", aspect=45, extend="max")
    return {"": canvas}


def _updates(panel: axes.Axes, data: xr.Dataset, mappable) -> str:
    _both(panel, data, data.max_update, mappable)
    panel.set(**UPDATES)
    return "max-update ‖uₙ‖∞, constant η₀"


def _changes(panel: axes.Axes, data: xr.Dataset, mappable) -> str:
    bound = {"Theorem 1, s = 1, two points": {"color": "0.5", "linestyle": ":"}}
    _both(panel, data, data.change, mappable, **bound)
    for point in (1, -1):
        bound = np.exp(data.log_annealed_bound.sel(strength=1.0).isel(point=point))
        panel.plot(data.step, bound, ":", color=mappable.to_rgba(data.C[point]), linewidth=1.6)
    panel.set(**UPDATES | {"ylabel": "‖θₙ₊₁-θₙ‖∞ / η₀"})
    return "change in parameters, constant η₀"


def _both(panel: axes.Axes, data: xr.Dataset, values: xr.DataArray, mappable, **more) -> None:
    """Draw medians over seeds, solid with the paper's annealing and dashed without annealing."""
    styles = {"annealed, s = 1": {"color": "0.4"}}
    styles["not annealed"] = {"color": "0.4", "linestyle": "--"}
    for strength, style, width in ((0.0, "--", 0.8), (1.0, "-", 1.2)):
        shades, of = mappable.to_rgba(data.C), values.sel(strength=strength)
        curves(panel, data.step, of, shades, linestyle=style, linewidth=width)
    plotting.legend_of(panel, styles | more)


def _each_strength(panel: axes.Axes, data: xr.Dataset, name: str, mappable):
    """Yield what to draw at each strength at the points with C < 0, and label it."""
    unstable = data.isel(point=slice(1, None))
    shades = mappable.to_rgba(unstable.C)
    for marker, strength in zip(MARKERS, data.strength.values, strict=False):
        yield unstable.C, unstable[name].sel(strength=strength), {"c": shades, "marker": marker}
        panel.plot([], [], marker, color="0.5", label=f"s = {strength:g}")
    panel.locator_params(axis="x", nbins=6)
    panel.set(xlabel="C(β, γ)")


def _slopes(panel: axes.Axes, data: xr.Dataset, mappable) -> str:
    C = data.C[1:]
    panel.plot(C, -C / 2, ":", color="black", label="|C|/2: the bound without annealing")
    panel.axhline(0, linestyle="--", color="black", label="0: the bound with s = 1")
    for x, slope, style in _each_strength(panel, data, "slope", mappable):
        plotting.seed_dots(panel, x, slope, s=32, **style)
    panel.set(ylabel="slope of ln‖θₙ₊₁-θₙ‖∞ (1/step)")
    plotting.legend_above(panel, 0.7, loc="upper right")
    config = json.loads(data.attrs["config"])
    return f"slope, {config['slope_first']} ≤ n ≤ {config['slope_last']}"


def _losses(panel: axes.Axes, data: xr.Dataset, mappable) -> str:
    loss = data.test_loss.median("seed")
    plain, annealed = loss.sel(strength=0.0), loss.sel(strength=1.0)
    for line, color in zip(annealed[1:], mappable.to_rgba(data.C[1:]), strict=True):
        panel.plot(data.evaluation, line, color=color, linewidth=1.2)
    panel.plot(data.evaluation, plain.isel(point=0), color="black", linewidth=1.6)
    panel.plot(data.evaluation, plain.isel(point=-1), "--", color=mappable.to_rgba(data.C[-1]))
    styles = {
        "C < 0, s = 1": {"color": "0.5"},
        "usual (β, γ)": {"color": "black", "linewidth": 1.6},
        "last point, not annealed": {"color": mappable.to_rgba(data.C[-1]), "linestyle": "--"},
    }
    plotting.legend_of(panel, styles)
    untrained = loss.isel(evaluation=0).max().item()
    lowest = plain.isel(point=0).min().item()
    span = untrained - lowest
    panel.set(xlabel="step n", ylabel="test loss (nats/token)")
    plotting.set_heights(panel, lowest - 0.1 * span, untrained + 0.2 * span)
    return "test loss, warm-up and cosine"


def _best(panel: axes.Axes, data: xr.Dataset, mappable) -> str:
    data = data.sel(horizon="whole")
    usual, low, high = mean(data.best_loss.sel(strength=0.0).isel(point=0)).ends
    panel.axhspan(low, high, color="0.85", linewidth=0)
    panel.axhline(usual, color="black", linewidth=1.2, label="usual (β, γ), not annealed")
    for x, loss, style in _each_strength(panel, data, "best_loss", mappable):
        bars = {"linestyle": "-", "linewidth": 0.8, "color": "0.6", "zorder": 1}
        plotting.seed_means(panel, x, loss, ecolor="0.4", elinewidth=0.9, **bars)
        panel.scatter(x, loss.mean("seed"), s=32, **style, **plotting.DOT)
    panel.set(ylabel="lowest test loss (nats/token)")
    panel.legend(loc="best")
    return f"lowest test loss in {data.evaluation[-1]:d} steps"


def _points(panel: axes.Axes, data: xr.Dataset, mappable) -> str:
    points(panel, data, mappable.to_rgba(data.C))
    return "the points"
