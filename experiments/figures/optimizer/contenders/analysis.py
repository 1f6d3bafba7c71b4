"""Gains over AdamW, steps to its loss, and interior optima, from what was trained."""

import numpy as np
import xarray as xr

from experiments.core.stats import (
    NOTHING,
    Estimate,
    exact,
    holm,
    mean,
    number,
    paired_mean,
    paired_p_value,
)
from experiments.core.store import labeled, named
from experiments.training.optimizers import ADAMW

TARGET = 3 / 4
"""The target is the mean loss of tuned AdamW after this share of its run, over fresh seeds."""
UNITS = "nat/token or %"


def analyze(data: xr.Dataset) -> xr.Dataset:
    """Compute the figure's dataset.

    Args:
      data: What every contender was given and what came out, over arm and task.

    Returns:
      The data with targets, the steps to them, and gains over AdamW with intervals and, for each
      task, Holm's p-values over all contenders.
    """
    at = round(TARGET * data.sizes["point"]) - 1
    target = data.course.sel(arm=ADAMW, drop=True).isel(point=at, drop=True).mean("seed")
    steps = steps_to(data.course, target, data.steps)
    capped = in_run(steps, data.steps)
    saved = saving(capped.sel(arm=ADAMW, drop=True), capped)
    gains = (data.score.sel(arm=ADAMW, drop=True) - data.score).transpose("task", "arm", "seed")
    others = (data.arm != ADAMW).values
    adjusted = np.full(gains.shape[:2], np.nan)
    for row, of_task in zip(adjusted, gains[:, others], strict=True):
        row[others] = holm([paired_p_value(gain) for gain in of_task])
    data = data.assign(
        target=named(target, "target: AdamW's mean loss at three quarters of its run", "nat"),
        target_steps=named(steps, "steps to the target; infinite if never", "step"),
        reached=named((steps < np.inf).mean("seed"), "share of fresh seeds that reach the target"),
        gain=number(
            [[paired_mean(gain) for gain in of_task] for of_task in gains],
            "score of AdamW minus the arm's, mean over fresh seeds",
            UNITS,
            ["task", "arm"],
        ),
        p_value=named((("task", "arm"), adjusted), "Holm-adjusted p-value of no gain over AdamW"),
        saved=number(
            [[paired_mean(of_seeds) for of_seeds in of_task] for of_task in saved],
            "AdamW's steps to the target minus the arm's, in percent of AdamW's, mean over fresh "
            "seeds; a run that never reaches it counts as its whole length",
            "%",
            ["task", "arm"],
        ),
        shared_gain=number(
            [[paired_mean(gain) for gain in of_task] for of_task in shared_gains(data)],
            "loss of AdamW minus the arm's, each at the setting that all tasks share, in percent "
            "of a uniform guess's loss, mean over fresh seeds",
            "%",
            ["task", "arm"],
        ),
    )
    numbers = {
        "settings": named(data.sizes["candidate"], "settings each contender tries on each task"),
        "interior": number(
            interior(data), "share of the searches' optima with settings on both sides"
        ),
    }
    for task in data.task.values:
        loss = data.score.sel(task=task, arm=ADAMW).values
        numbers[f"adamw_{task}"] = number(mean(loss), f"score of AdamW on {task}", UNITS)
        numbers[f"target_{task}"] = named(
            data.target.sel(task=task, drop=True).reset_coords(drop=True),
            f"target on {task}",
            "nat",
        )
    return labeled(data.assign(numbers))


def steps_to(course: xr.DataArray, target: xr.DataArray, steps: xr.DataArray) -> xr.DataArray:
    """Return steps to a target over the course's dimensions, by straight lines; infinite if never.

    >>> course = xr.DataArray([[3.0, 2.0, 1.0], [3.0, 3.0, 3.0]], dims=("arm", "point"))
    >>> steps = xr.DataArray([10.0, 20.0, 30.0], dims="point")
    >>> steps_to(course, xr.DataArray(1.5), steps).values
    array([25., inf])
    """
    course, target, steps = xr.broadcast(course, target, steps)
    below = course <= target
    place = below.argmax("point")
    before = (place - 1).clip(0)
    (high, start), (low, end) = (
        (course.isel(point=at), steps.isel(point=at)) for at in (before, place)
    )
    drop = (high - low).where(place > 0)
    share = ((high - target.isel(point=0)) / drop).where(np.isfinite(drop) & (drop > 0), 1.0)
    found = start + share * (end - start)
    return found.where(below.any("point"), np.inf).reset_coords(drop=True)


def in_run(target_steps: xr.DataArray, steps: xr.DataArray) -> xr.DataArray:
    """Return steps to a target where a run that never reaches it counts as its whole length."""
    whole = steps.isel(point=-1, drop=True)
    return target_steps.where(np.isfinite(target_steps), whole)


def saving(rival: xr.DataArray, arm: xr.DataArray) -> xr.DataArray:
    """Return steps that an arm saves of a rival's mean, in percent, over task, arm and seed."""
    saved = 100 * (rival - arm) / rival.mean("seed")
    return saved.transpose("task", ..., "seed")


def shared_gains(data: xr.Dataset) -> xr.DataArray:
    """Return AdamW's shared-setting loss minus each arm's, in percent of a uniform guess's."""
    loss = 100 * data.shared_loss / data.chance
    return (loss.sel(arm=ADAMW, drop=True) - loss).transpose("task", "arm", "shared_seed")


def interior(data: xr.Dataset) -> Estimate:
    """Return the share of searched optima, over arms, tasks and axes, that are not at an edge."""
    if not np.isfinite(data.picked_validation).all():
        return NOTHING
    return exact(float(1 - data.at_edge.mean()), data.at_edge.size)
