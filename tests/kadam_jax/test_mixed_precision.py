"""Gradients and parameters of different dtypes: what arrives, and in which dtype, as in optax."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from kadam_jax import kadam, scale_by_adaptive_normalization, scale_by_kadam

REAL = ["float16", "bfloat16", "float32", "float64"]
DECAY = 2.0**-7


@pytest.fixture(params=itertools.product(REAL, REAL), ids="-".join)
def dtypes(request):
    """Of gradients and parameters."""
    with jax.enable_x64("float64" in request.param):
        yield request.param


def last_update(optimizer, gradients, params):
    """The update after all `gradients`, the parameters staying as they are."""

    @jax.jit
    def run(gradients, params):
        def step(state, gradient):
            return optimizer.update(gradient, state, params)[::-1]

        return jax.tree.map(
            lambda u: u[-1], jax.lax.scan(step, optimizer.init(params), gradients)[1]
        )

    return run(gradients, params)


@pytest.mark.parametrize("multi_steps", [False, True])
def test_updates_are_those_of_adamw_rounded_once(dtypes, multi_steps):
    """adamw has float32 gradients and parameters to work on: it is right to float32 rounding."""
    of_gradients, of_params = dtypes
    wide = jnp.promote_types(jnp.promote_types(of_gradients, of_params), jnp.float32)
    values = np.random.default_rng(0).standard_normal((12, 4))
    gradients, params = jnp.asarray(values, of_gradients), jnp.asarray(values[0] + 3, of_params)

    def wrapped(optimizer):
        if not multi_steps:
            return optimizer
        return optax.MultiSteps(optimizer, 3).gradient_transformation()

    ours = wrapped(kadam(0.01, 1, eps=1e-8, weight_decay=DECAY))
    theirs = wrapped(optax.adamw(0.01, weight_decay=DECAY))
    actual = last_update(ours, gradients, params)
    expected = last_update(theirs, gradients.astype(wide), params.astype(wide))
    assert actual.dtype == theirs.update(gradients[0], theirs.init(params), params)[0].dtype
    if not multi_steps:
        assert actual.dtype == jnp.promote_types(of_gradients, of_params)
    # MultiSteps averages in the parameters' dtype, and in optax the moments are in it.
    of_average = float(jnp.finfo(of_params).eps) + float(jnp.finfo(of_gradients).eps)
    rounding = float(jnp.finfo(actual.dtype).eps) + (8 * of_average if multi_steps else 0)
    rtol = rounding + 1e-5
    np.testing.assert_allclose(actual.astype(wide), expected, rtol=rtol, atol=0.01 * rtol)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("coupled", [False, True])
def test_all_of_a_small_decay_arrives(dtypes, k, coupled):
    """Decay is added before the one rounding, whatever the gradients' dtype."""
    of_gradients, of_params = dtypes
    gradients = jnp.ones((20, 2), of_gradients)
    params = jnp.full(2, 1.5, of_params)

    def updates(weight_decay):
        return last_update(
            kadam(2.0**-10, k, weight_decay=weight_decay, coupled=coupled), gradients, params
        ).astype(float)

    decayed, plain = updates(2.0**-13), updates(0.0)
    if coupled:  # u does not depend on the scale of constant gradients
        np.testing.assert_allclose(decayed, plain, rtol=1e-2)
    elif jnp.finfo(jnp.promote_types(of_gradients, of_params)).eps < 1e-6:
        np.testing.assert_allclose(plain - decayed, 2.0**-23 * 1.5, rtol=2e-3)


@pytest.mark.parametrize("k", [1, 2])
def test_the_promotion_is_that_of_every_leaf(dtypes, k):
    of_gradients, of_params = dtypes
    updates = {"a": jnp.ones(2, of_gradients), "b": None, "c": jnp.ones(2, "float32")}
    params = {"a": jnp.ones(2, of_params), "b": jnp.tanh, "c": jnp.ones(2, "bfloat16")}
    single = scale_by_adaptive_normalization()
    for optimizer in (scale_by_kadam(k), kadam(0.1, k), single):
        state = optimizer.init(params | {"b": None})
        given, _ = optimizer.update(updates, state, params)
        assert given["a"].dtype == jnp.promote_types(of_gradients, of_params)
        assert given["c"].dtype == jnp.float32
        absent, _ = optimizer.update(updates, state)
        assert absent["a"].dtype == of_gradients
        assert given["b"] is absent["b"] is None


