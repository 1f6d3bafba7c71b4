"""figures/stability/max_update and its claims."""

import dataclasses

import numpy as np
import pytest

from experiments.figures.stability.max_update import FIGURE
from experiments.figures.stability.max_update.run import Config, analyze
from experiments.figures.stability.max_updates import theory
from tests.figures.contract import NETWORK, SMALL_NETWORK, Contract
from tests.figures.stability.runs import assert_sound

CONFIG = Config(
    model=NETWORK,
    batch=2,
    num_steps=24,
    num_seeds=2,
    contrast_steps=40,
    num_curve=10,
    num_points=6,
    slope_first=10,
    slope_last=20,
)
LAPTOP = dataclasses.replace(
    FIGURE.presets["laptop"], num_seeds=9, contrast_seeds=5, contrast_steps=1051
)


def test_members_differ_by_seed_and_respect_the_exact_bound(data):
    assert_sound(data)


def test_contrasts_begin_like_their_counterparts(data):
    assert data.contrast.values.tolist() == [3, 5]
    ours = data.contrast_stored
    for name in ("contrast_eps", "contrast_float32"):
        np.testing.assert_allclose(data[name][..., :8], ours[..., :8], rtol=1e-2)


def test_members_of_one_program_may_differ_in_length(data):
    assert data.sizes["step"] < data.sizes["contrast_step"]
    assert data.contrast_stored.notnull().all()
    shorter = data.max_update[data.contrast]
    longer = data.contrast_stored[:, : CONFIG.num_seeds, : CONFIG.num_steps]
    np.testing.assert_array_equal(longer, shorter)


def test_points_are_the_usual_one_and_the_end_of_the_curve():
    (b1, b2), (curve_b1, curve_b2) = CONFIG.points, CONFIG.curve
    assert (b1[0], b2[0]) == (np.float32(0.9), np.float32(0.999))
    np.testing.assert_array_equal(b1[1:], curve_b1[-5:])
    np.testing.assert_array_equal(b2[1:], curve_b2[-5:])
    C = theory(b1, b2, 1)["C"]
    assert C.min() < 0 < C.max()


@pytest.mark.parametrize("preset", ["laptop", "paper"])
def test_presets_cover_both_sides(preset):
    C = theory(*FIGURE.presets[preset].points, 1)["C"]
    assert min((C > 0).sum(), (C < 0).sum()) >= len(C) / 4


def made_up(rate="exact", by=1.0, scale=1.0, spread=0.0, revived=False, jump=True):
    """Make the dataset that would result if ‖u_n‖ were constant, or e^{rate·n} where C < 0.

    Args:
      rate: A rate from `theory`, "exact" or "half_C".
      by: Multiplies the rate.
      scale: Multiplies the updates.
      spread: Half the range of the seeds' rates, relative.
      revived: Whether growth ends at n = 100.
      jump: Whether the float32 contrast jumps, and growth ends with the larger ε.
    """
    b1, b2 = LAPTOP.points
    at = theory(b1, b2, LAPTOP.num_steps)
    n = np.arange(LAPTOP.num_steps)
    predicted = {"exact": at["exact_rate"], "half_C": -at["C"] / 2}[rate]
    seeds = by * (1 + np.linspace(-spread, spread, LAPTOP.num_seeds))
    log_growth = (
        predicted.clip(0)[:, None, None] * seeds[:, None] * np.minimum(n, 100 if revived else n)
    )
    correction = np.log1p(-(b2[:, None] ** (n + 1))) / 2 - np.log1p(-(b1[:, None] ** (n + 1)))
    updates = scale * np.exp(log_growth + (correction - correction[:, :1])[:, None])
    few = updates[LAPTOP.contrast][:, : LAPTOP.contrast_seeds]
    ones = np.ones_like(updates)
    return analyze(
        LAPTOP,
        {"max_update": updates, "dead_share": ones, "loss": ones},
        stored=few,
        larger_eps=few * np.exp(-0.03 * n) if jump else few,
        float32=few * np.where(n > 900, 1e12, 1) if jump else few,
    )


CONTRACT = Contract(
    FIGURE,
    CONFIG,
    panels={"": 6, "checks": 4},
    strict=(),
    diverged=((np.nan, 64), (np.inf, 32)),
    refused=[
        {"num_points": 1},
        {"num_points": 11},
        {"slope_first": 19},
        {"contrast_points": ()},
        {"contrast_points": (6,)},
    ],
    made_up=made_up,
    cases={
        "updates-within-exact-bound": ({}, {"scale": 1.1}),
        "updates-within-theorem-1": ({}, {"scale": 10}),
        "bounded-in-b-plus": ({}, {"scale": 1.5}),
        "grows-in-b-minus": ({}, {"revived": True}),
        "early-slope-is-exact-rate": (
            {"spread": 0.05},
            {"by": 0.85},
            {
                "rate": "half_C",
                "by": 0.875,
            },  # 0.903 of the exact rate at one end, 0.899 at the other
        ),
        "slope-proportional-to-half-c": (
            {"rate": "half_C", "spread": 0.02},
            {"rate": "half_C", "by": 1.3},
            {"by": 0.9, "spread": 0.05},
        ),
        "slope-proportional-to-exact-rate": (
            {"spread": 0.02},
            {"by": 0.85},
            {"by": 0.9, "spread": 0.05},
        ),
        "late-slope-is-half-c": (
            {"rate": "half_C"},
            {"rate": "exact"},
            {"rate": "half_C", "spread": 0.05},
        ),
        "growth-starts-at-the-boundary": ({"spread": 0.05}, {"revived": True}, {"spread": 0.5}),
        "larger-eps-stops-growth": ({}, {"jump": False}),
        "float32-v-jumps": ({}, {"jump": False}),
    },
    patches=SMALL_NETWORK,
)
