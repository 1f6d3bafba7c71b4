"""Plot of the image classifier's layers."""

import json

import xarray as xr
from matplotlib import axes, figure, patches

from experiments.core import plot as plotting

COLORS = {
    "image": "0.92",
    "convolution": "#cfe2f3",
    "sum": "white",
    "max-pool": "#d9ead3",
    "linear": "#fce5cd",
}
WIDTH, HEIGHT, GAP = 3.4, 0.52, 0.34
ARROW = dict(arrowstyle="-|>", color="0.3", linewidth=0.8, shrinkA=0, shrinkB=0)


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw a column of boxes from the image down, with arcs for what is added."""
    num_layers = dataset.sizes["layer"]
    canvas, panel = plotting.canvas(6.4, 0.56 * num_layers + 0.6)
    heights = [-place * (HEIGHT + GAP) for place in range(num_layers)]
    for place, height in enumerate(heights):
        layer = dataset.isel(layer=place)
        _box(panel, layer, height)
        first, second = layer.first_input.item(), layer.second_input.item()
        if first >= 0:
            _arrow(panel, (0, heights[first] - HEIGHT / 2), (0, height + _half(layer)))
        if second >= 0:
            _skip(panel, heights[second], height)
    width = json.loads(dataset.attrs["config"])["model"]["width"]
    total = dataset.total_parameters.item()
    panel.set_title(f"{total:,} parameters at width {width:g}", loc="left")
    panel.set(xlim=(-2.7, 4.4), ylim=(heights[-1] - 0.5, 0.5), aspect="equal")
    panel.set_axis_off()
    return {"": canvas}


def _half(layer: xr.Dataset) -> float:
    """Return half of a box's height; a sum is a circle."""
    return 0.22 if layer.kind.item() == "sum" else HEIGHT / 2


def _box(panel: axes.Axes, layer: xr.Dataset, height: float) -> None:
    kind, side, channels = layer.kind.item(), layer.side.item(), layer.channels.item()
    style = dict(facecolor=COLORS[kind], edgecolor="0.3", linewidth=0.8)
    if kind == "sum":
        panel.add_patch(patches.Circle((0, height), _half(layer), **style))
    else:
        corner = (-WIDTH / 2, height - HEIGHT / 2)
        panel.add_patch(
            patches.FancyBboxPatch(corner, WIDTH, HEIGHT, "round,pad=0,rounding_size=0.1", **style)
        )
    panel.text(0, height, layer.description.item(), ha="center", va="center", fontsize=8)
    shape = f"{side} × {side} × {channels}" if side > 1 else f"{channels}"
    number = layer.num_parameters.item()
    label = f"{shape}\n{number:,} parameters" if number else shape
    panel.text(WIDTH / 2 + 0.25, height, label, ha="left", va="center", fontsize=7.5)


def _arrow(panel: axes.Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    panel.annotate("", end, start, arrowprops=ARROW)


def _skip(panel: axes.Axes, start: float, end: float) -> None:
    """Draw a line from the side of a layer around to a sum."""
    left = -WIDTH / 2
    panel.plot([left, left - 0.5, left - 0.5], [start, start, end], "-", color="0.3", linewidth=0.8)
    _arrow(panel, (left - 0.5, end), (-0.22, end))
