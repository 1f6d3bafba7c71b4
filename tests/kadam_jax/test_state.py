"""The layout of the optimizer's state, and Adam's state as that of k = 1."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import serialization

from kadam_jax import (
    ScaleByAdaptiveNormalizationState,
    convert_adam_state,
    kadam,
    scale_by_adaptive_normalization,
    scale_by_kadam,
)

PARAMS = {"w": jnp.linspace(1, 2, 6).reshape(3, 2), "b": jnp.zeros(2)}
ADAMW = dict(k=1, eps=1e-8, weight_decay=1e-4)


def gradient(seed, params=PARAMS):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: jnp.asarray(rng.standard_normal(p.shape), p.dtype), params)


def run(optimizer, state, params, seeds):
    updates, step = [], jax.jit(optimizer.update)
    for seed in seeds:
        update, state = step(gradient(seed, params), state, params)
        params = optax.apply_updates(params, update)
        updates.append(update)
    return params, state, updates


# Layout


@pytest.mark.parametrize("k", [1, 2, 3])
def test_optax_finds_the_averages(k):
    optimizer = kadam(0.1, k)
    _, state, _ = run(optimizer, optimizer.init(PARAMS), PARAMS, [0])
    mu, rms = (optax.tree.get(state, name) for name in ("mu", "rms"))
    for tree in (mu, rms):
        of_first = tree if k == 1 else tree[0]
        assert k == 1 or len(tree) == k
        assert jax.tree.map(jnp.shape, of_first) == jax.tree.map(jnp.shape, PARAMS)
    assert optax.tree.get(state, "count") == 1
    assert state[0].mu is mu  # as in optax.adam's
    changed = optax.tree.set(state, count=jnp.int32(7))
    assert changed[0].count == 7


@pytest.mark.parametrize("k", [1, 2])
def test_one_stage_has_adams_fields_and_their_order(k):
    fields = ScaleByAdaptiveNormalizationState._fields
    assert fields[:2] == optax.ScaleByAdamState._fields[:2]
    state, adam = kadam(0.1, k).init(PARAMS), optax.adamw(0.1).init(PARAMS)
    assert len(state) == len(adam)
    if k == 1:
        assert [x.shape for x in jax.tree.leaves(state)] == [x.shape for x in jax.tree.leaves(adam)]


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("mask", [None, {"w": True, "b": False}, {"w": True, "b": True}])
def test_its_structure_is_the_same_whatever_the_numbers(coupled, mask):
    def structure(**numbers):
        optimizer = kadam(k=2, coupled=coupled, mask=mask, **numbers)
        state = optimizer.init(PARAMS)
        _, after = optimizer.update(PARAMS, state, PARAMS)
        assert jax.tree.structure(after) == jax.tree.structure(state)
        return jax.tree.structure(state)

    numbers = dict(learning_rate=0.1, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0)
    expected = structure(**numbers)
    for name in numbers:
        for value in (0, 0.0, 0.1, np.float32(0), jnp.float32(0.1)):
            assert structure(**numbers | {name: value}) == expected
    injected = optax.inject_hyperparams(kadam, static_args=("k", "coupled", "mask"))
    state = injected(0.1, k=2, coupled=coupled, mask=mask).init(PARAMS)
    assert jax.tree.structure(state.inner_state) == expected


@pytest.mark.parametrize("zero", [0, 0.0, np.float64(0), jnp.float32(0)])
def test_no_decay_needs_no_parameters(zero):
    optimizer = kadam(0.1, 2, weight_decay=zero)
    updates, _ = optimizer.update(PARAMS, optimizer.init(PARAMS))
    np.testing.assert_allclose(updates["w"], -0.1, rtol=1e-5)


def test_injected_defaults_need_no_parameters_until_traced():
    optimizer = optax.inject_hyperparams(kadam, static_args="k")(0.1, k=2)
    state = optimizer.init(PARAMS)
    updates, _ = optimizer.update(PARAMS, state)
    np.testing.assert_allclose(updates["w"], -0.1, rtol=1e-5)
    with pytest.raises(ValueError, match=r"must get the parameters.*traced.*static_args"):
        jax.jit(optimizer.update)(PARAMS, state)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_states_of_a_chain_of_single_stages_can_be_continued(k):
    ours, single = scale_by_kadam(k, (0.9,) * k, (0.99,) * k), scale_by_adaptive_normalization
    chain = optax.chain(*[single(0.9, 0.99) for _ in range(k)])
    _, of_chain, _ = run(chain, chain.init(PARAMS), PARAMS, range(3))
    _, after, updates = run(ours, of_chain, PARAMS, range(3, 6))
    assert jax.tree.structure(after) == jax.tree.structure(of_chain)
    _, _, expected = run(chain, of_chain, PARAMS, range(3, 6))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), updates, expected)


@pytest.mark.parametrize(("k", "of_state"), [(1, 2), (2, 1), (2, 3), (3, 2)])
@pytest.mark.parametrize(
    "params", [jnp.ones(2), PARAMS, (jnp.ones(2), jnp.ones(2)), (jnp.ones(2), {"w": jnp.ones(2)})]
)
def test_a_state_of_another_k_is_refused(k, of_state, params):
    state = scale_by_kadam(of_state).init(params)
    with pytest.raises(ValueError, match=f"state must have k={k} stages, got {of_state}"):
        scale_by_kadam(k).update(params, state)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("params", [(), ((), ()), (jnp.ones(2),) * 2, ((jnp.ones(2),) * 2,) * 2])
def test_trees_of_tuples_are_not_taken_for_stages(k, params):
    optimizer = kadam(0.1, k)
    updates, state = optimizer.update(params, optimizer.init(params))
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    assert jax.tree.structure(state) == jax.tree.structure(optimizer.init(params))


@pytest.mark.parametrize("other", [optax.adam(0.1), optax.adamw(0.1), optax.sgd(0.1)])
def test_a_state_of_another_optimizer_says_what_to_do(other):
    with pytest.raises(TypeError, match=r"state must be .*convert_adam_state"):
        kadam(0.1, 1).update(PARAMS, other.init(PARAMS), PARAMS)
    with pytest.raises(TypeError, match=r"state must be .*convert_adam_state"):
        scale_by_kadam(1).update(PARAMS, other.init(PARAMS)[0])


@pytest.mark.parametrize("k", [1, 2])
def test_a_state_restored_without_a_target_says_what_to_do(k):
    optimizer = kadam(0.1, k)
    new = optimizer.init(PARAMS)
    _, state, _ = run(optimizer, new, PARAMS, range(3))
    raw = serialization.to_state_dict(state)
    for restored in (raw, list(state), list(raw.values()), tuple(raw.values())):
        with pytest.raises(TypeError, match=r"state must be .*is restored as one if that is its"):
            optimizer.update(PARAMS, restored, PARAMS)
    restored = serialization.from_state_dict(new, raw)
    jax.tree.map(
        np.testing.assert_array_equal,
        run(optimizer, restored, PARAMS, [3]),
        run(optimizer, state, PARAMS, [3]),
    )


def test_a_float_in_the_place_of_k_is_taken_for_b1():
    for make in (lambda: kadam(0.005, 0.9), lambda: scale_by_kadam(0.9)):
        with pytest.raises(TypeError, match=r"k must be a Python int, got 0.9; .*name b1"):
            make()


# Adam's


def assert_goes_on_as(theirs, ours, state, params, rtol=3e-5, atol=3e-8):
    """Both continue from `state`, and agree to float32's rounding of optax's 1 - 0.999^n."""
    converted = convert_adam_state(state, like=ours.init(params))
    assert jax.tree.structure(converted) == jax.tree.structure(ours.init(params))
    expected, after, expected_updates = run(theirs, state, params, range(10, 18))
    actual, our_after, updates = run(ours, converted, params, range(10, 18))

    def close(x, y):
        np.testing.assert_allclose(np.float64(x), np.float64(y), rtol=rtol, atol=atol)

    jax.tree.map(close, updates, expected_updates)
    jax.tree.map(close, actual, expected)
    back = convert_adam_state(our_after, like=theirs.init(params))
    jax.tree.map(close, back, after)


LADDER = optax.linear_schedule(2**-10, 2**-13, 16)  # exact in float32, however it is compiled


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (optax.adamw(1e-3), kadam(1e-3, **ADAMW)),
        (optax.adamw(LADDER), kadam(LADDER, **ADAMW)),
        (optax.adam(1e-3), kadam(1e-3, k=1, eps=1e-8)),
        (optax.adam(LADDER), kadam(LADDER, k=1, eps=1e-8)),
        (optax.scale_by_adam(), scale_by_kadam(1, eps=1e-8)),
        (
            optax.chain(optax.clip(0.5), optax.adamw(1e-3)),
            optax.chain(optax.clip(0.5), kadam(1e-3, **ADAMW)),
        ),
        (
            optax.adamw(1e-3, mask={"w": True, "b": False}),
            kadam(1e-3, **ADAMW, mask={"w": True, "b": False}),
        ),
        (
            optax.masked(optax.adamw(1e-3), {"w": True, "b": False}),
            optax.masked(kadam(1e-3, **ADAMW), {"w": True, "b": False}),
        ),
        (optax.MultiSteps(optax.adamw(1e-3), 2), optax.MultiSteps(kadam(1e-3, **ADAMW), 2)),
        (
            optax.inject_hyperparams(optax.adamw)(1e-3),
            optax.inject_hyperparams(kadam, static_args="k")(1e-3, **ADAMW),
        ),
        (
            optax.inject_hyperparams(optax.adamw)(LADDER),
            optax.inject_hyperparams(kadam, static_args="k")(LADDER, **ADAMW),
        ),
    ],
    ids=lambda _: "",
)
def test_adam_continues_as_kadam_and_back(x64, theirs, ours):
    start = jax.tree.map(lambda p: p.astype(float), PARAMS)
    params, state, _ = run(theirs, theirs.init(start), start, range(6))
    assert_goes_on_as(theirs, ours, state, params, rtol=1e-11, atol=1e-14)


def test_a_narrow_mu_converts_there_and_back():
    narrow = dict(mu_dtype=jnp.bfloat16)
    theirs, ours = optax.adamw(1e-3, **narrow), kadam(1e-3, **ADAMW, **narrow)
    params, state, _ = run(theirs, theirs.init(PARAMS), PARAMS, range(6))
    assert_goes_on_as(theirs, ours, state, params, rtol=2e-2, atol=1e-3)


def test_complex_parameters_convert_there_and_back():
    params = {"z": jnp.array([1 + 2j, -3j])}
    theirs = optax.adamw(1e-3)
    params, state, _ = run(theirs, theirs.init(params), params, range(6))
    converted = convert_adam_state(state, like=kadam(1e-3, **ADAMW).init(params))
    np.testing.assert_allclose(jnp.square(converted[0].rms["z"]), state[0].nu["z"].real, rtol=1e-6)
    np.testing.assert_array_equal(converted[0].mu["z"], state[0].mu["z"])


def test_bfloat16_moments_become_float32_ones_and_back():
    """optax.adamw has them in the parameters' dtype, kadam in float32: they differ after that."""
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), PARAMS)
    theirs, ours = optax.adamw(1e-3), kadam(1e-3, **ADAMW)
    params, state, _ = run(theirs, theirs.init(params), params, range(6))
    converted = convert_adam_state(state, like=ours.init(params))
    assert {x.dtype for x in jax.tree.leaves(converted[0][1:])} == {jnp.dtype("float32")}
    back = convert_adam_state(converted, like=theirs.init(params))
    assert jax.tree.map(jnp.result_type, back) == jax.tree.map(jnp.result_type, state)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2**-7), back, state)


