"""kadam_jax.members: one program for all members, in order, whatever their values and chunks."""

import gc
import itertools
import operator
import os
import pickle
import re
import subprocess
import sys
import types
import weakref
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from kadam_jax import members as members_module
from kadam_jax.members import Members, grid, points, split_static, sweep, sweep_chunks
from tests import several
from tests.kadam_jax.support import keyed_sweep

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes."


MESHES = {
    None: None,
    "8": jax.make_mesh((8,), ("members",)),
    "2x4 explicit": jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Explicit,) * 2),
    "2x4 auto": jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2),
    "mixed": jax.make_mesh(
        (3, 1),
        ("x", "y"),
        axis_types=(AxisType.Auto, AxisType.Explicit),
        devices=jax.devices()[:3],
    ),
}


every_batching = pytest.mark.parametrize("batching", ["map", "vmap"])


one_device_or_eight = pytest.mark.parametrize("mesh", [None, "8"])


def train(member):
    """Gradient descent with momentum on a perceptron.

    It is made of matrix-vector products, which XLA may rewrite in more than one way. Tests with
    equal chunks share its programs.
    """
    inputs = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    targets = np.sin(inputs.sum(1))
    sizes = member["seed"] + np.arange(40, dtype=np.float32)

    def loss_fn(params):
        first, second = params[:32].reshape(8, 4), params[32:]
        outputs = jax.vmap(lambda x: second @ jnp.tanh(first @ x))(inputs)
        return ((outputs - targets) ** 2).mean()

    def step(carry, _):
        params, average = carry
        loss, gradient = jax.value_and_grad(loss_fn)(params)
        average = member["b1"] * average + gradient
        return (params - member["learning_rate"] * average, average), loss

    params = jnp.sin(sizes)
    (params, _), losses = jax.lax.scan(step, (params, jnp.zeros_like(params)), length=8)
    return {"losses": losses, "params": params}


@pytest.fixture(scope="module")
def trained():
    """The results that a sweep of `train` must equal: one jitted call for each member."""
    members, jitted = train_grid(), jax.jit(train)
    results = [jitted({name: c[i] for name, c in members.items()}) for i in range(18)]
    return jax.tree.map(lambda *rows: np.stack(rows), *results)


def assert_close(actual, expected):
    chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-5)


def double(member):
    return 2 * member["x"]


@pytest.fixture
def collect():
    """`gc.collect` of what the test makes: it would take long for everything from other tests."""
    gc.freeze()
    yield gc.collect
    gc.unfreeze()


def train_grid():
    return grid(learning_rate=[1e-3, 1e-2, 1e-1], b1=[0.5, 0.9], seed=range(3))


def counting(fn):
    """`fn`, and a list that grows at every trace of it."""
    traces = []

    def counted(member):
        traces.append(1)
        return fn(member)

    return counted, traces


# Members.


def test_grid_has_the_order_of_itertools_product():
    axes = {"b1": [0.5, 0.9, 0.99], "k": [1, 2], "flag": [True, False], "name": ["x", "y"]}
    members = grid(**axes)
    rows = list(zip(*(column.tolist() for column in members.values()), strict=True))
    expected = list(itertools.product(np.float32(axes["b1"]).tolist(), *list(axes.values())[1:]))
    assert rows == expected
    assert members.shape == (3, 2, 2, 2)
    assert members.axes == ("b1", "k", "flag", "name")


def test_columns_keep_their_kind():
    members = grid(rate=[1e-3], big=[1e-30, 1], seed=range(2), flag=[True], byte=np.uint8([3]))
    kinds = {name: column.dtype.name for name, column in members.items()}
    assert kinds == {
        "rate": "float32",
        "big": "float32",
        "seed": "int32",
        "flag": "bool",
        "byte": "uint8",
    }


def test_columns_take_double_precision_where_it_is_on(x64):
    members = grid(rate=[1e-3], seed=[2**40])
    assert members["rate"].dtype == np.float64
    assert members["seed"].tolist() == [2**40]
    assert sweep(lambda m: m["rate"], members) == np.array([1e-3])


def test_an_axis_of_points_varies_together():
    curve = points(b1=[0.9, 0.8], b2=[0.99, 0.95])
    members = grid(curve=curve, seed=range(3))
    assert members.shape == (2, 3)
    np.testing.assert_array_equal(members["b2"], np.repeat(curve["b2"], 3))
    np.testing.assert_array_equal(members["seed"], np.tile(np.arange(3), 2))


