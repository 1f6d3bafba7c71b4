"""Plots of 2-Adam versus Adam with a normalization layer."""

import numpy as np
import xarray as xr
from matplotlib import axes, figure

from experiments.core import plot as plotting

DECAYS = {"λ = 0": "tab:orange", "λ > 0": "tab:blue"}
ARMS = {
    "adam": ("Adam", "black", "o"),
    "adam_qk_norm": ("Adam, qk-norm", "tab:red", "s"),
    "two_adam_everywhere": ("2-Adam", "tab:blue", "^"),
    "two_adam_elementwise": ("2-Adam on q, k", "tab:green", "v"),
    "two_adam_coarse": ("2-Adam on q, k, coarse", "tab:purple", "D"),
}
"""Label, color and marker."""
SPLITS = {"heldout": ("held-out", "full"), "train": ("training", "none")}
"""Label and fill."""


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw norms in the top row and final losses in the bottom row; then training losses."""
    canvas, grid = plotting.canvas(13.5, 7.6, nrows=2, ncols=3)
    panels = (
        _ratio,
        _scales,
        _cosine,
        lambda panel, data: _losses(panel, data.isel(decay=1)),
        lambda panel, data: _losses(panel, data.isel(decay=0)),
        _gains,
    )
    plotting.draw_panels(grid, dataset, panels)
    low, high = np.array([panel.get_ylim() for panel in grid.flat[3:5]]).T
    for panel in grid.flat[3:5]:
        panel.set_ylim(low.min(), high.max())
    return {"": canvas, "training": _training(dataset)}


def _ratio(panel: axes.Axes, data: xr.Dataset) -> str:
    _bands(panel, data.ratio)
    _level(panel, data.momentum_factor.item(), "(1+γ)/(1-γ)", "--")
    _level(panel, 1, "Theorem 2")
    panel.set(yscale="log", ylabel="‖W‖² over the average of ‖u‖²", ylim=(0.5, None))
    panel.legend(loc="upper right")
    return "the norm and its average"


def _scales(panel: axes.Axes, data: xr.Dataset) -> str:
    product = data.scale / data.inverse_norm
    half = data.norm_step[-1] // 2
    _bands(panel, product / product.sel(norm_step=slice(half, 1.2 * half)).mean("norm_step"))
    _level(panel, 1, "equal up to a constant")
    panel.set(ylabel="second stage's scale × ‖W‖, relative", ylim=(0, None))
    panel.legend(loc="lower right")
    return "the second stage and the norm"


def _cosine(panel: axes.Axes, data: xr.Dataset) -> str:
    _bands(panel, data.cosine)
    _level(panel, 1, "division by a number")
    panel.set(ylabel="cosine with u", ylim=(0.9, 1.005))
    panel.legend(loc="lower right")
    return "direction after an elementwise second stage"


def _level(panel: axes.Axes, height: float, label: str, style: str = ":") -> None:
    panel.axhline(height, color="0.3", linestyle=style, linewidth=1, label=label)


def _bands(panel: axes.Axes, values: xr.DataArray) -> None:
    """Draw the median over slices and seeds, and the range over seeds, for both decays."""
    by_seed = values.median("slice")
    for decay, color in DECAYS.items():
        line = by_seed.sel(decay=decay)
        plotting.seed_band(panel, line.norm_step, line, color=color, label=decay)
    panel.set(xlabel="step n")


def _losses(panel: axes.Axes, data: xr.Dataset) -> str:
    for place, (arm, (label, color, marker)) in enumerate(ARMS.items()):
        loss = data.final_loss.sel(split="heldout", arm=arm)
        style = {"marker": marker, "linestyle": "-", "color": color, "bar": color}
        x = data.rate * 1.04 ** (place - 2)
        plotting.seed_dots(panel, x, loss, label=label, markersize=4, **style)
    panel.set(xscale="log", xlabel="learning rate η", ylabel="held-out loss (nats/token)")
    panel.set_xticks(data.rate.values, [f"{rate:g}" for rate in data.rate.values], minor=False)
    panel.minorticks_off()
    panel.legend(loc="best")
    return f"loss after {data.sizes['step']} steps, {data.decay.item()}"


def _gains(panel: axes.Axes, data: xr.Dataset) -> str:
    gain = data.tuned_loss.sel(arm="adam") - data.tuned_loss
    arms = list(ARMS)[1:]
    for row, (split, (name, fill)) in enumerate(SPLITS.items()):
        for place, (decay, color) in enumerate(DECAYS.items()):
            of_arms = gain.sel(split=split, decay=decay, arm=arms)
            y = np.arange(len(arms)) + 0.16 * (2 * place + row - 1.5)
            style = {"fmt": "o", "color": color, "fillstyle": fill, "markersize": 4}
            plotting.seed_means(panel, y, of_arms, "y", label=f"{name}, {decay}", **style)
    panel.axvline(0, ymax=0.85, color="0.6", linewidth=0.8, zorder=0)  # below the legend
    panel.set_yticks(np.arange(len(arms)), [ARMS[arm][0] for arm in arms])
    panel.set_ylim(-0.6, 4.6)
    panel.set(xlabel="loss of Adam minus that of each (nats/token)", ylabel="optimizer and model")
    panel.legend(loc="upper left", ncols=2)
    return "gain over Adam, each at its best learning rate"


def _training(data: xr.Dataset) -> figure.Figure:
    """Draw running means over a twentieth of the run, a panel per decay and learning rate."""
    window = max(1, data.sizes["step"] // 20)
    loss = data.loss.rolling(step=window, center=True).mean().median("seed")
    num_rows, num_columns = data.sizes["decay"], data.sizes["rate"]
    canvas, panels = plotting.small_multiples(
        num_rows * num_columns, num_columns, 3.2 * num_columns, 2.7, sharex=True, sharey=True
    )
    for place, panel in enumerate(panels):
        row, column = divmod(place, num_columns)
        for arm, (label, color, _) in ARMS.items():
            line = loss.sel(arm=arm).isel(decay=row, rate=column)
            panel.plot(data.step, line, color=color, label=label)
        panel.set_title(f"η = {data.rate[column]:g}, {data.decay.values[row]}", loc="left")
        panel.set(xlabel="step n", ylabel="training loss (nats/token)")
        panel.label_outer()
    plotting.legend_below(canvas, panels[0])
    return canvas
