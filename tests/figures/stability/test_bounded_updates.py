"""figures/stability/bounded_updates and its claims."""

import numpy as np
import pytest

from experiments.figures.stability.bounded_updates import FIGURE
from experiments.figures.stability.bounded_updates.run import (
    Config,
    analyze,
    exponents,
    log_square_root_bound,
    precision_change,
)
from kadam_jax.stability import exact_max_update_bound, max_update_bound
from tests.figures.contract import NETWORK, SMALL_NETWORK, Contract

CONFIG = Config(model=NETWORK, batch=2, num_steps=110, num_seeds=2, num_boundary=3, num_inside=2)
LAPTOP = FIGURE.presets["laptop"]


# The points and their bounds


def test_points_lie_on_the_boundary_and_inside():
    b1, b2 = LAPTOP.points
    C = 2 / b1.astype(float) - 1 / b2.astype(float) - 1
    on = LAPTOP.curves == "B₀"
    assert on.sum() == 11
    assert abs(C[on]).max() < 1e-6
    assert (np.diff(C[~on]) < 0).all()
    assert 0 < C[-1] < 0.03
    assert (b1[on.sum()], b2[on.sum()]) == (np.float32(0.9), np.float32(0.999))
    constant = 2 * b2[~on].astype(float) ** 3 + b1[~on].astype(float) ** 3
    np.testing.assert_allclose(constant, constant[0], rtol=1e-6)


def test_the_square_root_form_is_theorem_1_on_the_boundary(x64):
    n, b1, b2 = np.arange(50), np.array([2 / 3, 0.8]), np.array([0.5, 2 / 3])
    ours = np.exp(log_square_root_bound(b1, b2, 50))
    limit = max_update_bound(n, b1[:, None], b2[:, None] * (1 + 1e-13), form="integral")
    np.testing.assert_allclose(ours, limit, rtol=1e-9, atol=1e-12)


def test_on_the_boundary_the_supremum_tends_to_rmsprops(x64):
    b2 = np.linspace(0.01, 0.99, 21)
    b1 = 2 * b2 / (1 + b2)
    np.testing.assert_allclose(exact_max_update_bound(np.inf, b1, b2), (1 - b2) ** -0.5, rtol=1e-9)


def test_the_supremum_is_continuous_through_the_boundary():
    assert precision_change(np.array([0.1, 0.5, 0.9]), 1000) < 0.01


@pytest.mark.parametrize("p", [0.0, 0.5, -0.3])
def test_a_power_of_n_has_its_exponent_at_any_scale(p):
    n = np.arange(300.0)
    with np.errstate(divide="ignore"):
        updates = np.stack([2 * n**p, 5 * n**p])
    np.testing.assert_allclose(exponents(updates, 100), [p, p], atol=1e-12)


# The dataset of a tiny, real run


def test_members_stay_within_the_supremum(data):
    assert data.max_update.dims == ("point", "seed", "step")
    assert data.exact_ratio.max() < 1 + 1e-5
    np.testing.assert_allclose(data.max_update.isel(step=0), 1, rtol=1e-6)
    assert (data.loss.isel(seed=0) != data.loss.isel(seed=1)).all()


def test_numbers_match_their_labels(data):
    on = data.isel(point=data.curve.values == "B₀")
    ratio = on.max_update / np.exp(on.log_paper_bound)
    np.testing.assert_allclose(
        on.paper_ratio, ratio.isel(step=slice(1, None)).max("step"), rtol=1e-5
    )
    above = [
        n for n in range(1, 110) if (on.max_update[..., n] > np.exp(on.log_paper_bound[:, n])).any()
    ]
    assert data.last_above_square_root == max(above, default=0)
    largest = data.max_update.values[:3, :, 100:].max((0, 2)).mean()
    assert data.boundary_largest[0] == pytest.approx(largest)


# Claims


def synthetic(power=0.0, noise=0.0, scale=0.5):
    """Make ‖u_n‖∞ = scale n^power, with a power that differs between seeds by `noise`."""
    num_points = LAPTOP.num_boundary + LAPTOP.num_inside
    n = np.arange(LAPTOP.num_steps)
    powers = power + noise * np.linspace(-1, 1, LAPTOP.num_seeds)
    updates = scale * np.maximum(n, 1.0) ** powers[:, None]
    updates = np.broadcast_to(updates, (num_points, *updates.shape))
    return analyze(LAPTOP, updates, np.ones_like(updates))


CONTRACT = Contract(
    FIGURE,
    CONFIG,
    panels={"boundary": 4, "inside_b_plus": 3},
    refused=[{"num_boundary": 0}, {"num_inside": 0}, {"num_steps": 100}],
    made_up=synthetic,
    cases={
        "bounded-on-b-zero": ({}, {"power": 0.5}, {"power": 0.25, "noise": 0.1}),
        "exact-bound-on-b-zero": ({}, {"scale": 1.2}),
        "square-root-bound-on-b-zero": ({}, {"scale": 1.2}),
        "theorem-1-inside-b-plus": ({}, {"scale": 8.0}),
    },
    patches=SMALL_NETWORK,
)
