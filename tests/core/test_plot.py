"""core/plot.py: the parts of plots that figures share."""

import io

import numpy as np
import pytest
import xarray as xr
from matplotlib import colormaps
from PIL import Image

from experiments.core import plot
from experiments.core.stats import mean

VALUES = xr.DataArray(np.random.default_rng(0).normal(size=(3, 5)), dims=("point", "contrast_seed"))


@pytest.mark.parametrize(("along", "axis"), [("x", 1), ("y", 0)])
def test_means_have_students_intervals_along_either_axis(along, axis):
    _, axes = plot.canvas(3, 3)
    plot.seed_means(axes, range(3), VALUES.T, along, fmt="o")
    _, _, (bars,) = axes.containers[0].lines
    drawn = np.array(bars.get_segments())  # (point, end, x and y)
    expected = [mean(of_seeds).ends[1:] for of_seeds in VALUES.values]
    np.testing.assert_allclose(drawn[..., axis], expected)
    np.testing.assert_array_equal(drawn[..., 1 - axis], [[0, 0], [1, 1], [2, 2]])


@pytest.mark.parametrize("middle", ["mean", "median"])
@pytest.mark.parametrize("style", [{"color": "red"}, {"c": ["red", "green", "blue"]}])
def test_dots_lie_in_the_middle_of_the_seeds_range(middle, style):
    _, axes = plot.canvas(3, 3)
    plot.seed_dots(axes, range(3), VALUES, middle, **style)
    bars, *dots = axes.collections
    drawn = dots[0].get_offsets() if dots else axes.lines[0].get_xydata()
    np.testing.assert_allclose(drawn[:, 1], getattr(np, middle)(VALUES.values, axis=1))
    ends = np.array(bars.get_segments())[..., 1]
    np.testing.assert_allclose(ends.T, [VALUES.min("contrast_seed"), VALUES.max("contrast_seed")])


def test_each_panel_has_its_own_letter():
    _, grid = plot.canvas(3, 3, ncols=2)
    plot.draw_panels(grid, None, [lambda axes, data, word: word] * 2, "word")
    assert [axes.get_title(loc="left") for axes in grid] == ["(a) word", "(b) word"]
    with pytest.raises(ValueError, match="shorter"):
        plot.draw_panels(grid, None, [lambda axes, data: ""])


def test_small_multiples_leave_the_last_places_empty():
    figure, panels = plot.small_multiples(5, 4, 6, 2)
    assert [axes.axison for axes in figure.axes] == [True] * 5 + [False] * 3
    assert panels == figure.axes[:5]


def test_a_palette_keeps_flat_colors_and_follows_color_bars():
    pixels = np.full((300, 300, 3), 255, np.uint8)
    pixels[:100, :200] = 31, 119, 180
    pixels[200:, :256] = np.round(colormaps["viridis"](np.arange(256))[:, :3] * 255)
    pixels[150, :] = np.random.default_rng(0).integers(0, 256, (300, 3))
    file = io.BytesIO()
    plot.write_palette(Image.fromarray(pixels), file)
    off = np.abs(np.asarray(Image.open(file).convert("RGB")).astype(int) - pixels).max(-1)
    assert off[:150].max() == 0
    assert off[200:].max() < 12
