"""Each optimizer's best learning rate, its basin, and the cost of other rates, from its losses."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from experiments.core.stats import (
    best_on_other_seeds,
    geometric_mean,
    means_over_seeds,
    number,
)
from experiments.core.store import coordinates, labeled, named, over
from experiments.figures.optimizer.rate_basins import basin, loss_at, optimum
from experiments.training.optimizers import ADAMW
from experiments.training.tuning import lowest

NATS = "nat/token"


def analyze(
    config: Any, losses: Mapping[str, np.ndarray], response: Mapping[str, np.ndarray]
) -> xr.Dataset:
    """Compute the figure's dataset.

    Args:
      config: Names arms, rates, seeds and the basin's tolerance.
      losses: `validation` and `test`, nats per token, (num_arms, num_rates, num_seeds); losses that
        are not finite become NaN.
      response: From `noise_response`, for AdamW and then for each strategy of 2-Adam.

    Returns:
      Losses, optima, basins, ratios to AdamW's rate and costs of learning rates, labeled.
    """
    finite = {name: np.where(np.isfinite(loss), loss, np.nan) for name, loss in losses.items()}
    rows = {
        name: (loss.astype(float), f"loss on the {name} split", NATS)
        for name, loss in finite.items()
    }
    data = xr.Dataset(
        over(("arm", "place", "seed"), rows),
        coordinates(
            arm=(config.arms, "optimizer; 2-Adam's strategies end with _2"),
            seed=(config.seeds, "seed"),
            switch=(config.switches, "strategy of 2-Adam that AdamW is switched to"),
        )
        | over(("arm", "place"), {"rate": (config.rates, "learning rate η")}),
    )
    data = data.assign(_of_each_run(data, config.tolerance))
    data = data.assign(_choices(data))
    data["ratio"] = named(
        data.optimum / data.optimum.sel(arm=ADAMW, drop=True), "best learning rate over AdamW's"
    )
    for name, what in (("optimum", "rate"), ("ratio", "rate over AdamW's")):
        means = [geometric_mean(values) for values in data[name]]
        label = f"best learning {what}, geometric mean over seeds"
        data[f"mean_{name}"] = number(means, label, dims=["arm"])
    for name, what in (("size", "size of updates"), ("displacement", "displacement")):
        predicted = response[name][0] / response[name][1:]
        label = f"AdamW's {what} on noise over 2-Adam's"
        data[f"predicted_by_{name}"] = named(("switch", predicted), label)
    data = data.assign(_prices(data))
    return labeled(data.assign(_numbers(data)))


def _of_each_run(data: xr.Dataset, tolerance: float) -> dict[str, xr.Variable]:
    """Find the optimum and the basin of each arm and seed, by the validation loss."""
    curves = [
        (rates, loss)
        for rates, losses in zip(data.rate.values, data.validation.values, strict=True)
        for loss in losses.T
    ]
    basins = [basin(*curve, tolerance) for curve in curves]
    found = {
        "optimum": (
            [optimum(*curve) for curve in curves],
            "best learning rate, from a parabola through the lowest losses",
        ),
        "lowest": (
            [loss[lowest(loss)] for _, loss in curves],
            "lowest loss on the validation split",
            NATS,
        ),
        "best_place": (
            [lowest(loss) for _, loss in curves],
            "index of the rate with the lowest loss",
        ),
        "basin_low": ([each.low for each in basins], "lowest learning rate of the basin"),
        "basin_high": ([each.high for each in basins], "highest learning rate of the basin"),
        "width": ([each.decades for each in basins], "width of the basin", "decades"),
        "open": ([each.open for each in basins], "whether the grid ends inside the basin"),
    }
    shape = data.sizes["arm"], data.sizes["seed"]
    rows = {name: (np.reshape(values, shape), *label) for name, (values, *label) in found.items()}
    return over(("arm", "seed"), rows)


def _choices(data: xr.Dataset) -> dict[str, Any]:
    """Find what the other seeds choose, and whether a grid ends before an optimum or basin."""
    chosen = best_on_other_seeds(data.validation, "place").transpose("arm", "seed")
    last = data.sizes["place"] - 1
    ends = {
        end: named(
            ((chosen == place) | (data.best_place == place)).any("seed"),
            f"whether a best or chosen rate is the {end} of the grid",
        )
        for end, place in (("lowest", 0), ("highest", last))
    }
    return {
        "chosen_place": named(
            (("arm", "seed"), chosen.values), "index of the rate that the other seeds choose"
        ),
        **{f"rate_at_{end}": at_end for end, at_end in ends.items()},
        "basin_open": named(
            data.open.any("seed"), "whether the grid ends inside the basin of any seed"
        ),
    }


def _prices(data: xr.Dataset) -> dict[str, xr.Variable]:
    """Compute differences of 2-Adam's test losses at AdamW's rate and at the scaled rate."""
    log_ratio = np.log(data.ratio)
    others = (log_ratio.sum("seed", skipna=False) - log_ratio) / (data.sizes["seed"] - 1)
    ratio_of_others = np.exp(others)
    own = data.test.isel(place=data.chosen_place)
    adamws = data.rate.isel(place=data.chosen_place).sel(arm=ADAMW)
    shape = data.sizes["switch"], data.sizes["seed"]
    at = {name: np.full(shape, np.nan) for name in ("adamws", "ratio")}
    for row, switch in enumerate(data.switch.values):
        for column, rate in enumerate(adamws.values):
            arm = data.sel(arm=switch).isel(seed=column)
            curve = arm.rate.values, arm.test.values
            factor = ratio_of_others.sel(arm=switch)[column].item()
            at["adamws"][row, column] = loss_at(*curve, rate)
            at["ratio"][row, column] = loss_at(*curve, rate * factor)
    best, adamws_best = own.sel(arm=data.switch.values).values, own.sel(arm=ADAMW).values
    what = "test loss at AdamW's"
    rows = {
        "price_at_adamws": (at["adamws"] - best, f"{what} best rate minus that at its own", NATS),
        "price_at_ratio": (
            at["ratio"] - best,
            f"{what} rate times the ratio minus that at its own",
            NATS,
        ),
        "beyond_adamw": (
            at["ratio"] - adamws_best,
            f"{what} rate times the ratio minus AdamW's",
            NATS,
        ),
    }
    return over(("switch", "seed"), rows)


def _numbers(data: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return the numbers that the report states."""
    statistics, starts = {}, {}
    for switch in data.switch.values.tolist():
        name = f"2-Adam ({switch.removesuffix('_2').replace('_', ' ')})"
        starts[f"start_{switch}"] = named(
            data.mean_ratio.sel(arm=switch, drop=True),
            f"factor on AdamW's learning rate from which to start {name}, geometric mean over "
            "seeds, 95% interval",
        )
        for variable, text in (
            ("price_at_adamws", "at AdamW's best rate, minus that at its own"),
            ("price_at_ratio", "at AdamW's best rate times the ratio, minus that at its own"),
            ("beyond_adamw", "at AdamW's best rate times the ratio, minus AdamW's"),
        ):
            statistics[f"{variable}_{switch}"] = (
                data[variable].sel(switch=switch),
                f"test loss of {name} {text}",
                NATS,
            )
        statistics[f"wider_{switch}"] = (
            data.width.sel(arm=switch) - data.width.sel(arm=ADAMW),
            f"width of the basin of {name} minus AdamW's",
            "decades",
        )
    for arm in data.arm.values.tolist():
        width = data.width.sel(arm=arm)
        statistics[f"width_{arm}"] = width, f"width of the basin of {arm}", "decades"
    return starts | means_over_seeds(statistics)
