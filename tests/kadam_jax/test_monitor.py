"""Monitors: updates pass through them untouched, and the state tells what went by."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from kadam_jax import (
    kadam,
    measure_dead_gradients,
    measure_max_update,
    measure_rms_ratio,
    record_dead_gradients,
    record_max_update,
    scale_by_kadam,
)
from kadam_jax.invariance import (
    record_squared_norm,
    scale_by_coarse_grained_normalization,
)
from kadam_jax.monitor import RecordDeadGradientsState, RecordMaxUpdateState
from tests.kadam_jax.support.scanning import feed, jit_feed, jit_updates

MONITORS = {"max update": record_max_update(4), "dead gradients": record_dead_gradients()}
every_monitor = pytest.mark.parametrize("monitor", MONITORS.values(), ids=MONITORS)


@pytest.fixture(scope="module")
def gradients():
    rng = np.random.default_rng(0)
    gradients = {"w": rng.standard_normal((30, 4, 2)), "b": rng.standard_normal((30, 3))}
    gradients["w"][rng.random(gradients["w"].shape) < 0.5] = 0
    gradients["b"][10:] *= 1e-6
    return jax.tree.map(np.float32, gradients)


@every_monitor
def test_updates_pass_untouched(monitor, gradients):
    jax.tree.map(np.testing.assert_array_equal, jit_updates(monitor, gradients), gradients)


@every_monitor
def test_a_chain_trains_as_without_monitors(monitor, gradients):
    monitored = optax.chain(monitor, kadam(0.1, 2))
    jax.tree.map(
        np.testing.assert_array_equal,
        jit_updates(monitored, gradients),
        jit_updates(kadam(0.1, 2), gradients),
    )


def test_max_update_is_the_largest_modulus_in_the_tree(gradients):
    num_steps = 20
    optimizer = optax.chain(scale_by_kadam(2), record_max_update(num_steps), optax.scale(-0.1))
    _, updates, (_, state, _) = jit_feed(optimizer, gradients)
    moduli = [np.abs(u).reshape(len(u), -1).max(1) for u in jax.tree.leaves(updates)]
    expected = np.max(moduli, axis=0) / 0.1
    np.testing.assert_allclose(state.max_update, expected, rtol=1e-6)
    for n, history in enumerate(state.history):
        done = min(n + 1, num_steps)
        np.testing.assert_array_equal(history[:done], state.max_update[:done])
        assert np.all(np.isnan(history[done:]))
    np.testing.assert_array_equal(state.count, 1 + np.arange(30))


def test_max_update_without_a_history_and_of_complex_updates():
    state = record_max_update().init(jnp.zeros(2))
    assert state.history.shape == (0,)
    _, state = record_max_update().update(jnp.array([3 + 4j, 1]), state)
    np.testing.assert_allclose(state.max_update, 5)


def test_max_update_is_nan_where_an_update_is():
    monitor = record_max_update()
    _, state = monitor.update(jnp.array([jnp.nan, 2.0]), monitor.init(jnp.zeros(2)))
    assert np.isnan(state.max_update)


@every_monitor
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_state_has_at_least_float32_and_keeps_its_types(monitor, dtype):
    with jax.enable_x64(dtype == "float64"):
        params = jnp.ones(3, dtype)
        state = jax.eval_shape(monitor.init, params)
        _, new_state = jax.eval_shape(monitor.update, params, state)
        assert jax.tree.map(jnp.result_type, new_state) == jax.tree.map(jnp.result_type, state)
        wide = "float64" if dtype == "float64" else "float32"
        measured = state.max_update if isinstance(state, RecordMaxUpdateState) else state.rms
        assert measured.dtype == wide


@every_monitor
@pytest.mark.parametrize("tree", [{}, None, [None, np.zeros(0, np.float32)]], ids=str)
def test_trees_without_entries(monitor, tree):
    _, state = monitor.update(tree, monitor.init(tree))
    if isinstance(state, RecordMaxUpdateState):
        assert state.max_update == 0
    else:
        assert (state.zero_share, state.dead_share) == (0, 0)


def literal_shares(gradients, b2, threshold):
    """Per step: the share of zeros, and of entries below threshold times the corrected rms."""
    g = np.concatenate([x.reshape(len(x), -1) for x in jax.tree.leaves(gradients)], axis=1)
    v, shares = np.zeros(g.shape[1]), []
    for n, now in enumerate(np.float64(g)):
        v = b2 * v + (1 - b2) * now**2
        rms_hat = np.sqrt(v / (1 - b2 ** (n + 1)))
        dead = (now == 0) | (np.abs(now) < threshold * rms_hat)
        shares.append((np.mean(now == 0), np.mean(dead)))
    return np.array(shares).T


@pytest.mark.parametrize(("b2", "threshold"), [(0.999, 1e-3), (0.9, 1e-3), (0.5, 0.3), (0.0, 2.0)])
def test_shares_of_dead_entries(gradients, b2, threshold):
    _, _, state = jit_feed(record_dead_gradients(b2, threshold), gradients)
    zero_share, dead_share = literal_shares(gradients, b2, threshold)
    np.testing.assert_allclose(state.zero_share, zero_share, rtol=1e-6)
    np.testing.assert_allclose(state.dead_share, dead_share, rtol=1e-6)
    assert np.any(dead_share > zero_share)


def test_shares_do_not_depend_on_the_scale(gradients):
    _, _, expected = jit_feed(record_dead_gradients(), gradients)
    for factor in np.float32([2.0**-60, 2.0**60]):
        scaled = jax.tree.map(partial(np.multiply, factor), gradients)
        _, _, state = jit_feed(record_dead_gradients(), scaled)
        np.testing.assert_array_equal(state.dead_share, expected.dead_share)


def test_updates_of_dead_entries_grow_where_theory_is_unstable():
    """Section 3.2: with γ² > β, u of a dead entry grows as (γ/√β)ⁿ; live ones stay bounded."""
    b1, b2 = 0.95, 0.7
    optimizer = optax.chain(
        record_dead_gradients(b2), scale_by_kadam(1, b1, b2), record_max_update(200)
    )
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (200, 3)).astype(np.float32)
    signs[20:, 0] = 0
    _, updates, (dead, _, largest) = jit_feed(optimizer, signs)
    np.testing.assert_allclose(dead.dead_share[-1], 1 / 3, rtol=1e-6)
    rate = np.polyfit(np.arange(100, 200), np.log(largest.history[-1][100:]), 1)[0]
    np.testing.assert_allclose(rate, np.log(b1 / np.sqrt(b2)), rtol=0.01)
    assert np.max(np.abs(updates[:, 1:])) < 2.5


def test_parameters_of_the_monitor_may_be_traced(gradients):
    @jax.jit
    @jax.vmap
    def shares(b2, threshold):
        return feed(record_dead_gradients(b2, threshold), gradients)[2].dead_share

    together = shares(np.float32([0.9, 0.5]), np.float32([1e-3, 0.3]))
    np.testing.assert_allclose(together[0], literal_shares(gradients, 0.9, 1e-3)[1], rtol=1e-6)
    np.testing.assert_allclose(together[1], literal_shares(gradients, 0.5, 0.3)[1], rtol=1e-6)


close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)


def test_extra_arguments_pass_and_nothing_recompiles(gradients):
    optimizer = optax.chain(record_dead_gradients(), record_max_update(3))
    traces = []

    @jax.jit
    def step(state, gradient):
        traces.append(state)
        return optimizer.update(gradient, state, value=1.0)[1]

    state = optimizer.init(jnp.zeros(2))
    for _ in range(5):
        state = step(state, jnp.ones(2))
    assert len(traces) == 1
    assert isinstance(state[0], RecordDeadGradientsState)


# A transformation, what part of its state is compared, and what combines the shards' parts.
RECORDING = {
    "max update": (record_max_update(4), ("max_update", "maxima"), jax.lax.pmax),
    "dead gradients": (record_dead_gradients(), ("zero_share", "dead_share"), jax.lax.pmean),
    "squared norm": (record_squared_norm(0.1, 0.1), ("theorem", "full"), jax.lax.psum),
    "coarse": (scale_by_coarse_grained_normalization((-1,), 0.5), ("mu", "rms"), None),
}
every_recording = pytest.mark.parametrize(
    ("transformation", "names", "combine"), RECORDING.values(), ids=RECORDING
)


@every_recording
def test_records_of_shards_make_up_the_whole(transformation, names, combine):
    """Inside shard_map and scan, whose types say over which axes of the mesh an array varies."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def run(params):
        def step(state, n):
            return transformation.update(jnp.cos(n * params), state, params)[1], None

        state, _ = jax.lax.scan(step, transformation.init(params), jnp.arange(4.0))
        return [getattr(state, name) for name in names]

    def of_shard(params):
        return combine(run(params), "x") if combine else run(params)

    out_specs = jax.P() if combine else jax.P("x")
    run_sharded = jax.shard_map(of_shard, mesh=mesh, in_specs=jax.P("x"), out_specs=out_specs)
    params = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
    jax.tree.map(close, *jax.jit(lambda params: (run_sharded(params), run(params)))(params))


