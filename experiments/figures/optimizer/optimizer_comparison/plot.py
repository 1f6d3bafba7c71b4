"""Plots that compare optimizers."""

import numpy as np
import xarray as xr
from matplotlib import axes, figure

from experiments.core import plot as plotting
from experiments.figures.optimizer.plot import (
    OPTIMIZERS,
    interval_row,
    legend_on_top,
    losses_by_rate,
    style_of,
)

LEVEL = 0.05
LINEAR = 0.1
"""Gains beyond this are drawn on a logarithmic axis."""
TICKS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
ABOVE = 0.4
"""Nats above the highest chosen validation loss that are drawn."""


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw gains over AdamW and test losses; then validation losses by learning rate."""
    order = dataset.mean_test.sel(end="value").fillna(np.inf).argsort().values
    data = dataset.isel(arm=order)
    height = 0.21 * data.sizes["arm"] + 1
    canvas, grid = plotting.canvas(5.6, 2 * height, nrows=2, sharey=True)
    plotting.draw_panels(grid, data, (_gains, _tests))
    mark = {"color": "0.3", "marker": "o", "linestyle": "none"}
    marks = {f"Holm: p < {LEVEL:g}": mark, f"Holm: p ≥ {LEVEL:g}": mark | {"fillstyle": "none"}}
    legend_on_top(canvas, marks, "η, γ, β or λ at an end" if data.at_edge.any() else "")
    canvas.supxlabel(dataset.attrs["note"], fontsize=8, wrap=True)
    return {"": canvas, "rates": _rates(dataset)}


def _each(data: xr.Dataset):
    """Yield arms one by one, with their styles."""
    for place in range(data.sizes["arm"]):
        arm = data.isel(arm=place)
        yield place, arm, *style_of(arm.arm.item())


def _rows(panel: axes.Axes, data: xr.Dataset) -> None:
    """Label the rows, the best on top, and mark k-Adam's pick."""
    names = [
        label + (" (picked)" if arm.optimizer.item() == "kadam" and arm.picked else "")
        for _, arm, label, *_ in _each(data)
    ]
    plotting.label_rows(panel, names, fontsize=8)
    panel.grid(axis="x", linewidth=0.3)


def _gains(panel: axes.Axes, data: xr.Dataset) -> str:
    for row, arm, _, color, marker in _each(data):
        fill = "full" if arm.arm.item() == "adamw" or arm.p_value < LEVEL else "none"
        style = {"fmt": marker, "color": color, "fillstyle": fill, "markersize": 5, "capsize": 2}
        interval_row(panel, row, arm.gain, arm.at_edge.any(), **style)
    panel.axvline(0, color=OPTIMIZERS["adamw"][1], linestyle=":", linewidth=0.8)
    panel.set_xscale("symlog", linthresh=LINEAR)
    panel.set_xticks([sign * size for size in TICKS for sign in (-1, 1)] + [0])
    panel.xaxis.set_major_formatter("{x:g}")
    panel.minorticks_off()
    _rows(panel, data)
    panel.set(xlabel="test loss of AdamW minus the arm's (nats per token)", ylabel="arm")
    ends = data.gain.values[np.isfinite(data.gain.values)]
    panel.set_xlim(1.2 * min(-LINEAR, ends.min(initial=0)), 1.2 * max(LINEAR, ends.max(initial=0)))
    return f"gain over tuned AdamW, {data.sizes['seed']} fresh seeds"


def _tests(panel: axes.Axes, data: xr.Dataset) -> str:
    for row, arm, _, color, _ in _each(data):
        panel.plot(arm.test, np.full(arm.test.size, row), "|", color=color, ms=7, mew=0.7)
        mean = arm.mean_test.sel(end="value")
        panel.plot(mean, row, "o", color=color, markersize=5, markeredgecolor="white", mew=0.7)
    _rows(panel, data)
    panel.set(xlabel="test loss (nats per token)", ylabel="arm")
    return "test loss of each seed, and their mean"


def _rates(data: xr.Dataset) -> figure.Figure:
    """Draw validation loss versus learning rate: each optimizer as tuned; k-Adam."""
    canvas, (first, second) = plotting.canvas(5.6, 9.2, nrows=2)
    _losses_by_rate(first, data.isel(arm=data.picked.values), settings=True)
    first.set_title("(a) each optimizer as tuned: γ, β, λ", loc="left")
    usual = data.sel(arm="adamw").isel(setting=0)
    _, color, _ = OPTIMIZERS["adamw"]
    loss = usual.validation.where(np.isfinite(usual.validation))
    second.plot(usual.rate, loss, ":", color=color, label=f"AdamW: {_setting(usual)}")
    _losses_by_rate(second, data.isel(arm=(data.optimizer == "kadam").values), settings=False)
    second.set_title("(b) k-Adam, every k and strategy", loc="left")
    return canvas


def _losses_by_rate(panel: axes.Axes, data: xr.Dataset, *, settings: bool) -> None:
    """Draw each arm at its own setting, which the legend can give; the chosen rate is filled."""
    chosen = []
    for _, arm, label, color, marker in _each(data):
        arm = arm.isel(setting=int(arm.picked_setting))
        loss = arm.validation.where(np.isfinite(arm.validation))
        at = int(arm.picked_place)
        dashed = arm.optimizer.item() == "kadam" and arm.arm.item().endswith("_3")
        name = f"{label}: {_setting(arm)}" if settings else label
        line = "--" if dashed else "-"
        losses_by_rate(panel, arm.rate, loss, at, color, marker, linestyle=line, label=name)
        if arm.at_edge.sel(axis="rate"):
            panel.plot(arm.rate[at], loss[at], color=color, **plotting.RING)
        chosen.append(loss[at].item())
    panel.set(
        xscale="log", xlabel="learning rate η", ylabel="validation loss, one seed (nats per token)"
    )
    if np.isfinite(chosen).any():
        panel.set_ylim(np.nanmin(chosen) - 0.05, np.nanmax(chosen) + ABOVE)
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)


def _setting(arm: xr.Dataset) -> str:
    """Return γ, β and λ as text."""
    return ", ".join(f"{arm[name].item():.4g}" for name in ("b1", "b2", "weight_decay"))
