"""figures/stability/annealing and its claims."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.figures.stability.annealing import FIGURE
from experiments.figures.stability.annealing.run import Config, analyze, annealed
from experiments.figures.stability.max_updates import GROWING, stored_rms
from experiments.training.tasks import language_task
from experiments.training.train import train_member
from kadam_jax.monitor import record_max_update
from tests.figures.contract import CORPUS, NETWORK, SMALL_NETWORK, Contract

CONFIG = Config(
    model=NETWORK,
    batch=2,
    num_steps=24,
    num_seeds=2,
    num_points=3,
    num_curve=10,
    strengths=(0.0, 1.0),
    learning_rate=1e-2,
    warmup_steps=2,
    eval_every=4,
    eval_batches=2,
    slope_first=8,
    slope_last=20,
)
LAPTOP = FIGURE.presets["laptop"]
pytestmark = pytest.mark.usefixtures("small_network")


# Training


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_the_rate_is_the_papers(strength):
    member = {"strength": strength, "b1": 0.995, "b2": 0.954}
    schedule = annealed(member, optax.constant_schedule(2e-3))
    C = 2 / 0.995 - 1 / 0.954 - 1
    expected = 2e-3 * np.exp(-strength * np.arange(100) * abs(C) / 2)
    np.testing.assert_allclose([float(schedule(n)) for n in range(100)], expected, rtol=1e-4)


def test_nothing_is_annealed_where_updates_are_bounded():
    schedule = annealed({"strength": 1.0, "b1": 0.9, "b2": 0.999}, lambda count: 1e-3 * count)
    assert float(schedule(jnp.array(500))) == pytest.approx(0.5)


def test_updates_are_unannealed_ones_times_the_annealing(data):
    b1, b2 = (float(data[name][-1]) for name in ("b1", "b2"))
    half_C = -float(data.C[-1]) / 2
    assert half_C > 0
    task = language_task(CONFIG.model, CORPUS, CONFIG.batch)
    for strength in CONFIG.strengths:
        optimizer = optax.chain(
            stored_rms(b1, b2, CONFIG.eps),
            record_max_update(),
            optax.scale_by_learning_rate(
                lambda n, s=strength: CONFIG.learning_rate * jnp.exp(-s * half_C * n)
            ),
        )
        trained = train_member(
            task, optimizer, seed=1, num_steps=24, read=lambda state: state[1].max_update
        )
        at = data.sel(strength=strength, seed=1).isel(point=-1)
        np.testing.assert_allclose(at.max_update, trained.read, rtol=1e-3)
        change = at.max_update * np.exp(-strength * half_C * np.arange(24))
        np.testing.assert_allclose(at.change, change, rtol=1e-5)


def test_the_usual_point_is_the_same_at_every_strength(data):
    usual = data.isel(point=0)
    assert usual.C > 0
    for name in ("max_update", "change", "test_loss"):
        array = usual[name]
        np.testing.assert_allclose(array.sel(strength=1.0), array.sel(strength=0.0), rtol=1e-5)
    last = data.isel(point=-1, step=-1).max_update
    assert (last.sel(strength=1.0) != last.sel(strength=0.0)).all()


def test_the_annealed_bound_is_constant_up_to_bias_correction(data):
    at = data.isel(point=-1)
    b1, b2, n = float(at.b1), float(at.b2), data.step.values + 1
    correction = np.sqrt(1 - b2**n) / (1 - b1**n)
    bound = np.exp(at.log_annealed_bound.sel(strength=1.0).values) / correction
    np.testing.assert_allclose(bound, bound[0], rtol=1e-6)
    plain = at.log_annealed_bound.sel(strength=0.0)
    np.testing.assert_array_equal(plain, at.log_paper_bound)


def test_excess_is_paired_with_the_usual_point_by_seed(data):
    best = data.test_loss.min("evaluation")
    expected = best - best.isel(point=0).sel(strength=0.0)
    np.testing.assert_allclose(
        data.excess_loss.transpose(*expected.dims), expected, rtol=1e-6, atol=1e-6
    )
    assert (data.excess_loss.isel(point=0) == 0).all()


# Claims


def synthetic(grows=False, gap=0.5, spread=0.0):
    """Make updates of 1 that may grow with |C|/2; losses exceed the usual point's by `gap`."""
    b1, b2 = (b.astype(float) for b in LAPTOP.points)
    half_C = np.maximum(-(2 / b1 - 1 / b2 - 1) / 2, 0)
    n = np.arange(LAPTOP.num_steps)
    shape = (len(LAPTOP.strengths), LAPTOP.num_points, LAPTOP.num_seeds)
    growth = np.exp(grows * half_C[:, None] * n)
    seeds = 10 ** (spread * np.linspace(-1, 1, LAPTOP.num_seeds))
    updates = np.broadcast_to(growth[:, None] * seeds[:, None], (*shape, len(n)))
    loss = np.full((*shape, len(LAPTOP.evaluations)), 2.0)
    gaps = gap * (1 + spread * np.linspace(-1, 1, LAPTOP.num_seeds))
    loss[-1, 1:] += gaps[:, None]
    return analyze(LAPTOP, updates, np.ones_like(updates), loss)


def test_the_laptop_points_are_well_beyond_the_boundary():
    C = synthetic().C
    assert C[0] > 0
    assert (C[1:] < 0).all()
    assert (C <= GROWING).sum() >= 4


CONTRACT = Contract(
    FIGURE,
    CONFIG,
    panels={"": 6},
    strict=(),
    refused=[{"num_points": 11}, {"strengths": (0.5, 1.0)}, {"slope_first": 19}, {"num_steps": 25}],
    made_up=synthetic,
    cases={
        "annealed-max-update-very-small": ({}, {"grows": True}, {"spread": 4.0}),
        "annealed-generalization-not-good": ({}, {"gap": 0.05}, {"gap": 0.1, "spread": 0.5}),
    },
    patches=SMALL_NETWORK,
)
