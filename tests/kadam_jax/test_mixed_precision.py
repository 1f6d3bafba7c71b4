"""Gradients and parameters of different dtypes: what arrives, and in which dtype, as in optax."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from kadam_jax import (
    kadam,
    record_dead_gradients,
    record_max_update,
    scale_by_adaptive_normalization,
    scale_by_coarse_grained_normalization,
    scale_by_kadam,
)

REAL = ["float16", "bfloat16", "float32", "float64"]
DECAY = 2.0**-7


class Pairs:
    """Trees with one leaf for every pair of dtypes, of gradients and of parameters."""

    def __init__(self, double):
        pairs = itertools.product(REAL, REAL)
        self.names = {"-".join(pair): pair for pair in pairs if ("float64" in pair) is double}

    def gradients(self, values):
        return {name: jnp.asarray(values, pair[0]) for name, pair in self.names.items()}

    def params(self, values):
        return {name: jnp.asarray(values, pair[1]) for name, pair in self.names.items()}

    @property
    def promoted(self):
        return {name: jnp.promote_types(*pair) for name, pair in self.names.items()}


@pytest.fixture(params=[False, True], ids=["single", "double"])
def pairs(request):
    with jax.enable_x64(request.param):
        yield Pairs(request.param)


def last_update(optimizer, gradients, params):
    """The update after all `gradients`, the parameters staying as they are."""

    def step(state, gradient):
        return optimizer.update(gradient, state, params)[::-1]

    return jax.tree.map(lambda u: u[-1], jax.lax.scan(step, optimizer.init(params), gradients)[1])


def dtypes_of(tree):
    return jax.tree.map(jnp.result_type, tree)


@pytest.mark.parametrize("multi_steps", [False, True])
def test_updates_are_those_of_adamw_rounded_once(pairs, multi_steps):
    """adamw gets float32 gradients and parameters, so it is right to float32 rounding."""
    values = np.random.default_rng(0).standard_normal((12, 4))
    gradients, params = pairs.gradients(values), pairs.params(values[0] + 3)

    def wrapped(optimizer):
        if not multi_steps:
            return optimizer
        return optax.MultiSteps(optimizer, 3).gradient_transformation()

    def widened(tree):
        return {
            name: leaf.astype(jnp.promote_types(pairs.promoted[name], jnp.float32))
            for name, leaf in tree.items()
        }

    ours = wrapped(kadam(0.01, 1, eps=1e-8, weight_decay=DECAY))
    theirs = wrapped(optax.adamw(0.01, weight_decay=DECAY))
    actual, expected = jax.jit(
        lambda gradients, params: (
            last_update(ours, gradients, params),
            last_update(theirs, widened(gradients), widened(params)),
        )
    )(gradients, params)
    first = jax.tree.map(lambda g: g[0], gradients)
    of_theirs = jax.eval_shape(lambda: theirs.update(first, theirs.init(params), params)[0])
    assert dtypes_of(actual) == dtypes_of(of_theirs)
    if not multi_steps:
        assert dtypes_of(actual) == pairs.promoted
    for name, pair in pairs.names.items():
        # MultiSteps averages in the parameters' dtype, and in optax the moments are in it.
        of_average = sum(float(jnp.finfo(dtype).eps) for dtype in pair)
        rounding = float(jnp.finfo(actual[name].dtype).eps) + (8 * of_average if multi_steps else 0)
        rtol = rounding + 1e-5
        np.testing.assert_allclose(
            np.float64(actual[name]), np.float64(expected[name]), rtol, 0.01 * rtol, err_msg=name
        )


@pytest.mark.parametrize("coupled", [False, True])
def test_all_of_a_small_decay_arrives(pairs, coupled):
    """Decay is added before the one rounding, whatever the gradients' dtype."""

    @jax.jit
    @jax.vmap
    def updates(weight_decay):
        gradients, params = pairs.gradients(np.ones((20, 2))), pairs.params(np.full(2, 1.5))
        return [
            last_update(
                kadam(2.0**-10, k, weight_decay=weight_decay, coupled=coupled), gradients, params
            )
            for k in (1, 2)
        ]

    for of_k in updates(jnp.float32([2.0**-13, 0])):
        for name, both in of_k.items():
            decayed, plain = np.float64(both)
            if coupled:  # u does not depend on the scale of constant gradients
                np.testing.assert_allclose(decayed, plain, rtol=1e-2)
            elif jnp.finfo(pairs.promoted[name]).eps < 1e-6:
                np.testing.assert_allclose(plain - decayed, 2.0**-23 * 1.5, rtol=2e-3)


@pytest.mark.parametrize("coupled", [False, True])
def test_a_mask_is_a_function_of_the_parameters_as_they_are(pairs, coupled):
    """It decides by dtype, and float32 copies and gradients have other dtypes."""
    gradients = pairs.gradients(np.array([1, -1])) | {"none": None}
    params = pairs.params(np.full(2, 2.0)) | {"none": jnp.tanh}
    shown = []

    def decays(tree):
        shown.append(dtypes_of(tree))
        return jax.tree.map(lambda leaf: leaf.dtype in ("bfloat16", "float64"), tree)

    def update(mask):
        optimizer = kadam(1.0, 1, weight_decay=0.5, coupled=coupled, mask=mask)
        return optimizer.update(gradients, optimizer.init(gradients), params)[0]

    as_a_tree = {name: pair[1] in ("bfloat16", "float64") for name, pair in pairs.names.items()}
    found, expected = jax.jit(lambda: (update(decays), update(as_a_tree | {"none": False})))()
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert shown[-1] == dtypes_of(params | {"none": None})


