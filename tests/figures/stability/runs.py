"""Checks that hold for the members of every training run."""

import numpy as np

from tests.figures.contract import NETWORK

SMALL = {
    "model": NETWORK,
    "batch": 2,
    "num_steps": 12,
    "num_seeds": 2,
    "num_points": 4,
    "warmup_steps": 2,
    "eval_every": 2,
    "eval_batches": 3,
}


def assert_sound(data):
    assert {"point", "seed", "step"} <= set(data.max_update.dims)
    np.testing.assert_allclose(data.max_update.isel(step=0), 1, rtol=1e-6)
    assert (data.loss.isel(seed=0) != data.loss.isel(seed=1)).all()
    assert data.exact_ratio.max() < 1 + 1e-5
    assert ((data.dead_share >= 0) & (data.dead_share <= 1)).all()
    for point in range(1, data.sizes["point"]):
        assert (data.loss[point, :, -1] != data.loss[0, :, -1]).all()
        np.testing.assert_allclose(data.loss[point, :, 0], data.loss[0, :, 0], rtol=1e-6)


def assert_losses_sound(data):
    assert not data.diverged.any()
    first, last = data.test_loss.isel(evaluation=0), data.test_loss.isel(evaluation=-1)
    np.testing.assert_allclose(first, first.isel(point=[0] * 4), rtol=1e-6)
    assert (last != last.isel(point=[1, 2, 3, 0]).values).all()
    assert (data.best_loss.sel(horizon="whole") <= data.best_loss.sel(horizon="early")).all()