def test_rows_and_keys_are_columns():
    decays = [[0.9, 0.8], [0.5, 0.4]]
    keys = jax.random.split(jax.random.key(0), 3)
    members = grid(b1=decays, key=keys)
    draws = sweep(lambda m: m["b1"] * jax.random.normal(m["key"], (2,)), members, grid_shape=True)
    expected = [[np.float32(b1) * jax.random.normal(key, (2,)) for key in keys] for b1 in decays]
    np.testing.assert_allclose(draws, np.array(expected), rtol=1e-6)


def test_members_survive_pickling():
    members = pickle.loads(pickle.dumps(train_grid()))
    assert isinstance(members, Members)
    assert members.shape == (3, 2, 3)
    chex.assert_trees_all_equal(dict(members), dict(train_grid()))


# Numbers.


@every_batching
@pytest.mark.parametrize("chunk_size", [None, 1, 5, 18, 100])
def test_a_sweep_is_the_python_loop(chunk_size, batching, trained):
    """Bit by bit where members run in turn."""
    results = sweep(train, train_grid(), chunk_size=chunk_size, batching=batching)
    if batching == "map":
        chex.assert_trees_all_equal(results, trained)
    assert_close(results, trained)


@every_batching
@pytest.mark.parametrize(
    ("name", "chunk_size"),
    [("8", None), ("8", 5), ("2x4 explicit", 5), ("2x4 auto", 5), ("mixed", 5)],
)
def test_a_mesh_keeps_order_and_numbers(name, chunk_size, batching, trained):
    results = sweep(
        train, train_grid(), chunk_size=chunk_size, mesh=MESHES[name], batching=batching
    )
    assert_close(results, trained)


def test_one_device_or_several_decides_the_bits_of_map(trained):
    one, two, eight = (
        sweep(train, train_grid(), mesh=jax.make_mesh((n,), ("x",), devices=jax.devices()[:n]))
        for n in (1, 2, 8)
    )
    chex.assert_trees_all_equal(one, trained)
    chex.assert_trees_all_equal(two, eight)


def test_every_process_of_a_mesh_gets_the_bits_of_one_process(tmp_path):
    outputs = several.start(*[("-m", "tests.kadam_jax.support.keyed_sweep", str(tmp_path))] * 2)
    assert [code for code, *_ in outputs] == [0, 0], outputs
    assert all("were given different members" in said for _, said, _ in outputs)
    expected = keyed_sweep.results(jax.devices()[:2])
    for index in range(2):
        with np.load(tmp_path / f"{index}.npz") as arrays:
            chex.assert_trees_all_equal(tuple(arrays.values()), expected)


@every_batching
@one_device_or_eight
def test_columns_and_results_may_be_empty_arrays(mesh, batching):
    shapes = [(0,), (0, 2), (2, 0)]
    members = {str(shape): np.zeros((3, *shape)) for shape in shapes} | {"y": range(3)}
    results = sweep(lambda m: m, members, mesh=MESHES[mesh], batching=batching)
    assert all(results[str(shape)].shape == (3, *shape) for shape in shapes)
    assert results["y"].tolist() == [0, 1, 2]


def test_devices_of_a_mesh_run_their_shares_without_talking():
    mesh = MESHES["2x4 explicit"]
    program = members_module._program_of(train, {}, "map", mesh)
    by_device = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    columns = {
        name: jax.ShapeDtypeStruct((8,), column.dtype, sharding=by_device)
        for name, column in train_grid().items()
    }
    compiled = program.lower(columns).compile()
    assert all(len(s.device_set) == 8 for s in jax.tree.leaves(compiled.output_shardings))
    for collective in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert collective not in compiled.as_text()


@pytest.mark.parametrize("mesh", [None, "2x4 explicit"])
@every_batching
def test_a_nan_member_leaves_the_others_bitwise_alone(batching, mesh):
    members = train_grid()
    options = {"batching": batching, "mesh": MESHES[mesh], "chunk_size": 5}
    healthy = sweep(train, members, **options)
    members["learning_rate"] = members["learning_rate"].copy()
    members["learning_rate"][7] = np.nan
    sick = sweep(train, members, **options)
    assert np.isnan(sick["params"][7]).all()
    others = np.arange(18) != 7
    chex.assert_trees_all_equal(*(jax.tree.map(lambda x: x[others], r) for r in (sick, healthy)))


