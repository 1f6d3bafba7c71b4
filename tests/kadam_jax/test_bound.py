"""The largest update: what no gradient sequence exceeds, and what some attain.

Every update here comes out of `scale_by_kadam`. Sequences are entries of one array, so one compiled
scan tries hundreds of them.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kadam_jax import exact_max_update_bound, scale_by_kadam, worst_case_gradients
from tests.kadam_jax.support.reference_stability import log_exact_max_update_bound
from tests.kadam_jax.support.scanning import feed

NUM_STEPS, NUM_SEQUENCES, NUM_STAGES = 40, 256, 5
ROUNDING = 1e-5
TOO_LOW = 0.98  # a bound multiplied by this must be detected
PAIRS = [
    (0.9, 0.999), (0.9, 0.9), (0.95, 0.95), (0.68377, 0.96838), (0.5, 0.9), (0.0, 0.9), (0.0, 0.5),
    (0.25, 0.1), (0.1, 0.02), (0.9, 0.8), (0.9, 0.5), (0.99, 0.9),
]  # fmt: skip


def within(updates, bounds):
    """Whether no |u| is above its bound; updates have shape (steps, ...), bounds (steps,)."""
    largest = np.max(np.abs(updates), axis=tuple(range(1, np.ndim(updates))))
    return bool(np.all(largest <= bounds * (1 + ROUNDING)))


def exact_bounds(b1, b2, num_steps=NUM_STEPS):
    """The literal sum in fractions, of the decays as float32 has them."""
    b1, b2 = float(np.float32(b1)), float(np.float32(b2))
    return np.exp([log_exact_max_update_bound(n, b1, b2) for n in range(num_steps)])


@partial(jax.jit, static_argnums=0)
def updates_of(k, b1s, b2s, gradients):
    return feed(scale_by_kadam(k, b1s, b2s, eps=0.0), gradients)[1]


@jax.jit
def every_stages_updates(b1s, b2s, gradients):
    """u^(i) of i = 1..5: the updates of the first i stages alone."""
    counts = range(1, NUM_STAGES + 1)
    return [updates_of(i, b1s[:i], b2s[:i], gradients) for i in counts]


def steep(rng, shape, b1, b2):
    """Noise around the worst case's slope, which a float32 can hold."""
    slope = np.clip(np.log((b1 + 1e-3) / b2), -1.5, 1.5) * rng.normal(1, 0.1, shape[1:])
    lag = np.arange(shape[0])[::-1, None]
    return np.exp(slope * lag) * (1 + rng.choice([0, 0.1, 1]) * rng.standard_normal(shape))


def dying(rng, shape, b1, b2):
    """Nothing more after some step, or next to nothing."""
    alive = np.arange(shape[0])[:, None] < rng.integers(1, shape[0], shape[1:])
    return rng.standard_normal(shape) * np.where(alive, 1, rng.choice([0, 1e-12, 1e-4]))


FAMILIES = {
    "noise": lambda rng, shape, b1, b2: rng.standard_normal(shape),
    "many scales": lambda rng, shape, b1, b2: rng.standard_normal(shape) ** 15,
    "sparse": lambda rng, shape, b1, b2: rng.standard_normal(shape) * (rng.random(shape) < 0.1),
    "one sign": lambda rng, shape, b1, b2: np.exp(rng.standard_normal(shape)),
    "steep": steep,
    "dying": dying,
}


def sequences(seed, family, b1, b2, exponent):
    """(NUM_STEPS, NUM_SEQUENCES) gradients of a family, all times 2^exponent."""
    rng = np.random.default_rng(seed)
    gradients = FAMILIES[family](rng, (NUM_STEPS, NUM_SEQUENCES), b1, b2)
    return np.ldexp(gradients, exponent).astype(np.float32)


seeds, families = st.integers(0, 2**32 - 1), st.sampled_from(sorted(FAMILIES))
b1_values, b2_values = st.floats(0, 0.99), st.floats(0.05, 0.9999)
exponents = st.integers(-40, 40)


