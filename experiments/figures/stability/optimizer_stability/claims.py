"""Claims about the updates of optax's optimizers at their defaults, as rules."""

import math
from functools import partial

import xarray as xr

from experiments.core.claims import Claim
from experiments.core.stats import NOTHING, Estimate, exact

claim = partial(Claim, figure="optimizer_stability", section="Theorem 1")

GROWING = ("ademamix", "simplified_ademamix")


def _of(name: str, run: xr.Dataset) -> xr.Dataset:
    """Return one optimizer's row, NaN if the run lacks it."""
    return run.reindex(optimizer=[name]).isel(optimizer=0)


def _at(name: str, length: int, run: xr.Dataset) -> Estimate:
    """Return an optimizer's supremum with that many gradients."""
    row = _of(name, run).supremum.reindex(length=[length])
    return exact(row.item(), 1)


def _grow(run: xr.Dataset) -> Estimate:
    """Count the optimizers of the exact form that grow and are not in `GROWING`, or the reverse."""
    among = (run.kind == "exact").values
    growing, named = run.growth.values > 0, run.optimizer.isin(GROWING).values
    return exact((growing != named)[among | named].sum(), int(among.sum()))


def _miss(run: xr.Dataset) -> Estimate:
    """Return the largest relative difference between what is attained and the supremum."""
    short = run.sel(length=slice(10_000))
    error = abs(short.attained / short.supremum - 1)
    n = int(error.notnull().sum())
    return exact(error.max(), n) if n else NOTHING


CLAIMS: tuple[Claim, ...] = (
    claim(
        id="kingma-and-bas-bound",
        statement="Kingma and Ba (2015), §2.1: Adam's step is at most (1-γ)/√(1-β) learning rates.",
        quantity="supremum of Adam's update at γ = .9, β = .999 with 100,000 gradients, in "
        "learning rates",
        statistic=lambda run: _at("adam", 100_000, run),
        accept=(0.0, 0.1 / math.sqrt(0.001) * (1 + 1e-6)),
        reason="That is the stated bound, 3.1623, up to rounding.",
        correction="Gradients that grow by a factor of β/γ per step cause a larger step.",
        corrected_by="adams-supremum",
    ),
    claim(
        id="adams-supremum",
        statement="Adam's update at its defaults can reach (1-γ)/√((1-β)(1-γ²/β)), 7.27 learning "
        "rates, and no more.",
        quantity="supremum of Adam's update with 100,000 gradients, in learning rates",
        statistic=lambda run: _at("adam", 100_000, run),
        accept=(7.2703 * 0.999, 7.2703 * 1.001),
        reason="After 100 times 1/(1-β) steps the limit is reached to all digits that are stated.",
    ),
    claim(
        id="two-optimizers-grow",
        statement="Of optax's optimizers whose supremum is known exactly, only ademamix and "
        "simplified_ademamix grow once gradients stop.",
        quantity="number of these optimizers that grow but should not, or do not grow but should",
        statistic=_grow,
        accept=(0.0, 0.0),
        reason="The statement names each optimizer, so that a single exception refutes it.",
    ),
    claim(
        id="ademamix-at-its-defaults",
        statement="The supremum of ademamix after 20,000 steps at its defaults is 1,674 learning "
        "rates.",
        quantity="supremum of ademamix with 20,000 gradients, in learning rates",
        statistic=lambda run: _at("ademamix", 20_000, run),
        accept=(1674 * 0.995, 1674 * 1.005),
        reason="The number has four digits; half a percent allows for its rounding.",
    ),
    claim(
        id="simplified-ademamix-grows",
        statement="Without gradients the updates of simplified_ademamix grow by ln(.99/√.95) = "
        ".0156 per step.",
        quantity="slope of ln|u| of simplified_ademamix once gradients stop, over ln(.99/√.95)",
        statistic=lambda run: exact(
            _of("simplified_ademamix", run).growth / math.log(0.99 / math.sqrt(0.95)), 1
        ),
        accept=(0.995, 1.005),
        reason="Half a percent allows for the rounding of the stated number.",
    ),
    claim(
        id="optimizers-attain-their-suprema",
        statement="Each optimizer of the exact form attains its supremum.",
        quantity="largest relative difference between the update that the optimizer itself reaches "
        "on the worst gradients and the supremum, up to 10,000 gradients",
        statistic=_miss,
        accept=(0.0, 1e-6),
        reason="If a supremum is attained, rounding is the only difference; longer sequences of "
        "gradients can leave the range of float64.",
    ),
)
