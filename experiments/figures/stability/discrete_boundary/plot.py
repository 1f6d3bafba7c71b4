"""Plots of the max-update between the two boundaries."""

import numpy as np
import xarray as xr
from matplotlib import axes, figure, lines

from experiments.core import plot as plotting


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw the plane, then a panel for each point; the theorem leaves their shared axes."""
    num_points = dataset.sizes["point"]
    canvas, (plane, *others) = plotting.small_multiples(num_points + 1, 4, 11.6, 2.5)
    _plane(plane, dataset)
    for number, panel in enumerate(others):
        _point(panel, dataset.isel(point=number), f"{number + 1}")
    canvas.legend(handles=list(HANDLES), loc="outside lower center", ncols=len(HANDLES))
    return {"": canvas}


LINES = {
    "trained": {"color": "tab:blue", "linewidth": 1.6},
    "worst_case": {"color": "black", "marker": "o", "markersize": 3.5, "linestyle": "none"},
    "exact": {"color": "tab:orange", "linestyle": "--"},
    "paper": {"color": "tab:red", "linestyle": ":", "linewidth": 1.6},
}
HANDLES = tuple(
    lines.Line2D([], [], label=label, **LINES[name])
    for name, label in (
        ("trained", "nanoGPT, median and range over seeds"),
        ("worst_case", "worst-case gradients of length n + 1"),
        ("exact", "exact bound"),
        ("paper", "Theorem 1"),
    )
)


def _point(panel: axes.Axes, data: xr.Dataset, name: str) -> None:
    x = data.step + 1
    plotting.seed_band(panel, x, data.max_update, **LINES["trained"])
    for bound in ("exact", "paper"):
        # Far outside the axes, e^4500 would overflow.
        values = np.exp(np.minimum(data[f"log_{bound}_bound"], 50))
        panel.plot(data.bound_step + 1, values, **LINES[bound])
    lengths = np.unique(np.geomspace(1, data.sizes["worst_step"], 12).astype(int))
    panel.plot(lengths, data.worst_case[lengths - 1], **LINES["worst_case"])
    panel.set(xscale="log", yscale="log", xlim=(0.9, None), ylim=(0.7, 200))
    panel.set(xlabel="step n + 1", ylabel="‖uₙ‖∞ (learning rates)")
    panel.set_title(
        f"({name}) β = {data.b2:.4g}, γ = {data.b1:.4g}, C = {data.C:.3g}\n"
        f"{data.theories.item()}; largest {data.max_update.max():.3g}",
        loc="left",
    )


def _plane(panel: axes.Axes, data: xr.Dataset) -> None:
    b2 = np.linspace(0, 1, 400)
    paper, exact = 2 * b2 / (1 + b2), np.sqrt(b2)
    panel.fill_between(b2, 0, paper, color="0.85", linewidth=0)
    panel.fill_between(b2, paper, exact, color="tab:orange", alpha=0.5, linewidth=0)
    panel.plot(b2, paper, **LINES["paper"])
    panel.plot(b2, exact, **LINES["exact"])
    for number, (x, y) in enumerate(zip(data.b2.values, data.b1.values, strict=True), 1):
        panel.plot(x, y, "o", color="black", markersize=3, clip_on=False)
        panel.annotate(str(number), (x, y), (4, -9), textcoords="offset points", fontsize=7)
    panel.text(0.62, 0.25, "C > 0")
    panel.set(xlim=(0, 1), ylim=(0, 1), xlabel="β (b2)", ylabel="γ (b1)")
    panel.set_title("the points; orange: C < 0 but γ² < β", loc="left")
