"""Plots of k-Adam's losses versus the noise that it is trained with."""

import matplotlib
import numpy as np
import xarray as xr
from matplotlib import axes, figure, ticker

from experiments.core import plot as plotting
from experiments.figures.optimizer.noise_robustness.contrasts import along
from experiments.figures.optimizer.plot import legend_on_top

ADAM = ("tab:red", "*")
MARKERS = "osD^vPX"
KINDS = {
    "batch": ("small batches", "batch size"),
    "gradient_noise": ("noise in the gradients", "noise over gradient (root mean squares)"),
    "label_noise": ("wrong labels", "share of labels replaced"),
}
"""Name of each kind of noise, and the label of its axis."""
DODGE = 0.08


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw losses, minus Adam's and in full, for each noise; then losses by learning rate."""
    canvas, grid = plotting.canvas(10.2, 6.4, nrows=2, ncols=3, sharey="row", sharex="col")
    rivals = dataset.isel(k=slice(1, None))
    for column, (axis, (kind, what)) in enumerate(KINDS.items()):
        less_adams, losses = grid[:, column]
        _over_noise(less_adams, dataset, axis, rivals.excess)
        _over_noise(losses, dataset, axis, dataset.mean_test)
        less_adams.axhline(0, color=ADAM[0], linestyle=":", linewidth=0.9)
        less_adams.set_title(f"({'abc'[column]}) {kind}, minus Adam's", loc="left")
        losses.set_title(f"({'def'[column]}) {kind}", loc="left")
        losses.set_xlabel(what)
    grid[0, 0].set_ylabel("test loss minus Adam's (nats per token)")
    grid[1, 0].set_ylabel("test loss (nats per token)")
    styles = {
        _name(k): {"color": color, "marker": marker, "markersize": _size(k)}
        for k, (color, marker) in _styles(dataset).items()
    }
    edge = "learning rate at an end of its grid" if dataset.rate_at_edge.any() else ""
    legend_on_top(canvas, styles, edge)
    return {"": canvas, "rates": _rates(dataset)}


def _name(k: int) -> str:
    return "Adam (k = 1)" if k == 1 else f"k = {k}"


def _size(k: int) -> int:
    return 9 if k == 1 else 4


def _styles(data: xr.Dataset) -> dict[int, tuple]:
    """Return color and marker of every k, lighter for larger k."""
    first, *others = data.k.values.tolist()
    colors = matplotlib.colormaps["viridis"](np.linspace(0.1, 0.8, len(others)))
    marks = [MARKERS[place % len(MARKERS)] for place in range(len(others))]
    return {first: ADAM} | dict(zip(others, zip(colors, marks, strict=True), strict=True))


def _over_noise(panel: axes.Axes, data: xr.Dataset, axis: str, values: xr.DataArray) -> None:
    """Draw the values of some k from the least noise up, evenly spaced, one k next to another."""
    places = along(data, axis)
    styles = _styles(data)
    for column, k in enumerate(data.k.values.tolist()):
        if k not in values.k:
            continue
        color, marker = styles[k]
        x = np.arange(len(places)) + DODGE * (column - (data.sizes["k"] - 1) / 2)
        ends = values.sel(k=k).isel(condition=places).transpose("end", "condition").values
        style = {"color": color, "marker": marker, "linewidth": 0.9, "capsize": 2}
        plotting.intervals(panel, x, ends, markersize=_size(k), **style)
        at_edge = data.rate_at_edge.sel(k=k).values[places]
        panel.plot(x[at_edge], ends[0, at_edge], color=color, **plotting.RING)
    ticks = [f"{x:g}" for x in data[axis].values[places]]
    panel.set_xticks(range(len(places)), ticks)
    panel.set_xlim(-0.5, len(places) - 0.5)


def _rates(data: xr.Dataset) -> figure.Figure:
    """Draw validation loss versus learning rate, with a panel for each condition."""
    num_conditions = data.sizes["condition"]
    num_columns = -(-num_conditions // 2)
    canvas, panels = plotting.small_multiples(num_conditions, num_columns, 2.6 * num_columns, 2.5)
    for condition, panel in zip(data.condition.values, panels, strict=True):
        at = data.sel(condition=condition)
        for k, (color, marker) in _styles(data).items():
            style = {"marker": marker, "markersize": _size(k) - 1, "linewidth": 0.9}
            panel.plot(at.rate, at.validation.sel(k=k), color=color, label=_name(k), **style)
            panel.axvline(at.chosen_rate.sel(k=k), ymax=0.06, color=color, linewidth=1.5)
        _zoom(panel, at.validation)
        panel.set_title(_condition(at), loc="left")
        panel.set_xscale("log")
        panel.xaxis.set_minor_formatter(ticker.NullFormatter())
    canvas.supxlabel("learning rate", fontsize=9)
    canvas.supylabel("validation loss (nats per token)", fontsize=9)
    canvas.legend(
        handles=panels[0].get_lines()[::2], loc="outside upper center", ncols=data.sizes["k"]
    )
    return canvas


def _condition(at: xr.Dataset) -> str:
    parts = [f"batch {at.batch.item()}"]
    if at.gradient_noise > 0:
        parts.append(f"gradient noise {at.gradient_noise.item():g}")
    if at.label_noise > 0:
        parts.append(f"label noise {at.label_noise.item():g}")
    return ", ".join(parts)


def _zoom(panel: axes.Axes, losses: xr.DataArray) -> None:
    """Zoom to the lower four fifths: the others have diverged or hardly begun."""
    finite = losses.values[np.isfinite(losses.values)]
    if finite.size and np.ptp(finite) > 0:
        low, high = finite.min(), np.quantile(finite, 0.8)
        panel.set_ylim(low - 0.15 * (high - low), high)  # room for the marks of the chosen rates