def test_grid_shape_indexes_results_by_axis():
    members = grid(x=[1.0, 2.0, 3.0], row=[[1, 2], [3, 4]])
    results = sweep(lambda m: (m["x"] * m["row"], m["x"]), members, chunk_size=4, grid_shape=True)
    expected = np.array([1.0, 2, 3])[:, None, None] * np.array([[1, 2], [3, 4]])[None]
    np.testing.assert_array_equal(results[0], expected)
    np.testing.assert_array_equal(results[1], np.tile([[1.0], [2], [3]], (1, 2)))


def test_results_are_numpy_arrays_of_any_dtype():
    results = sweep(
        lambda m: {
            "half": m["x"].astype(jnp.bfloat16),
            "flag": m["x"] > 1,
            "constant": 3,
            "no": None,
        },
        {"x": [0.0, 1.0, 2.0]},
    )
    assert results["half"].dtype == jnp.bfloat16
    assert results["flag"].tolist() == [False, False, True]
    assert results["constant"].tolist() == [3, 3, 3]
    assert results["no"] is None


@pytest.mark.parametrize(("serial", "batching"), [({"cpu"}, "map"), (set(), "vmap")])
@one_device_or_eight
def test_auto_depends_on_the_devices_that_run(monkeypatch, mesh, serial, batching):
    monkeypatch.setattr(members_module, "_SERIAL_PLATFORMS", serial)
    fn, traces = counting(double)
    sweep(fn, points(x=[1.0]), mesh=MESHES[mesh])
    sweep(fn, points(x=[1.0]), mesh=MESHES[mesh], batching=batching)
    assert len(traces) == 1  # the second found the first's program


def test_the_default_device_runs_the_program(monkeypatch):
    used = set()
    fetch = members_module._fetch
    monkeypatch.setattr(members_module, "_fetch", lambda x: used.update(x.devices()) or fetch(x))
    for device in (jax.devices()[3], jax.devices()[0]):
        with jax.default_device(device):
            assert sweep(double, points(x=[1.0, 2.0])).tolist() == [2, 4]
        assert used == {device}
        used.clear()


# Compilation.


@every_batching
def test_one_trace_for_all_values_chunks_and_calls(batching):
    fn, traces = counting(double)
    members = points(x=range(18))
    sweep(fn, members, chunk_size=5, batching=batching)
    members["x"] = members["x"] + 1
    sweep(fn, members, chunk_size=5, batching=batching)
    sweep(fn, dict(members), chunk_size=5, batching=batching)
    list(sweep_chunks(fn, members, chunk_size=5, batching=batching))
    assert len(traces) == 1


@pytest.fixture
def compilations():
    """A list that grows at every compilation by XLA."""
    found = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


@every_batching
@one_device_or_eight
def test_a_second_sweep_compiles_nothing(mesh, batching, compilations):
    fn, _ = counting(double)
    members = points(x=range(18))
    options = {"batching": batching, "mesh": MESHES[mesh], "chunk_size": 5}
    sweep(fn, members, **options)
    assert compilations
    compilations.clear()
    members["x"] = members["x"] + 1
    sweep(fn, dict(members), **options)
    assert not compilations


LARGE = np.arange(2**18, dtype=np.float32)
"""One MiB, which is an argument of a program and not a constant of it."""


def gather(member):
    def add(total, place):
        return total + jnp.asarray(LARGE)[place] + jnp.asarray(LARGE[:8])[place % 8], None

    places = member["x"] + jnp.arange(3)
    return {"sum": jax.lax.scan(add, 0.0, places)[0], "x": member["x"]}


@every_batching
@one_device_or_eight
def test_large_arrays_of_a_function_are_arguments(mesh, batching, compilations):
    fn, traces = counting(gather)
    mesh = MESHES[mesh]
    members, options = points(x=range(5)), {"batching": batching, "mesh": mesh}
    results = sweep(fn, members, chunk_size=2, **options)
    one = jax.jit(gather)
    expected = [one({"x": x}) for x in range(5)]
    chex.assert_trees_all_equal(results, jax.tree.map(lambda *rows: np.stack(rows), *expected))
    compilations.clear()
    sweep(fn, members, chunk_size=2, **options)
    assert len(traces) == 1
    assert not compilations
    where = mesh and NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    columns = {"x": jax.device_put(np.arange(8), where)}
    program = members_module._program_of(fn, {}, batching, mesh)
    assert len(program.lower(columns).as_text()) < LARGE.nbytes / 8


def test_large_arrays_follow_the_default_device():
    for device in jax.devices()[:2]:
        with jax.default_device(device):
            assert sweep(gather, points(x=[1]))["sum"] == sum(range(1, 4)) * 2


