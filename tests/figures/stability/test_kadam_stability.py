"""figures/stability/kadam_stability, its worst cases and its claims."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.figures.stability.kadam_stability import FIGURE
from experiments.figures.stability.kadam_stability.run import (
    STAGES,
    Config,
    analyze,
    dying_member,
    first_stages,
)
from experiments.figures.stability.kadam_stability.worst_cases import (
    constructed_updates,
    last_stage_bounds,
    stage_input,
)
from experiments.figures.stability.max_updates import GROWING
from kadam_jax.normalization import scale_by_adaptive_normalization
from kadam_jax.optimizer import scale_by_kadam
from kadam_jax.stability import exact_max_update_bound
from tests.figures.contract import NETWORK, SMALL_NETWORK, Contract

CONFIG = Config(
    model=NETWORK,
    batch=2,
    num_steps=12,
    num_seeds=2,
    num_stable=1,
    num_unstable=1,
    dead_after=10,
    dead_steps=60,
    dead_entries=5,
    dead_seeds=2,
    worst_points=((0.9, 0.95),),
    worst_lengths=(1, 8),
)
LAPTOP = FIGURE.presets["laptop"]


# The bound on k-Adam


@pytest.mark.parametrize("k", [2, 3])
def test_no_gradients_exceed_the_last_stages_supremum(x64, k):
    """The supremum holds whatever the decays of the earlier stages."""
    random = np.random.default_rng(k)
    n = np.arange(80)
    sizes = [
        1.0 + 0 * n,
        np.exp(0.3 * n),
        np.where(n < 10, 1.0, 0.0),
        np.exp(0.1 * n) * (-1.0) ** n,
    ]
    gradients = random.normal(size=80) * np.stack(sizes)

    def updates(b1, b2, gradients):
        optimizer = scale_by_kadam(k, b1, b2, 0.0)
        state = optimizer.init(jnp.zeros(()))
        return jax.lax.scan(lambda state, g: optimizer.update(g, state)[::-1], state, gradients)[1]

    b1, b2 = random.uniform(0.05, 0.995, size=(2, 6, k))
    of_kinds = jax.vmap(updates, (None, None, 0))
    of_decays = jax.jit(jax.vmap(of_kinds, (0, 0, None)))(b1, b2, gradients)
    bound = exact_max_update_bound(n, b1[:, -1:], b2[:, -1:])
    assert (abs(of_decays) <= bound[:, None] * (1 + 1e-9)).all()


@pytest.mark.parametrize(("b1", "b2"), [(0.9, 0.999), (0.5, 0.9), (0.9983, 0.9525)])
def test_a_stage_can_be_driven_to_any_output_within_reach(x64, b1, b2):
    stage = scale_by_adaptive_normalization(b1, b2, 0.0)
    state = stage.init(jnp.zeros(()))
    random = np.random.default_rng(0)
    # Every value below (1-γ)/√(1-β) times the bias correction is within reach.
    for n in range(40):
        reach = (1 - b1) / np.sqrt(1 - b2) * np.sqrt(1 - b2 ** (n + 1)) / (1 - b1 ** (n + 1))
        wanted = 1.0 if n == 0 else 0.0 if n == 7 else reach * random.uniform(-0.95, 0.95)
        u, state = stage.update(stage_input(wanted, state, b1, b2), state)
        assert float(u) == pytest.approx(wanted, abs=1e-7)


def test_for_a_goal_out_of_reach_the_output_is_the_largest(x64):
    stage = scale_by_adaptive_normalization(0.9, 0.99, 0.0)
    _, state = stage.update(jnp.array(1.0), stage.init(jnp.zeros(())))
    found, _ = stage.update(stage_input(100.0, state, 0.9, 0.99), state)
    every = jax.vmap(lambda x: stage.update(x, state)[0])(jnp.linspace(0, 10, 10001))
    assert float(found) == pytest.approx(float(every.max()), rel=1e-6)


def test_constructed_gradients_reach_the_bound_for_every_k():
    """This holds within the boundary and beyond it, where the bound grows."""
    b1, b2 = np.array([0.9, 0.98, 0.9983]), np.array([0.95, 0.9623, 0.9525])
    lengths = (1, 128, 512)
    bound = last_stage_bounds(lengths, b1, b2)
    assert bound[-1, -1] > 1000
    for k in STAGES:
        ratio = constructed_updates(k, lengths, b1, b2) / bound
        assert (ratio <= 1 + 1e-6).all()
        assert (ratio > 0.98).all()


# Stages


@pytest.mark.parametrize("k", STAGES)
def test_the_first_stages_are_k_adam(k):
    gradients = jnp.array(np.random.default_rng(0).normal(size=(30, 4)), jnp.float32)

    def outputs(optimizer):
        return jax.lax.scan(
            lambda state, g: optimizer.update(g, state)[::-1],
            optimizer.init(gradients[0]),
            gradients,
        )[1]

    ours = jax.jit(lambda k: outputs(first_stages(k, 0.9, 0.99, 1e-30)))(k)
    theirs = outputs(scale_by_kadam(k, (0.9,) * k, (0.99,) * k))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


# Gradients that die


@pytest.mark.parametrize("k", STAGES)
def test_dying_gradients_go_through_k_stages(k):
    config = dataclasses.replace(CONFIG, dead_steps=20, dead_point=(0.9, 0.8))
    updates = dying_member(config)({"k": k, "seed": 3})["max_update"]
    key = jax.random.key(3)
    m, v = np.zeros((2, k, config.dead_entries))
    for n in range(20):
        x = np.asarray(jax.random.normal(jax.random.fold_in(key, n), (config.dead_entries,)))
        x = x if n < 10 else 0 * x
        for i in range(k):
            m[i], v[i] = 0.9 * m[i] + 0.1 * x, 0.8 * v[i] + 0.2 * x**2
            x = m[i] / np.sqrt(v[i]) * np.sqrt(1 - 0.8 ** (n + 1)) / (1 - 0.9 ** (n + 1))
        assert float(updates[n]) == pytest.approx(abs(x).max(), rel=1e-3)


# The dataset of a tiny, real run


def test_members_stay_within_the_last_stages_bound(data):
    assert data.max_update.dims == ("k", "point", "seed", "step")
    assert data.exact_ratio.max() < 1 + 1e-5
    assert (np.log(data.dead_update) <= data.dead_log_exact_bound + 1e-4).all()
    np.testing.assert_allclose(data.max_update.isel(step=0), 1, rtol=1e-6)


def test_runs_with_different_k_start_alike_and_then_differ(data):
    loss = data.loss
    np.testing.assert_allclose(loss.isel(step=0), loss.isel(step=0, k=[0, 0, 0]), rtol=1e-6)
    for k in (2, 3):
        assert (loss.sel(k=k).isel(step=-1) != loss.sel(k=1).isel(step=-1)).all()


def test_presets_cover_both_sides_and_include_the_usual_point():
    for preset in ("laptop", "paper"):
        b1, b2 = (b.astype(float) for b in FIGURE.presets[preset].points)
        C = 2 / b1 - 1 / b2 - 1
        assert (b1[0], b2[0]) == pytest.approx((0.9, 0.999))
        assert (C > 0).sum() >= 4
        assert (C <= GROWING).sum() >= 4


# Claims


def synthetic(scale=0.9, decades=2.0, spread=0.0, dead=0.0, reached=0.5):
    """Make updates `scale` times the exact bound; k = 2, 3 another `decades` below, and dead."""
    b1, b2 = LAPTOP.points
    shape = (len(STAGES), len(b1), LAPTOP.num_seeds, LAPTOP.num_steps)
    n = np.arange(LAPTOP.num_steps)
    exact = exact_max_update_bound(n[None], b1[:, None], b2[:, None])
    below = decades * (1 + spread * np.linspace(-1, 1, LAPTOP.num_seeds))
    factor = 10.0 ** -np.stack([0 * below, below, below])
    updates = scale * np.asarray(exact)[None, :, None] * factor[:, None, :, None]
    assert updates.shape == shape
    dead_b1, dead_b2 = LAPTOP.dead_point
    n = np.arange(LAPTOP.dead_steps)
    correction = np.sqrt(1 - dead_b2 ** (n + 1)) / (1 - dead_b1 ** (n + 1))
    rate = np.log(dead_b1) - np.log(dead_b2) / 2
    growth = dead * (1 + spread * np.linspace(-1, 1, LAPTOP.dead_seeds))[:, None]
    of_k = [np.exp(r * rate * n) * correction for r in (1 + 0 * growth, growth, growth)]
    bounds = last_stage_bounds(LAPTOP.worst_lengths, *np.array(LAPTOP.worst_points).T)
    constructed = np.stack([bounds, reached * bounds, reached * bounds])
    arrays = {"max_update": updates, "loss": np.ones(shape)}
    return analyze(LAPTOP, arrays, np.stack(of_k), constructed)


MINUS = ({}, {"decades": 0.5}, {"decades": 1.0, "spread": 0.5})
PLUS = ({"decades": 0.1}, {"decades": -0.1}, {"decades": 0.1, "spread": 2.0})
DEAD = ({}, {"dead": 1.0}, {"dead": 0.1, "spread": 0.5})
CONTRACT = Contract(
    FIGURE,
    CONFIG,
    panels={"": 6},
    refused=[
        {"num_stable": 0},
        {"dead_seeds": 0},
        {"dead_after": 31},
        {"dead_point": (1.0, 0.9)},
        {"worst_points": ()},
        {"worst_lengths": (0, 4)},
    ],
    made_up=synthetic,
    cases={
        "kadam-within-last-stages-bound": ({}, {"scale": 1.1}),
        "kadam-within-theorem-3": ({"scale": 0.5}, {"scale": 1e4}),
        "two-adam-guarantee-is-stronger": ({}, {"reached": 0.95}),
        "2-adam-more-stable-in-b-minus": MINUS,
        "3-adam-more-stable-in-b-minus": MINUS,
        "2-adam-more-stable-in-b-plus": PLUS,
        "3-adam-more-stable-in-b-plus": PLUS,
        "2-adam-stable-with-dead-gradients": DEAD,
        "3-adam-stable-with-dead-gradients": DEAD,
    },
    patches=SMALL_NETWORK,
)
