"""figures/stability/batch_scaling and its claims."""

import numpy as np
import pytest
import xarray as xr

from experiments.figures.stability.batch_scaling import FIGURE
from experiments.figures.stability.batch_scaling.run import WHERE, Config, decays
from kadam_jax import decays_for_batch
from kadam_jax.batch_size import RULES
from tests.figures.contract import NETWORK, SMALL_NETWORK, Contract

CONFIG = Config(model=NETWORK, batch=1, num_steps=12, num_seeds=2, ratios=(1, 4, 8), num_ratios=9)


def test_decays_are_those_of_the_rules():
    b1, b2 = decays(CONFIG, np.array([1, 2]))
    np.testing.assert_allclose(b1[:, 0], CONFIG.b1, rtol=1e-6)
    np.testing.assert_allclose(b2[:, 0], CONFIG.b2, rtol=1e-6)
    for rule, *pair in zip(RULES, b1[:, 1], b2[:, 1], strict=True):
        expected = decays_for_batch(CONFIG.b1, CONFIG.b2, 10, 20, rule=rule)
        np.testing.assert_allclose(pair, expected, rtol=1e-6)


@pytest.mark.parametrize("preset", ["smoke", "laptop", "paper"])
def test_training_has_batch_sizes_on_both_sides_of_the_critical_one(preset):
    config = FIGURE.presets[preset]
    b1, b2 = decays(config, np.array(config.ratios))
    inside = b1[0] ** 2 < b2[0]
    assert inside[0]
    assert not inside[-1]


def test_rules_are_equal_at_the_smallest_batch(data):
    loss = data.loss.isel(trained_ratio=0)
    np.testing.assert_allclose(loss, loss.sel(rule="both").broadcast_like(loss), rtol=1e-5)
    assert (data.loss.sel(rule="tokens") != data.loss.sel(rule="both"))[1:].all()


def test_first_updates_are_one_and_none_exceeds_its_supremum(data):
    np.testing.assert_allclose(data.max_update.isel(step=0).max("where"), 1, rtol=1e-6)
    assert data.exceeds.max() <= 1 + 1e-5
    assert (data.largest >= data.max_update).all()


def test_growth_is_zero_at_the_critical_batch(data):
    growth = data.growth.sel(rule="tokens")
    crossing = np.interp(0, growth, data.ratio) * CONFIG.batch
    np.testing.assert_allclose(crossing, data.critical, rtol=0.02)
    assert (data.growth.drop_sel(rule="tokens") < 0).all()


def made_up(crossing=5.078, other=-0.1, exceeds=0.5, ratio=100.0, unused=5, gap=0.1):
    """Make a dataset with what the claims read."""
    ratios = np.geomspace(1, 16, 121)
    tokens = np.log(ratios / crossing)
    others = np.full((2, 121), other)
    noise = np.linspace(0.99, 1.01, 5)
    largest = np.ones((2, 3, 5, 5)) * 0.5
    largest[0, 0, -1] = ratio * noise
    largest[0, 0, -1, unused:] = 0.1
    largest[1, 0, -1, unused:] = ratio
    largest[1, 1:] = 1.0
    loss = np.ones((3, 5, 5))
    loss[0] += gap * noise
    return xr.Dataset(
        {
            "growth": (("rule", "ratio"), np.concatenate([tokens[None], others])),
            "exceeds": (("rule", "trained_ratio", "seed"), np.full((3, 5, 5), exceeds)),
            "largest": (("where", "rule", "trained_ratio", "seed"), largest),
            "loss": (("rule", "trained_ratio", "seed"), loss),
        },
        {"rule": list(RULES), "ratio": ratios, "where": list(WHERE)},
    )


CONTRACT = Contract(
    FIGURE,
    CONFIG,
    panels={"": 4},
    refused=[
        {"num_ratios": 1},
        {"ratios": (1,)},
        {"ratios": (2, 4)},
        {"ratios": (1, 4, 2)},
        {"b1": 0.9, "ratios": (1, 16)},
        {"b2": 1.0},
    ],
    made_up=made_up,
    cases={
        "boundary-at-650": ({}, {"crossing": 4.0}),
        "other-rules-stay-inside": ({}, {"other": 0.01}),
        "training-stays-below-the-supremum": ({}, {"exceeds": 1.001}),
        "updates-grow-beyond-the-critical-batch": ({}, {"ratio": 2.0}, {"ratio": 10.0}),
        "unused-rows-grow": ({}, {"unused": 4}),
        "growth-harms-the-loss": ({}, {"gap": 0.0}, {"gap": 0.02}),
    },
    patches=SMALL_NETWORK,
)
