"""Plots of the max-update along a normal curve (Fig. 3 and its checks)."""

import json
from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from matplotlib import cm, figure

from experiments.core import plot as plotting
from experiments.figures.stability.plot import UPDATES, curves, points, shading

KINDS = {"half_C": (":", "s", "|C|/2"), "exact": ("--", "o", "ln(γ/√β)")}
"""Line, marker and name of the predicted rates."""
ZOOM = 400
"""Last step of the close-up."""


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw the paper's panels, the first steps and dead gradients; then a page of checks."""
    mappable = shading(dataset.C, dataset.C[1:].max().item())
    pages = {
        "": (_whole, _beginning, _slopes, _plane, _dead_share, _loss),
        "checks": (_relation, _ratios, _larger_eps, _float32),
    }
    return {suffix: _page(dataset, mappable, panels) for suffix, panels in pages.items()}


def _page(
    data: xr.Dataset, mappable: cm.ScalarMappable, panels: Sequence[plotting.Draw]
) -> figure.Figure:
    num_columns = len(panels) // 2
    canvas, grid = plotting.canvas(4.3 * num_columns + 1, 7.4, nrows=2, ncols=num_columns)
    plotting.draw_panels(grid, data, panels, mappable)
    canvas.colorbar(mappable, ax=grid, label="C(β, γ)", aspect=45, extend="max")
    return canvas


def _whole(panel, data, mappable):
    curves(panel, data.step, data.max_update, mappable.to_rgba(data.C))
    _bounds(panel, data)
    return "max-update"


def _beginning(panel, data, mappable):
    first = data.isel(step=slice(ZOOM + 1))
    _whole(panel, first, mappable)
    return f"max-update, n ≤ {first.step[-1]:d}"


def _bounds(panel, data) -> None:
    """Draw both bounds at the usual point and at two points with C < 0."""
    points = (0, *data.contrast.values)
    for point in points:
        for kind, style in (("paper", ":"), ("exact", "--")):
            bound = np.exp(data[f"log_{kind}_bound"][point])
            panel.plot(data.step, bound, style, color="black", linewidth=0.9)
    styles = {
        "trained, median over seeds": {"color": "0.5"},
        f"exact bound, {len(points)} points": {"color": "black", "linestyle": "--"},
        "Theorem 1, the same points": {"color": "black", "linestyle": ":"},
    }
    panel.set(**UPDATES)
    plotting.legend_of(panel, styles, loc="upper left")


def _slopes(panel, data, mappable):
    near = data.isel(point=slice(1, None))  # the usual point is far to the right
    for kind, (style, _, name) in KINDS.items():
        value, low, high = data.fit.sel(kind=kind, quantity="coefficient").values
        label = f"{name}; fit of C < 0: {value:.2f} [{low:.2f}, {high:.2f}] times it"
        panel.plot(near.C, near.rate.sel(kind=kind).clip(min=0), style, color="black", label=label)
    for window, marker, size in (("late", "^", 70), ("early", "o", 22)):
        slope = near.slope.sel(window=window)
        shades = mappable.to_rgba(near.C)
        plotting.seed_dots(panel, near.C, slope, c=shades, s=size, marker=marker)
        if slope.notnull().any():
            panel.plot([], [], marker, color="0.5", label=_steps(data, window))
    panel.axvline(0, color="0.8", linewidth=0.8, zorder=0)
    top = near.rate.max().item()
    panel.set(xlabel="C(β, γ)", ylabel="slope of ln‖uₙ‖∞ (1/step)", ylim=(-0.4 * top, 1.15 * top))
    plotting.legend_above(panel, 0.4, loc="upper right")
    return "slope, median and range over seeds"


def _plane(panel, data, mappable):
    panel.plot(data.curve_b2, data.curve_b1, color="0.6", linewidth=0.8, label="normal curve")
    points(panel, data, mappable.to_rgba(data.C))
    return "points on the normal curve"


