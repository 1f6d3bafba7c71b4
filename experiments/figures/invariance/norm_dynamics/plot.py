"""Plots of ‖W‖² of queries and keys (Fig. 5 and its checks)."""

import json
import re

import numpy as np
import xarray as xr
from matplotlib import axes, colormaps, figure

from experiments.core import plot as plotting

FORMS = {
    "true": ("true", {"color": "black"}),
    "theorem": ("Theorem 2", {"color": "tab:red", "linestyle": "--"}),
    "corrected": ("Theorem 2, growth × (1+γ)/(1-γ)", {"color": "tab:blue", "linestyle": "-."}),
    "full": ("full form, with -2⟨W,u⟩", {"color": "tab:green", "linestyle": ":"}),
}
"""The label and line of each prediction of ‖W‖²."""
FLOW_FORMS = {
    "theorem": ("Theorem 2", {"color": "tab:red", "marker": "o"}),
    "full": ("full form, with -2⟨W,u⟩", {"color": "tab:green", "marker": "s"}),
    "velocity": ("full form, ‖dW/dt‖² instead of ‖u‖²", {"color": "tab:purple", "marker": "^"}),
}
DECAYS = ("-", "--")
"""Lines for λ = 0 and λ > 0 where both are in one panel."""
COLORS = "tab20"


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw the paper's panel and its checks; then every slice."""
    canvas, grid = plotting.canvas(14, 8, nrows=2, ncols=3)
    panels = (
        lambda panel, data: _trajectories(panel, data.isel(decay=0)),
        lambda panel, data: _trajectories(panel, data.isel(decay=1)),
        _errors,
        _momentum,
        _flow,
        _memory,
    )
    plotting.draw_panels(grid, dataset, panels)
    return {"": canvas, "slices": _slices(dataset)}


def _trajectories(panel: axes.Axes, data: xr.Dataset) -> str:
    first = data.isel(seed=0)
    colors = colormaps[COLORS].colors
    for place in range(first.sizes["slice"]):
        color = colors[place % len(colors)]
        for form, style in (("true", "-"), ("theorem", "--")):
            panel.plot(first.step, first[form][place], style, color=color, linewidth=1)
    for label, style in (("true", "-"), ("Theorem 2", "--")):
        panel.plot([], [], style, color="0.3", label=label)
    panel.set(xlabel="step n", ylabel="‖W‖²", ylim=(0, None))
    plotting.legend_above(panel, 0.2, loc="upper left", ncols=2)
    return f"{first.sizes['slice']} query and key matrices, λ = {data.weight_decay:g}"


def _errors(panel: axes.Axes, data: xr.Dataset) -> str:
    later = data.isel(step=slice(1, None))
    for form, (label, style) in list(FORMS.items())[1:]:
        error = abs(later[form] / later.true - 1).mean("slice")
        for place, line in enumerate(DECAYS):
            drawn = {"color": style["color"], "linestyle": line}
            plotting.seed_band(panel, later.step, error.isel(decay=place), "mean", **drawn)
        panel.plot([], [], color=style["color"], label=label)
    for line, decay in zip(DECAYS, data.decay.values, strict=True):
        panel.plot([], [], color="0.3", linestyle=line, label=decay)
    panel.set(yscale="log", xlabel="step n", ylabel="relative error of ‖W‖²")
    if rounded := re.search(r"(\d+) bits", data.attrs.get("rounded", "")):
        precision = 2.0 ** -int(rounded[1])
        panel.set_ylim(precision / 8, None)
        panel.axhspan(0, precision, color="0.9", zorder=0, label="below the stored precision")
    plotting.legend_above(panel, 0.35, loc="upper left", ncols=2)
    return "relative error, mean and range over seeds"


def _momentum(panel: axes.Axes, data: xr.Dataset) -> str:
    ratio = data.growth_ratio.median("slice")
    b1 = np.linspace(0, data.b1.max().item())
    panel.plot(b1, (1 + b1) / (1 - b1), color="tab:blue", linestyle="-.", label="(1+γ)/(1-γ)")
    panel.axhline(1, color="tab:red", linestyle="--", label="Theorem 2")
    style = {"color": "black", "marker": "o", "label": "true, range over seeds"}
    plotting.seed_dots(panel, data.b1, ratio, "mean", markersize=4, **style)
    panel.set(yscale="log", xlabel="γ (b1)", ylabel="growth of ‖W‖² over Theorem 2's")
    panel.legend(loc="upper left")
    return f"growth over {data.step[-1]:d} steps, λ = 0"


def _flow(panel: axes.Axes, data: xr.Dataset) -> str:
    for form, (label, style) in FLOW_FORMS.items():
        error = abs(data.flow_growth.sel(form=form).median("flow_slice") - 1)
        style = {"label": label, "bar": style["color"], "markersize": 4, **style}
        plotting.seed_dots(panel, data.flow_b1, error, "mean", **style)
    for tolerance in (0.01, 0.05):
        panel.axhline(tolerance, color="0.8", linewidth=0.8, zorder=0)
    panel.set(yscale="log", xlabel="γ (b1)", ylabel="relative error of the growth of ‖W‖²")
    plotting.legend_above(panel, 0.3, loc="upper left")
    return f"on the flow, where ‖W‖² grew by {data.flow_smallest_share:.0%} or more"


def _memory(panel: axes.Axes, data: xr.Dataset) -> str:
    rate = json.loads(data.attrs["config"])["learning_rate"]
    for place, line in enumerate(DECAYS):
        memory = data.memory.isel(decay=place).median("slice")
        style = {"color": "black", "linestyle": line, "label": f"{data.decay.values[place]}"}
        plotting.seed_band(panel, data.step, memory, "mean", **style)
        expected = np.exp(-2 * data.weight_decay[place] * rate * data.step)
        label = "exp(-2ληn)" if place else None
        panel.plot(data.step, expected, color="tab:orange", linestyle=":", label=label)
    panel.set(xlabel="step n", ylabel="remaining share of a difference in ‖W₀‖²", ylim=(0, 1.4))
    panel.legend(loc="upper left", ncols=3)
    return "a sum remembers, an average forgets"


def _slices(data: xr.Dataset) -> figure.Figure:
    """Draw small multiples as in the paper, for both decays, relative to ‖W_0‖²."""
    shared = {"sharex": True, "sharey": True}
    canvas, panels = plotting.small_multiples(data.sizes["slice"], 4, 11, 2.1, **shared)
    first = data.isel(seed=0)
    relative = first[list(FORMS)] / first.true.isel(step=0)
    for place, panel in enumerate(panels):
        for form, (label, style) in FORMS.items():
            for decay in range(2):
                line = relative[form].isel(decay=decay, slice=place)
                panel.plot(data.step, line, label=label if decay == 0 else None, **style)
        head, kind = divmod(data.slice.values[place].item(), 2)
        panel.set_title(f"{('query', 'key')[kind]} of head {head}", loc="left")
        panel.set(xlabel="step n", ylabel="‖W‖² / ‖W₀‖²")
        panel.label_outer()
    plotting.legend_below(canvas, panels[0])
    return canvas
