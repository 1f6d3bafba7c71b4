"""What are further stages worth on text in byte pairs, and on its rare tokens?

A gain is a test loss minus that of the arm in question, in nats per token, paired by fresh seeds.
Of several arms the one with the lowest validation loss counts. If a choice is at an edge of what
was tried, the arm may be better than measured, so the interval of a gain over all targets is open
on that side. A difference between bins is then open at both ends, since nobody knows which targets
a better setting would help.
"""

import math
from collections.abc import Sequence
from functools import partial

import xarray as xr

from experiments.core.claims import Claim
from experiments.core.stats import NOTHING, Estimate, paired_mean
from experiments.figures.optimizer.claims import best_arms, gain
from experiments.training.optimizers import ADAMW

KADAM = ("kadam_2", "kadam_2_scaled")
USEFUL = 0.01
"""Nats per token; gains below it change nothing for a user."""
LARGE = 0.1
"""Nats per token; ten times `USEFUL`."""


def _gain(run: xr.Dataset, rivals: Sequence[str], arms: Sequence[str]) -> Estimate:
    """Return the test loss of the best rival minus that of the best arm."""
    return gain(best_arms(run, rivals, arms), lambda arm: arm.loss.values)


def _rare_minus_frequent(run: xr.Dataset, rivals: Sequence[str], arms: Sequence[str]) -> Estimate:
    """Return the gain of the best arm in the rarest bin minus that in the most frequent one."""
    if (sides := best_arms(run, rivals, arms)) is None:
        return NOTHING
    rival, arm = (side.bin_loss.transpose("bin", "seed").values for side in sides)
    gains = rival - arm
    unsure = any(bool(side.unsure) for side in sides)
    return paired_mean(gains[0] - gains[-1]).opened(lower=unsure, higher=unsure)


claim = partial(Claim, figure="rare_tokens", section="§4.3")
MEAN = "nats per token: mean over fresh seeds"
BINS = (
    "among the fifth of the test targets that are rarest in the training text minus the same among "
    "the most frequent fifth"
)

CLAIMS: tuple[Claim, ...] = (
    claim(
        id="searched-kadam-beats-adamw-on-byte-pairs",
        statement="2-Adam, with learning rate and decays searched, outperforms AdamW, searched "
        "with as many runs, on text in byte pairs.",
        quantity=f"test loss of AdamW minus that of the 2-Adam chosen on validation, {MEAN}",
        statistic=lambda run: _gain(run, [ADAMW], KADAM),
        accept=(USEFUL, math.inf),
        reason=f"As with text in bytes, 2-Adam keeps twice Adam's state, and for less than "
        f"{USEFUL:g} nats per token nobody would switch.",
        correction="AdamW does as well, to within that margin, or better.",
    ),
    claim(
        id="a-stage-before-muon-helps-on-byte-pairs",
        statement="A normalization stage without momentum before Muon outperforms Muon, both "
        "searched with as many runs, on text in byte pairs.",
        quantity=f"test loss of Muon minus that of Muon with the stage, {MEAN}",
        statistic=lambda run: _gain(run, ["muon"], ["muon_before"]),
        accept=(0.0, math.inf),
        reason="As on text by bytes: with the stage Muon keeps as much state as AdamW, which its "
        "users can afford, so any gain counts.",
        correction="The stage adds nothing, or it harms.",
    ),
    claim(
        id="kadams-gain-is-larger-on-rare-tokens",
        statement="2-Adam's gain over AdamW is larger on rare target tokens than on frequent ones.",
        quantity=f"test loss of AdamW minus that of the 2-Adam chosen on validation {BINS}, {MEAN}",
        statistic=lambda run: _rare_minus_frequent(run, [ADAMW], KADAM),
        accept=(USEFUL, math.inf),
        reason="Entries of rare tokens have the most uneven gradients, which adaptive stages even "
        "out; a difference below the gain for which a user would switch is of no use.",
        correction="It is as large on frequent ones, to within that margin, or larger.",
        scale="After laptop's 400 steps 2-Adam from scaled decays, which validation prefers, is "
        "ahead of AdamW on the rarest fifth. After evening's 1,600 both 2-Adams are behind in "
        "every bin, and least on the most frequent fifth.",
        minimum={"num_bins": 5},
    ),
    claim(
        id="rare-tokens-suffer-most-without-normalization",
        statement="SGD with momentum, which normalizes nothing, loses more against AdamW on rare "
        "target tokens than on frequent ones (Kunstner et al. 2024, arXiv 2402.19449).",
        quantity=f"test loss of SGD minus that of AdamW {BINS}, {MEAN}",
        statistic=lambda run: _rare_minus_frequent(run, ["sgd"], [ADAMW]),
        accept=(LARGE, math.inf),
        reason="The authors see the losses of rare tokens hardly fall without Adam, which is a "
        f"matter of whole nats at the end of their runs; {LARGE:g} nats is a small part of that, "
        "and ten times what a user would notice.",
        correction="At this size and length it loses as much on frequent ones, to within that "
        "margin, or more.",
        minimum={"num_bins": 5},
    ),
)
