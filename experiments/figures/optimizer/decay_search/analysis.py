"""The results of the search for 2-Adam's decays: differences with intervals, and their meaning."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from experiments.core.stats import number, paired_mean, spearman
from experiments.core.store import labeled, named
from experiments.figures.optimizer.decay_search.box import AXES, COORDINATES, KADAM, OUTER
from experiments.figures.optimizer.decay_search.stages import SEARCHED
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
    data = data.assign_coords(
        boundary=named(("boundary", list(BOUNDARIES)), "end of the box, or of its outer tenth"),
    )
    found = data.test.sel(arm=SEARCHED)
    best = _lowest(data, data.strategy.values)
    best_known = _lowest(data, [SEARCHED, *data.strategy.values])
    gains = -(data.test - data.test.sel(arm=ADAMW, drop=True))
    over_adamw = data.second_test.sel(optimizer=ADAMW) - data.second_test.sel(optimizer=KADAM)
    data = data.assign(
        gain=number(
            [paired_mean(gain) for gain in gains],
            "test loss of tuned AdamW minus the arm's, mean over fresh seeds",
            LOSS,
            ["arm"],
        ),
        second_gain=number(
            paired_mean(over_adamw),
            "test loss on images of AdamW minus that of the 2-Adam found, mean over fresh seeds",
            "nat/image",
        ),
        gain_over_strategies=number(
            paired_mean(data.test.sel(arm=best) - found),
            "test loss of the best strategy minus that of the 2-Adam found, mean over fresh seeds",
            LOSS,
        ),
        gain_over_inverse_exp=number(
            paired_mean(data.test.sel(arm="inverse_exp") - data.test.sel(arm=best_known)),
            "test loss of inverse exp minus that of the best 2-Adam, found or by a strategy, mean "
            "over fresh seeds",
            LOSS,
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
        LOSS,
    )
    lows = data.gain_searched.sel(end="low"), data.second_gain.sel(end="low")
    adamw_at_edge = data.rate_at_edge.sel(arm=ADAMW) | data.second_rate_at_edge.sel(optimizer=ADAMW)
    data["num_confirmed"] = named(
        int(all(low > 0 for low in lows) and not adamw_at_edge),
        "candidates better than tuned AdamW on both tasks, intervals above 0 (of 1 candidate)",
    )
    data = data.assign(_stated_settings(data))
    data.attrs["note"] = _note(data)
    return labeled(data, LABELS)


def _lowest(data: xr.Dataset, arms: Sequence[str]) -> str:
    """Return the one of these arms with the lowest validation loss."""
    return arms[int(lowest(data.mean_validation.sel(arm=list(arms))))]


def _boundaries(config: Any) -> np.ndarray:
    """Return the box's ends and the inner ends of its outer tenths, (coordinate, boundary)."""
    places = np.array(list(BOUNDARIES.values()))
    cube = np.tile(places[:, None], (1, len(COORDINATES)))
    return config.box.settings(cube, COORDINATES).T


def _rank_correlations(config: Any, data: xr.Dataset) -> np.ndarray:
    """Spearman's, of each coordinate with the loss over the members of the whole box."""
    inside = data.isel(member=slice(config.num_searched))
    rows = []
    for name in data.optimizer.values:
        one = inside.sel(optimizer=name)
        one = one.isel(member=np.isfinite(one.validation.values))
        rows.append([spearman(one.setting.sel(coordinate=c), one.validation) for c in COORDINATES])
    return np.array(rows)


def _stated_settings(data: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return what was chosen, as numbers that the report states."""
    names = {SEARCHED: ("found", "the 2-Adam found"), ADAMW: ("adamw", "AdamW as tuned")}
    numbers = {}
    for arm, (prefix, whose) in names.items():
        optimizer = KADAM if arm == SEARCHED else ADAMW
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
    return (
        "No decays were found: no candidate is shown to be better on both tasks. The best: "
        f"{found}."
    )


SYMBOLS: Mapping[str, str] = {
    "b1_1": "γ₁",
    "b2_1": "β₁",
    "b1_2": "γ₂",
    "b2_2": "β₂",
    "rate": "learning rate η",
}
BOUNDARIES = {"lowest": 0.0, "inner_low": OUTER, "inner_high": 1 - OUTER, "highest": 1.0}
"""Positions along an axis of the box."""
LOSS = "nat/token"
LABELS: Mapping[str, tuple[str, str]] = {
    "optimizer": ("optimizer whose decays are searched", "1"),
    "coordinate": ("decay of a stage, or learning rate", "1"),
    "setting": ("value of a member", "1"),
    "validation": ("validation loss, first tuning seed", LOSS),
    "finalist_member": ("index of the finalist among the members", "1"),
    "finalist_validation": ("validation loss of a finalist", LOSS),
    "tuning_seed": ("seed that is used for choosing", "1"),
    "chosen": ("index of the chosen member", "1"),
    "coordinate_at_edge": ("whether the chosen value is in the outer tenth of its range", "1"),
    "strategy": ("the paper's strategy", "1"),
    "strategy_rate": ("learning rate of the strategies' sweep", "1"),
    "strategy_validation": ("validation loss of a strategy, first tuning seed", LOSS),
    "strategy_setting": ("value of a strategy as tuned", "1"),
    "strategy_mean": ("validation loss of a strategy as tuned, mean over tuning seeds", LOSS),
    "strategy_at_edge": ("whether the strategy's learning rate is the lowest or the highest", "1"),
    "arm": ("tuned AdamW, the 2-Adam found, 2-Adam by strategy", "1"),
    "arm_setting": ("value of an arm as tuned", "1"),
    "mean_validation": ("validation loss as tuned, mean over tuning seeds", LOSS),
    "rate_at_edge": ("whether the learning rate chosen is near an end of its range", "1"),
    "test": ("test loss, fresh seeds; NaN for strategies that are not compared", LOSS),
    "seed": ("fresh seed", "1"),
    "second_rate": ("learning rate of the second task's sweep", "1"),
    "second_validation": ("validation loss on the second task, first tuning seed", "nat/image"),
    "second_chosen_rate": ("learning rate chosen on the second task", "1"),
    "second_rate_at_edge": (
        "whether the second task's learning rate is the lowest or the highest",
        "1",
    ),
    "second_test": ("test loss on the second task, fresh seeds", "nat/image"),
}