@every_recording
def test_jax_settings_change_nothing(transformation, names, combine):
    """Checks for NaN, no jit, strict promotion: the state holds no NaN of its own."""
    gradients = {"w": np.float32([[[1, 0], [0, -2]], [[0, 0], [1, 3]]])}
    params = {"w": np.float32([[1, 0], [0.5, -1]])}
    expected = jit_feed(transformation, gradients, params)
    with jax.debug_nans(True), jax.disable_jit(), jax.numpy_dtype_promotion("strict"):
        found = jit_feed(transformation, gradients, params)
    jax.tree.map(close, found, expected)


@every_recording
def test_numpy_arrays_are_taken_under_vmap_in_a_jit(transformation, names, combine):
    updates = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    chain = optax.chain(transformation, kadam(0.1, 2))

    def run(updates):
        return chain.update(updates, chain.init(updates), updates)

    together, *alone = jax.jit(lambda: [jax.vmap(run)(updates), *map(run, updates)])()
    jax.tree.map(close, together, jax.tree.map(lambda *x: np.stack(x), *alone))


def test_monitors_leave_derivatives_as_they_are():
    """Also for entries that are 0 at first, where a root of squares has no derivative."""

    def total(scale, monitors):
        gradients = scale * np.float32([[1.0, 0.0], [0.5, 0.0], [-0.2, 1.0]])
        return jnp.sum(feed(optax.chain(*monitors, scale_by_kadam(1)), gradients)[1])

    @partial(jax.jit, static_argnums=0)
    def derivatives(monitors):
        return [mode(total)(np.ones((3, 2), np.float32), monitors) for mode in modes]

    modes = jax.grad, jax.jacfwd
    monitored = derivatives(tuple(MONITORS.values()))
    jax.tree.map(np.testing.assert_array_equal, monitored, derivatives(()))


