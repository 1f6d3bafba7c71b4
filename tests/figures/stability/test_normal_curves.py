"""figures/stability/normal_curves and its claims."""

import numpy as np
import pytest

from experiments.figures.stability.normal_curves import FIGURE
from experiments.figures.stability.normal_curves.run import CURVES, Config, analyze
from tests.figures.contract import SMALL_NETWORK, Contract
from tests.figures.stability.runs import SMALL, assert_losses_sound

CONFIG = Config(**SMALL)


def test_test_losses_start_alike_and_then_differ(data):
    assert_losses_sound(data)


@pytest.mark.parametrize("preset", ["laptop", "paper"])
def test_points_lie_on_their_curves_and_cover_both_regions(preset):
    b1, b2 = FIGURE.presets[preset].points
    for place, (given_b2, constant) in enumerate(((0.999, 2.723), (0.95, 2.44375))):
        np.testing.assert_allclose(2 * b2[place] ** 3 + b1[place] ** 3, constant, atol=1e-4)
        assert b2[place].min() < given_b2 < b2[place].max() + 1e-6
        C = 2 / b1[place] - 1 / b2[place] - 1
        assert (np.diff(C) < 0).all()
        assert (C > 0).mean() > 0.7
        assert (C < 0).sum() >= 2
    assert (b1[0, 0], b2[0, 0]) == (np.float32(0.9), np.float32(0.999))


def made_up(early=1.0, late=0.1, rise=1.0, spread=0.0):
    """Make normal curves whose loss falls by `early` and `late` nats per unit of C in B₊, up to the
    first and last horizon, and is higher by `rise` in B₋; each seed adds up to ±`spread`."""
    config = FIGURE.presets["laptop"]
    b1, b2 = config.points
    C = (2 / b1 - 1 / b2 - 1)[..., None]
    noise = np.linspace(-spread, spread, config.num_seeds)
    steps = config.evaluations
    by_horizon = [
        base - (slope + noise) * C.clip(0) + (rise + noise) * (C < 0)
        for base, slope in ((3.5, early), (2.0, late))
    ]
    loss = np.where(steps <= config.num_steps // 3, *(x[..., None] for x in by_horizon))
    return analyze(config, np.where(steps == 0, 5.5, loss))


CONTRACT = Contract(
    FIGURE,
    CONFIG,
    panels={"": 4, "fig_12": 4},
    strict=(),
    refused=[
        {"num_seeds": 1},
        {"num_points": 2},
        {"eval_batches": 0},
        {"eval_every": 3},
        {"eval_every": 0},
        {"warmup_steps": 12},
        {"final_rate": 1.5},
    ],
    made_up=made_up,
    cases={
        f"{name}-{b2}": cases
        for b2 in CURVES
        for name, cases in {
            "larger-c-generalizes-faster": ({}, {"early": -1.0}, {"early": 0.1, "spread": 1.0}),
            "largest-c-generalizes-fastest": ({}, {"early": -1.0}, {"early": 0.1, "spread": 1.0}),
            "equal-after-long-training": ({}, {"late": 2.0}, {"late": 0.3, "spread": 0.25}),
            "loss-rises-in-b-minus": ({}, {"rise": 0.0}, {"rise": 0.1, "spread": 0.05}),
        }.items()
    },
    patches=SMALL_NETWORK,
)
