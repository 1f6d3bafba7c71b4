"""Plots of contenders by task."""

from functools import partial

import numpy as np
import xarray as xr
from matplotlib import axes, figure

from experiments.core import plot as plotting
from experiments.figures.optimizer.contender_table import CONTENDERS
from experiments.figures.optimizer.contenders.claims import UNITS
from experiments.figures.optimizer.plot import (
    by_gain,
    contender_rows,
    contender_style,
    legend_on_top,
    searched_rates,
)
from experiments.figures.optimizer.problems import TASKS
from experiments.training.optimizers import ADAMW

LEVEL = 0.05
FAR = 20
"""An axis is logarithmic if some values exceed this many times their median size."""
WIDTH = 3.4
"""Inches for each task."""
ROWS = (
    ("gain", "gain over AdamW", ""),
    ("saved", "steps saved", "% of AdamW's"),
    ("shared_gain", "gain, one setting for all tasks", "% of a guess"),
)
"""Variable, title and unit of each row of panels."""


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw gains, saved steps and gains at shared settings; courses; losses by learning rate."""
    data = by_gain(dataset, dataset.gain.isel(task=0))
    tasks = data.sizes["task"]
    height = 0.2 * data.sizes["arm"] + 0.7
    canvas, grid = plotting.canvas(
        WIDTH * tasks + 1.4, 3 * height + 0.4, nrows=3, ncols=tasks, sharey=True, squeeze=False
    )
    panels = [partial(_intervals, task=task, row=row) for row in ROWS for task in range(tasks)]
    plotting.draw_panels(grid, data, panels)
    mark = {"color": "0.3", "marker": "o", "linestyle": "none"}
    marks = {f"Holm: p < {LEVEL:g}": mark, f"Holm: p ≥ {LEVEL:g}": mark | {"fillstyle": "none"}}
    edge = "η or memory at an edge" if data.at_edge.any() else ""
    legend_on_top(canvas, marks, edge)
    return {"": canvas, "course": _lines(data, _course), "search": _lines(data, _search)}


def _intervals(panel: axes.Axes, data: xr.Dataset, task: int, row: tuple[str, str, str]) -> str:
    variable, title, unit = row
    data = data.isel(task=task)
    searched, doubtful = variable == "gain", (data.arm != ADAMW) & ~(data.p_value < LEVEL)
    hollow = data.arm.values[doubtful] if searched else ()
    contender_rows(panel, data, variable, CONTENDERS, hollow, rings=searched)
    _scale(panel, data[variable].sel(end="value").values)
    unit = unit or UNITS["text" if TASKS[data.task.item()].is_text else "images"]
    panel.set(xlabel=f"{title} ({unit})", ylabel="contender" if task == 0 else "")
    return data.label.item()


def _scale(panel: axes.Axes, values: np.ndarray) -> None:
    """If some values are far beyond most, make an axis logarithmic beyond half of them."""
    sizes = abs(values[np.isfinite(values) & (values != 0)])
    if sizes.size and sizes.max() > FAR * np.median(sizes):
        panel.set_xscale("symlog", linthresh=float(np.median(sizes)))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()


def _lines(data: xr.Dataset, draw) -> figure.Figure:
    """Draw a panel for each task, with one legend."""
    tasks = data.sizes["task"]
    canvas, grid = plotting.canvas(WIDTH * tasks + 0.4, 5, ncols=tasks, squeeze=False)
    plotting.draw_panels(grid, data, [partial(draw, task=task) for task in range(tasks)])
    styles = {CONTENDERS[name].label: contender_style(name) for name in data.arm.values}
    handles = plotting.handles_of(styles)
    canvas.legend(handles=handles, loc="outside lower center", ncols=3 * tasks // 2 or 1)
    return canvas


def _course(panel: axes.Axes, data: xr.Dataset, task: int) -> str:
    data = data.isel(task=task)
    for name in data.arm.values:
        loss = data.course.sel(arm=name).mean("seed", skipna=False)
        panel.plot(data.steps, loss, color=contender_style(name)["color"], linewidth=0.9)
    panel.axhline(float(data.target), color="0.4", linestyle=":", linewidth=0.8)
    late = data.course.isel(point=slice(data.sizes["point"] // 4, None)).mean("seed").values
    late = late[np.isfinite(late)]
    if late.size:
        plotting.set_heights(panel, 0.99 * late.min(), late.max())
    panel.set(xlabel="optimizer steps", ylabel="validation loss (nats)")
    return data.label.item()


def _search(panel: axes.Axes, data: xr.Dataset, task: int) -> str:
    data = data.isel(task=task)
    searched_rates(panel, data)
    return data.label.item()