def test_shares_of_more_entries_than_an_int32_counts():
    """Shapes alone: 2^33 entries in two leaves."""
    monitor = record_dead_gradients()
    tree = [jax.ShapeDtypeStruct((2**16, 2**16), jnp.float32)] * 2
    _, state = jax.eval_shape(lambda tree: monitor.update(tree, monitor.init(tree)), tree)
    assert state.dead_share.shape == ()


def test_shares_are_counted_in_whole_numbers():
    """float32 cannot tell 2^24 from the next number."""
    program = jax.make_jaxpr(
        lambda g: record_dead_gradients().update(g, record_dead_gradients().init(g))
    )
    sums = [e for e in program(jnp.ones(3)).eqns if e.primitive.name == "reduce_sum"]
    assert sums
    assert all(e.outvars[0].aval.dtype == jnp.uint32 for e in sums)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: record_dead_gradients(1.0), ValueError, r"b2 must be in \[0, 1\), got 1.0"),
        (lambda: record_dead_gradients(-0.1), ValueError, r"b2 must be in \[0, 1\), got -0.1"),
        (lambda: record_dead_gradients(np.nan), ValueError, r"b2 must be in \[0, 1\), got nan"),
        (
            lambda: record_dead_gradients(threshold=-1.0),
            ValueError,
            "threshold must be finite and at least 0, got -1",
        ),
        (lambda: record_max_update(2.0), TypeError, "num_steps must be a Python int, got 2"),
        (lambda: record_max_update(-1), ValueError, "num_steps must be at least 0, got -1"),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


MEASURES = {
    "dead": (measure_dead_gradients(0.9, 0.1), record_dead_gradients(0.9, 0.1)),
    "max": (measure_max_update, record_max_update()),
}


@pytest.mark.parametrize("name", MEASURES)
def test_measures_are_what_monitors_record(gradients, name):
    measure, recorder = MEASURES[name]
    chain = optax.chain(optax.monitor({"measured": measure}), recorder)
    state = chain.init(jax.tree.map(lambda x: x[0], gradients))
    for n in range(12):
        _, state = chain.update(jax.tree.map(lambda x, n=n: x[n], gradients), state)
        overall, per_tensor = optax.tree.get(state, "measured")
        recorded = state[1].dead_share if name == "dead" else state[1].max_update
        np.testing.assert_array_equal(overall, recorded)
        sizes = {"w": 8, "b": 3}
        combined = (
            sum(sizes[key] * share for key, share in per_tensor.items()) / 11
            if name == "dead"
            else max(per_tensor.values())
        )
        np.testing.assert_allclose(overall, combined, rtol=1e-6)