def _dead_share(panel, data, mappable):
    curves(panel, data.step, _smooth(data.dead_share), mappable.to_rgba(data.C))
    panel.set(xlabel="step n", ylabel="share of gradient entries", ylim=(0, None))
    return "dead gradients, |g| < 0.001 of their own r.m.s."


def _loss(panel, data, mappable):
    curves(panel, data.step, _smooth(data.loss), mappable.to_rgba(data.C))
    panel.set(xlabel="step n", ylabel="loss (nats/token)", yscale="log")
    return "training loss"


def _smooth(values: xr.DataArray) -> xr.DataArray:
    """Return a running median over a fortieth of the run."""
    return values.rolling(step=max(1, values.sizes["step"] // 40), center=True).median()


def _relation(panel, data, mappable):
    unstable = data.isel(point=data.C.values < 0)
    slope = unstable.slope.sel(window="early")
    for kind, (style, marker, name) in KINDS.items():
        rate = unstable.rate.sel(kind=kind)
        plotting.seed_dots(panel, rate, slope, c=mappable.to_rgba(unstable.C), marker=marker)
        (coefficient, low, high), (intercept, _, _) = data.fit.sel(kind=kind).values
        label = f"{coefficient:.3f} [{low:.3f}, {high:.3f}] · {name} {intercept:+.4f}"
        panel.plot(rate, coefficient * rate + intercept, style, color="black", label=label)
        panel.plot([], [], marker, color="0.5", label=f"measured, against {name}")
    panel.plot(rate, rate, color="0.6", linewidth=0.8, label="equal")
    panel.set(xlabel="predicted rate (1/step)", ylabel="slope of ln‖uₙ‖∞ (1/step)")
    panel.legend(loc="upper left")
    panel.locator_params(axis="x", nbins=6)
    return f"fits where C < 0, {_steps(data, 'early')} [95% intervals]"


def _ratios(panel, data, mappable):
    unstable = data.isel(point=data.C.values < 0)
    places = iter(0.012 * np.ptp(data.C[1:].values) * np.array([-1.5, -0.5, 0.5, 1.5]))
    for kind, (_, marker, name) in KINDS.items():
        for window, fill in (("early", "none"), ("late", "full")):
            ratio = unstable.slope.sel(window=window) / unstable.rate.sel(kind=kind)
            x = unstable.C + next(places)
            style = {"marker": marker, "color": "black", "markersize": 5, "fillstyle": fill}
            label = f"over {name}, {_steps(data, window)}"
            plotting.seed_dots(panel, x, ratio, label=label, **style)
    panel.axhline(1, color="0.6", linewidth=0.8, zorder=0)
    panel.set(xlabel="C(β, γ)", ylabel="slope over predicted rate", ylim=(0, 1.15))
    panel.locator_params(axis="x", nbins=6)
    plotting.legend_above(panel, 0.35, loc="upper left", fontsize=7)
    return "slope over each prediction"


def _larger_eps(panel, data, mappable):
    label = f"ε = {_config(data)['contrast_eps']:g}"
    return _contrast(panel, data, mappable, "contrast_eps", label)


def _float32(panel, data, mappable):
    return _contrast(panel, data, mappable, "contrast_float32", "float32 second moment")


def _contrast(panel, data, mappable, name: str, label: str) -> str:
    shades, step = mappable.to_rgba(data.C[data.contrast]), data.contrast_step
    curves(panel, step, data.contrast_stored, shades)
    curves(panel, step, data[name], shades, linestyle="--")
    styles = {
        f"r.m.s. stored, ε = {_config(data)['eps']:g}": {"color": "0.5"},
        label: {"color": "0.5", "linestyle": "--"},
    }
    panel.set(**UPDATES)
    plotting.legend_of(panel, styles, loc="upper left")
    return f"what breaks it: {label}"


def _config(data: xr.Dataset) -> Mapping[str, float]:
    return json.loads(data.attrs["config"])


def _steps(data: xr.Dataset, window: str) -> str:
    first, last = data.window_ends.sel(window=window).values
    return f"{first} ≤ n ≤ {last}"