def test_cleared_caches_leave_one_copy_of_large_arrays():
    fn, _ = counting(gather)
    members = points(x=[1])
    for _ in range(2):
        sweep(fn, members)
        jax.clear_caches()
    assert len(members_module._program_of(fn, {}, "map", None)._with_arguments) == 1


class Trainer:
    """A bound method's object: unhashable, as many configurations are."""

    __hash__ = None

    def __init__(self, scale):
        self.scale = scale
        self.num_traces = 0

    def train(self, member):
        self.num_traces += 1
        return self.scale * member["x"]


def test_bound_methods_and_partials_compile_once():
    first, second = Trainer(2.0), Trainer(3.0)
    for trainer in (first, second, first):
        results = sweep(trainer.train, points(x=[1.0, 2.0]))
        np.testing.assert_array_equal(results, np.array([1.0, 2.0]) * trainer.scale)
    assert (first.num_traces, second.num_traces) == (1, 1)

    counted, traces = counting(lambda member: member["x"])
    scaled = partial(lambda fn, member: 2 * fn(member), counted)
    for _ in range(2):
        np.testing.assert_array_equal(sweep(scaled, points(x=[1.0, 2.0])), [2.0, 4.0])
    assert len(traces) == 1


class Slotted:
    """A function that nothing can refer to weakly."""

    __slots__ = ()

    def __call__(self, member):
        return 2 * member["x"]


@pytest.mark.parametrize("fn", [operator.itemgetter("x"), Slotted(), Slotted().__call__, jnp.dot])
def test_any_callable_is_swept(fn):
    if fn is jnp.dot:
        fn = partial(lambda dot, member: dot(member["x"], 1.0), fn)
    for _ in range(2):
        factor = 2 if "Slotted" in repr(fn) else 1
        assert sweep(fn, points(x=[1.0, 2.0])).tolist() == [factor, 2 * factor]


def test_a_short_lived_method_never_gets_anothers_program(collect):
    trainer = Trainer(1.0)
    for factor in range(4):  # a function that is gone may leave its id to the next
        method = types.MethodType(lambda self, member, f=factor: f * member["x"], trainer)
        assert sweep(method, points(x=[1.0])).tolist() == [factor]
        del method
        collect()


@one_device_or_eight
def test_programs_die_with_their_function(mesh, collect):
    trainer, (fn, _) = Trainer(2.0), counting(double)
    sweep(fn, points(x=[1.0]), mesh=MESHES[mesh])
    sweep(trainer.train, points(x=[1.0]), mesh=MESHES[mesh])
    keys = [(id(Trainer.train), id(trainer)), (id(fn),)]
    refs = [weakref.ref(trainer), weakref.ref(fn)]
    programs = [weakref.ref(*members_module._PROGRAMS[key].values()) for key in keys]
    del trainer, fn
    collect()
    assert [ref() for ref in refs + programs] == [None] * 4
    assert not any(key in members_module._PROGRAMS for key in keys)


def draw(member):
    """Depends on the settings below, and is refused by some; one function for all of them."""
    noise = jax.random.uniform(jax.random.key(member["seed"]), (3,))
    half = (noise.sum() * np.ones(3, np.float16)).sum()
    return {"noise": noise, "mixed": half}


def outcome(call):
    """The numbers that a call gives, or the name of its error."""
    try:
        return jax.tree.map(np.asarray, call())
    except ValueError as error:  # one of which is the error of a strict promotion
        return {type(error).__name__: np.zeros(0)}


SETTINGS = {
    "jax_random_seed_offset": 5,
    "jax_threefry_partitionable": False,
    "jax_default_prng_impl": "rbg",
    "jax_enable_x64": True,
    "jax_default_matmul_precision": "float32",
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "allow",
    "jax_default_device": jax.devices()[2],
    "jax_disable_jit": True,
    "jax_check_tracer_leaks": True,
    "jax_transfer_guard": "disallow",
}