def test_an_orbax_checkpoint_of_adamw_can_be_continued(tmp_path):
    theirs, ours = optax.adamw(LADDER), kadam(LADDER, **ADAMW)
    params, state, _ = run(theirs, theirs.init(PARAMS), PARAMS, range(6))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "step", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "step", jax.eval_shape(theirs.init, PARAMS))
    jax.tree.map(np.testing.assert_array_equal, restored, state)
    assert_goes_on_as(theirs, ours, restored, params)


def test_a_flax_checkpoint_of_adamw_can_be_continued():
    theirs, ours = optax.adamw(1e-3), kadam(1e-3, **ADAMW)
    params, state, _ = run(theirs, theirs.init(PARAMS), PARAMS, range(6))
    restored = serialization.from_bytes(theirs.init(PARAMS), serialization.to_bytes(state))
    assert_goes_on_as(theirs, ours, restored, params)
    converted = convert_adam_state(restored, like=ours.init(PARAMS))
    again = serialization.from_bytes(ours.init(PARAMS), serialization.to_bytes(converted))
    jax.tree.map(np.testing.assert_array_equal, again, converted)


def test_each_of_several_injections_keeps_its_own_numbers():
    """A number that Adam lacks is the one at the same place in `like`, not the first one there."""
    inject, groups = optax.inject_hyperparams, {"w": "w", "b": "b"}

    def of(make, **numbers):
        injected = {name: make(**{n: x[name] for n, x in numbers.items()}) for name in groups}
        clipped = optax.chain(inject(optax.clip)(0.5), optax.partition(injected, groups))
        return clipped.init(PARAMS)

    make = partial(inject(kadam, static_args="k"), k=1)
    state = of(inject(optax.adam), learning_rate=dict(w=0.1, b=0.2))
    like = of(make, learning_rate=dict(w=1.0, b=1.0), weight_decay=dict(w=0.3, b=0.4))
    expected = of(
        partial(make, eps=1e-8), learning_rate=dict(w=0.1, b=0.2), weight_decay=dict(w=0.3, b=0.4)
    )
    converted = convert_adam_state(state, like=like)
    assert jax.tree.structure(converted) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, converted, expected)


def test_abstract_states_are_converted():
    theirs, ours = optax.adamw(1e-3), kadam(1e-3, **ADAMW)
    shapes = [jax.eval_shape(optimizer.init, PARAMS) for optimizer in (theirs, ours)]
    converted = jax.eval_shape(convert_adam_state, *shapes)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), converted) == jax.tree.map(
        lambda x: (x.shape, x.dtype), shapes[1]
    )


@pytest.mark.parametrize(
    ("state", "like"),
    [
        (optax.adamw(1e-3), kadam(1e-3, 2)),
        (kadam(1e-3, 2), optax.adamw(1e-3)),
        (optax.adamw(1e-3), kadam(LADDER, 1)),
        (optax.sgd(1e-3), kadam(1e-3, 1)),
        (optax.adamw(1e-3), optax.MultiSteps(kadam(1e-3, 1), 2)),
    ],
    ids=lambda _: "",
)
def test_a_state_that_does_not_fit_is_refused(state, like):
    with pytest.raises(ValueError, match=r"state must have leaves.*k = 1"):
        convert_adam_state(state.init(PARAMS), like=like.init(PARAMS))