@given(seed=seeds, family=families, b1=b1_values, b2=b2_values, exponent=exponents)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_no_sequence_exceeds_the_exact_bound(seed, family, b1, b2, exponent):
    gradients = sequences(seed, family, b1, b2, exponent)
    updates = updates_of(1, jnp.array([b1]), jnp.array([b2]), gradients)
    assert np.all(np.isfinite(updates))
    assert within(updates, exact_bounds(b1, b2))


per_stage = dict(min_size=NUM_STAGES, max_size=NUM_STAGES)


@given(
    seed=seeds,
    family=families,
    b1s=st.lists(b1_values, **per_stage),
    b2s=st.lists(b2_values, **per_stage),
)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_every_stage_keeps_to_the_bound_of_its_own_decays(seed, family, b1s, b2s):
    """Theorem 3, with the exact bound, which is below the theorem's wherever C > 0."""
    gradients = sequences(seed, family, b1s[0], b2s[0], 0)
    stages = every_stages_updates(jnp.array(b1s), jnp.array(b2s), gradients)
    for updates, b1, b2 in zip(stages, b1s, b2s, strict=True):
        assert within(updates, exact_bounds(b1, b2))


@jax.jit
@jax.vmap
def last_updates(b1, b2, gradients):
    return updates_of(1, b1[None], b2[None], gradients)[-1]


@pytest.mark.parametrize("num_steps", [1, 2, 10, 80])
def test_the_worst_case_attains_the_bound(x64, num_steps):
    b1s, b2s = jnp.array(PAIRS).T
    attained = last_updates(b1s, b2s, worst_case_gradients(num_steps, b1s, b2s).T)
    np.testing.assert_allclose(attained, exact_max_update_bound(num_steps - 1, b1s, b2s), rtol=1e-6)


def test_the_worst_case_attains_the_bound_in_float32():
    pairs = [(b1, b2) for b1, b2 in PAIRS if b1**2 < b2]
    b1s, b2s = jnp.array(pairs).T
    attained = last_updates(b1s, b2s, worst_case_gradients(80, b1s, b2s).T)
    np.testing.assert_allclose(attained, exact_max_update_bound(79, b1s, b2s), rtol=ROUNDING)


@pytest.mark.parametrize(("b1", "b2"), PAIRS)
def test_a_bound_that_is_two_percent_too_low_is_detected(b1, b2):
    gradients = worst_case_gradients(NUM_STEPS, b1, b2)[:, None]
    updates, bounds = (
        updates_of(1, jnp.array([b1]), jnp.array([b2]), gradients),
        exact_bounds(b1, b2),
    )
    assert within(updates, bounds)
    assert not within(updates, bounds * TOO_LOW)


@partial(jax.jit, static_argnums=3)
def climb(b1, b2, gradients, num_ascents):
    """Gradient ascent on ln|u| at the last step, through the optimizer."""

    def loss(gradients):
        return -jnp.sum(jnp.log(jnp.abs(updates_of(1, b1[None], b2[None], gradients)[-1])))

    ascent = optax.adam(optax.cosine_decay_schedule(0.1, num_ascents))

    def ascend(carry, _):
        gradients, state = carry
        updates, state = ascent.update(jax.grad(loss)(gradients), state)
        return (optax.apply_updates(gradients, updates), state), None

    (gradients, _), _ = jax.lax.scan(
        ascend, (gradients, ascent.init(gradients)), length=num_ascents
    )
    return gradients


@pytest.mark.parametrize(
    ("b1", "b2"),
    [(0.9, 0.999), (0.68377, 0.96838), (0.9, 0.9), (0.5, 0.4), (0.25, 0.2), (0.9, 0.8)],
)
def test_gradient_ascent_finds_the_bound_and_stops_there(b1, b2):
    num_steps, (b1_, b2_) = 12, jnp.array([b1, b2])
    start = np.random.default_rng(0).standard_normal((num_steps, 32)).astype(np.float32)
    gradients = climb(b1_, b2_, start, 600)
    updates, bounds = (
        updates_of(1, b1_[None], b2_[None], gradients),
        exact_bounds(b1, b2, num_steps),
    )
    assert np.median(np.abs(updates[-1])) >= 0.99 * bounds[-1]
    assert within(updates, bounds)
    assert not within(updates, bounds * TOO_LOW)
    assert within(updates_of(1, b1_[None], b2_[None], start)[-1:], bounds[-1:] * TOO_LOW)
