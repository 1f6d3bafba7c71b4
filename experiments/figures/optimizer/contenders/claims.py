"""Is k-Adam worth trying, and what is a stage around Muon worth, with every contender searched?

A gain is a score minus that of the arm in question, paired by fresh seeds: nats of test loss per
token, or percentage points of test error. Of several arms the one with the lowest validation loss
counts. If a choice is at an edge of what was tried, the arm may be better than measured, so the
gain's interval is open on that side. The setting that all tasks share is only the best of the
coarse grid; its interval stays closed. Steps to a target are those to the mean validation loss of
AdamW at three quarters of its run; a run that never gets there counts as its whole length.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import xarray as xr

from experiments.core.claims import Claim
from experiments.core.stats import NOTHING, Estimate, paired_mean
from experiments.figures.optimizer.claims import best_arms, gain, opened_at_edges
from experiments.figures.optimizer.contenders.analysis import in_run, interior, saving
from experiments.training.optimizers import ADAMW
from experiments.training.tuning import lowest

KADAM = ("kadam_2", "kadam_3", "kadam_2_scaled", "kadam_3_scaled")
AFTER = ("adamuon", "normuon")
ONE_STAGE = ("muon_before", *AFTER)
USEFUL = {"text": 0.01, "images": 0.5}
"""Gains below these change nothing for a user."""
SAVING = 5.0
"""Percent of AdamW's steps."""
UNITS = {"text": "nats per token", "images": "percentage points"}
AFTER_MUON = (
    "Of the two stages laptop has AdaMuon alone; evening also searches NorMuon, which validation "
    "prefers and which is closer to Muon."
)
"""Why presets differ about a stage after Muon."""
OTHER_MUON = (
    "On images, evening's longer search chooses another setting for Muon, whose test errors are "
    "higher and vary more between seeds, so the difference is smaller and its interval wider."
)
"""Why presets differ about a stage before Muon."""


def _sides(run: xr.Dataset, task: str, *sides: Sequence[str]) -> list[xr.Dataset] | None:
    """Return the best arm of each side on a task; None without one."""
    return best_arms(run.sel(task=task), *sides) if task in run.task.values else None


def _gain(run: xr.Dataset, task: str, rivals: Sequence[str], arms: Sequence[str]) -> Estimate:
    """Return the score of the best rival minus that of the best arm."""
    return gain(_sides(run, task, rivals, arms), lambda arm: arm.score.values)


def _saved(run: xr.Dataset, task: str, arms: Sequence[str]) -> Estimate:
    """Return the steps to the target that the best arm saves, in percent of AdamW's."""
    if (sides := _sides(run, task, [ADAMW], arms)) is None:
        return NOTHING
    rival, arm = sides
    if not all(np.isfinite(side.course).all() for side in sides):
        return NOTHING
    steps = [in_run(side.target_steps, side.steps).expand_dims("task") for side in sides]
    return opened_at_edges(paired_mean(saving(*steps).values), rival, arm)


def _smallest(run: xr.Dataset, rivals: Sequence[str], arms: Sequence[str]) -> Estimate:
    """Return the smallest gain over tasks, in percent of a uniform guess's loss.

    Each end of the interval is the lowest of the tasks' ends, so that it lies above 0 only if all
    of them do.
    """
    found = []
    for task in run.task.values.tolist():
        if (sides := _sides(run, task, rivals, arms)) is None:
            return NOTHING
        rival, arm = sides
        difference = rival.loss.values - arm.loss.values
        share = 100 * difference / float(run.chance.sel(task=task))
        found.append(opened_at_edges(paired_mean(share), rival, arm))
    ends = np.array([estimate.ends for estimate in found])
    return Estimate.of(ends.min(0), sum(estimate.n for estimate in found))


def _shared(run: xr.Dataset, arms: Sequence[str]) -> Estimate:
    """Return AdamW's loss minus the arm's at shared settings, mean over tasks, in percent."""
    present = [arm for arm in arms if arm in run.arm.values]
    if not present:
        return NOTHING
    loss = (100 * run.shared_loss / run.chance).mean("task", skipna=False)
    place = int(lowest(run.shared_validation.sel(arm=present)))
    return paired_mean((loss.sel(arm=ADAMW) - loss.sel(arm=present[place])).values)


claim = partial(Claim, figure="contenders")
MEAN = "mean over fresh seeds"


