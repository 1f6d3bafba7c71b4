"""The results of the search for 2-Adam's decays: differences with intervals, and their meaning."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from experiments.core.stats import number, paired_mean, spearman
from experiments.core.store import coordinates, labeled, named
from experiments.figures.optimizer.decay_search.box import AXES, COORDINATES, KADAM, OUTER
from experiments.figures.optimizer.decay_search.stages import ON_IMAGES, ON_TEXT, SEARCHED
from experiments.training.optimizers import ADAMW
from experiments.training.tuning import lowest


def analyze(config: Any, data: xr.Dataset) -> xr.Dataset:
    """Add differences with their intervals, and what they mean, to the stages' results.

    Args:
      config: The figure's configuration.
      data: From `experiments.figures.optimizer.decay_search.stages.stages`.

    Returns:
      The figure's dataset; its `note` says whether the search found anything.
    """
    ends = coordinates(boundary=(list(BOUNDARIES), "end of the box, or of its outer tenth"))
    data = data.assign_coords(ends)
    found = data.test.sel(arm=SEARCHED)
    best = _lowest(data, data.strategy.values)
    best_known = _lowest(data, [SEARCHED, *data.strategy.values])
    gains = -(data.test - data.test.sel(arm=ADAMW, drop=True))
    over_adamw = data.second_test.sel(optimizer=ADAMW) - data.second_test.sel(optimizer=KADAM)
    data = data.assign(
        gain=number(
            [paired_mean(gain) for gain in gains],
            "test loss of tuned AdamW minus the arm's, mean over fresh seeds",
            ON_TEXT,
            ["arm"],
        ),
        second_gain=number(
            paired_mean(over_adamw),
            "test loss on images of AdamW minus that of the 2-Adam found, mean over fresh seeds",
            ON_IMAGES,
        ),
        gain_over_strategies=number(
            paired_mean(data.test.sel(arm=best) - found),
            "test loss of the best strategy minus that of the 2-Adam found, mean over fresh seeds",
            ON_TEXT,
        ),
        gain_over_inverse_exp=number(
            paired_mean(data.test.sel(arm="inverse_exp") - data.test.sel(arm=best_known)),
            "test loss of inverse exp minus that of the best 2-Adam, found or by a strategy, mean "
            "over fresh seeds",
            ON_TEXT,
        ),
        is_best_strategy=named(
            ("arm", data.arm.values == best),
            "whether it is the best strategy on the validation split",
        ),
        refined=named(
            ("member", np.arange(data.sizes["member"]) >= config.num_searched),
            "whether the member lies around the best of the others",
        ),
        box=named((("coordinate", "boundary"), _boundaries(config)), "value there"),
        rank_correlation=named(
            (("optimizer", "coordinate"), _rank_correlations(config, data)),
            "Spearman's correlation of the value with validation loss, members of the whole box "
            "that did not diverge",
        ),
    )
    data["gain_searched"] = named(
        data.gain.sel(arm=SEARCHED, drop=True),
        "test loss of tuned AdamW minus that of the 2-Adam found, mean over fresh seeds",
        ON_TEXT,
    )
    lows = data.gain_searched.sel(end="low"), data.second_gain.sel(end="low")
    adamw_at_edge = data.rate_at_edge.sel(arm=ADAMW) | data.second_rate_at_edge.sel(optimizer=ADAMW)
    data["num_confirmed"] = named(
        int(all(low > 0 for low in lows) and not adamw_at_edge),
        "candidates better than tuned AdamW on both tasks, intervals above 0 (of 1 candidate)",
    )
    data = data.assign(_stated_settings(data))
    data.attrs["note"] = _note(data)
    return labeled(data)


def _lowest(data: xr.Dataset, arms: Sequence[str]) -> str:
    """Return which of these arms has the lowest validation loss."""
    return arms[int(lowest(data.mean_validation.sel(arm=list(arms))))]


def _boundaries(config: Any) -> np.ndarray:
    """Return the box's ends and the inner ends of its outer tenths, (coordinate, boundary)."""
    places = np.array(list(BOUNDARIES.values()))
    cube = np.tile(places[:, None], (1, len(COORDINATES)))
    return config.box.settings(cube, COORDINATES).T


def _rank_correlations(config: Any, data: xr.Dataset) -> np.ndarray:
    """Return Spearman's correlation of each coordinate with the loss over the whole box."""
    inside = data.isel(member=slice(config.num_searched))
    rows = []
    for name in data.optimizer.values:
        one = inside.sel(optimizer=name)
        one = one.isel(member=np.isfinite(one.validation.values))
        rows.append([spearman(one.setting.sel(coordinate=c), one.validation) for c in COORDINATES])
    return np.array(rows)


def _stated_settings(data: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return what was chosen, as numbers that the report states."""
    numbers = {}
    for arm, optimizer, prefix, whose in (
        (SEARCHED, KADAM, "found", "the 2-Adam found"),
        (ADAMW, ADAMW, "adamw", "AdamW as tuned"),
    ):
        for axis in AXES[optimizer]:
            value = data.arm_setting.sel(arm=arm, coordinate=axis, drop=True)
            numbers[f"{prefix}_{axis}"] = named(value, f"{SYMBOLS[axis]} of {whose}")
        rate = data.second_chosen_rate.sel(optimizer=optimizer, drop=True)
        numbers[f"{prefix}_second_rate"] = named(rate, f"learning rate η of {whose}, on images")
    return numbers


def _note(data: xr.Dataset) -> str:
    """State the search's result in a sentence, from the numbers."""
    setting = data.arm_setting.sel(arm=SEARCHED)
    found = ", ".join(
        f"{SYMBOLS[axis]} = {setting.sel(coordinate=axis).item():.4g}" for axis in COORDINATES
    )
    if data.gain_searched.isnull().any() or data.second_gain.isnull().any():
        return (
            "No result: what was chosen diverged with fresh seeds, or was trained on one task only."
        )
    if data.num_confirmed:
        return f"Recommended, better than tuned AdamW on both tasks: {found}."
    failed = "No decays were found: no candidate is shown to be better on both tasks."
    return f"{failed} The best: {found}."


SYMBOLS: Mapping[str, str] = {
    "b1_1": "γ₁",
    "b2_1": "β₁",
    "b1_2": "γ₂",
    "b2_2": "β₂",
    "rate": "learning rate η",
}
BOUNDARIES = {"lowest": 0.0, "inner_low": OUTER, "inner_high": 1 - OUTER, "highest": 1.0}
"""Positions along an axis of the box."""