def test_rms_ratio_is_that_of_its_formula(gradients):
    b2, eps = 0.9, 1e-3
    monitor = optax.monitor({"ratio": measure_rms_ratio(b2, eps)})
    state, v = monitor.init(jax.tree.map(lambda x: x[0], gradients)), {"w": 0.0, "b": 0.0}
    for n in range(20):
        now = jax.tree.map(lambda x, n=n: np.float64(x[n]), gradients)
        _, state = monitor.update(jax.tree.map(jnp.float32, now), state)
        v = {key: b2 * v[key] + (1 - b2) * now[key] ** 2 for key in now}
        v_hat = {key: np.maximum(v[key] / (1 - b2 ** (n + 1)), eps**2) for key in now}
        squares = {key: now[key] ** 2 / v_hat[key] for key in now}
        overall, per_tensor = optax.tree.get(state, "ratio")
        for key, expected in squares.items():
            np.testing.assert_allclose(per_tensor[key], np.sqrt(expected.mean()), rtol=1e-5)
        everything = np.concatenate([x.ravel() for x in squares.values()])
        np.testing.assert_allclose(overall, np.sqrt(everything.mean()), rtol=1e-5)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_rms_ratio_attains_its_bound_and_has_no_scale(size):
    monitor = optax.monitor({"ratio": measure_rms_ratio(0.99, eps=0.0)})
    state = monitor.init(jnp.zeros(3))
    for n in range(2000):
        state = jit_update(monitor, jnp.full(3, size if n == 1999 else 0.0), state)
    np.testing.assert_allclose(optax.tree.get(state, "ratio").overall, 10, rtol=1e-4)


@partial(jax.jit, static_argnums=0)
def jit_update(monitor, gradients, state):
    return monitor.update(gradients, state)[1]


@pytest.mark.parametrize("tree", [{}, {"empty": jnp.zeros((0, 3))}])
@pytest.mark.parametrize("measure", [measure_dead_gradients(), measure_rms_ratio()])
def test_measures_of_trees_without_entries(measure, tree):
    measurement, _ = measure.update(tree, measure.init(tree))
    assert measurement.overall == 0
    assert all(x == 0 for x in jax.tree.leaves(measurement.per_tensor))
    assert measure_max_update(tree).overall == 0


@pytest.mark.parametrize("make", [measure_dead_gradients, measure_rms_ratio])
def test_measures_name_bad_arguments(make):
    with pytest.raises(ValueError, match="b2 must be in"):
        make(b2=1.0)
    other = "threshold" if make is measure_dead_gradients else "eps"
    with pytest.raises(ValueError, match=f"{other} must be"):
        make(**{other: -1.0})


def stateless(measure):
    """Return a measure without a state in the form of those that have one."""
    return optax.GradientTransformation(lambda _: (), lambda x, state, _=None: (measure(x), state))


EVERY_MEASURE = {
    "dead": (measure_dead_gradients(0.9, 0.1), jax.lax.pmean, 1),
    "max": (stateless(measure_max_update), jax.lax.pmax, 1),
    "ratio": (measure_rms_ratio(0.9), jax.lax.pmean, 2),
}
every_measure = pytest.mark.parametrize("name", EVERY_MEASURE)


def measured(measure, trees):
    """Return the last measurement of a sequence of gradients."""
    state = measure.init(trees[0])
    for tree in trees:
        measurement, state = measure.update(tree, state)
    return measurement


@every_measure
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "complex64"])
def test_measures_take_any_leaf_under_any_setting(name, dtype):
    rng = np.random.default_rng(0)
    trees = [
        {"w": jnp.asarray(rng.normal(size=(2, 3)), dtype), "none": None, "empty": jnp.zeros((0, 2))}
        for _ in range(2)
    ]
    expected = measured(EVERY_MEASURE[name][0], trees)
    with (
        jax.debug_nans(True),
        jax.disable_jit(),
        jax.numpy_dtype_promotion("strict"),
        np.errstate(all="raise"),
    ):
        found = measured(EVERY_MEASURE[name][0], trees)
    jax.tree.map(close, found, expected)
    assert found.per_tensor["none"] is None
    assert found.per_tensor["empty"] == 0
    assert {x.dtype for x in jax.tree.leaves(found)} == {np.dtype("float32")}


@every_measure
def test_measures_of_shards_make_up_the_whole(name):
    measure, combine, power = EVERY_MEASURE[name]
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def run(params):
        return measured(measure, [jnp.cos(n * params) for n in range(3)]).overall

    def of_shard(params):
        return combine(run(params) ** power, "x") ** (1 / power)

    sharded = jax.shard_map(of_shard, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P())
    params = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
    close(*jax.jit(lambda params: (sharded(params), run(params)))(params))
    both = jax.jit(jax.vmap(run))(params.reshape(2, 4, 3))
    close(both, np.stack([run(x) for x in params.reshape(2, 4, 3)]))
