"""Plots of test losses along normal curves (Figs. 4 and 12)."""

import xarray as xr
from matplotlib.figure import Figure as Canvas

from experiments.core import plot as plotting
from experiments.figures.stability.plot import Axis, page

BY_C = Axis(
    name="C",
    symbol="C",
    reference=0,
    reference_name="the largest C",
    colormap=plotting.STABILITY_COLORMAP,
    levels=(0.0,),
)


def plot(dataset: xr.Dataset) -> dict[str, Canvas]:
    """Draw a page for each curve."""
    suffixes = ("", "fig_12")
    return {suffix: page(dataset.isel(curve=place), BY_C) for place, suffix in enumerate(suffixes)}
