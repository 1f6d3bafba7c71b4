"""Plots of an annealed learning rate beyond the boundary (Fig. 14)."""

import json

import numpy as np
import xarray as xr
from matplotlib import axes, cm, colors, figure
from scipy import stats

from experiments.core import plot as plotting

MARKERS = "osD^v"
"""Markers of the strengths, from 0."""


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw updates in the top row, and losses and the points in the bottom row."""
    # The usual point's C is far above that of the other points, so it gets the darkest color.
    norm = colors.Normalize(1.15 * dataset.C.min().item(), 0.01, clip=True)
    mappable = cm.ScalarMappable(norm, plotting.STABILITY_COLORMAP)
    canvas, grid = plotting.canvas(13.9, 7.4, nrows=2, ncols=3)
    panels = (_updates, _changes, _slopes, _losses, _best, _points)
    plotting.draw_panels(grid, dataset, panels, mappable)
    canvas.colorbar(mappable, ax=grid, label="C(β, γ)", aspect=45, extend="max")
    return {"": canvas}


def _updates(panel: axes.Axes, data: xr.Dataset, mappable) -> str:
    _curves(panel, data.step, data.max_update, data.C, mappable)
    plotting.legend_of(panel, _curve_styles())
    panel.set(yscale="log", xlabel="step n", ylabel="‖uₙ‖∞ (learning rates)")
    return "max-update ‖uₙ‖∞, constant η₀"


def _changes(panel: axes.Axes, data: xr.Dataset, mappable) -> str:
    _curves(panel, data.step, data.change, data.C, mappable)
    for point in (1, -1):
        bound = np.exp(data.log_annealed_bound.sel(strength=1.0).isel(point=point))
        panel.plot(data.step, bound, ":", color=mappable.to_rgba(data.C[point]), linewidth=1.6)
    bound = {"Theorem 1, s = 1, two points": {"color": "0.5", "linestyle": ":"}}
    plotting.legend_of(panel, _curve_styles() | bound)
    panel.set(yscale="log", xlabel="step n", ylabel="‖θₙ₊₁-θₙ‖∞ / η₀")
    return "change in parameters, constant η₀"


def _curves(panel: axes.Axes, x, values: xr.DataArray, C: xr.DataArray, mappable) -> None:
    """Draw medians over seeds, solid with the paper's annealing and dashed without annealing."""
    for strength, style, width in ((0.0, "--", 0.8), (1.0, "-", 1.2)):
        middle = values.sel(strength=strength).median("seed").values
        for line, c in zip(middle, C.values, strict=True):
            panel.plot(x, line, style, color=mappable.to_rgba(c), linewidth=width)


def _curve_styles() -> dict[str, dict[str, str]]:
    return {
        "annealed, s = 1": {"color": "0.4"},
        "not annealed": {"color": "0.4", "linestyle": "--"},
    }


def _slopes(panel: axes.Axes, data: xr.Dataset, mappable) -> str:
    unstable = data.isel(point=slice(1, None))
    half_C = -unstable.C / 2
    panel.plot(unstable.C, half_C, ":", color="black", label="|C|/2: the bound without annealing")
    panel.axhline(0, linestyle="--", color="black", label="0: the bound with s = 1")
    for marker, strength in zip(MARKERS, data.strength.values, strict=False):
        slope = unstable.slope.sel(strength=strength)
        shades = mappable.to_rgba(unstable.C)
        plotting.seed_dots(panel, unstable.C, slope, c=shades, marker=marker, s=32)
        panel.plot([], [], marker, color="0.5", label=f"s = {strength:g}")
    panel.set(xlabel="C(β, γ)", ylabel="slope of ln‖θₙ₊₁-θₙ‖∞ (1/step)")
    low, high = panel.get_ylim()
    plotting.set_heights(panel, low, high + 0.7 * (high - low))  # room for the legend
    panel.locator_params(axis="x", nbins=6)
    panel.legend(loc="upper right")
    config = json.loads(data.attrs["config"])
    return f"slope, {config['slope_first']} ≤ n ≤ {config['slope_last']}"


def _losses(panel: axes.Axes, data: xr.Dataset, mappable) -> str:
    loss = data.test_loss.median("seed")
    for point, c in enumerate(data.C.values[1:], 1):
        line = loss.sel(strength=1.0).isel(point=point)
        panel.plot(data.evaluation, line, color=mappable.to_rgba(c), linewidth=1.2)
    plain = loss.sel(strength=0.0)
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
    best = data.best_loss.sel(horizon="whole")
    num_seeds = data.sizes["seed"]
    spread = stats.t.ppf(0.975, num_seeds - 1)
    usual = best.sel(strength=0.0).isel(point=0)
    half = spread * stats.sem(usual)
    panel.axhspan(usual.mean() - half, usual.mean() + half, color="0.85", linewidth=0)
    panel.axhline(usual.mean(), color="black", linewidth=1.2, label="usual (β, γ), not annealed")
    x, shades = data.C[1:], mappable.to_rgba(data.C[1:])
    for marker, strength in zip(MARKERS, data.strength.values, strict=False):
        loss = best.sel(strength=strength).isel(point=slice(1, None)).transpose("point", "seed")
        mean, half = loss.mean("seed"), spread * stats.sem(loss, axis=1)
        panel.vlines(x, mean - half, mean + half, color="0.4", linewidth=0.9)
        panel.plot(x, mean, color="0.6", linewidth=0.8, zorder=1)
        panel.scatter(x, mean, c=shades, marker=marker, s=32, **plotting.DOT)
        panel.plot([], [], marker, color="0.5", label=f"s = {strength:g}")
    panel.set(xlabel="C(β, γ)", ylabel="lowest test loss (nats/token)")
    panel.locator_params(axis="x", nbins=6)
    panel.legend(loc="best")
    return f"lowest test loss in {data.evaluation[-1]:d} steps"


def _points(panel: axes.Axes, data: xr.Dataset, mappable) -> str:
    b1 = np.linspace(data.b1.min().item(), 1)
    panel.plot(b1 / (2 - b1), b1, ":", color="black", label="C = 0")
    panel.scatter(data.b2, data.b1, c=mappable.to_rgba(data.C), s=32, **plotting.DOT)
    panel.set(xlabel="β (b2)", ylabel="γ (b1)", xlim=(0.94, 1.002))
    panel.legend(loc="best")
    return "the points"
