"""The gains over AdamW of the optimizers compared: picks, means, intervals, Holm's procedure."""

from collections.abc import Mapping

import numpy as np
import xarray as xr

from experiments.core.stats import holm, mean, number, paired_mean, paired_p_value
from experiments.core.store import coordinates, labeled, named
from experiments.training.optimizers import ADAMW
from experiments.training.tuning import lowest


def analyze(data: xr.Dataset) -> xr.Dataset:
    """Compute the figure's dataset from the trained arms.

    Args:
      data: Over arm, setting and place along the rates; `test` over arm and seed.

    Returns:
      The data with each arm's pick, whether it is at an end of what was tried, means over fresh
      seeds, gains over AdamW, and Holm's p-values for the family of all gains.
    """
    data = data.assign_coords(coordinates(axis=(list(AXES), "what is tuned")))
    data["test"] = named(
        data.test.where(np.isfinite(data.test)),
        "test loss, fresh seeds; NaN where a run diverged",
        NATS,
    )
    picked_loss = data.finalist_validation.fillna(np.inf).min("finalist")
    gains = (data.test.sel(arm=ADAMW, drop=True) - data.test).transpose("arm", "seed")
    others = (data.arm != ADAMW).values
    adjusted = np.full(len(others), np.nan)
    adjusted[others] = holm([paired_p_value(gain) for gain in gains[others]])
    data = data.assign(
        picked_rate=named(
            data.rate.isel(place=data.picked_place),
            "learning rate of the finalist with the lowest validation loss",
        ),
        picked_validation=named(
            picked_loss, "validation loss of what was picked, mean over tuning seeds", NATS
        ),
        at_edge=named(
            (("arm", "axis"), np.stack([_at_edge(data, axis) for axis in AXES], axis=1)),
            "whether what was picked is at an end of what was tried near it; 0 is not an end",
        ),
        picked=named(
            ("arm", _best_of_each(picked_loss, data.optimizer)),
            "whether tuning the optimizer ends with this arm",
        ),
        mean_test=number(
            [mean(test) for test in data.test], "test loss, mean over fresh seeds", NATS, ["arm"]
        ),
        gain=number([paired_mean(gain) for gain in gains], GAIN, NATS, ["arm"]),
        p_value=named(
            ("arm", adjusted), "Holm-adjusted p-value of no gain, over all arms except AdamW"
        ),
    )
    numbers = {
        f"gain_{arm}": named(data.gain.sel(arm=arm, drop=True), f"{GAIN}, {arm}", NATS)
        for arm in data.arm.values[others]
    }
    numbers["combinations"] = named(
        data.b1.sel(arm=ADAMW, drop=True).count() * data.sizes["place"],
        "settings times learning rates that each optimizer is tuned over",
    )
    numbers["adamw_test"] = named(
        data.mean_test.sel(arm=ADAMW, drop=True),
        "test loss of tuned AdamW, mean over fresh seeds, 95% interval",
        NATS,
    )
    data.attrs["note"] = _note(data)
    return labeled(data.assign(numbers))


def _at_edge(data: xr.Dataset, axis: str) -> np.ndarray:
    """Return whether each arm's pick is the last one tried along an axis, with `AS_PICKED` fixed.

    There is nothing beyond 0; an axis along which the arm never varies has no ends.
    """
    along = "place" if axis == "rate" else "setting"
    at_pick = {along: data[f"picked_{along}"]}
    tried = data[axis]
    picked, varied = tried.isel(at_pick), tried.min(along) < tried.max(along)
    for other in AS_PICKED.get(axis, ()):
        tried = tried.where(data[other] == data[other].isel(at_pick))
    low, high = tried.min(along), tried.max(along)
    return (varied & ((picked == high) | ((picked == low) & (low > 0)))).values


def _note(data: xr.Dataset) -> str:
    """Say which optima lie at an end of what was tried."""
    found = [
        f"{arm.item()} ({', '.join(AXES[axis] for axis in AXES if ends.sel(axis=axis))})"
        for arm, ends in zip(data.arm, data.at_edge, strict=True)
        if ends.any()
    ]
    if not found:
        return "Settings on both sides of every optimum were tried, along each axis."
    return f"At an end of what was tried, and perhaps better beyond it: {'; '.join(found)}."


def _best_of_each(loss: xr.DataArray, optimizer: xr.DataArray) -> np.ndarray:
    """Return whether each arm has the lowest loss of its optimizer's arms."""
    best = np.zeros(loss.size, bool)
    for name in set(optimizer.values):
        places = np.flatnonzero(optimizer.values == name)
        best[places[lowest(loss[places])]] = True
    return best


AXES: Mapping[str, str] = {"rate": "η", "b1": "γ", "b2": "β", "weight_decay": "λ"}
"""The symbol of each hyperparameter that is tuned."""
AS_PICKED: Mapping[str, tuple[str, ...]] = {
    "b1": ("b2",),
    "b2": ("b1",),
    "weight_decay": ("b1", "b2"),
}
"""The values that neighbors along an axis share; those along γ or β may differ in λ, which hardly
moves the best γ and β."""
NATS = "nat/token"
GAIN = "test loss of tuned AdamW minus the arm's, positive if it is better, mean over fresh seeds"