# On CPUs the others change nothing that `draw` gives.
CHANGING = {
    "jax_random_seed_offset",
    "jax_threefry_partitionable",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_changed_setting_changes_a_sweep_as_it_changes_jit(setting):
    def swept():
        return outcome(lambda: jax.tree.map(lambda x: x[0], sweep(draw, points(seed=[1]))))

    before, found = getattr(jax.config, setting), swept()
    try:
        jax.config.update(setting, SETTINGS[setting])
        changed = swept()
        alone = outcome(lambda: jax.jit(lambda m: draw(m))(jax.device_put({"seed": np.int32(1)})))
    finally:
        jax.config.update(setting, before)
    chex.assert_trees_all_equal_dtypes(changed, alone)
    chex.assert_trees_all_close(changed, alone, rtol=1e-6)
    if setting in CHANGING:
        with pytest.raises(AssertionError):
            chex.assert_trees_all_equal(changed, found)
    chex.assert_trees_all_equal(swept(), found)


@one_device_or_eight
@every_batching
def test_debug_nans_finds_the_nan_of_a_member(batching, mesh):
    def fn(member):
        return jnp.log(member["x"])

    members, options = points(x=[1.0, -1.0]), {"batching": batching, "mesh": MESHES[mesh]}
    assert np.isnan(sweep(fn, members, **options)[1])
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        sweep(fn, members, **options)
    with jax.debug_nans(True):
        assert sweep(fn, points(x=[1.0, 1.0]), **options).tolist() == [0.0, 0.0]


def test_iterators_and_numpy_integers_are_taken():
    members = grid(x=range(5), k=[1])
    chunks = sweep_chunks(lambda m: m["x"], members, chunk_size=np.int64(2), skip=iter([0, 2]))
    assert [start for start, _, _ in chunks] == [4]
    sweep(lambda m: m["x"] if isinstance(m["k"], int) else 1 / 0, members, static=iter(["k"]))


@pytest.mark.parametrize(("first", "second"), [((1, 2), (1.0, 2.0)), (1, True), (0.0, -0.0)])
def test_fixed_values_that_only_compare_equal_stay_apart(first, second):
    def read(member):
        return jnp.asarray(member["fixed"]) * jnp.ones((), jnp.int32)

    for fixed in (first, second):
        (chunk,) = sweep_chunks(read, {"x": [1]}, fixed={"fixed": fixed})
        expected = np.asarray(read({"fixed": fixed}))
        np.testing.assert_array_equal(np.signbit(chunk[2][0]), np.signbit(expected))
        assert chunk[2].dtype == expected.dtype


def test_a_sweep_under_another_mesh_says_what_to_do():
    with (
        jax.set_mesh(jax.make_mesh((8,), ("devices",))),
        pytest.raises(ValueError, match=r"mesh is None, but jax\.set_mesh"),
    ):
        sweep(lambda member: member["x"], {"x": [1.0, 2.0]})


# Chunks.


def test_chunks_arrive_in_order_and_finished_ones_are_skipped(trained):
    chunks = list(sweep_chunks(train, train_grid(), chunk_size=5, batching="map"))
    assert [(start, stop) for start, stop, _ in chunks] == [(0, 5), (5, 10), (10, 15), (15, 18)]
    for start, stop, results in chunks:
        expected = jax.tree.map(operator.itemgetter(slice(start, stop)), trained)
        chex.assert_trees_all_equal(results, expected)
    rest = list(sweep_chunks(train, train_grid(), chunk_size=5, batching="map", skip={5}))
    assert [start for start, _, _ in rest] == [0, 10, 15]
    chex.assert_trees_all_equal(rest[1][2], chunks[2][2])


def test_chunks_run_when_asked_for():
    fn, traces = counting(lambda member: member["x"])
    chunks = sweep_chunks(fn, points(x=range(4)), chunk_size=2)
    assert not traces
    next(chunks)
    assert len(traces) == 1


# Static axes.


def power(member):
    """Branches on a Python value and asserts that it is one."""
    assert type(member["k"]) is int
    assert type(member["coupled"]) is bool
    result = member["x"]
    for _ in range(member["k"] - 1):
        result = result * member["x"]
    return {"power": -result if member["coupled"] else result}


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_static_axes_keep_order_with_one_program_each(chunk_size):
    members = grid(x=[2.0, 3.0, 5.0], k=[1, 3], coupled=[False, True])
    fn, traces = counting(power)
    for _ in range(2):
        results = sweep(
            fn, members, static=("k", "coupled"), grid_shape=True, chunk_size=chunk_size
        )
        x, k, coupled = np.meshgrid([2.0, 3.0, 5.0], [1, 3], [1, -1], indexing="ij")
        np.testing.assert_array_equal(results["power"], coupled * x**k)
    assert len(traces) == 4


def test_static_strings_and_floats_are_python_values():
    members = grid(x=[1.0, 2.0], name=["double", "negate"])
    table = {"double": lambda x: 2 * x, "negate": lambda x: -x}
    results = sweep(lambda m: table[m["name"]](m["x"]), members, static=["name"])
    assert results.tolist() == [2.0, -1.0, 4.0, -2.0]


def test_split_static_keeps_every_member_once():
    members = train_grid()
    parts = split_static(members, ["b1", "seed"])
    assert len(parts) == 6
    assert sorted(np.concatenate([positions for _, positions, _ in parts])) == list(range(18))
    for fixed, positions, columns in parts:
        assert set(columns) == {"learning_rate"}
        assert (members["b1"][positions] == np.float32(fixed["b1"])).all()


def test_static_values_that_only_compare_equal_stay_apart():
    def fn(member):
        return member["x"] * (2 if member["k"] is True else 3)

    for k, factor in ((True, 2), (1, 3)):
        assert sweep(fn, {"x": [1.0], "k": [k]}, static=["k"]).tolist() == [factor]
    zeros = {"x": [1.0] * 4, "k": [0.0, -0.0, 0.0, -0.0]}
    results = sweep(lambda m: m["x"] * m["k"], zeros, static=["k"])
    assert np.signbit(results).tolist() == [False, True, False, True]


def test_static_results_that_do_not_stack_say_so():
    with pytest.raises(ValueError, match="sweep them separately"):
        sweep(lambda m: m["x"] * jnp.ones(m["k"]), grid(x=[1.0], k=[1, 2]), static=["k"])


# Memory.


def fail_with(message):
    def fail(*_, **__):
        raise jax.errors.JaxRuntimeError(message)

    return fail


@every_batching
@pytest.mark.parametrize(("mesh", "share"), [(None, 64), ("8", 8)])
def test_out_of_memory_names_bytes_and_a_chunk_size(monkeypatch, mesh, share, batching):
    monkeypatch.setattr(jax, "device_get", fail_with(OUT_OF_MEMORY))
    options = {"mesh": MESHES[mesh], "batching": batching}
    with pytest.raises(MemoryError, match=r"chunk_size=64 .*try chunk_size=32") as info:
        sweep(lambda m: m["x"] + jnp.zeros(1000), points(x=np.arange(64.0)), **options)
    assert isinstance(info.value.__cause__, jax.errors.JaxRuntimeError)
    num_bytes = int(re.search(r"needs ([\d,]+) bytes", str(info.value))[1].replace(",", ""))
    exact = share * (1 + 1000) * 4
    assert exact <= num_bytes <= exact + 4100  # XLA may keep one member's row as well


@pytest.mark.parametrize(
    ("batching", "num_devices", "free", "remedy"),
    [
        ("vmap", 1, 500, "try chunk_size=50"),  # 10 bytes a member
        ("vmap", 1, 9, "one alone is too large"),
        ("vmap", 1, 2000, "try chunk_size=50"),  # the analysis sees no shortage: halve
        ("map", 1, 940, "try chunk_size=40"),  # 900 shared, 1 a member
        ("map", 1, 500, "one alone is too large"),
        ("vmap", 4, 500, "try chunk_size=48"),  # 25 members and 1000 bytes on each device
    ],
)
def test_the_chunk_size_to_try_fits_the_memory_there_is(batching, num_devices, free, remedy):
    stats = types.SimpleNamespace(
        argument_size_in_bytes=60, output_size_in_bytes=40, temp_size_in_bytes=900
    )
    limits = {"bytes_limit": free + 7, "bytes_in_use": 7}
    advice = members_module._memory_advice(stats, 0, limits, 100, num_devices, batching)
    assert "needs 1,000 bytes" in advice
    assert remedy in advice
    stats.argument_size_in_bytes += 20  # arrays that are there already
    assert advice == members_module._memory_advice(stats, 20, limits, 100, num_devices, batching)


def test_a_real_allocation_failure_is_a_memory_error():
    with pytest.raises(MemoryError, match=r"chunk_size=4 .*try chunk_size=2"):  # 2^50 bytes each
        sweep(lambda m: m["x"] + jnp.zeros(1 << 50, jnp.int8), {"x": np.int8([1, 2, 3, 4])})


def test_out_of_memory_while_compiling_halves(monkeypatch):
    monkeypatch.setattr(members_module, "_place", fail_with(OUT_OF_MEMORY))
    monkeypatch.setattr(jax.stages.Lowered, "compile", fail_with(OUT_OF_MEMORY))
    with pytest.raises(MemoryError, match=r"chunk_size=2 .*more memory.*try chunk_size=1"):
        sweep(lambda m: m["x"], points(x=[1.0, 2.0]))


def test_other_runtime_errors_pass_through(monkeypatch):
    monkeypatch.setattr(jax, "device_get", fail_with("INTERNAL: something else"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        sweep(lambda m: m["x"], points(x=[1.0, 2.0]))


# Errors.


@pytest.mark.parametrize(
    ("axes", "error", "match"),
    [
        ({}, ValueError, "at least one axis"),
        ({"b1": []}, ValueError, "'b1' is empty"),
        ({"b1": 0.9}, TypeError, r"'b1' must be a sequence of values, got 0.9: use \[value\]"),
        ({"b1": "abc"}, TypeError, "'b1' must be a sequence"),
        ({"b1": None}, TypeError, "'b1' must be a sequence"),
        ({"b1": [0.9, None]}, TypeError, "'b1' must be a sequence"),
        ({"b1": [[1], [1, 2]]}, TypeError, "equal rows"),
        ({"seed": [2**31]}, ValueError, "'seed' has integers beyond int32"),
        ({"rate": [1e300, 1.0]}, ValueError, "'rate' has numbers beyond float32"),
        ({"long": np.longdouble([1])}, TypeError, "'long' must be a sequence"),
        ({"time": np.array([1], "m8[s]")}, TypeError, "'time' must be a sequence"),
        ({"bytes": [b"a"]}, TypeError, "'bytes' must be a sequence"),
        ({"eps": [1e-8, "default"]}, TypeError, "'eps' must be a sequence"),
        ({"schedule": [["cosine"], [False]]}, TypeError, "'schedule' must be a sequence"),
        ({"a": {"seed": [1]}, "seed": [1]}, ValueError, "'seed'.*more than one axis"),
        ({"a": {"x": [1, 2], "y": [1]}}, ValueError, "equal lengths"),
    ],
)
def test_unusable_axes(axes, error, match):
    with pytest.raises(error, match=match):
        grid(**axes)


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad])
def test_traced_members_are_refused_by_name(transform):
    with pytest.raises(TypeError, match=r"axis 'x' is traced.*outside of jit"):
        transform(lambda x: sweep(lambda m: m["x"], {"x": x}))(jnp.ones((2, 2)))
    with pytest.raises(TypeError, match=r"axis 'x' is traced.*outside of jit"):
        transform(lambda x: sweep(lambda m: m["x"], {"x": [x, 1.0]}))(jnp.ones((2, 2)))


@pytest.mark.parametrize("disable_jit", [False, True])
@pytest.mark.parametrize(("batching", "mesh"), [("map", None), ("vmap", "8")])
@pytest.mark.parametrize("transform", [jax.vmap, jax.grad, jax.hessian, jax.linearize])
def test_a_function_of_traced_values_is_refused(transform, batching, mesh, disable_jit):
    def total(a):
        options = {"batching": batching, "mesh": MESHES[mesh]}
        return sweep(lambda m: m["x"] * a, points(x=[1.0, 2.0]), **options).sum()

    def run(a):
        return jax.linearize(total, a) if transform is jax.linearize else transform(total)(a)

    with (
        pytest.raises(TypeError, match="outside of jit, vmap and grad"),
        jax.disable_jit(disable_jit),
    ):
        run(jnp.ones(2) if transform is jax.vmap else 1.0)


def test_traced_values_are_refused_before_anything_is_computed():
    computed = []

    def total(a):
        def fn(member):
            jax.debug.callback(computed.append, member["x"])
            return member["x"] * a

        return sweep(fn, points(x=[1.0, 2.0])).sum()

    with pytest.raises(TypeError, match="outside of jit, vmap and grad"):
        jax.grad(total)(1.0)
    jax.effects_barrier()
    assert not computed


@one_device_or_eight
def test_a_sweep_inside_of_jit_is_refused(mesh):
    with pytest.raises(TypeError, match="call it outside of jit"):
        jax.jit(lambda: sweep(lambda m: m["x"], points(x=[1.0, 2.0]), mesh=MESHES[mesh]))()


@pytest.mark.parametrize(
    ("members", "options", "error", "match"),
    [
        ({}, {}, ValueError, "at least one column"),
        ([1, 2], {}, ValueError, "must be a dict"),
        ({"x": [1.0, 2.0], "y": [1.0]}, {}, ValueError, r"equal lengths.*'x': 2, 'y': 1"),
        ({"x": []}, {}, ValueError, "'x' is empty"),
        ({1: [1.0]}, {}, TypeError, r"named by strings, got \[1\]"),
        ({"x": ["a"]}, {}, TypeError, r"\['x'\] hold strings.*static"),
        ({"x": [1.0]}, {"chunk_size": 0}, ValueError, "chunk_size must be at least 1, got 0"),
        ({"x": [1.0]}, {"chunk_size": 2.0}, TypeError, "chunk_size must be a Python int, got 2.0"),
        ({"x": [1.0]}, {"chunk_size": True}, TypeError, "chunk_size must be a Python int"),
        ({"x": [1.0]}, {"batching": "pmap"}, ValueError, "batching must be.*'pmap'"),
        ({"x": [1.0]}, {"batching": None}, TypeError, "batching must be.*None"),
        ({"x": [1.0]}, {"mesh": 8}, TypeError, "mesh must be a jax.sharding.Mesh"),
        ({"x": [1.0]}, {"mesh": Mesh([], ("x",))}, ValueError, "mesh must have at least one dev"),
        ({"x": [1.0]}, {"grid_shape": True}, TypeError, "grid_shape=True needs members made by"),
        ({"x": [1.0]}, {"static": ["k"]}, ValueError, r"\['k'\] are not columns"),
        ({"x": [1.0]}, {"static": "x"}, TypeError, r"collection of names, .*\['k'\], got 'x'"),
        ({"x": [1.0]}, {"static": None}, TypeError, "static must be a collection .*got None"),
        ({"x": [1.0]}, {"static": [["x"]]}, TypeError, r"static must be .*got \[\['x'\]\]"),
        ({"x": [1.0]}, {"static": ["x"]}, ValueError, "every column is static"),
        ({"x": [1.0], "k": [[1]]}, {"static": ["k"]}, ValueError, "one Python value"),
    ],
)
def test_unusable_sweeps_fail_before_tracing(members, options, error, match):
    fn, traces = counting(lambda member: member["x"])
    with pytest.raises(error, match=match):
        sweep(fn, members, **options)
    assert not traces


def test_a_function_lives_until_its_chunks_have_run(collect):
    chunks = sweep_chunks(counting(double)[0], points(x=range(4)), chunk_size=2)
    collect()
    assert len(list(chunks)) == 2


def test_unusable_chunks_fail_at_the_call():
    members = points(x=range(4))
    with pytest.raises(ValueError, match=r"skip has \[3\].*chunk_size=2"):
        sweep_chunks(lambda m: m["x"], members, chunk_size=2, skip=[0, 3])
    with pytest.raises(TypeError, match=r"skip must be a collection .*got None"):
        sweep_chunks(lambda m: m["x"], members, skip=None)
    with pytest.raises(TypeError, match=r"fixed must be a dict or None, got \['k'\]"):
        sweep_chunks(lambda m: m["x"], members, fixed=["k"])
    with pytest.raises(ValueError, match=r"'x'.*both a column and fixed"):
        sweep_chunks(lambda m: m["x"], members, fixed={"x": 1})
    with pytest.raises(TypeError, match=r"fixed\['w'\]\[0\] are arrays"):
        sweep_chunks(lambda m: m["x"], members, fixed={"w": (np.zeros(2000), 1)})
    with pytest.raises(TypeError, match="fn must be a function"):
        sweep_chunks(None, members)
    with pytest.raises(TypeError, match=r"fn must take \(member\)"):
        sweep_chunks(lambda: 1, members)


@every_batching
@pytest.mark.parametrize(
    ("result", "match"),
    [
        ("text", r"result\['out'\] is 'text'"),
        (jax.random.key, "PRNG key"),
        (object, "arrays"),
        (np.array(["a"]), "arrays"),
        (np.array([None]), "arrays"),
        (np.array([1], "M8[s]"), "arrays"),
        (2**40, r"result\['out'\] is 1099511627776"),
    ],
)
def test_results_must_be_arrays(batching, result, match):
    def fn(member):
        return {"out": result(0) if result is jax.random.key else result}

    with pytest.raises(TypeError, match=match):
        sweep(fn, points(x=[1.0]), batching=batching)


def test_grid_shape_notices_members_that_were_cut():
    members = train_grid()
    for name in members:
        members[name] = members[name][:5]
    with pytest.raises(ValueError, match=r"grid shape \(3, 2, 3\) now have 5 rows"):
        sweep(double, members, grid_shape=True)


def test_importing_and_building_members_starts_no_backend():
    program = (
        "from kadam_jax.members import grid, points\n"
        "grid(curve=points(b1=[.9, .8], b2=[.99, .95]), seed=range(3))"
    )
    # With a platform that doesn't exist, starting a backend raises.
    environment = os.environ | {"JAX_PLATFORMS": "none"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