def _on(task: str) -> tuple[Claim, ...]:
    """Return the claims about one task."""
    useful, units = USEFUL[task], UNITS[task]
    score = {"text": "test loss", "images": "test error"}[task]
    return (
        claim(
            id=f"searched-kadam-beats-adamw-on-{task}",
            section="§4.3",
            statement=f"2- or 3-Adam, with learning rate and decays searched, outperforms AdamW, "
            f"searched with as many runs, on {task}.",
            quantity=f"{score} of AdamW minus that of the k-Adam chosen on validation, {units}: "
            f"{MEAN}",
            statistic=lambda run: _gain(run, task, [ADAMW], KADAM),
            accept=(useful, math.inf),
            reason=f"k-Adam keeps k times Adam's state: for less than {useful:g} {units} nobody "
            "would switch.",
            correction="AdamW does as well, to within that margin, or better, when its decays are "
            "searched too.",
        ),
        claim(
            id=f"searched-kadam-saves-steps-on-{task}",
            section="§4.3",
            statement=f"Searched k-Adam reaches a loss of AdamW in fewer steps on {task}.",
            quantity="steps of AdamW to its own mean loss at three quarters of the run, minus "
            f"those of the k-Adam chosen on validation, percent of AdamW's: {MEAN}",
            statistic=lambda run: _saved(run, task, KADAM),
            accept=(SAVING, math.inf),
            reason="A further stage makes each step longer by some percent, so fewer saved steps "
            "save no time.",
            correction="It needs about as many steps, or more.",
        ),
        claim(
            id=f"a-stage-before-muon-helps-on-{task}",
            section="§4.3",
            statement="A normalization stage without momentum before Muon outperforms Muon, both "
            f"searched with as many runs, on {task}.",
            quantity=f"{score} of Muon minus that of Muon with the stage, {units}: {MEAN}",
            statistic=lambda run: _gain(run, task, ["muon"], ["muon_before"]),
            accept=(0.0, math.inf),
            reason="With the stage Muon keeps as much state as AdamW, which its users can afford, "
            "so any gain counts. A first look, on text with another protocol, had 0.016 nats per "
            "token.",
            correction="The stage adds nothing, or it harms.",
            scale=OTHER_MUON if task == "images" else "",
        ),
        claim(
            id=f"a-stage-after-muon-helps-on-{task}",
            section="§4.3",
            statement="A normalization stage after Muon, elementwise as in AdaMuon or for each row "
            f"as in NorMuon, outperforms Muon, all searched with as many runs, on {task}.",
            quantity=f"{score} of Muon minus that of the better of AdaMuon and NorMuon, chosen on "
            f"validation among those that were trained, {units}: {MEAN}",
            statistic=lambda run: _gain(run, task, ["muon"], AFTER),
            accept=(0.0, math.inf),
            reason="Their authors report gains over Muon, and the state is at most AdamW's.",
            correction="The stage adds nothing, or it harms.",
            scale=AFTER_MUON,
        ),
        claim(
            id=f"a-second-stage-around-muon-helps-on-{task}",
            section="§4.3",
            statement="Stages both before and after Muon outperform the better of one stage, all "
            f"searched with as many runs, on {task}.",
            quantity=f"{score} of the best arm with one stage, chosen on validation, minus that "
            f"with both, {units}: {MEAN}",
            statistic=lambda run: _gain(run, task, ONE_STAGE, ["muon_both"]),
            accept=(useful, math.inf),
            reason="The second stage makes the state larger than AdamW's, so it must pay for it as "
            "k-Adam must.",
            correction="One stage is enough.",
        ),
    )


CLAIMS: tuple[Claim, ...] = (
    *_on("text"),
    *_on("images"),
    claim(
        id="searched-kadam-beats-adamw-on-every-task",
        section="§4.3",
        statement="2- or 3-Adam, searched on each task, outperforms an AdamW that was searched "
        "with as many runs on every task that was trained.",
        quantity="smallest gain in test loss over AdamW of any task, percent of a uniform guess's "
        "loss: mean over fresh seeds, between the lowest ends of the tasks' intervals",
        statistic=lambda run: _smallest(run, [ADAMW], KADAM),
        accept=(0.0, math.inf),
        reason="A recommendation without a condition must hold on each; whether the gain is worth "
        "its cost is judged above.",
        correction="On some task AdamW does as well or better.",
    ),
    claim(
        id="a-stage-before-muon-helps-on-every-task",
        section="§4.3",
        statement="A normalization stage before Muon outperforms Muon on every task that was "
        "trained.",
        quantity="smallest gain in test loss over Muon of any task, percent of a uniform guess's "
        "loss: mean over fresh seeds, between the lowest ends of the tasks' intervals",
        statistic=lambda run: _smallest(run, ["muon"], ["muon_before"]),
        accept=(0.0, math.inf),
        reason="The first look was at one network and one budget; what holds for all is what a "
        "reader needs.",
        correction="On some task the stage adds nothing.",
        scale=OTHER_MUON,
    ),
    claim(
        id="one-kadam-for-all-tasks-beats-one-adamw",
        section="§4.3",
        statement="With one setting for all tasks, chosen by the mean validation loss over them, "
        "k-Adam outperforms AdamW.",
        quantity="test loss of AdamW minus that of the k-Adam with the lowest validation loss by "
        "that rule, percent of a uniform guess's loss: mean over tasks and fresh seeds",
        statistic=lambda run: _shared(run, KADAM),
        accept=(0.0, math.inf),
        reason="A user without time to search takes a default, and a better default is worth "
        "having at any size of the gain.",
        correction="AdamW's best single setting does as well or better.",
    ),
    claim(
        id="every-searched-optimum-is-interior",
        section="§4.3",
        statement="Every contender's optimum on every task has settings that were tried on both "
        "sides, in learning rate and in memory.",
        quantity="share of the optima, counted along each axis",
        statistic=interior,
        accept=(1.0, 1.0),
        reason="An optimum at an edge means that the contender may be better than measured; one "
        "such optimum is enough to doubt the contender's row.",
        correction="Some are at an edge; the figure rings them, and claims that they touch stay "
        "open on that side.",
    ),
)
