"""k-Adam inside optax's wrappers, Flax's optimizer, Orbax's checkpoints, and on several devices."""

from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from kadam_jax import (
    flow_vector_field,
    kadam,
    record_dead_gradients,
    record_max_update,
    record_squared_norm,
    scale_by_adaptive_normalization,
    scale_by_coarse_grained_normalization,
    scale_by_kadam,
)
from tests.kadam_jax.support.scanning import feed, jit_feed, jit_updates, stages_of

PARAMS = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([3.0])}


@pytest.fixture(scope="module")
def gradients():
    rng = np.random.default_rng(0)
    return {n: rng.standard_normal((12, *p.shape)).astype(np.float32) for n, p in PARAMS.items()}


def assert_close(actual, expected, rtol=1e-6, atol=0.0):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol, atol), actual, expected)


# optax


@pytest.mark.parametrize(
    "new",
    [
        *(lambda p, k=k: kadam(0.1, k, weight_decay=0.1).init(p) for k in (1, 3)),
        lambda p: scale_by_adaptive_normalization().init(p),
        lambda p: scale_by_coarse_grained_normalization().init(p),
        lambda p: record_max_update(3).init(p),
        lambda p: record_dead_gradients().init(p),
        lambda p: record_squared_norm(0.1).init(p),
        lambda p: flow_vector_field(lambda p: p, learning_rate=0.1, k=2)[1](p),
    ],
)
def test_a_new_state_can_be_donated(new):
    """An array that is in it twice is refused when it is donated."""
    leaves = jax.tree.leaves(new(jax.tree.map(jnp.copy, PARAMS)))
    assert len({id(leaf) for leaf in leaves}) == len(leaves)
    jax.jit(lambda *x: [2 * leaf for leaf in x], donate_argnums=range(len(leaves)))(*leaves)


def test_chain(gradients):
    clipped = jax.tree.map(lambda g: np.clip(g, -0.5, 0.5), gradients)
    chained = optax.chain(optax.clip(0.5), scale_by_kadam(2), optax.scale(-0.1))
    assert_close(jit_updates(chained, gradients), jit_updates(kadam(0.1, 2), clipped))


def test_partition_gives_each_group_its_own_k(gradients):
    groups = optax.partition(
        {"one": kadam(0.1, 1), "three": kadam(0.2, 3)}, {"a": "one", "b": "three"}
    )
    updates = jit_updates(groups, gradients)
    assert_close(updates["a"], jit_updates(kadam(0.1, 1), gradients["a"]))
    assert_close(updates["b"], jit_updates(kadam(0.2, 3), gradients["b"]))


def test_masked_leaves_the_rest_alone(gradients):
    masked = optax.masked(kadam(0.1, 2, weight_decay=0.1), {"a": True, "b": False})
    _, updates, state = jit_feed(masked, gradients, PARAMS)
    expected = jit_feed(kadam(0.1, 2, weight_decay=0.1), gradients["a"], PARAMS["a"])[1]
    assert_close(updates["a"], expected)
    np.testing.assert_array_equal(updates["b"], gradients["b"])
    assert all(len(jax.tree.leaves(stage.mu)) == 1 for stage in stages_of(state))


def test_multi_steps_sees_the_mean_gradient(gradients):
    every_third = optax.MultiSteps(kadam(0.1, 2), 3)
    updates = jit_updates(every_third, gradients)
    means = jax.tree.map(lambda g: g.reshape(4, 3, -1).mean(1), gradients)
    ours = jax.tree.map(lambda u: u[2::3], updates)
    assert_close(ours, jit_updates(kadam(0.1, 2), means), rtol=1e-5, atol=1e-7)
    assert not np.any(updates["a"][0::3])


def test_apply_if_finite_skips_a_bad_step(gradients):
    bad = jax.tree.map(lambda g: np.insert(g, 5, np.nan, axis=0), gradients)
    guarded = optax.apply_if_finite(kadam(0.1, 2), max_consecutive_errors=3)
    updates = jit_updates(guarded, bad)
    assert not np.any(updates["a"][5])
    without = jax.tree.map(lambda u: np.delete(u, 5, axis=0), updates)
    assert_close(without, jit_updates(kadam(0.1, 2), gradients))


