"""The look that figures share: one style, one color scale for C, PNG and SVG on disk."""

import contextlib
import io
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike
from PIL import Image
from scipy.spatial import cKDTree

from experiments.core.stats import mean
from experiments.core.store import atomic

Draw = Callable[..., str]
"""`draw(axes, dataset, *more)` draws one panel of a dataset and returns its title."""
STYLE: Mapping[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "figure.dpi": 100,
    "savefig.dpi": 150,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "kadam_jax",  # the same figure is the same file
}
EXACT_COLORS, MOST_PIXELS = 32, 16
"""How many colors of a picture stay as they are, and how many pixels of another color count."""
STABILITY_COLORMAP = "viridis_r"
"""Its lightness falls steadily with C, so it reads in gray: dark is stable, as in the paper."""


DOT: Mapping[str, Any] = {"edgecolors": "black", "linewidths": 0.4, "zorder": 3}
"""The style of scatter plots whose points differ in color."""
RING: Mapping[str, Any] = dict(
    marker="o", linestyle="none", markersize=11, fillstyle="none", markeredgewidth=0.8
)
"""The ring around a choice at an end of its range, beyond which there may be a better one."""


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Use matplotlib's defaults and `STYLE`, whatever the user's matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def stability_norm(lowest: float, highest: float) -> SymLogNorm:
    """Return a norm for C from `lowest` to `highest`: linear within ±1, then logarithmic."""
    return SymLogNorm(linthresh=1.0, vmin=lowest, vmax=highest)


def canvas(width: float, height: float, **subplots: Any) -> tuple[Figure, Any]:
    """Make a figure of that size in inches with axes, like `pyplot.subplots` without its state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(**subplots)


def draw_panels(grid: Any, dataset: xr.Dataset, panels: Sequence[Draw], *more: Any) -> None:
    """Draw each of `panels` on its axes in `grid`, with a letter before its title."""
    for place, (axes, draw) in enumerate(zip(grid.flat, panels, strict=True)):
        letter = string.ascii_lowercase[place]
        axes.set_title(f"({letter}) {draw(axes, dataset, *more)}", loc="left")


def small_multiples(
    number: int, columns: int, width: float, height: float, **subplots: Any
) -> tuple[Figure, list[Axes]]:
    """Make a figure with a number of equal axes in rows and room for a legend below them.

    Args:
      number: Number of axes; places after them in the last row stay empty.
      columns: Axes in a row.
      width: Width of the figure in inches.
      height: Height of a row in inches.
      **subplots: As in `pyplot.subplots`.
    """
    rows = -(-number // columns)
    size = {"nrows": rows, "ncols": columns, "squeeze": False}
    figure, grid = canvas(width, height * rows + 0.5, **size, **subplots)
    for axes in grid.flat[number:]:
        axes.set_axis_off()
    return figure, list(grid.flat[:number])


def legend_below(figure: Figure, axes: Axes) -> None:
    """Draw the legend of one axes below the figure, for all axes."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


def band(axes: Axes, x: ArrayLike, low: ArrayLike, middle: ArrayLike, high: ArrayLike, **style):
    """Draw a line and a band around it, in the line's color."""
    axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axes.plot(x, middle, **style)


def seed_band(axes: Axes, x: ArrayLike, values: xr.DataArray, middle="median", **style) -> None:
    """Draw the median over seeds, or another middle value, and the range over seeds."""
    seed = _seed(values)
    band(axes, x, values.min(seed), getattr(values, middle)(seed), values.max(seed), **style)


def seed_dots(
    axes: Axes, x: ArrayLike, values: xr.DataArray, middle="median", bar="0.4", **style
) -> None:
    """Draw the median over seeds, or another middle value, with a bar for the range over seeds.

    If `c` is given, each dot has its own color, as in `scatter`; else they are as in `plot`.
    """
    seed = _seed(values)
    axes.vlines(x, values.min(seed), values.max(seed), color=bar, linewidth=0.9)
    if "c" in style:
        axes.scatter(x, getattr(values, middle)(seed), **DOT, **style)
    else:
        axes.plot(x, getattr(values, middle)(seed), **{"linestyle": "none", **style})


def seed_means(axes: Axes, at: ArrayLike, values: xr.DataArray, along="x", **style) -> None:
    """Draw means over seeds `at` places along an axis, with 95% intervals by Student's t."""
    by_seed = values.transpose(..., _seed(values))
    intervals(axes, at, np.array([mean(of_seeds).ends for of_seeds in by_seed]).T, along, **style)


def _seed(values: xr.DataArray) -> str:
    """Return the name of the dimension of seeds, whatever they are seeds of."""
    return next(dim for dim in map(str, values.dims) if "seed" in dim)


