"""Plots of the search for 2-Adam's decays."""

import numpy as np
import xarray as xr
from matplotlib import axes, cm, colors, figure

from experiments.core import plot as plotting
from experiments.figures.optimizer.plot import STRATEGIES, interval_row

ADAMW = ("AdamW", "tab:red", "x")
KADAM = ("2-Adam", "0.2", "o")
OPTIMIZERS = {"adamw": ADAMW, "kadam_2": KADAM}
"""Label, color and marker; the strategies have their own."""
DECAYS = {"b1_1": "γ₁", "b2_1": "β₁", "b1_2": "γ₂", "b2_2": "β₂"}
SYMBOLS = DECAYS | {"rate": "η"}
SHADE = dict(color="0.93", linewidth=0, zorder=0)
SHOWN = 0.25
"""The share of members, counted from the best, whose decays are drawn."""
ROOM = 1.5
"""Members that are worse than the best by up to this, in nats, are drawn at their own height."""


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw members by learning rate and by decay, what was found, and what the loss follows."""
    canvas, grid = plotting.canvas(11.4, 8.4, nrows=2, ncols=2)
    plotting.draw_panels(grid, dataset, (_members, _decays, _gains, _correlations))
    canvas.supxlabel(dataset.attrs["note"], fontsize=9)
    return {"": canvas}


def _members(panel: axes.Axes, data: xr.Dataset) -> str:
    best = data.validation.where(np.isfinite(data.validation)).values
    best = np.nanmin(best) if np.isfinite(best).any() else 0.0
    worst = best + ROOM
    for name, (label, color, marker) in OPTIMIZERS.items():
        one = data.sel(optimizer=name)
        rates = one.setting.sel(coordinate="rate")
        finite = np.isfinite(one.validation.values)
        count = f"{len(finite)}" + ("" if finite.all() else f", {(~finite).sum()} diverged")
        style = {"color": color, "label": f"{label} ({count})", "ms": 3.5, "alpha": 0.75}
        panel.plot(rates, one.validation.clip(max=worst), marker, **style)
        star, at = {"color": color, "ms": 13, "mec": "white", "zorder": 4}, one.chosen.item()
        panel.plot(rates[at], one.validation[at], "*", **star)
    for strategy in data.strategy.values:
        label, color, marker = STRATEGIES[strategy]
        losses = data.strategy_validation.sel(strategy=strategy).clip(max=worst)
        style = {"color": color, "label": label, "linewidth": 0.9, "fillstyle": "none", "ms": 5}
        panel.plot(data.strategy_rate, losses, marker, linestyle="-", **style)
    lowest, low, high, highest = data.box.sel(coordinate="rate").values
    panel.axvspan(lowest, low, **SHADE)
    panel.axvspan(high, highest, **SHADE)
    panel.set_ylim(best - 0.05 * ROOM, worst + 0.02 * ROOM)
    panel.set(xscale="log", xlabel="learning rate η", ylabel="validation loss (nat/token)")
    plotting.legend_above(panel, 0.17, loc="upper center", ncols=4, fontsize=7)
    return "every member, one seed; ★ is chosen with more seeds"


def _decays(panel: axes.Axes, data: xr.Dataset) -> str:
    searched = data.sel(optimizer="kadam_2")
    losses = searched.validation.where(np.isfinite(searched.validation), np.inf).values
    order = np.argsort(losses, kind="stable")[: max(1, int(SHOWN * len(losses)))]
    order = order[np.isfinite(losses[order])]
    left = 1 - data.arm_setting.sel(coordinate=list(DECAYS))
    across = np.arange(len(DECAYS))
    for place, name in enumerate(DECAYS):
        ends = 1 - data.box.sel(coordinate=name).values
        panel.vlines(place, ends[-1], ends[0], color="0.8", linewidth=0.8, zorder=0)
        for start, stop in [ends[2:]] if name.startswith("b1") else [ends[:2], ends[2:]]:
            panel.fill_between([place - 0.12, place + 0.12], start, stop, **SHADE)
    if order.size:
        worst = losses[order[-1]]
        norm = colors.Normalize(losses[order[0]], worst if worst > losses[order[0]] else None)
        color = cm.ScalarMappable(norm, "viridis")
        for member in order[::-1]:
            values = 1 - searched.setting[member].sel(coordinate=list(DECAYS))
            panel.plot(across, values, color=color.to_rgba(losses[member]), linewidth=0.8)
        panel.figure.colorbar(color, ax=panel, label="validation loss (nat/token)")
    for strategy in data.strategy.values:
        _, tint, marker = STRATEGIES[strategy]
        panel.plot(across, left.sel(arm=strategy), marker, color=tint, fillstyle="none", ms=6)
    panel.plot(across, left.sel(arm="searched"), "-*", color="0.1", lw=1.8, ms=12, zorder=4)
    panel.set_yscale("log")
    panel.set_xticks(across, [f"1 − {symbol}" for symbol in DECAYS.values()])
    panel.set(xlabel="decay of a stage", ylabel="1 minus the decay")
    return f"decays of 2-Adam's best {len(order)} members; ★ is chosen"


def _gains(panel: axes.Axes, data: xr.Dataset) -> str:
    rows = [
        ("2-Adam found, images", data.second_gain, data.second_rate_at_edge.any(), KADAM),
        *(
            (f"{style[0]}, text", data.gain.sel(arm=arm), _at_edge(data, arm), style)
            for arm, style in STRATEGIES.items()
            if data.test.sel(arm=arm).notnull().any()
        ),
        ("2-Adam found, text", data.gain_searched, _at_edge(data, "searched"), KADAM),
    ][::-1]
    for place, (_, gain, edge, (_, color, marker)) in enumerate(rows):
        interval_row(panel, place, gain, edge, fmt=marker, color=color, capsize=3)
    panel.axvline(0, color=ADAMW[1], linestyle=":", linewidth=0.9)
    plotting.label_rows(panel, [name for name, *_ in rows])
    panel.locator_params(axis="x", nbins=5)
    panel.set(xlabel="AdamW's test loss minus 2-Adam's (nat)", ylabel="decays and task")
    return f"better than tuned AdamW: to the right, {data.sizes['seed']} fresh seeds"


def _at_edge(data: xr.Dataset, arm: str) -> bool:
    return bool(data.rate_at_edge.sel(arm=[arm, "adamw"]).any())


def _correlations(panel: axes.Axes, data: xr.Dataset) -> str:
    places = np.arange(data.sizes["coordinate"])
    for shift, (name, (label, color, _)) in zip((0.18, -0.18), OPTIMIZERS.items(), strict=True):
        bars = data.rank_correlation.sel(optimizer=name)
        panel.barh(places + shift, bars.fillna(0), 0.32, color=color, alpha=0.8, label=label)
    panel.axvline(0, color="0.3", linewidth=0.8)
    panel.set_yticks(places, [_tick(data, name) for name in data.coordinate.values])
    panel.invert_yaxis()
    panel.set(xlabel="rank correlation with validation loss", ylabel="coordinate", xlim=(-1, 1))
    panel.legend(loc="best")
    return "what the loss depends on, members of the whole box"


def _tick(data: xr.Dataset, name: str) -> str:
    """Name the coordinate, and the optimizers whose chosen value is near an end of its range."""
    edges = data.coordinate_at_edge.sel(coordinate=name)
    whose = [OPTIMIZERS[optimizer][0] for optimizer in data.optimizer.values[edges.values]]
    return SYMBOLS[name] + (f"\n({', '.join(whose)}: edge)" if whose else "")
