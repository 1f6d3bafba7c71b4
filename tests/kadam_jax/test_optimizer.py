"""k-Adam: what it equals, traced hyperparameters, dtypes and errors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from kadam_jax import (
    kadam,
    per_stage_decays,
    scale_by_adaptive_normalization,
    scale_by_kadam,
)
from kadam_jax.strategies import STRATEGIES
from tests.kadam_jax.support.scanning import feed, jit_feed, jit_updates, stages_of

SCHEDULE = optax.linear_schedule(2**-10, 2**-5, 128)  # exact in float32, however it is compiled
# Far from zero for as long as a test takes, so that relative errors mean something.
PARAMS = {"w": np.linspace(6, 17, 12).reshape(4, 3), "b": np.array([-9.0, 7.0, 11.0])}
MASK = {"w": True, "b": False}


def random_gradients(num_steps=60, params=PARAMS["b"]):
    """Magnitudes over some decades; one entry of each leaf is often zero."""
    rng = np.random.default_rng(0)

    def draw(p):
        gradients = rng.standard_normal((num_steps, *p.shape)) * rng.lognormal(0, 1, p.shape)
        gradients[..., -1] *= rng.random(gradients.shape[:-1]) < 0.3
        return gradients.astype(jnp.result_type(float))

    return jax.tree.map(draw, params)


def assert_close(actual, expected, **tolerance):
    jax.tree.map(partial(np.testing.assert_allclose, **tolerance), actual, expected)


# One stage is Adam


def decays_w(params):
    return {name: name == "w" for name in params}


@pytest.mark.parametrize(
    ("learning_rate", "weight_decay", "mask"),
    [
        (1e-2, 0.1, MASK),
        (SCHEDULE, 0.1, None),
        (SCHEDULE, optax.linear_schedule(0.25, 0.0, 128), decays_w),
    ],
)
def test_one_stage_is_adamw(x64, learning_rate, weight_decay, mask):
    ours = kadam(learning_rate, 1, weight_decay=weight_decay, mask=mask, eps=1e-8)
    theirs = optax.adamw(learning_rate, weight_decay=weight_decay, mask=mask)
    assert_same_run(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize(("learning_rate", "mask"), [(1e-2, MASK), (SCHEDULE, None)])
def test_one_stage_with_coupled_decay_is_adam(x64, learning_rate, mask):
    ours = kadam(learning_rate, 1, weight_decay=0.1, coupled=True, mask=mask, eps=1e-8)
    theirs = optax.chain(optax.add_decayed_weights(0.1, mask), optax.adam(learning_rate))
    assert_same_run(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("double", [False, True])
def test_one_stage_without_decay_is_adam_or_adamw(double):
    with jax.enable_x64(double):
        ours, rtol = kadam(1e-2, 1, eps=1e-8), 1e-12 if double else 1e-5
        for theirs in (optax.adam(1e-2), optax.adamw(1e-2, weight_decay=0.0)):
            assert_same_run(ours, theirs, rtol)


def assert_same_run(ours, theirs, rtol):
    params, gradients = jax.tree.map(jnp.asarray, PARAMS), random_gradients(200, PARAMS)
    (params, updates, _), (their_params, their_updates, _) = (
        jit_feed(optimizer, gradients, params) for optimizer in (ours, theirs)
    )
    assert_close(params, their_params, rtol=rtol)
    # Updates pass through zero, where u and the decay cancel; the learning rate is their scale.
    assert_close(updates, their_updates, rtol=rtol, atol=rtol * 3e-2)


# k stages are a chain


@pytest.mark.parametrize("k", [1, 2, 5])
def test_k_stages_are_a_chain_of_single_ones(x64, k):
    b1s, b2s = np.linspace(0.9, 0.2, k), np.linspace(0.999, 0.5, k)
    singles = [scale_by_adaptive_normalization(*b) for b in zip(b1s, b2s, strict=True)]
    gradients = random_gradients()
    _, updates, states = jit_feed(scale_by_kadam(k, b1s, b2s), gradients)
    _, expected, expected_states = jit_feed(optax.chain(*singles), gradients)
    assert_close(updates, expected, rtol=1e-12, atol=1e-13)
    both = stages_of(states), stages_of(expected_states)
    assert len(both[0]) == k
    assert_close(*both, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_stands_for_its_per_stage_decays(strategy):
    gradients = random_gradients()
    updates = jit_updates(kadam(0.1, 2, strategy=strategy), gradients)
    b1s, b2s = per_stage_decays(0.9, 0.999, 2, strategy)
    verbatim = jit_updates(kadam(0.1, 2, list(b1s), np.array(b2s), strategy="exp"), gradients)
    assert_close(verbatim, updates, rtol=1e-6, atol=1e-8)


def test_one_decay_may_be_a_scalar_and_the_other_per_stage():
    gradients = random_gradients()
    mixed = jit_updates(scale_by_kadam(2, 0.9, [0.99, 0.9]), gradients)
    b1s, _ = per_stage_decays(0.9, 0.999, 2)
    verbatim = jit_updates(scale_by_kadam(2, b1s, [0.99, 0.9]), gradients)
    assert_close(mixed, verbatim, rtol=0)


@pytest.mark.parametrize("k", [1, 2])
def test_where_decay_enters(x64, k):
    params, gradients = jnp.asarray(PARAMS["b"]), random_gradients()
    rule, rate = scale_by_kadam(k), optax.scale(-0.1)
    for coupled, literal in {
        True: optax.chain(optax.add_decayed_weights(0.3), rule, rate),
        False: optax.chain(rule, optax.add_decayed_weights(0.3), rate),
    }.items():
        ours = jit_feed(kadam(0.1, k, weight_decay=0.3, coupled=coupled), gradients, params)[0]
        assert_close(ours, jit_feed(literal, gradients, params)[0], rtol=1e-12)


def test_a_decay_of_zero_is_no_decay_traced_or_not():
    gradients = random_gradients()
    without = kadam(0.1, weight_decay=0)
    params = jnp.float32(PARAMS["b"])
    traced = jax.jit(lambda decay: feed(kadam(0.1, weight_decay=decay), gradients, params)[1])(0.0)
    # Sums cancel in small updates, so the unit of their error is the learning rate.
    assert_close(traced, jit_updates(without, gradients), rtol=1e-6, atol=1e-6 * 0.1)


# Traced hyperparameters


def test_hyperparameters_may_be_traced_and_vmapped():
    columns = dict(
        learning_rate=np.float32([1e-2, 1e-3, 3e-2]),
        b1=np.float32([0.9, 0.5, 0.0]),
        b2=np.float32([0.999, 0.9, 0.3]),
        eps=np.float32([1e-30, 1e-8, 0.0]),
        weight_decay=np.float32([0.0, 0.1, 0.3]),
    )
    params, gradients = jnp.float32(PARAMS["b"]), random_gradients(30)

    def run(member):
        return feed(kadam(k=2, **member), gradients, params)[0]

    together = jax.jit(jax.vmap(run))(columns)
    for i in range(3):
        member = {name: float(column[i]) for name, column in columns.items()}
        assert_close(together[i], jit_feed(kadam(k=2, **member), gradients, params)[0], rtol=2e-5)


def test_strategies_are_traced_decays_of_one_program():
    gradients = random_gradients(30)
    table = jnp.array([per_stage_decays(0.9, 0.999, 2, strategy) for strategy in STRATEGIES])

    def run(decays):
        return feed(scale_by_kadam(2, *decays), gradients)[1]

    together = jax.jit(jax.vmap(run))(table)
    for i, strategy in enumerate(STRATEGIES):
        alone = jit_updates(scale_by_kadam(2, strategy=strategy), gradients)
        assert_close(together[i], alone, rtol=1e-5, atol=1e-6)


# Dtypes


def test_between_stages_nothing_is_rounded():
    """bfloat16 gradients: the float32 run's updates, rounded once."""
    narrow = random_gradients().astype(jnp.bfloat16)
    for k in (1, 3):
        updates = jit_updates(scale_by_kadam(k), narrow)
        expected = jit_updates(scale_by_kadam(k), narrow.astype(jnp.float32))
        assert updates.dtype == jnp.bfloat16
        assert_close(updates.astype(jnp.float32), expected, rtol=2**-8)


