"""Plots that compare k-Adam's strategies, and parts of plots that compare optimizers."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from matplotlib import axes, colormaps, figure, ticker

from experiments.core import plot as plotting
from experiments.figures.optimizer.contender_table import CONTENDERS, Contender

STRATEGIES = {
    "inverse_exp": ("inverse exp", "tab:blue", "o"),
    "exp": ("exp", "tab:orange", "s"),
    "scaled": ("scaled", "tab:green", "^"),
    "naive": ("naive", "tab:purple", "v"),
    "root": ("root", "tab:brown", "D"),
}
"""Label, color and marker."""
ADAM = ("Adam (k = 1)", "tab:red", "*")
ZOOMED = ("inverse_exp", "exp", "scaled")
"""The strategies whose range the zoomed panel shows, as in the paper."""
DECAYS = {"decoupled": "-", "coupled": "--"}
COLORS = {name: colormaps["tab20"](place % 20) for place, name in enumerate(sorted(CONTENDERS))}
"""The colors of contenders; that of others is black."""


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw tests by k, the paper's statistic and gains over Adam; then losses by learning rate."""
    canvas, grid = plotting.canvas(10.6, 8.2, nrows=2, ncols=2)
    panels = (partial(_tests, zoomed=True), partial(_tests, zoomed=False), _swept, _gains)
    plotting.draw_panels(grid, dataset, panels)
    edge = "η at an end of the sweep" if dataset.rate_at_edge.any() else ""
    legend_on_top(canvas, _styles("none"), edge)
    if "note" in dataset.attrs:
        canvas.supxlabel(dataset.attrs["note"], fontsize=8)
    return {"": canvas, "rates": _rates(dataset)}


def legend_on_top(
    canvas: figure.Figure, styles: Mapping[str, Mapping[str, Any]], edge: str = ""
) -> None:
    """Draw a legend above all panels; `edge`, if given, is the label of the ring."""
    rings = {edge: {"color": "0.3", **plotting.RING}} if edge else {}
    handles = plotting.handles_of({**styles, **rings})
    canvas.legend(handles=handles, loc="outside upper center", ncols=len(handles))


def interval_row(
    panel: axes.Axes, row: float, interval: xr.DataArray, at_edge: Any, **style: Any
) -> None:
    """Draw (value, low, high) along a row, with a ring if a choice was made at an end."""
    plotting.intervals(panel, row, interval.values, "y", **style)
    if at_edge:
        panel.plot(interval[0], row, color=style["color"], **plotting.RING)


def losses_by_rate(
    panel: axes.Axes, rates: Any, losses: xr.DataArray, place: int, color: Any, marker: str, **style
) -> None:
    """Draw losses versus learning rates, with the marker of the chosen one larger and filled."""
    line = {"color": color, "marker": marker, "fillstyle": "none", "markersize": 4, **style}
    panel.plot(rates, losses, **line)
    panel.plot(rates[place], losses[place], marker, color=color, markersize=6)


def contender_style(name: str) -> dict[str, Any]:
    """Return a contender's color and small marker, which is round for k-Adam."""
    marker = "o" if name.startswith("kadam") else "s"
    return {"color": COLORS.get(name, "black"), "marker": marker, "markersize": 4}


def by_gain(data: xr.Dataset, gain: xr.DataArray) -> xr.Dataset:
    """Return the contenders with the largest gain first; those without a finite one are last."""
    return data.isel(arm=(-gain.sel(end="value")).fillna(np.inf).argsort().values)


def contender_rows(
    panel: axes.Axes,
    data: xr.Dataset,
    variable: str,
    table: Mapping[str, Contender],
    hollow: Collection[str] = (),
    *,
    rings: bool = True,
) -> None:
    """Draw a row for each contender: a gain with its interval, and its label.

    Args:
      panel: The panel.
      data: One task's results by arm.
      variable: The gain's name.
      table: Rows by name.
      hollow: The contenders whose markers are not filled.
      rings: Whether to mark contenders whose choice is at an edge.
    """
    names = data.arm.values.tolist()
    for place, name in enumerate(names):
        arm = data.isel(arm=place)
        style = {**contender_style(name), "fillstyle": "none" if name in hollow else "full"}
        interval_row(
            panel, place, arm[variable], rings and arm.at_edge.any(), **style, fmt="", capsize=2
        )
    panel.axvline(0, color="0.4", linestyle=":", linewidth=0.8)
    panel.grid(axis="x", linewidth=0.3)
    plotting.label_rows(panel, [table[name].label for name in names], fontsize=7)


