"""The paper's claims about a second moment shared by a whole matrix, as rules."""

import math
from functools import partial

import numpy as np
import xarray as xr

from experiments.core.claims import Claim
from experiments.core.stats import Estimate, mean, median_over_seeds


def _distance(run: xr.Dataset, other: str) -> xr.DataArray:
    """Return the distance of all queries and keys from Adam's at the end, by seed."""
    return run.distance.sel(run=other, part="slices").isel(step=-1)


def _harm(run: xr.Dataset) -> Estimate:
    """Return the mean difference in held-out loss at the end, in units of reordering's effect."""
    loss = run.heldout_loss.isel(eval_step=-1)
    plain = loss.sel(run="adam")
    unit = np.sqrt(((loss.sel(run="reordered") - plain) ** 2).mean("seed"))
    return mean((loss.sel(run="coarse") - plain) / unit)


claim = partial(Claim, figure="coarse_graining")

CLAIMS: tuple[Claim, ...] = (
    claim(
        id="coarse-graining-trajectories-agree",
        section="Assumption 2, Fig. 9",
        statement="Trajectories with and without coarse-graining agree strongly.",
        quantity="distance of all queries and keys between the two runs at the end, over how far "
        "they have moved: median over seeds",
        statistic=lambda run: median_over_seeds(_distance(run, "coarse")),
        accept=(0.0, 0.1),
        reason="Lines that differ by less than a tenth of their displacement look like one line.",
        corrected_by="coarse-graining-harmless-for-the-loss",
        correction="The trajectories part as soon as they move; only the loss ends where it would "
        "without coarse-graining.",
    ),
    claim(
        id="coarse-graining-less-than-data-order",
        section="Assumption 2, Fig. 9",
        statement="Coarse-graining changes trajectories only a little, less than chance does.",
        quantity="distance of all queries and keys to the coarse-grained run at the end, over that "
        "to a run with other batches and dropout: median over seeds",
        statistic=lambda run: median_over_seeds(
            _distance(run, "coarse") / _distance(run, "reordered")
        ),
        accept=(-math.inf, 1.0),
        reason="A change in the algorithm is small if a change in chance alone has a larger "
        "effect.",
    ),
    claim(
        id="coarse-graining-harmless-for-the-loss",
        section="Assumption 2",
        statement="Coarse-graining the second moment of queries and keys does not harm training.",
        quantity="held-out loss with coarse-graining minus that without, over the root mean square "
        "difference that other batches and dropout make: mean over seeds",
        statistic=_harm,
        accept=(-1.0, 1.0),
        reason="On average, it is no more than what another order of the data does to a single "
        "run.",
    ),
)
