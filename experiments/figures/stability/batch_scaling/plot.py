"""Plots of decays that follow the batch size."""

import numpy as np
import xarray as xr
from matplotlib import colormaps, figure

from experiments.core import plot as plotting

COLORS = {"tokens": "tab:red", "both": "tab:blue", "sde": "tab:green"}
SHIFTS = {"tokens": 0.94, "both": 1.0, "sde": 1.06}
"""Factors by which dots of equal batch size are moved apart."""


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw growth, suprema with training, updates by step, and losses."""
    canvas, grid = plotting.canvas(10.4, 7.2, nrows=2, ncols=2)
    plotting.draw_panels(grid, dataset, (_growth, _suprema, _steps, _losses))
    return {"": canvas}


def _batch_axis(panel, data: xr.Dataset, **labels) -> None:
    smallest = data.critical.item() / _critical_ratio(data)
    panel.axvline(_critical_ratio(data), color="0.5", linestyle=":", linewidth=1)
    panel.set(xscale="log", xlabel="batch size (over the smallest)", **labels)
    ticks = data.trained_ratio.values
    panel.set_xticks(ticks, [f"{ratio:g}\n({ratio * smallest:g})" for ratio in ticks])
    panel.minorticks_off()


def _critical_ratio(data: xr.Dataset) -> float:
    return data.critical_reference.item() / 128


def _growth(panel, data: xr.Dataset) -> str:
    for rule, color in COLORS.items():
        panel.plot(data.ratio, data.growth.sel(rule=rule), color=color, label=rule)
    panel.axhline(0, color="0.3", linewidth=0.8)
    panel.annotate(
        f"B* = {data.critical.item():.1f}\n({data.critical_reference.item():.0f} from 128)",
        (_critical_ratio(data), 0),
        (4, 4),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
    )
    _batch_axis(panel, data, ylabel="ln(γ/√β) (1/step)")
    panel.legend(title="rule", loc="lower left")
    return "growth once gradients stop"


def _suprema(panel, data: xr.Dataset) -> str:
    for rule, color in COLORS.items():
        panel.plot(data.ratio, np.exp(data.log_supremum.sel(rule=rule)), color=color)
        for place, marker in enumerate("^o"):
            values = data.largest.isel(where=place).sel(rule=rule)
            x = data.trained_ratio * SHIFTS[rule]
            style = {"marker": marker, "color": color, "markersize": 4}
            plotting.seed_dots(panel, x, values, **style)
    styles = {"supremum": {"color": "0.3"}} | {
        f"training: {where}": {"color": "0.3", "marker": marker, "linestyle": "none"}
        for where, marker in zip(data["where"].values, "^o", strict=True)
    }
    panel.set(yscale="log")
    _batch_axis(panel, data, ylabel="largest |u| (learning rates)")
    plotting.legend_of(panel, styles, loc="upper left")
    return "supremum, and the largest update in training"


def _steps(panel, data: xr.Dataset) -> str:
    values = data.max_update.isel(where=0).sel(rule="tokens")
    count = data.sizes["trained_ratio"]
    for place in range(count):
        shade = 0.15 + 0.75 * place / max(count - 1, 1)
        color = colormaps["Reds"](shade)
        b2 = data.trained_b2.sel(rule="tokens").isel(trained_ratio=place).item()
        label = f"{data.trained_ratio.values[place]} (β = {b2:.3g})"
        at_batch = values.isel(trained_ratio=place)
        plotting.seed_band(panel, data.step + 1, at_batch, color=color, label=label)
    panel.set(xscale="log", yscale="log" if (values > 0).any() else "linear")
    panel.set(xlabel="step n + 1", ylabel="largest |u| (learning rates)")
    panel.legend(title="batch size over the smallest", loc="upper left")
    return "unused rows, tokens rule"


def _losses(panel, data: xr.Dataset) -> str:
    for rule, color in COLORS.items():
        loss = data.loss.sel(rule=rule)
        style = {"marker": "o", "color": color, "markersize": 4, "label": rule}
        plotting.seed_dots(panel, data.trained_ratio * SHIFTS[rule], loss, **style)
    panel.set_yscale("log")
    _batch_axis(panel, data, ylabel="training loss (nats per token)")
    panel.legend(title="rule", loc="upper left")
    return "loss at the end, median and range over seeds"