def test_inject_hyperparams_changes_them_between_steps(gradients):
    gradient = jax.tree.map(lambda g: g[0], gradients)
    injected = optax.inject_hyperparams(kadam, static_args=("k", "mask"))(
        0.1, k=2, weight_decay=0.1, mask=lambda p: {"a": True, "b": False}
    )
    state = injected.init(PARAMS)
    before, _ = injected.update(gradient, state, PARAMS)
    state.hyperparams["learning_rate"] = jnp.float32(0.2)
    after, _ = injected.update(gradient, state, PARAMS)
    assert_close(after, jax.tree.map(lambda u: 2 * u, before))


def test_injection_takes_schedules_and_per_stage_decays(gradients):
    injected = optax.inject_hyperparams(kadam, static_args="k")(
        0.1, k=2, b1=jnp.array([0.9, 0.5]), b2=lambda n: 1 - 0.1 / (1 + n)
    )
    _, updates, injected_state = jit_feed(injected, gradients, PARAMS)
    params, state = PARAMS, kadam(0.1, 2).init(PARAMS)
    for n in range(12):
        optimizer = kadam(0.1, 2, [0.9, 0.5], 1 - 0.1 / (1 + n))
        expected, state = optimizer.update(
            jax.tree.map(lambda g, n=n: g[n], gradients), state, params
        )
        np.testing.assert_allclose(updates["a"][n], expected["a"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        injected_state.hyperparams["b2"], 1 - 0.1 / (1 + np.arange(12)), rtol=1e-6
    )


def test_inject_hyperparams_with_a_traced_k_says_what_to_do():
    with pytest.raises(TypeError, match=r"static_args=\('k', ...\)"):
        optax.inject_hyperparams(kadam)(0.1, k=2).init(PARAMS)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_mask_that_is_injected_as_a_schedule_is_an_error(transform):
    """Called with the step, a mask says that a scalar doesn't decay: all decay would be lost."""
    injected = optax.inject_hyperparams(kadam, static_args="k")(
        0.1, weight_decay=0.1, mask=lambda params: jax.tree.map(lambda p: jnp.ndim(p) > 0, params)
    )
    with pytest.raises(TypeError, match=r"static_args=\('mask', ...\)"):
        transform(injected.init)(PARAMS)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64", "float32"])
@pytest.mark.parametrize(
    ("transformation", "arguments"),
    [
        (kadam, dict(learning_rate=0.1, k=2, weight_decay=0.1)),
        (kadam, dict(learning_rate=0.1, k=2, b1=np.array([0.9, 0.5]), b2=lambda n: 0.999)),
        (scale_by_kadam, dict(k=3)),
        (scale_by_adaptive_normalization, {}),
        (scale_by_coarse_grained_normalization, {}),
        (record_dead_gradients, {}),
        (record_squared_norm, dict(learning_rate=0.1)),
    ],
)
def test_injected_numbers_are_those_given_or_refused(transformation, arguments, dtype, transform):
    """optax casts them to the parameters' dtype: to bfloat16's 1 for 0.999, to complex numbers."""
    static = [name for name in ("k",) if name in arguments]
    inject = optax.inject_hyperparams
    params = jnp.ones(2, dtype)
    has_decays = transformation is not record_squared_norm
    if dtype == "complex64" or (has_decays and dtype != "float32"):
        with pytest.raises(TypeError, match=r"float32 or float64.*hyperparam_dtype=jnp.float32"):
            transform(inject(transformation, static)(**arguments).init)(params)
    optimizer = inject(transformation, static, jnp.float32)(**arguments)
    plain = {name: x(0) if callable(x) else x for name, x in arguments.items()}
    state, expected = (x.init(params) for x in (optimizer, transformation(**plain)))
    updates, state = transform(optimizer.update)(params, state, params)
    expected = transformation(**plain).update(params, expected, params)
    rtol = 1e-2 if updates.itemsize < 4 else 1e-4
    assert_close((updates, state.inner_state), expected, rtol)


# Flax and Orbax


def test_flax_optimizer_trains_a_module():
    module = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(module, kadam(0.03, 2, weight_decay=1e-4), wrt=nnx.Param)
    inputs = jax.random.normal(jax.random.key(1), (32, 3))
    targets = inputs @ jnp.array([[1.0], [-2.0], [0.5]]) + 1

    @nnx.jit
    def step(module, optimizer):
        loss, gradients = nnx.value_and_grad(lambda m: jnp.mean((m(inputs) - targets) ** 2))(module)
        optimizer.update(module, gradients)
        return loss

    losses = [step(module, optimizer) for _ in range(150)]
    assert losses[-1] < 0.01 * losses[0]


def test_orbax_restores_into_an_abstract_template(tmp_path, gradients):
    optimizer = kadam(optax.linear_schedule(0.1, 0.0, 10), 3, weight_decay=0.1)
    params, _, states = jit_feed(optimizer, gradients, PARAMS)
    saved = jax.tree.map(lambda x: jnp.asarray(x[-1]), (params, states))
    template = jax.eval_shape(lambda: (PARAMS, optimizer.init(PARAMS)))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "step", saved)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "step", template)
    assert jax.tree.structure(restored) == jax.tree.structure(saved)
    jax.tree.map(np.testing.assert_array_equal, restored, saved)