@pytest.mark.parametrize("mu_dtype", ["bfloat16", "float16", "complex64"])
def test_a_state_keeps_its_dtypes_in_every_pair(dtypes, mu_dtype):
    of_gradients, of_params = dtypes
    params = jnp.ones(2, of_params)
    optimizer = kadam(0.1, 2, weight_decay=0.1, mu_dtype=mu_dtype)
    state = optimizer.init(params)
    updates, after = jax.jit(optimizer.update)(jnp.ones(2, of_gradients), state, params)
    assert updates.dtype == jnp.promote_types(of_gradients, of_params)
    assert jax.tree.map(jnp.result_type, after) == jax.tree.map(jnp.result_type, state)
    assert state[0].mu[0].dtype == jnp.finfo(mu_dtype).dtype


def test_strict_promotion_gives_the_same_updates(dtypes):
    of_gradients, of_params = dtypes
    params, gradients = jnp.ones(2, of_params), jnp.linspace(1, 2, 6, dtype=of_gradients)
    gradients = gradients.reshape(3, 2)
    for arguments in (dict(weight_decay=0.1), dict(weight_decay=0.1, coupled=True), {}):
        for rate in (0.1, optax.linear_schedule(0.1, 0.0, 10), jnp.float32(0.1), np.float64(0.1)):
            optimizer = kadam(rate, 2, jnp.float32(0.9), **arguments)
            step = optimizer.update
            expected = step(gradients[0], optimizer.init(params), params)
            with jax.numpy_dtype_promotion("strict"):
                actual = step(gradients[0], optimizer.init(params), params)
            jax.tree.map(np.testing.assert_array_equal, actual, expected)


def test_strict_promotion_with_complex_gradients():
    params = jnp.array([1 + 1j, 2 - 1j], jnp.complex64)
    optimizer = kadam(0.1, 2, weight_decay=0.1)
    with jax.numpy_dtype_promotion("strict"):
        updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert updates.dtype == jnp.complex64


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("given", [True, False])
def test_a_complex_gradient_of_a_real_parameter_is_refused(k, given):
    params = {"w": jnp.ones(2), "z": jnp.ones(2, jnp.complex64)}
    for optimizer in (scale_by_kadam(k), kadam(0.1, k), kadam(0.1, k, mu_dtype=jnp.bfloat16)):
        state = optimizer.init(params)
        optimizer.update(params, state, params if given else None)
        bad = params | {"w": jnp.ones(2, jnp.complex64)}
        with pytest.raises(TypeError, match=r"updates\['w'\] must be real.*got complex64"):
            optimizer.update(bad, state, params if given else None)


@pytest.mark.parametrize("mu_dtype", [None, "bfloat16", "float32", "complex64"])
def test_a_complex_parameter_loses_no_imaginary_part(mu_dtype):
    params = jnp.array([3 + 4j, -1j], jnp.complex64)
    optimizer = kadam(0.1, 1, mu_dtype=mu_dtype)
    state = optimizer.init(params)
    assert jnp.iscomplexobj(state[0].mu)
    for _ in range(2):
        updates, state = optimizer.update(params, state, params)
        np.testing.assert_allclose(updates, -0.1 * params / abs(params), rtol=1e-4)
    real, _ = optimizer.update(jnp.ones(2), state)
    assert real.dtype == jnp.complex64


def test_weak_types_give_way():
    """A Python number as parameter or gradient, and weakly typed arrays."""
    for gradient, param, expected in (
        (jnp.bfloat16(1), 2.0, jnp.bfloat16),
        (1.0, jnp.bfloat16(2), jnp.bfloat16),
        (1.0, 2.0, jnp.float32),
    ):
        for optimizer in (kadam(0.1, 2, weight_decay=0.1), scale_by_kadam(2)):
            updates, _ = optimizer.update(gradient, optimizer.init(param), param)
            assert updates.dtype == expected
            assert not updates.weak_type