@pytest.mark.parametrize("k", [1, 2])
def test_the_promotion_is_that_of_every_leaf(pairs, k):
    updates = pairs.gradients(np.ones(2)) | {"none": None, "c": jnp.ones(2, "float32")}
    params = pairs.params(np.ones(2)) | {"none": None, "c": jnp.ones(2, "bfloat16")}
    for optimizer in (scale_by_kadam(k), kadam(0.1, k), scale_by_adaptive_normalization()):
        for given, expected in (
            (params | {"none": jnp.tanh}, pairs.promoted),
            (None, dtypes_of(pairs.gradients(0))),
        ):
            found = jax.eval_shape(
                lambda of=optimizer, given=given: of.update(updates, of.init(params), given)[0]
            )
            assert found["none"] is None
            assert dtypes_of(found) == expected | {"none": None, "c": jnp.float32}


@pytest.mark.parametrize("mu_dtype", ["bfloat16", "float16", "complex64"])
def test_a_state_keeps_its_dtypes_in_every_pair(pairs, mu_dtype):
    gradients, params = pairs.gradients(np.ones(2)), pairs.params(np.ones(2))
    optimizer = kadam(0.1, 2, weight_decay=0.1, mu_dtype=mu_dtype)
    state = jax.eval_shape(optimizer.init, params)
    updates, after = jax.eval_shape(optimizer.update, gradients, state, params)
    assert dtypes_of(updates) == pairs.promoted
    assert dtypes_of(after) == dtypes_of(state)
    assert {leaf.dtype for leaf in jax.tree.leaves(state[0].mu)} == {jnp.finfo(mu_dtype).dtype}


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize(
    "optimizer",
    [
        optax.chain(record_dead_gradients(), record_max_update(1), kadam(0.5, weight_decay=0.25)),
        kadam(0.5, weight_decay=0.25, coupled=True),
        scale_by_coarse_grained_normalization(),
    ],
    ids=["decoupled", "coupled", "coarse"],
)
def test_eight_bits_are_accumulated_in_float32(dtype, optimizer):
    narrow, wide = (jnp.array([1.0, -2.0, 0.0], x) for x in (dtype, "float32"))
    state = optimizer.init(narrow)
    updates, after = optimizer.update(narrow, state, narrow)
    expected, of_wide = optimizer.update(wide, optimizer.init(wide), wide)
    np.testing.assert_array_equal(updates, expected.astype(dtype))
    assert dtypes_of(after) == dtypes_of(state) == dtypes_of(of_wide)


def test_strict_promotion_gives_the_same_program(pairs):
    gradients, params = pairs.gradients(np.ones(2)), pairs.params(np.ones(2))
    rates = [0.1, optax.linear_schedule(0.1, 0.0, 10), jnp.float32(0.1), np.float64(0.1)]
    cases = [(rate, {"weight_decay": 0.1}) for rate in rates]
    for rate, arguments in [*cases, (0.1, {}), (0.1, {"weight_decay": 0.1, "coupled": True})]:
        optimizer = kadam(rate, 2, jnp.float32(0.9), **arguments)
        state = optimizer.init(params)
        programs = []
        for promotion in ("standard", "strict"):
            with jax.numpy_dtype_promotion(promotion), jax.disable_jit():  # nothing is nested
                programs.append(str(jax.make_jaxpr(optimizer.update)(gradients, state, params)))
        assert programs[0] == programs[1]


def test_strict_promotion_takes_complex_gradients():
    params = jnp.array([1 + 1j, 2 - 1j], jnp.complex64)
    optimizer = kadam(0.1, 2, weight_decay=0.1)
    with jax.numpy_dtype_promotion("strict"):
        updates, _ = jax.eval_shape(optimizer.update, params, optimizer.init(params), params)
    assert updates.dtype == jnp.complex64


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("given", [True, False])
def test_a_complex_gradient_of_a_real_parameter_is_refused(k, given):
    params = {"w": jnp.ones(2), "z": jnp.ones(2, jnp.complex64)}
    bad = params | {"w": jnp.ones(2, jnp.complex64)}
    for optimizer in (scale_by_kadam(k), kadam(0.1, k), kadam(0.1, k, mu_dtype=jnp.bfloat16)):
        rest = optimizer.init(params), params if given else None
        jax.eval_shape(optimizer.update, params, *rest)
        with pytest.raises(TypeError, match=r"updates\['w'\] must be real.*got complex64"):
            optimizer.update(bad, *rest)


@pytest.mark.parametrize("mu_dtype", [None, "bfloat16", "float32", "complex64"])
def test_a_complex_parameter_loses_no_imaginary_part(mu_dtype):
    params = jnp.array([3 + 4j, -1j], jnp.complex64)
    optimizer = kadam(0.1, 1, mu_dtype=mu_dtype)
    state = optimizer.init(params)
    assert jnp.iscomplexobj(state[0].mu)
    update = jax.jit(optimizer.update)
    for _ in range(2):
        updates, state = update(params, state, params)
        np.testing.assert_allclose(updates, -0.1 * params / abs(params), rtol=1e-4)
    real, _ = jax.eval_shape(optimizer.update, jnp.ones(2), state)
    assert real.dtype == jnp.complex64


def test_weak_types_give_way():
    """A Python number as parameter or gradient, and weakly typed arrays."""
    for gradient, param, expected in (
        (jnp.bfloat16(1), 2.0, jnp.bfloat16),
        (1.0, jnp.bfloat16(2), jnp.bfloat16),
        (1.0, 2.0, jnp.float32),
    ):
        for optimizer in (kadam(0.1, 2, weight_decay=0.1), scale_by_kadam(2)):
            updates, _ = jax.eval_shape(optimizer.update, gradient, optimizer.init(param), param)
            assert updates.dtype == expected
            assert not updates.weak_type