# Devices


@pytest.mark.parametrize(
    ("axis_type", "coupled"), [(AxisType.Auto, False), (AxisType.Explicit, True)], ids=str
)
def test_state_and_updates_are_sharded_as_the_parameters(axis_type, coupled):
    assert len(jax.devices()) == 8
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(axis_type,) * 2)
    specs = {"matrix": P("x", "y"), "vector": P("y"), "everywhere": P()}
    shapes = {"matrix": (8, 6), "vector": (4,), "everywhere": (3,)}
    rng = np.random.default_rng(0)
    host = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    shardings = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    optimizer = kadam(0.1, 2, weight_decay=0.1, coupled=coupled)

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(params, state, params)
        return updates, state, optax.apply_updates(params, updates)

    params, alone = jax.device_put(host, shardings), host
    state, lone_state = optimizer.init(params), optimizer.init(alone)
    with jax.set_mesh(mesh):
        for _ in range(3):
            updates, state, params = step(params, state)
    for _ in range(3):
        lone_updates, lone_state, alone = step(alone, lone_state)

    for tree in [
        updates,
        params,
        *(t for stage in stages_of(state) for t in (stage.mu, stage.rms)),
    ]:
        for name, sharding in shardings.items():
            assert tree[name].sharding.is_equivalent_to(sharding, tree[name].ndim), name
    assert_close(jax.device_get((updates, state)), jax.device_get((lone_updates, lone_state)), 1e-5)


def test_a_new_state_is_sharded_as_the_parameters_already():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    params = jax.device_put(jnp.ones((16, 2), jnp.bfloat16), NamedSharding(mesh, P("x")))
    for stage in stages_of(kadam(0.1, 2).init(params)):
        assert stage.mu.sharding == stage.rms.sharding == params.sharding


def test_members_side_by_side_equal_members_alone(gradients):
    """vmap over parameters, state and gradients, as a sweep does."""
    optimizer = kadam(0.1, 2, weight_decay=0.1)
    starts = jax.tree.map(lambda p: jnp.stack([p, 2 * p, -p]), PARAMS)
    together = jax.jit(jax.vmap(lambda start: feed(optimizer, gradients, start)[0]))(starts)
    for i in range(3):
        start, member = (jax.tree.map(itemgetter(i), tree) for tree in (starts, together))
        assert_close(member, jit_feed(optimizer, gradients, start)[0], rtol=1e-5)