def searched_rates(panel: axes.Axes, data: xr.Dataset) -> None:
    """Draw the first seed's losses by learning rate, at the memory that each contender chose.

    Args:
      panel: The panel.
      data: What was tried and chosen on one task, by arm.
    """
    chosen = []
    for name in data.arm.values:
        style = contender_style(name)
        arm = data.sel(arm=name)
        picked = arm.isel(candidate=int(arm.picked))
        same = ((arm.b1 == picked.b1) & (arm.b2 == picked.b2)).values
        arm = arm.isel(candidate=same).sortby("learning_rate")
        loss = arm.validation.where(np.isfinite(arm.validation))
        place = int(np.flatnonzero(arm.candidate == picked.candidate)[0])
        losses_by_rate(panel, arm.learning_rate, loss, place, **style, linewidth=0.9)
        if arm.at_edge.any():
            panel.plot(picked.learning_rate, loss[place], color=style["color"], **plotting.RING)
        chosen.append(float(loss[place]))
    if np.isfinite(chosen).any():
        low, high = np.nanmin(chosen), np.nanmax(chosen)
        panel.set_ylim(low - 0.02 * low, high + 0.2 * high)
    panel.set(xscale="log", xlabel="learning rate η", ylabel="validation loss, one seed (nats)")


def _styles(adams_line: str) -> dict[str, dict[str, Any]]:
    """Return the legend's lines of Adam and the strategies."""
    return {
        label: dict(
            color=color,
            marker=marker,
            linestyle=adams_line if marker == ADAM[2] else "-",
            markersize=9 if marker == ADAM[2] else 4,
        )
        for label, color, marker in (ADAM, *STRATEGIES.values())
    }


def _with_adam(data: xr.Dataset, strategy: str) -> xr.Dataset:
    """Return a strategy's arms, Adam first."""
    return data.isel(arm=(data.strategy == strategy) | (data.k == 1))


def _axis(data: xr.Dataset) -> str:
    """Return what is measured, with its unit."""
    measure = data.mean_test.attrs["long_name"].split(" on ")[0]
    return f"{measure} ({data.mean_test.attrs['units']})"


def _tests(panel: axes.Axes, data: xr.Dataset, *, zoomed: bool) -> str:
    for place, (strategy, (_, color, marker)) in enumerate(STRATEGIES.items()):
        line = _with_adam(data, strategy)
        x, ends = line.k + 0.03 * (place - 2), line.mean_test.transpose("end", "arm")
        panel.plot(x, ends[0], "-", color=color, linewidth=0.9)
        style = {"fmt": marker, "color": color, "markersize": 4, "capsize": 2, "linewidth": 0.9}
        plotting.intervals(panel, x[1:], ends[:, 1:], **style)
        at_edge = line.rate_at_edge & (line.k > 1)
        panel.plot(x[at_edge], ends[0, at_edge], color=color, **plotting.RING)
    adam = data.sel(arm="adam")
    if adam.rate_at_edge:
        panel.plot(1, adam.mean_test[0], color=ADAM[1], **plotting.RING)
    style = {"fmt": ADAM[2], "color": ADAM[1], "markersize": 9, "capsize": 2, "zorder": 3}
    plotting.intervals(panel, 1, adam.mean_test, **style)
    panel.axhline(adam.mean_test[0], color=ADAM[1], linestyle=":", linewidth=0.8)
    panel.set(xlabel="stages k", ylabel=_axis(data), xticks=np.unique(data.k))
    if not zoomed:
        _logarithmic(panel, data.mean_test.sel(end="value"))
        return f"all strategies, {data.sizes['seed']} fresh seeds"
    kept = data.isel(arm=data.strategy.isin(ZOOMED) | (data.k == 1)).mean_test
    kept = kept.values[np.isfinite(kept.values)]
    if kept.size and np.ptp(kept) > 0:
        panel.set_ylim(kept.min() - 0.05 * np.ptp(kept), kept.max() + 0.05 * np.ptp(kept))
    return f"zoomed, {data.sizes['seed']} fresh seeds, tuned on validation"


def _logarithmic(panel: axes.Axes, values: xr.DataArray) -> None:
    """Set a logarithmic y axis with plain numbers, if there is something to show on it."""
    if (values > 0).any():
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter(ticker.LogFormatter(minor_thresholds=(1.2, 0.5)))


