"""Plots of trajectories of Adam and of its continuous-time model (Fig. 1 and its checks)."""

import json
from types import SimpleNamespace

import numpy as np
import xarray as xr
from matplotlib import axes, figure
from matplotlib.ticker import NullFormatter

from experiments.core import plot as plotting

PROCESSES = {
    "discrete": ("discrete", {"color": "black"}),
    "paper": ("flow, paper's bias correction", {"color": "tab:red", "linestyle": "--"}),
    "self-consistent": ("flow, self-consistent", {"color": "tab:blue", "linestyle": ":"}),
}
"""Labels and lines where each parameter has a panel."""
FLOWS = {"paper": ("paper's bias correction", "-"), "self-consistent": ("self-consistent", "--")}
"""Labels and lines where colors tell learning rates apart."""
AT = {"steps": ("o", "tab:red"), "time": ("s", "tab:blue")}
"""Markers and colors by the quantity that is equal between learning rates."""
EARLY_STEPS = 30


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw the paper's panel and its checks; then every drawn parameter."""
    canvas, grid = plotting.canvas(14, 8, nrows=2, ncols=3)
    panels = (_paper, _smallest, _errors, _orders, _solvers, _early)
    plotting.draw_panels(grid, dataset, panels)
    return {"": canvas, "parameters": _parameters(dataset)}


def _settings(data: xr.Dataset) -> SimpleNamespace:
    return SimpleNamespace(**json.loads(data.attrs["config"]))


def _paper(panel: axes.Axes, data: xr.Dataset) -> str:
    return _trajectories(panel, data, _settings(data).learning_rate)


def _smallest(panel: axes.Axes, data: xr.Dataset) -> str:
    return _trajectories(panel, data, data.learning_rate.values[0])


def _trajectories(panel: axes.Axes, data: xr.Dataset, rate: float) -> str:
    first = data.sel(learning_rate=rate, step=slice(data.solver_step[-1])).isel(seed=0)
    colors = plotting.matplotlib.colormaps["tab20"].colors
    for place in range(first.sizes["parameter"]):
        for process, style in (("discrete", "-"), ("paper", "--")):
            line = first.moved.sel(process=process).isel(parameter=place)
            panel.plot(first.step, line, style, color=colors[place % len(colors)], linewidth=1)
    panel.set(xlabel="step n = t/η", ylabel="θ - θ₀")
    panel.plot([], [], "-", color="0.3", label="discrete")
    panel.plot([], [], "--", color="0.3", label="flow, paper's bias correction")
    plotting.legend_above(panel, 0.12, loc="upper left", ncols=2)
    return f"{first.sizes['parameter']} parameters, η = {rate:g}"


def _errors(panel: axes.Axes, data: xr.Dataset) -> str:
    later = data.error.isel(step=slice(1, None))
    measured = later.sel(group="all")
    for flow, (label, line) in FLOWS.items():
        _by_rate(panel, measured.sel(flow=flow), line, label)
    outside = later.sel(group="rest", flow="paper")
    _by_rate(panel, outside, ":", "paper's, outside the embedding")
    _rate_labels(panel, data)
    panel.set(xscale="log", yscale="log", xlabel="step n", ylabel="relative error")
    plotting.legend_above(panel, 0.2, loc="upper right", ncols=2, fontsize=7)
    return "‖θ_discrete - θ_flow‖ / ‖θ_flow - θ₀‖"


def _orders(panel: axes.Axes, data: xr.Dataset) -> str:
    rates = data.learning_rate.values
    for at, (marker, color) in AT.items():
        first = data.steps.sel(at=at)[0].item()
        which = f"N = {first}" if at == "steps" else f"Nη = {first * rates[0]:g}"
        for flow, (label, line) in FLOWS.items():
            by_seed = data.compared.sel(at=at, flow=flow, group="all")
            order = data.order.sel(at=at, flow=flow, group="all").median().item()
            face = color if flow == "paper" else "white"
            shift = 1.03 if at == "time" else 1.0
            style = {"color": color, "bar": color, "linestyle": line, "marker": marker}
            style |= {"markerfacecolor": face, "markersize": 5}
            label = f"{which}, {label}: slope {order:.2f}"
            plotting.seed_dots(panel, shift * rates, by_seed, label=label, **style)
    lowest = 0.7 * data.compared.sel(group="all").min().item()
    panel.plot(rates, lowest * rates / rates[0], color="0.7", label="slope 1")
    panel.set(xscale="log", yscale="log", xlabel="learning rate η", ylabel="relative error")
    panel.set_xticks(rates, [f"{rate:g}" for rate in rates])
    panel.xaxis.set_minor_formatter(NullFormatter())
    plotting.legend_above(panel, 0.4, loc="upper left", fontsize=7)
    return "dependence on η, median and range over seeds"