@pytest.mark.parametrize("k", [1, 2])
def test_bfloat16_parameters_train(k):
    inputs = jax.random.normal(jax.random.key(0), (64, 8))
    targets = inputs @ jnp.linspace(-1, 1, 8)

    def loss(w):
        return jnp.mean((inputs @ w.astype(jnp.float32) - targets) ** 2)

    @jax.jit
    def train(learning_rate, weight_decay):
        optimizer = kadam(learning_rate, k, weight_decay=weight_decay)

        def step(carry, _):
            w, state = carry
            updates, state = optimizer.update(jax.grad(loss)(w), state, w)
            assert updates.dtype == jnp.bfloat16
            return (optax.apply_updates(w, updates), state), loss(w)

        w = jnp.zeros(8, jnp.bfloat16)
        (_, state), losses = jax.lax.scan(step, (w, optimizer.init(w)), length=300)
        return state, losses

    state, losses = train(0.01, 1e-4)
    assert all(x.dtype == jnp.float32 for s in stages_of(state) for x in (s.mu, s.rms))
    assert losses[-1] < 0.01 * losses[0]


def test_mu_dtype_is_for_mu_of_every_stage():
    optimizer = kadam(0.1, 3, mu_dtype=jnp.bfloat16)
    _, updates, state = jit_feed(optimizer, random_gradients(5))
    assert all(stage.mu.dtype == jnp.bfloat16 for stage in stages_of(state))
    assert all(stage.rms.dtype == jnp.float32 for stage in stages_of(state))
    assert updates.dtype == jnp.float32