def _swept(panel: axes.Axes, data: xr.Dataset) -> str:
    for strategy, (_, color, marker) in STRATEGIES.items():
        line, style = _with_adam(data, strategy), {"color": color, "marker": marker, "ms": 4}
        for decay in data.decay.values:
            panel.plot(line.k, line.best_swept.sel(decay=decay), DECAYS[decay], **style)
    for decay in data.decay.values:
        adam = data.best_swept.sel(decay=decay).isel(arm=0)
        panel.plot(1, adam, ADAM[2], color=ADAM[1], markersize=9)
    if len(data.decay) > 1:
        styles = {
            f"{name} decay": {"color": "0.3", "linestyle": DECAYS[name]}
            for name in data.decay.values
        }
        plotting.legend_of(panel, styles, loc="best")
    _logarithmic(panel, data.best_swept)
    panel.set(xlabel="stages k", ylabel=f"lowest {_axis(data)}", xticks=np.unique(data.k))
    return "the paper's statistic: best of the sweep, one seed"


def _gains(panel: axes.Axes, data: xr.Dataset) -> str:
    arms = data.isel(arm=slice(1, None))
    names = []
    for place, (strategy, k) in enumerate(zip(arms.strategy.values, arms.k.values, strict=True)):
        name, color, marker = STRATEGIES[strategy]
        names.append(f"{name}, k = {k}")
        style = {"fmt": marker, "color": color, "markersize": 4, "capsize": 2}
        interval_row(panel, place, arms.gain[place], arms.rate_at_edge[place], **style)
    panel.axvline(0, color=ADAM[1], linestyle=":", linewidth=0.8)
    panel.set_yticks(range(len(names)), names, fontsize=7)
    panel.set_xscale("symlog", linthresh=_linear_range(arms.gain))
    panel.invert_yaxis()
    panel.set(xlabel=f"{_axis(data)}, Adam's minus the arm's", ylabel="strategy")
    return "gain over Adam, better to the right"


def _linear_range(gain: xr.DataArray) -> float:
    """Return where the axis turns logarithmic: half of the gains are within."""
    sizes = abs(gain.sel(end="value").values)
    return float(np.median(sizes[sizes > 0])) if (sizes > 0).any() else 1.0


def _rates(data: xr.Dataset) -> figure.Figure:
    """Draw validation loss versus learning rate, with a panel for each k."""
    ks = np.unique(data.k)
    canvas, grid = plotting.canvas(
        2.6 * len(ks) + 0.6, 3.4, ncols=len(ks), sharex=True, sharey=True, squeeze=False
    )
    by_rate = data.validation_loss.where(np.isfinite(data.validation_loss)).min(
        ["decay", "weight_decay"]
    )
    for k, panel in zip(ks, grid.flat, strict=True):
        arms = data.isel(arm=data.k == k)
        for arm in arms.arm.values:
            _, color, marker = STRATEGIES.get(arms.strategy.sel(arm=arm).item(), ADAM)
            place = data.rate.values.tolist().index(arms.chosen_rate.sel(arm=arm))
            losses_by_rate(panel, data.rate, by_rate.sel(arm=arm), place, color, marker)
        panel.set_title(f"k = {k}", loc="left")
        panel.set(xscale="log", xlabel="learning rate η", ylabel="validation loss (nats)")
        _logarithmic(panel, by_rate)
        panel.label_outer()
    handles = plotting.handles_of(_styles("-"))
    canvas.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return canvas


OPTIMIZERS = {
    "adamw": ("AdamW", "tab:red", "*"),
    "nadamw": ("NAdamW", "tab:pink", "P"),
    "rmsprop": ("RMSprop", "tab:gray", "X"),
    "lion": ("Lion", "tab:olive", "p"),
    "muon": ("Muon", "tab:cyan", "h"),
    "schedule_free_adamw": ("Schedule-free AdamW", "black", "d"),
}
"""Label, color and marker."""


def style_of(name: str) -> tuple[str, str, str]:
    """Return label, color and marker of an arm: an optimizer, or a strategy and k."""
    strategy, _, k = name.rpartition("_")
    if strategy not in STRATEGIES:
        return OPTIMIZERS.get(name, (name, "0.4", "o"))
    label, color, marker = STRATEGIES[strategy]
    return f"{k}-Adam, {label}", color, marker
