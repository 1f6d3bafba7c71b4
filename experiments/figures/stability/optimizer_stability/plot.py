"""Plots of the worst cases of optax's optimizers."""

import textwrap

import numpy as np
import xarray as xr
from matplotlib import axes, figure

from experiments.core import plot as plotting

ENDS = 0.003, 1e6
"""Updates that are drawn by number of gradients."""
SEARCHED = 0.2, 100
"""Updates that are drawn in place; values beyond are written at the ends."""
BLANK = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
"""The box that hides a line of the grid under a number."""


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw suprema, growth and lower bounds, above a table of optimizers without any of these."""
    exact, lower, others = (
        dataset.isel(optimizer=(dataset.kind == kind).values)
        for kind in ("exact", "lower bound", "not applicable")
    )
    text = _table(others)
    canvas, grid = plotting.canvas(
        11.6, 4.6 + 0.16 * len(text.splitlines()), ncols=3, width_ratios=(5, 3, 4)
    )
    for place, (panel, data, draw) in enumerate(
        zip(grid, (exact, exact, lower), (_suprema, _growth, _lower_bounds), strict=True)
    ):
        panel.set_title(f"({'abc'[place]}) {draw(panel, data)}", loc="left")
    if text:
        canvas.supxlabel(text, x=0.02, ha="left", fontsize=8)
    return {"": canvas}


def _table(data: xr.Dataset) -> str:
    """Return lines "reason: optimizers"."""
    names: dict[str, list[str]] = {}
    for name, reason in zip(data.optimizer.values, data.reason.values, strict=True):
        names.setdefault(str(reason), []).append(str(name))
    lines = [f"{reason}: {', '.join(those)}" for reason, those in names.items()]
    return "\n".join(["Not applicable", *(textwrap.fill(x, 150) for x in lines)]) if lines else ""


def _suprema(panel: axes.Axes, data: xr.Dataset) -> str:
    """Draw a line for each set of optimizers whose suprema are equal."""
    equal: dict[bytes, list[int]] = {}
    for place, values in enumerate(data.supremum.values):
        equal.setdefault(np.round(np.log(values), 9).tobytes(), []).append(place)
    for number, places in enumerate(equal.values()):
        row = data.isel(optimizer=places[0])
        color = f"C{number % 10}"
        label = ", ".join(data.optimizer.values[places])
        panel.plot(data.length, row.supremum, color=color, label=label)
        attained = row.attained.where(row.supremum < ENDS[1])
        panel.plot(data.length, attained, "o", color=color, markersize=3.5)
    panel.set(xscale="log", yscale="log", ylim=ENDS)
    panel.set(xlabel="number N of gradients", ylabel="largest |u| (learning rates)")
    panel.legend(loc="lower right", fontsize=7, ncols=2)
    return "exact suprema (lines), attained (dots)"


def _growth(panel: axes.Axes, data: xr.Dataset) -> str:
    data = data.isel(optimizer=np.argsort(-data.growth.values, kind="stable"))
    stops = np.isneginf(data.growth.values)
    finite = data.growth.where(~stops, 0)
    rows = np.arange(data.sizes["optimizer"])
    colors = np.where(finite > 0, "tab:red", "tab:blue")
    panel.barh(rows, finite, color=colors, height=0.6)
    left = min(finite.min().item(), 0)
    for row in rows[stops]:
        panel.text(left, row, "stop at once", va="center", fontsize=7, color="0.4")
    for row in rows[~stops]:
        panel.text(
            0, row, f" {finite.values[row]:+.4f} ", va="center", fontsize=7,
            ha="left" if finite.values[row] < 0 else "right",
        )  # fmt: skip
    panel.axvline(0, color="0.3", linewidth=0.8)
    plotting.label_rows(panel, data.optimizer.values, fontsize=8)
    largest = max(finite.max().item(), 0)  # leaves room for the number of a bar to its left
    panel.set(xlabel="slope of ln|u| (1/step)", xlim=(1.05 * left, largest - 0.25 * left))
    return "growth once gradients stop"


def _lower_bounds(panel: axes.Axes, data: xr.Dataset) -> str:
    data = data.isel(optimizer=np.argsort(-data.lower_bound.values, kind="stable"))
    low, high = SEARCHED
    for row, value in enumerate(data.lower_bound.values):
        if low <= value <= high:
            panel.plot(value, row, "o", color="tab:purple", markersize=4)
            continue
        x, side, text = (
            (low, "left", f"← {value:.2g}") if value < low else (high, "right", f"{value:.2g} →")
        )
        style = {"fontsize": 7, "color": "tab:purple", "bbox": BLANK, "zorder": 2}
        panel.text(x, row, text, ha=side, va="center", **style)
    panel.axvline(1, color="0.6", linewidth=0.8, zorder=0)
    plotting.label_rows(panel, data.optimizer.values, fontsize=8)
    panel.set(xscale="log", xlim=SEARCHED, xlabel="largest |u| found (learning rates)")
    panel.grid(axis="y", linewidth=0.3)
    return "lower bounds by search"