def _solvers(panel: axes.Axes, data: xr.Dataset) -> str:
    settings, later = _settings(data), slice(1, None)
    discrete = data.error.sel(group="all", flow="paper", learning_rate=settings.learning_rate)
    discrete = discrete.sel(step=data.solver_step.values).isel(step=later)
    plotting.seed_band(panel, discrete.step, discrete, color="black", label="discrete run")
    n = data.solver_step[later]
    colors = _colors("plasma", data.sizes["substeps"], 0.1, 0.8)
    for by_seed, color in zip(data.euler_error[..., later], colors, strict=True):
        style = {"color": color, "label": f"Euler, K = {by_seed.substeps:d}"}
        plotting.seed_band(panel, n, by_seed, **style)
    style = {"label": f"exponential, {settings.substeps} substeps", "linestyle": "--"}
    plotting.seed_band(panel, n, data.exponential_error[:, later], color="tab:green", **style)
    panel.set(yscale="log", xlabel="step n", ylabel="distance to the reference, relative")
    plotting.legend_above(panel, 0.2, loc="upper right", ncols=3, fontsize=7)
    return f"solvers, η = {settings.learning_rate:g}"


def _early(panel: axes.Axes, data: xr.Dataset) -> str:
    early = data.distance.sel(step=slice(EARLY_STEPS))
    for flow, (label, line) in FLOWS.items():
        _by_rate(panel, early.sel(flow=flow), line, label)
    _rate_labels(panel, data)
    panel.set(xlabel="step n", ylabel="root mean square of θ_discrete - θ_flow, in η")
    panel.set_ylim(bottom=0)
    plotting.legend_above(panel, 0.2, loc="upper left", ncols=2, fontsize=7)
    return "the first steps"


def _colors(name: str, num: int, first: float, last: float) -> list[tuple[float, ...]]:
    return list(map(tuple, plotting.matplotlib.colormaps[name](np.linspace(first, last, num))))


def _by_rate(panel: axes.Axes, values: xr.DataArray, line: str, label: str) -> None:
    """Draw medians and ranges over seeds, a color for each learning rate."""
    for by_seed, color in zip(values, _rate_colors(values), strict=True):
        plotting.seed_band(panel, by_seed.step, by_seed, color=color, linestyle=line)
    panel.plot([], [], line, color="0.3", label=label)


def _rate_colors(data: xr.Dataset | xr.DataArray) -> list[tuple[float, ...]]:
    return _colors("viridis", data.sizes["learning_rate"], 0.85, 0)


def _rate_labels(panel: axes.Axes, data: xr.Dataset) -> None:
    for rate, color in zip(data.learning_rate.values, _rate_colors(data), strict=True):
        panel.plot([], [], color=color, label=f"η = {rate:g}")


def _parameters(data: xr.Dataset) -> figure.Figure:
    """Draw small multiples of one seed, each on its own scale."""
    canvas, panels = plotting.small_multiples(data.sizes["parameter"], 4, 11, 2.1, sharex=True)
    first = data.sel(learning_rate=_settings(data).learning_rate).isel(seed=0)
    for place, panel in enumerate(panels):
        for process, (label, style) in PROCESSES.items():
            line = first.moved.sel(process=process).isel(parameter=place)
            panel.plot(data.step, line, label=label, **style)
        panel.set_title(str(data.leaf.values[place]), loc="left")
        panel.set(xlabel="step n = t/η", ylabel="θ - θ₀")
        panel.label_outer()
        panel.tick_params(labelleft=True)
    plotting.legend_below(canvas, panels[0])
    return canvas
