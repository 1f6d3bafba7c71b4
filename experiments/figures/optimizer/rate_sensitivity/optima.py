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
from experiments.core.store import labeled, named
from experiments.figures.optimizer.rate_basins import basin, loss_at, optimum
from experiments.training.optimizers import ADAMW
from experiments.training.tuning import lowest


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
    data = xr.Dataset(
        {name: (("arm", "place", "seed"), loss.astype(float)) for name, loss in finite.items()},
        {
            "arm": named(("arm", list(config.arms)), "optimizer; 2-Adam's strategies end with _2"),
            "rate": named((("arm", "place"), config.rates), "learning rate η"),
            "seed": np.array(config.seeds),
            "switch": named(
                ("switch", list(config.switches)), "strategy of 2-Adam that AdamW is switched to"
            ),
        },
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
    for name, values in response.items():
        data[f"predicted_by_{name}"] = "switch", values[0] / values[1:]
    data = data.assign(_prices(data))
    return labeled(data.assign(_numbers(data)), LABELS)


def _of_each_run(data: xr.Dataset, tolerance: float) -> xr.Dataset:
    """Find the optimum and the basin of each arm and seed, by the validation loss."""
    curves = [
        (rates, loss)
        for rates, losses in zip(data.rate.values, data.validation.values, strict=True)
        for loss in losses.T
    ]
    basins = [basin(*curve, tolerance) for curve in curves]
    found = {
        "optimum": [optimum(*curve) for curve in curves],
        "lowest": [loss[lowest(loss)] for _, loss in curves],
        "best_place": [lowest(loss) for _, loss in curves],
        "basin_low": [each.low for each in basins],
        "basin_high": [each.high for each in basins],
        "width": [each.decades for each in basins],
        "open": [each.open for each in basins],
    }
    shape = data.sizes["arm"], data.sizes["seed"]
    return xr.Dataset({key: (("arm", "seed"), np.reshape(x, shape)) for key, x in found.items()})


def _choices(data: xr.Dataset) -> xr.Dataset:
    """Find what the other seeds choose, and whether a grid ends before an optimum or basin."""
    chosen = best_on_other_seeds(data.validation, "place").transpose("arm", "seed")
    last = data.sizes["place"] - 1
    return xr.Dataset(
        {
            "chosen_place": named(
                (("arm", "seed"), chosen.values), "index of the rate that the other seeds choose"
            ),
            "rate_at_lowest": named(
                ((chosen == 0) | (data.best_place == 0)).any("seed"),
                "whether a best or chosen rate is the lowest of the grid",
            ),
            "rate_at_highest": named(
                ((chosen == last) | (data.best_place == last)).any("seed"),
                "whether a best or chosen rate is the highest of the grid",
            ),
            "basin_open": named(
                data.open.any("seed"), "whether the grid ends inside the basin of any seed"
            ),
        }
    )


def _prices(data: xr.Dataset) -> dict[str, tuple]:
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
    best = own.sel(arm=data.switch.values).values
    return {
        "price_at_adamws": (("switch", "seed"), at["adamws"] - best),
        "price_at_ratio": (("switch", "seed"), at["ratio"] - best),
        "beyond_adamw": (("switch", "seed"), at["ratio"] - own.sel(arm=ADAMW).values),
    }


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
                "nat/token",
            )
        statistics[f"wider_{switch}"] = (
            data.width.sel(arm=switch) - data.width.sel(arm=ADAMW),
            f"width of the basin of {name} minus AdamW's",
            "decades",
        )
    for arm in data.arm.values.tolist():
        statistics[f"width_{arm}"] = (
            data.width.sel(arm=arm),
            f"width of the basin of {arm}",
            "decades",
        )
    return starts | means_over_seeds(statistics)


LABELS: Mapping[str, tuple[str, str]] = {
    "validation": ("loss on the validation split", "nat/token"),
    "test": ("loss on the test split", "nat/token"),
    "optimum": ("best learning rate, from a parabola through the lowest losses", "1"),
    "lowest": ("lowest loss on the validation split", "nat/token"),
    "best_place": ("index of the rate with the lowest loss", "1"),
    "basin_low": ("lowest learning rate of the basin", "1"),
    "basin_high": ("highest learning rate of the basin", "1"),
    "width": ("width of the basin", "decades"),
    "open": ("whether the grid ends inside the basin", "1"),
    "predicted_by_size": ("AdamW's size of updates on noise over 2-Adam's", "1"),
    "predicted_by_displacement": ("AdamW's displacement on noise over 2-Adam's", "1"),
    "price_at_adamws": ("test loss at AdamW's best rate minus that at its own", "nat/token"),
    "price_at_ratio": (
        "test loss at AdamW's rate times the ratio minus that at its own",
        "nat/token",
    ),
    "beyond_adamw": ("test loss at AdamW's rate times the ratio minus AdamW's", "nat/token"),
}
