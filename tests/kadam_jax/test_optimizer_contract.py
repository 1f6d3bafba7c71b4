"""Properties that optax or a training loop expects of an optimizer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from kadam_jax import kadam, scale_by_kadam
from tests.kadam_jax.support.scanning import feed, jit_feed, jit_updates, stages_of

stages = pytest.mark.parametrize("k", [1, 3])
every_dtype = pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "complex64"]
)


def squared_distance(params, target):
    distances = jax.tree.map(lambda p, t: jnp.sum(jnp.abs(p - t) ** 2), params, target)
    return sum(jax.tree.leaves(distances))


def rosenbrock(params, target):
    del target
    x, y = params
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2


TARGETS = {
    "parabola": (squared_distance, np.array([1.0, -1.0, 1.0]), np.array([-1.0, 10.0, 1.0])),
    "rosenbrock": (rosenbrock, np.array([1.0, 1.0]), np.zeros(2)),
    "matrix": (squared_distance, np.array([[3.0, -2.0], [1.0, 4.0]]), np.zeros((2, 2))),
    "two ranks": (
        squared_distance,
        (np.array([1.0, -1.0, 2.0]), np.eye(2)),
        (np.zeros(3), np.zeros((2, 2))),
    ),
}
"""loss(params, minimum), the minimum, where to start."""


def quadratic(dtype):
    """Parameters, and the gradient function of half their squared norm."""
    params = jnp.array([1.0, -2.0, 0.5], dtype)
    return params, lambda w: w


# The contract


@stages
@pytest.mark.parametrize("target", TARGETS)
def test_it_finds_minima(k, target):
    """At a constant rate, more than one stage does not settle, but circles near the minimum."""
    loss, minimum, start = TARGETS[target]
    optimizer = kadam(1e-3, k)

    @jax.jit
    def train(params):
        def step(carry, _):
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss)(params, minimum), state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, optimizer.init(params)), length=30_000)[0][0]

    found = train(jax.tree.map(jnp.float32, start))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=0.03), found, minimum)


@stages
def test_unknown_arguments_pass_and_all_steps_are_one_program(k):
    optimizer, traces = kadam(0.1, k, weight_decay=0.1), []

    @jax.jit
    def step(params, state):
        traces.append(params)
        updates, state = optimizer.update(params, state, params, value=1.0, nobody_knows_me=None)
        return optax.apply_updates(params, updates), state

    params = jnp.ones(3)
    state = optimizer.init(params)
    for _ in range(20):
        params, state = step(params, state)
    assert len(traces) == 1
    assert all(stage.count == 20 for stage in stages_of(state))


@stages
def test_parameters_are_found_in_the_state(k):
    """`optax.tree.map_params` reaches mu and rms, as sharding rules and the like need."""
    optimizer, params = kadam(0.1, k), {"w": jnp.ones(2)}
    state = optimizer.init(params)
    doubled = optax.tree.map_params(optimizer, lambda x: x + 1, state)
    for stage in stages_of(doubled):
        assert (stage.count, stage.mu["w"][0], stage.rms["w"][0]) == (0, 1, 1)


@stages
def test_hyperparameters_can_be_injected(k):
    gradients = np.ones((5, 2, 3), np.float32)
    gradients[2] = -2.0
    params = gradients[0]
    arguments = dict(learning_rate=0.1, k=k, weight_decay=0.01)
    injected = optax.inject_hyperparams(kadam, static_args="k")(**arguments)
    assert set(injected.init(params).hyperparams) == {
        "learning_rate", "b1", "b2", "eps", "weight_decay"
    }  # fmt: skip
    ours, plain = (jit_feed(of, gradients, params)[:2] for of in (injected, kadam(**arguments)))
    # b2 itself is a float32 now, 3e-8 away from 0.999: 1-b2 moves by 1.3e-5.
    np.testing.assert_allclose(ours, plain, rtol=2e-5)


@stages
@every_dtype
def test_dtypes_of_updates_and_state_are_stable(k, dtype):
    """Also as branches of `lax.cond`, which want equal types, and with traced hyperparameters."""
    with jax.enable_x64(dtype == "float64"):
        params, gradient_of = quadratic(dtype)

        def step(params, state, learning_rate, weight_decay):
            optimizer = kadam(learning_rate, k, weight_decay=weight_decay)
            updates, state = jax.lax.cond(
                jnp.sum(jnp.abs(params)) > 0,
                lambda: optimizer.update(gradient_of(params), state, params),
                lambda: (params, state),
            )
            assert updates.dtype == dtype
            return optax.apply_updates(params, updates), state

        state = jax.eval_shape(kadam(0.1, k, weight_decay=0.1).init, params)
        new_params, new_state = jax.eval_shape(step, params, state, jnp.float32(0.1), np.float32(0))
        assert new_params.dtype == dtype
        assert jax.tree.map(jnp.result_type, new_state) == jax.tree.map(jnp.result_type, state)
        assert jax.tree.map(jnp.shape, new_state) == jax.tree.map(jnp.shape, state)


@stages
def test_gradients_can_be_accumulated(k):
    params = {dtype: quadratic(dtype)[0] for dtype in ("bfloat16", "float32")}
    accumulating = optax.MultiSteps(kadam(0.1, k), every_k_schedule=2)

    @jax.jit
    def two_steps(params):
        first, state = accumulating.update(params, accumulating.init(params), params)
        return first, accumulating.update(params, state, params)[0]

    first, second = two_steps(params)
    for dtype, param in params.items():
        assert first[dtype].dtype == second[dtype].dtype == dtype
        np.testing.assert_array_equal(first[dtype], np.zeros(3))
        expected = -0.1 * np.sign(np.float32(param))
        np.testing.assert_allclose(np.float32(second[dtype]), expected, rtol=0.01)


@stages
def test_a_learning_rate_may_be_a_schedule(k):
    gradients = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)
    constant = jit_updates(kadam(optax.constant_schedule(1e-3), k), gradients)
    np.testing.assert_array_equal(constant, jit_updates(kadam(1e-3, k), gradients))
    halving = jit_updates(kadam(lambda n: 1e-3 * 0.5**n, k), gradients)
    factors = 0.5 ** np.arange(10)[:, None]
    np.testing.assert_allclose(halving, constant * factors, rtol=1e-5)


# Trees


TREES = [
    {},
    (),
    None,
    [None, {}],
    {"w": np.ones(2, np.float32), "frozen": None},
    np.float32(2.0),
    2.0,
    {"empty": np.zeros((0, 3), np.float32), "full": np.ones((1, 3), np.float32)},
]


@stages
@pytest.mark.parametrize("tree", TREES, ids=str)
def test_trees_that_optax_takes(k, tree):
    updates, expected = (
        jax.jit(lambda tree, of=optimizer: of.update(tree, of.init(tree), tree)[0])(tree)
        for optimizer in (scale_by_kadam(k), optax.scale_by_adam())
    )
    assert jax.tree.structure(updates) == jax.tree.structure(expected)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), updates, expected)


@stages
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ({"a": {"w": 1.0, "b": None}, "c": [1.0]}, r"updates\['a'\]\['b'\] is missing"),
        ({"a": {"w": 1.0}, "c": [1.0]}, r"updates\['a'\]\['b'\] is missing"),
        ({"a": {"w": 1.0, "b": 1.0}, "c": []}, r"updates\['c'\]\[0\] is missing"),
        ({"a": {"w": 1.0, "b": 1.0, "d": 1.0}, "c": [1.0]}, r"nothing for updates\['a'\]\['d'\]"),
        ({"a": {"w": 1.0, "b": 1.0}, "c": (1.0,)}, r"updates must have the structure of"),
    ],
)
def test_a_missing_gradient_is_named_by_its_path(k, given, updates, message):
    params = jax.tree.map(jnp.float32, {"a": {"w": 1.0, "b": 1.0}, "c": [1.0]})
    updates = jax.tree.map(jnp.float32, updates)
    optimizers = [scale_by_kadam(k), kadam(0.1, k)]
    if given:
        optimizers += [
            kadam(0.1, k, weight_decay=0.1, coupled=coupled) for coupled in (True, False)
        ]
    for optimizer in optimizers:
        with pytest.raises(ValueError, match=message):
            optimizer.update(updates, optimizer.init(params), params if given else None)


@stages
def test_parameters_are_not_needed_without_decay(k):
    optimizer = kadam(0.1, k)
    updates, _ = optimizer.update(jnp.ones(2), optimizer.init(jnp.ones(2)))
    np.testing.assert_allclose(updates, [-0.1, -0.1], rtol=1e-5)


# Compiled steps


def donating_step(optimizer):
    def step(params, state, gradients):
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(step, donate_argnums=(0, 1))


@stages
def test_every_buffer_can_be_donated(k):
    """No two arrays of a new state share memory, and a step reuses all of it."""
    optimizer, params = kadam(0.1, k), {"a": jnp.ones(4), "b": jnp.ones(4)}
    for init in (optimizer.init, jax.jit(optimizer.init)):
        buffers = jax.tree.leaves((params, init(params)))
        assert len({buffer.unsafe_buffer_pointer() for buffer in buffers}) == len(buffers)
    state = optimizer.init(params)
    given = jax.tree.leaves((jax.tree.map(jnp.copy, params), state))
    params, state = donating_step(optimizer)(params, state, jax.tree.map(jnp.ones_like, params))
    assert all(buffer.is_deleted() for buffer in jax.tree.leaves(given)[2:])


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_nothing_is_written_out_between_stages(k, weight_decay):
    """A full-size temporary costs a CPU a fresh page for every 4 KB of it, at every step."""
    optimizer, leaf = kadam(0.1, k, weight_decay=weight_decay), jax.ShapeDtypeStruct((10**6,), "f4")
    state = jax.eval_shape(optimizer.init, leaf)
    memory = donating_step(optimizer).lower(leaf, state, leaf).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 0.01 * leaf.size * 4
    assert memory.alias_size_in_bytes > (2 * k + 1) * leaf.size * 4


# Derivatives


def after_a_few_steps(learning_rate, b1, b2, eps, weight_decay, start, k=2):
    """A loss after a few steps; `dead` never has a gradient."""
    optimizer = kadam(learning_rate, k, b1, b2, eps, weight_decay=weight_decay)
    params = {"w": start, "dead": jnp.ones_like(start)}

    def loss(params):
        curvatures = jnp.arange(1.0, 4.0, dtype=start.dtype)
        return jnp.sum(curvatures * (params["w"] - 0.3) ** 2) + 0 * jnp.sum(params["dead"])

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), length=5)
    return loss(params)


HYPERPARAMETERS = dict(learning_rate=0.1, b1=0.9, b2=0.95, eps=1e-3, weight_decay=0.01)


@stages
def test_hypergradients_are_finite_with_dead_parameters(k):
    hypergradient = jax.jit(jax.grad(lambda *a: after_a_few_steps(*a, k=k), range(6)))
    for eps in (1e-30, 1e-3):
        arguments = [*(HYPERPARAMETERS | dict(eps=eps)).values(), np.float32([1.0, -1.0, 2.0])]
        gradients = jax.device_get(hypergradient(*arguments))
        assert all(np.all(np.isfinite(g)) for g in gradients)
        assert all(np.all(np.abs(g) > 0) for g in gradients)


def test_hypergradients_are_those_of_finite_differences(x64):
    def loss(arguments):
        return after_a_few_steps(*arguments[:5], arguments[5:])

    arguments, step = np.array([*HYPERPARAMETERS.values(), 1.0, -1.0, 2.0]), 1e-6 * np.eye(8)
    gradient = jax.jit(jax.grad(loss))(arguments)
    above, below = jax.jit(jax.vmap(jax.vmap(loss)))(arguments + np.array([step, -step]))
    np.testing.assert_allclose(gradient, (above - below) / 2e-6, rtol=1e-4)


def test_zero_gradients_and_no_momentum_have_derivatives():
    def norm(b1, gradients):
        return jnp.sum(feed(scale_by_kadam(2, b1, 0.9), gradients)[1] ** 2)

    gradients = np.float32([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    derivatives = jax.jit(jax.grad(norm, (0, 1)))
    for b1 in (0.0, 0.9):
        assert all(np.all(np.isfinite(derivative)) for derivative in derivatives(b1, gradients))


@pytest.mark.parametrize(
    ("of_params", "of_gradients"), [("float32", "float64"), ("float64", "float32")]
)
def test_gradients_may_have_another_precision_than_params(of_params, of_gradients, x64):
    optimizer = scale_by_kadam(2)
    state = optimizer.init(np.zeros(2, of_params))
    updates, after = jax.jit(optimizer.update)(np.array([1.0, -3.0], of_gradients), state)
    assert updates.dtype == of_gradients
    np.testing.assert_allclose(updates, [1, -1], rtol=1e-6)
    assert [x.dtype for x in jax.tree.leaves(after)] == [x.dtype for x in jax.tree.leaves(state)]
