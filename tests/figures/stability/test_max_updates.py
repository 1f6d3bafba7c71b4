"""figures/stability/max_updates.py: slopes, the fitted relation and bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.figures.stability.max_updates import (
    fitted_relation,
    growth_slopes,
    largest_ratio,
    stored_rms,
    theory,
)

# The slope of ln‖u‖


@pytest.mark.parametrize(("b1", "b2"), [(0.995, 0.954), (0.98, 0.9625), (0.9, 0.999)])
def test_the_slope_of_a_dead_gradient_is_the_exact_rate(b1, b2):
    optimizer = stored_rms(b1, b2, 0.0)
    grads = jnp.zeros(401).at[0].set(1.0)

    def step(state, grad):
        update, state = optimizer.update(grad, state)
        return state, update

    _, updates = jax.lax.scan(step, optimizer.init(grads[0]), grads)
    slope = growth_slopes(np.asarray(updates)[None], np.array([b1]), np.array([b2]), (200, 400))
    assert slope == pytest.approx(np.log(b1) - np.log(b2) / 2, abs=1e-6)


def test_a_faster_rate_adds_to_slopes_and_a_scale_does_not():
    random = np.random.default_rng(0)
    updates = np.exp(random.normal(size=(3, 2, 60)))
    b1, b2 = np.array([0.9, 0.95, 0.99]), np.array([0.99, 0.95, 0.95])
    slopes = growth_slopes(updates, b1, b2, (20, 50))
    assert slopes.shape == (3, 2)
    np.testing.assert_allclose(growth_slopes(7 * updates, b1, b2, (20, 50)), slopes, atol=1e-12)
    faster = updates * np.exp(0.01 * np.arange(60))
    np.testing.assert_allclose(growth_slopes(faster, b1, b2, (20, 50)), slopes + 0.01, rtol=1e-9)
    outside = updates.copy()
    outside[..., :20] = outside[..., 51:] = 1e9
    np.testing.assert_array_equal(growth_slopes(outside, b1, b2, (20, 50)), slopes)


def test_a_run_shorter_than_the_window_has_no_slope():
    updates, b = np.ones((1, 300)), np.array([0.5])
    assert np.isnan(growth_slopes(updates, b, b, (200, 400))).all()
    assert np.isfinite(growth_slopes(updates, b, b, (200, 300))).all()


# The fitted relation


def noisy_slopes(coefficient, intercept, noise, num_points=9, num_seeds=9, seed=0):
    rates = np.linspace(0.001, 0.022, num_points)
    errors = np.random.default_rng(seed).normal(scale=noise, size=(num_points, num_seeds))
    return rates, coefficient * rates[:, None] + intercept + errors


def test_an_exact_line_has_an_interval_of_zero_width():
    fit = fitted_relation(*noisy_slopes(0.97, 3e-4, 0.0))
    np.testing.assert_allclose(fit, [[0.97] * 3, [3e-4] * 3], rtol=1e-9)


def test_intervals_cover_the_truth_and_narrow_with_less_noise():
    covered = [
        low <= 0.97 <= high
        for seed in range(40)
        for _, low, high in [fitted_relation(*noisy_slopes(0.97, 0.0, 2e-3, seed=seed))[0]]
    ]
    assert np.mean(covered) >= 0.8
    widths = [
        np.ptp(fitted_relation(*noisy_slopes(0.97, 0.0, noise))[0, 1:]) for noise in (2e-3, 2e-4)
    ]
    assert widths[1] < widths[0] / 5


def test_too_few_points_give_no_line():
    assert np.isnan(fitted_relation(np.array([0.1]), np.ones((1, 3)))).all()
    assert np.isnan(fitted_relation(np.array([0.1, 0.1]), np.ones((2, 3)))).all()


# Bounds


def test_the_bounds_own_ratio_is_one_and_infinities_break_it():
    log_bound = theory(np.array([0.99]), np.array([0.95]), 50)["log_exact_bound"]
    updates = np.exp(log_bound)[:, None]
    np.testing.assert_allclose(largest_ratio(updates, log_bound), 1, rtol=1e-12)
    np.testing.assert_allclose(largest_ratio(0.5 * updates, log_bound), 0.5, rtol=1e-12)
    for bad in (np.nan, np.inf):
        updates[0, 0, 7] = bad
        assert np.isinf(largest_ratio(updates, log_bound))