def intervals(axes: Axes, at: ArrayLike, ends: ArrayLike, along="x", **style: Any) -> None:
    """Draw (value, low, high), the first axis of `ends`, `at` places along an axis."""
    middle, low, high = np.asarray(ends, float)
    reach = np.maximum(0, [middle - low, high - middle])  # rounding may put an end past the value
    reach = reach.reshape(2, -1)
    if along == "x":
        axes.errorbar(at, middle, yerr=reach, **style)
    else:
        axes.errorbar(middle, at, xerr=reach, **style)


def label_rows(axes: Axes, names: Sequence[str], **style: Any) -> None:
    """Label a row for each name from 0 on, with the first one on top."""
    axes.set_yticks(range(len(names)), names, **style)
    axes.set_ylim(len(names) - 0.4, -0.6)


def legend_of(axes: Axes, styles: Mapping[str, Mapping[str, Any]], **options: Any) -> None:
    """Draw a legend of lines that need not be in the plot: styles by label."""
    axes.legend(handles=handles_of(styles), **options)


def handles_of(styles: Mapping[str, Mapping[str, Any]]) -> list[Line2D]:
    """Return the handles of such a legend, for a legend outside the axes."""
    return [Line2D([], [], label=label, **style) for label, style in styles.items()]


def legend_above(axes: Axes, share: float, **options: Any) -> None:
    """Draw a legend in room made above the data: `share` of the axis, logarithmic or not."""
    to_axis, ends = axes.transScale, axes.get_ylim()
    (_, low), (_, high) = to_axis.transform([(1, ends[0]), (1, ends[1])])
    set_heights(axes, ends[0], to_axis.inverted().transform((0, high + share * (high - low)))[1])
    axes.legend(**options)


def set_heights(axes: Axes, low: ArrayLike, high: ArrayLike) -> None:
    """Set the ends of the y axis, unless a run without finite values has none."""
    ends = np.asarray([low, high], float)
    if np.isfinite(ends).all() and low != high and (axes.get_yscale() != "log" or ends.min() > 0):
        axes.set_ylim(*ends)


def mend_empty_axes(figure: Figure) -> None:
    """Give logarithmic axes without data the limits that a logarithm needs."""
    for axes in figure.axes:
        for axis, ends in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            if axis.get_scale() == "log" and not min(ends) > 0:
                axis.set_view_interval(1, 10, ignore=True)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write `<stem>.png` and `<stem>.svg` atomically and return their paths."""
    png, svg = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg"))
    save_png(figure, png)
    with style(), atomic(svg) as temporary:
        figure.savefig(temporary, metadata={"Date": None})
    return [png, svg]


def save_png(figure: Figure, path: Path) -> None:
    """Write a PNG atomically.

    It has a palette and so a third of the bytes; a page shows dozens of them.
    """
    mend_empty_axes(figure)
    pixels = io.BytesIO()
    with style():
        figure.savefig(pixels, format="png", pil_kwargs={"compress_level": 0})
    with atomic(path) as temporary:
        write_palette(Image.open(pixels), temporary)


def write_palette(picture: Image.Image, to: Any) -> None:
    """Write a picture as PNG with 256 colors: its most frequent ones exactly, others approximately.

    The others are those of a median cut in which rare colors, such as a color bar's, count almost
    as much as frequent ones; in a cut by pixels they would count for nothing.
    """
    pixels = np.asarray(picture.convert("RGB"))
    packed = pixels @ np.array([2**16, 2**8, 1])
    found, at, number = np.unique(packed, return_inverse=True, return_counts=True)
    colors = np.stack([found >> 16, found >> 8 & 255, found & 255], axis=1).astype(np.uint8)
    order = np.argsort(-number, kind="stable")
    palette, others = colors[order[:EXACT_COLORS]], order[EXACT_COLORS:]
    if others.size:
        strip = np.repeat(others, np.minimum(number[others], MOST_PIXELS))
        cut = Image.fromarray(colors[strip][None]).quantize(
            256 - EXACT_COLORS, Image.Quantize.MEDIANCUT, kmeans=1, dither=Image.Dither.NONE
        )
        rest = np.reshape(cut.getpalette(), (-1, 3))[: 256 - EXACT_COLORS]
        palette = np.concatenate([palette, rest.astype(np.uint8)])
    nearest = cKDTree(palette).query(colors)[1].astype(np.uint8)
    result = Image.fromarray(nearest[at].reshape(packed.shape))
    result.putpalette(palette.tobytes())
    result.save(to, "PNG", optimize=True)