# Errors


@pytest.mark.parametrize("make", [scale_by_kadam, partial(kadam, 0.1)])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(k=True), TypeError, "k must be a Python int.*got True"),
        (dict(k=2.0), TypeError, "k must be a Python int.*got 2.0"),
        (dict(k=0), ValueError, "k must be at least 1, got 0"),
        (dict(strategy="linear"), ValueError, "strategy must be one of .*, got 'linear'"),
        (
            dict(b1=[0.9, 0.9], b2=[0.99, 0.99], strategy="linear"),
            ValueError,
            "strategy must be one of .*, got 'linear'",
        ),
        (dict(b1=[0.9]), ValueError, "b1 must be a scalar or hold k=2 values, got 1"),
        (dict(b2=np.full(3, 0.9)), ValueError, "b2 must be a scalar or hold k=2 values, got 3"),
        (dict(b2=np.full((2, 2), 0.9)), ValueError, "b2 must be a scalar or hold k=2 values"),
        (dict(b1=1.0), ValueError, r"b1 must be in \[0, 1\), got 1.0"),
        (dict(b2=-0.1), ValueError, r"b2 must be in \[0, 1\), got -0.1"),
        (dict(b2=-0.1, strategy="exp"), ValueError, r"b2 must be in \[0, 1\), got -0.1"),
        (dict(b1=1.5, strategy="scaled"), ValueError, r"b1 must be in \[0, 1\), got 1.5"),
        (dict(b1=[0.9, 1.0]), ValueError, r"b1 must be in \[0, 1\), got 1.0"),
        (dict(b1=np.nan), ValueError, r"b1 must be in \[0, 1\), got nan"),
        (dict(b1="0.9"), TypeError, "b1 must be a real number.*, got '0.9'"),
        (dict(b2=None), TypeError, "b2 must be a real number.*, got None"),
        (dict(eps="a"), TypeError, "eps must be a real number.*, got 'a'"),
        (dict(eps=-1e-8), ValueError, "eps must be finite and at least 0, got -1e-08"),
    ],
)
def test_errors_name_the_argument_the_value_and_the_remedy(make, arguments, error, message):
    with pytest.raises(error, match=message):
        make(**arguments)


def test_a_traced_k_is_an_error():
    with pytest.raises(TypeError, match="static_args"):
        jax.jit(lambda k: scale_by_kadam(k).init(jnp.ones(2)))(2)


def test_whether_decay_is_coupled_is_a_python_bool():
    """A word would be true, and a traced bool an error of JAX's in the first update."""
    words = "coupled must be a Python bool, got .*; in a sweep make it a static axis"
    for coupled in ("false", None, 1, jnp.array(True)):
        with pytest.raises(TypeError, match=words):
            kadam(0.1, coupled=coupled)
    with pytest.raises(TypeError, match=words):
        jax.jit(lambda coupled: kadam(0.1, coupled=coupled).init(0.0))(True)
    kadam(0.1, coupled=np.bool_(True))


def test_arguments_that_would_fail_silently_raise_errors():
    state = scale_by_kadam(2).init(jnp.ones(2))
    with pytest.raises(ValueError, match="state must have k=3 stages, got 2"):
        scale_by_kadam(3).update(jnp.ones(2), state)
    with pytest.raises(TypeError, match="mu_dtype must be floating point or complex, got 'int32'"):
        scale_by_kadam(2, mu_dtype="int32").init(jnp.ones(2))


@pytest.mark.parametrize("name", ["learning_rate", "weight_decay"])
@pytest.mark.parametrize(
    ("rate", "error", "message"),
    [
        (None, TypeError, "must be a real number.*, got None; or a schedule"),
        ("0.1", TypeError, "must be a real number.*, got '0.1'; or a schedule"),
        ([0.1, 0.2], TypeError, "must be a single number, .*; or a schedule"),
        (np.ones(2), TypeError, "must be a single number, .*; or a schedule"),
        (-0.1, ValueError, "must be finite and at least 0, got -0.1"),
        (float("nan"), ValueError, "must be finite and at least 0, got nan"),
        (float("inf"), ValueError, "must be finite and at least 0, got inf"),
    ],
)
def test_a_rate_is_a_schedule_or_a_number_of_at_least_0(name, rate, error, message):
    with pytest.raises(error, match=f"{name} {message}"):
        kadam(**{"learning_rate": 0.1, name: rate})


def test_decay_needs_the_parameters():
    optimizer = kadam(0.1, weight_decay=0.1)
    with pytest.raises(ValueError, match="params"):
        optimizer.update(jnp.ones(2), optimizer.init(jnp.ones(2)))
