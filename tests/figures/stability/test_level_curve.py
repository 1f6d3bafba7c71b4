"""figures/stability/level_curve and its claims."""

import numpy as np
import pytest

from experiments.figures.stability.level_curve import FIGURE
from experiments.figures.stability.level_curve.run import Config, analyze
from tests.figures.contract import SMALL_NETWORK, Contract
from tests.figures.stability.runs import SMALL, assert_losses_sound

CONFIG = Config(**SMALL)


def test_test_losses_start_alike_and_then_differ(data):
    assert_losses_sound(data)


@pytest.mark.parametrize("preset", ["laptop", "paper"])
def test_level_curve_points_share_c_and_end_at_the_usual_one(preset):
    b1, b2 = FIGURE.presets[preset].points
    np.testing.assert_allclose(2 / b1 - 1 / b2 - 1, 0.2212, atol=2e-4)
    assert (np.diff(np.hypot(b1, b2)) > 0).all()
    assert (b1[-1], b2[-1]) == (np.float32(0.9), np.float32(0.999))


def made_up(fall=0.5, spread=0.0):
    """Make a level curve where the loss falls by `fall` + `spread` by seed as β rises from 0."""
    config = FIGURE.presets["laptop"]
    _, b2 = config.points
    slopes = fall + np.linspace(-spread, spread, config.num_seeds)
    loss = 3 - b2[:, None, None] * slopes[:, None] * np.ones(len(config.evaluations))
    return analyze(config, np.where(config.evaluations == 0, 5.5, loss))


CONTRACT = Contract(
    FIGURE,
    CONFIG,
    panels={"": 4},
    strict=(),
    refused=[{"num_points": 2}, {"eval_every": 3}],
    made_up=made_up,
    cases={"slower-near-the-origin": ({}, {"fall": -0.5}, {"fall": 0.1, "spread": 0.5})},
    patches=SMALL_NETWORK,
)
