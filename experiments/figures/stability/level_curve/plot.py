"""Plot of test losses along the level curve (Fig. 13)."""

import xarray as xr
from matplotlib.figure import Figure as Canvas

from experiments.figures.stability.plot import Axis, page

BY_B2 = Axis(
    name="b2",
    symbol="β",
    reference=-1,
    reference_name="(0.999, 0.9)",
    colormap="viridis_r",
    levels=(0.0, 0.2212),
)


def plot(dataset: xr.Dataset) -> dict[str, Canvas]:
    """Draw one page."""
    return {"": page(dataset, BY_B2)}
