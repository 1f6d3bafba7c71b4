"""Sweeps: run a pure function for many members inside one compiled program.

A sweep's members are data: a dict of arrays of equal length, one row for each member, seeds
included. `grid` and `points` make them, `sweep` runs them all, `sweep_chunks` runs them a chunk at
a time for callers that store finished chunks, and `split_static` separates the axes that no program
can trace.
"""

import hashlib
import math
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer, eval_jaxpr
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from kadam_jax._checks import check_choice, check_function, check_integer, require

__all__ = ["Members", "grid", "points", "split_static", "sweep", "sweep_chunks"]

Column = np.ndarray | jax.Array
MemberFn = Callable[[dict[str, Any]], Any]

# Platforms where batching="auto" runs members in turn: on a CPU, batched programs take longer to
# compile, and then run in 9 to 37% less time.
_SERIAL_PLATFORMS = frozenset({"cpu"})

# A constant of a program with at least so many bytes is made an argument.
_LARGE = 2**20

# Identity of a swept function -> its jitted programs. An entry is dropped with its function, to
# which a program holds only a weak reference. Functions need not be hashable: their identity is
# their id.
_PROGRAMS: dict[tuple[int, ...], dict[Any, "_Program"]] = {}


class Members(dict[str, Column]):
    """Columns of equal length, one row for each member, with the shape of their grid.

    Attributes:
      axes: the names of the grid's axes, slowest first.
      shape: the lengths of those axes; their product is the number of members.
    """

    def __init__(self, columns: Mapping[str, Column], axes: Sequence[str], shape: Sequence[int]):
        super().__init__(columns)
        self.axes = tuple(axes)
        self.shape = tuple(shape)


def grid(**axes: Any) -> Members:
    """Return the Cartesian product of named axes, ordered as by `itertools.product`.

    Args:
      **axes: the values of each axis, the first varying slowest, shape (num_values, ...): numbers,
        bools, rows such as the decays of every stage, PRNG keys, or strings (which `sweep` needs to
        be static). Integers stay integers; floats take JAX's default precision. An axis may also be
        a dict of columns (which `points` returns): they vary together along that one axis.

    Returns:
      `Members`: every column has shape (num_members, ...).

    Raises:
      TypeError, ValueError: an axis is empty or not an array; two axes hold the same column.

    Example:
      >>> from kadam_jax.members import grid, points
      >>> members = grid(curve=points(b1=[0.9, 0.8], b2=[0.99, 0.95]), seed=range(3))
      >>> members.axes, members.shape
      (('curve', 'seed'), (2, 3))
      >>> members["b1"].tolist() == [members["b1"][0]] * 3 + [members["b1"][3]] * 3
      True
      >>> members["seed"].tolist()
      [0, 1, 2, 0, 1, 2]
    """
    blocks = [
        _columns(values if isinstance(values, Mapping) else {name: values})
        for name, values in axes.items()
    ]
    if not blocks:
        raise ValueError("grid needs at least one axis, such as grid(seed=range(5))")
    shape = [_num_members(block) for block in blocks]
    columns: dict[str, Column] = {}
    for block, places in zip(blocks, np.indices(shape).reshape(len(shape), -1), strict=True):
        if repeated := columns.keys() & block.keys():
            raise ValueError(f"{sorted(repeated)} appears in more than one axis: rename or drop it")
        columns |= {name: column[places] for name, column in block.items()}
    return Members(columns, tuple(axes), shape)


def points(**columns: Any) -> Members:
    """Return members listed one by one: member i takes the i-th value of every column.

    Args:
      **columns: columns of equal length, of the kinds that `grid` accepts.

    Returns:
      `Members` with a single axis named "point".

    Raises:
      TypeError, ValueError: a column is empty or not an array; lengths differ.

    Example:
      >>> from kadam_jax.members import points
      >>> points(learning_rate=[1e-3, 3e-3], seed=[0, 1]).shape
      (2,)
    """
    checked = _columns(columns)
    return Members(checked, ("point",), (_num_members(checked),))


def sweep(
    fn: MemberFn,
    members: Mapping[str, Any],
    *,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
    batching: str = "auto",
    static: Collection[str] = (),
    grid_shape: bool = False,
) -> Any:
    """Run a pure function for every member inside one compiled program.

    `fn` is traced and compiled once (once for each combination of static values), whatever the
    members' values and however they are chunked, and not again when the same `fn` is swept over
    other values. As in `jax.jit`, whose cache this is, `fn` must be pure: what it closes over is
    read once. Arrays of at least 1 MiB that it closes over are arguments of the program, unless a
    nested `jax.jit` closes over them. Changing JAX's settings causes another compilation. A member
    that becomes NaN does not affect the others.

    Args:
      fn: takes one member, a dict from each column's name to its value (a traced array; a Python
        value for a static column), and returns a pytree of arrays.
      members: the result of `grid` or `points`, or a dict of columns of equal length.
      chunk_size: how many members are on the devices at once; None for all. Results leave the
        devices after every chunk. A last chunk that isn't full is padded, not compiled again.
      mesh: splits each chunk over all devices of this mesh, whatever its axes; every device works
        on its own members. If the mesh has devices of other processes (`jax.distributed`), all
        processes must call the same sweep, and each gets all results. The order stays the same, and
        so do the numbers up to rounding: XLA compiles a program for several devices with different
        passes than one for a single device. The exact bits depend on how many members each device
        runs and on whether there are several devices, but not on which processes own them.
      batching: "map" runs members in turn and "vmap" side by side; "auto" is "vmap" on accelerators
        and "map" on CPUs, where "vmap" takes longer to compile, though it then runs somewhat
        faster. How XLA sums depends on how many members are side by side.
      static: columns that must be Python values, such as k and coupled in `kadam`: there is one
        program for each combination that occurs.
      grid_shape: whether the results have the grid's shape in place of the one members axis.

    Returns:
      `fn`'s pytree with NumPy arrays of shape (num_members, ...) in the members' order, or
      (*members.shape, ...) if `grid_shape`.

    Raises:
      TypeError, ValueError: an argument is unusable, which is found before anything is compiled
        (this includes a mesh without a device of this process, and processes that call different
        sweeps); `fn` returns something that isn't an array, or closes over a value that `grad` or
        `vmap` traces; results of different static values don't stack.
      MemoryError: a chunk doesn't fit; the message names a `chunk_size` to try.

    Example:
      >>> import jax, optax
      >>> from kadam_jax.members import grid, sweep
      >>> def train(member):
      ...     optimizer = optax.adam(member["learning_rate"], b2=member["b2"])
      ...     params = jax.random.normal(jax.random.key(member["seed"]), (8,))
      ...     def step(carry, _):
      ...         params, state = carry
      ...         loss, grads = jax.value_and_grad(lambda x: (x**2).sum())(params)
      ...         updates, state = optimizer.update(grads, state)
      ...         return (optax.apply_updates(params, updates), state), loss
      ...     return jax.lax.scan(step, (params, optimizer.init(params)), length=20)[1]
      >>> members = grid(learning_rate=[1e-3, 1e-2], b2=[0.99, 0.999], seed=range(3))
      >>> sweep(train, members, grid_shape=True).shape
      (2, 2, 3, 20)
    """
    num_members = _num_members(_columns(members))
    if grid_shape and not isinstance(members, Members):
        raise TypeError("grid_shape=True needs members made by grid or points: a dict has no shape")
    shape = members.shape if isinstance(members, Members) and grid_shape else (num_members,)
    if math.prod(shape) != num_members:
        raise ValueError(f"members of grid shape {shape} now have {num_members} rows: rebuild them")
    pieces = [
        (positions[start:stop], results)
        for fixed, positions, columns in split_static(members, static)
        for start, stop, results in sweep_chunks(
            fn, columns, chunk_size=chunk_size, mesh=mesh, batching=batching, fixed=fixed
        )
    ]
    stacked = _assemble(pieces, num_members)
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), stacked)


def sweep_chunks(
    fn: MemberFn,
    members: Mapping[str, Any],
    *,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
    batching: str = "auto",
    fixed: Mapping[str, Any] | None = None,
    skip: Collection[int] = (),
) -> Iterator[tuple[int, int, Any]]:
    """Yield the chunks of a sweep, for callers that store each and resume after a stop.

    Args:
      fn, members, chunk_size, mesh, batching: as in `sweep`.
      fixed: further entries of every member's dict, passed on unchanged (Python values, told
        apart by their `repr`; not arrays): the static part that `split_static` took out.
      skip: starts of chunks that are already done and are not run.

    Returns:
      An iterator of `(start, stop, results)`: NumPy arrays of shape (stop - start, ...) for members
      start to stop - 1. Arguments are checked before it is returned.

    Raises:
      As `sweep`.

    Example:
      >>> from kadam_jax.members import points, sweep_chunks
      >>> chunks = sweep_chunks(lambda m: m["x"] ** 2, points(x=range(5)), chunk_size=2, skip=[0])
      >>> [(start, stop, results.tolist()) for start, stop, results in chunks]
      [(2, 4, [4, 9]), (4, 5, [16])]
    """
    columns = _columns(members)
    num_members = _num_members(columns)
    check_function("fn", fn, ["member"])
    chunk_size = num_members if chunk_size is None else check_integer("chunk_size", chunk_size)
    words = "be a collection of starts of chunks"
    require(isinstance(skip, Iterable), "skip", words, repr(skip), error=TypeError)
    chunk_size, skip = min(chunk_size, num_members), set(skip)
    check_choice("batching", batching, ("auto", "map", "vmap"))
    _check_mesh(mesh)
    if strings := sorted(name for name in columns if _is_text(columns[name])):
        raise TypeError(f"columns {strings} hold strings, which can't be traced: make them static")
    words = "be a dict or None"
    require(fixed is None or isinstance(fixed, Mapping), "fixed", words, fixed, error=TypeError)
    fixed = dict(fixed or {})
    if arrays := [path for path, value in jax.tree.leaves_with_path(fixed) if _is_array(value)]:
        names = ", ".join(f"fixed{jax.tree_util.keystr(path)}" for path in arrays)
        raise TypeError(f"{names} are arrays: make them columns, or let fn close over them")
    if repeated := columns.keys() & fixed.keys():
        raise ValueError(f"{sorted(repeated)} is both a column and fixed: drop one of them")
    starts = range(0, num_members, chunk_size)
    if unknown := sorted(skip - set(starts)):
        raise ValueError(
            f"skip has {unknown}, which are not starts of chunks with chunk_size={chunk_size} and "
            f"{num_members} members: skip only what a sweep with the same two numbers produced"
        )
    run = _runner(fn, fixed, chunk_size, mesh, batching)
    if mesh is not None and mesh.is_multi_process:
        _check_agreement(mesh, columns, (chunk_size, batching, sorted(skip), sorted(fixed.items())))

    def chunks():
        for start in starts:
            if start not in skip:
                stop = min(start + chunk_size, num_members)
                yield start, stop, run(columns, start, stop)

    return chunks()


def split_static(
    members: Mapping[str, Any], static: Collection[str]
) -> list[tuple[dict[str, Any], np.ndarray, dict[str, Column]]]:
    """Split members by the values of their static columns, which no program can trace.

    Args:
      members: as in `sweep`.
      static: names of columns of shape (num_members,): integers, bools, floats or strings.

    Returns:
      For each combination of static values that occurs, in order of appearance: those values as a
      dict of Python values, the members' positions, and their remaining columns.

    Raises:
      TypeError, ValueError: a name is unknown, a column isn't one value per member, or none
        remains.

    Example:
      >>> from kadam_jax.members import grid, split_static
      >>> for fixed, positions, columns in split_static(grid(seed=range(2), k=[1, 2]), ["k"]):
      ...     print(fixed, positions, columns["seed"])
      {'k': 1} [0 2] [0 1]
      {'k': 2} [1 3] [0 1]
    """
    columns = _columns(members)
    is_iterable = isinstance(static, Iterable) and not isinstance(static, str)
    names = tuple(static) if is_iterable else ()
    are_names = is_iterable and all(isinstance(name, str) for name in names)
    words = "be a collection of names, such as ['k']"
    require(are_names, "static", words, repr(static), error=TypeError)
    static = names
    if unknown := sorted(set(static) - columns.keys()):
        raise ValueError(f"static names {unknown} are not columns of members: {sorted(columns)}")
    if columns.keys() == set(static):
        raise ValueError("every column is static: keep one that is traced, such as seed")
    for name in static:
        if not isinstance(columns[name], np.ndarray) or columns[name].ndim != 1:
            raise ValueError(f"static column {name!r} must hold one Python value for each member")
    groups: dict[str, tuple[tuple, list[int]]] = {}
    for position in range(_num_members(columns)):
        values = tuple(columns[name][position].item() for name in static)
        groups.setdefault(repr(values), (values, []))[1].append(position)  # tells -0.0 from 0.0
    return [
        (
            dict(zip(static, values, strict=True)),
            np.array(positions),
            {name: columns[name][np.array(positions)] for name in columns if name not in static},
        )
        for values, positions in groups.values()
    ]


def _columns(members: Mapping[str, Any]) -> dict[str, Column]:
    """Return members as a plain dict of checked arrays of equal length."""
    if not isinstance(members, Mapping) or not members:
        raise ValueError(f"members must be a dict with at least one column, got {members!r}")
    if names := [name for name in members if not isinstance(name, str)]:
        raise TypeError(f"columns must be named by strings, got {names}")
    columns = {name: _column(name, values) for name, values in members.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns must have equal lengths, got {lengths}")
    return columns


def _column(name: str, values: Any) -> Column:
    """Return one column, shape (num_values, ...), in a dtype that JAX keeps."""
    if any(isinstance(value, Tracer) for value in jax.tree.leaves(values)):
        raise TypeError(
            f"axis {name!r} is traced: make members and sweep outside of jit, vmap and grad"
        )
    if isinstance(values, jax.Array) and jnp.issubdtype(values.dtype, jax.dtypes.prng_key):
        column = values
    else:
        try:
            column = given = np.asarray(values)
            if _is_text(given):
                if not all(isinstance(value, str) for value in np.asarray(values, object).flat):
                    raise TypeError("NumPy would make strings of the other values")
            else:
                if not hasattr(jnp, given.dtype.name):
                    raise TypeError(f"JAX has no {given.dtype} arrays")
                dtype = jax.dtypes.canonicalize_dtype(given.dtype.newbyteorder("="))
                with np.errstate(all="ignore"):  # an overflow raises an error below
                    column = given.astype(dtype, copy=False)
        except (TypeError, ValueError) as error:  # ragged rows raise ValueError
            raise TypeError(
                f"axis {name!r} must be a sequence of numbers, bools, strings or equal rows of "
                f"them, got {values!r}"
            ) from error
        if given.dtype.kind in "iu" and not np.array_equal(given, column):
            raise ValueError(f"axis {name!r} has integers beyond {column.dtype}: {values!r}")
        if given.dtype.kind in "fc" and (np.isfinite(given) & ~np.isfinite(column)).any():
            raise ValueError(f"axis {name!r} has numbers beyond {column.dtype}: {values!r}")
    if column.ndim == 0:
        raise TypeError(f"axis {name!r} must be a sequence of values, got {values!r}: use [value]")
    if len(column) == 0:
        raise ValueError(f"axis {name!r} is empty: give it at least one value")
    return column


def _check_mesh(mesh: Any) -> None:
    """Check that this process can currently run its part of a sweep over `mesh`."""
    context = jax.sharding.get_abstract_mesh()
    if context.size > 1 and (not isinstance(mesh, Mesh) or mesh.abstract_mesh != context):
        raise ValueError(
            f"mesh is {mesh}, but jax.set_mesh has put this code on {context}: pass that mesh, or "
            "sweep outside of jax.set_mesh"
        )
    if mesh is None:
        return
    words = "be a jax.sharding.Mesh of devices or None"
    require(isinstance(mesh, Mesh), "mesh", words, repr(mesh), error=TypeError)
    require(mesh.size, "mesh", "have at least one device", mesh)
    owners = sorted({device.process_index for device in mesh.devices.flat})
    words = f"have a device of every process that sweeps, including this one, {jax.process_index()}"
    require(mesh.local_devices, "mesh", words, f"one over processes {owners}")
    words = "have only devices of this process under jax.disable_jit"
    require(len(owners) == 1 or not _setting("jax_disable_jit"), "mesh", words, mesh)


def _setting(name: str) -> Any:
    return getattr(jax.config, name)


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def _is_text(column: Column) -> bool:
    return isinstance(column, np.ndarray) and column.dtype.kind == "U"


def _num_members(columns: Mapping[str, Column]) -> int:
    return len(next(iter(columns.values())))


def _runner(
    fn: MemberFn, fixed: dict[str, Any], chunk_size: int, mesh: Mesh | None, batching: str
) -> Callable[[Mapping[str, Column], int, int], Any]:
    """Return `run(columns, start, stop)`, which returns those members' results, on the host."""
    placed = jax.device_put(0)  # respects jax.default_device
    _refuse_tracers([placed])
    if mesh is None:
        num_devices, device = 1, next(iter(placed.devices()))
        sharding = SingleDeviceSharding(device)
    else:
        num_devices, device = mesh.size, mesh.local_devices[0]
        sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    if batching == "auto":
        batching = "map" if device.platform in _SERIAL_PLATFORMS else "vmap"
    padded_size = math.ceil(chunk_size / num_devices) * num_devices
    held = fn, _program_of(fn, fixed, batching, mesh)

    def run(columns, start, stop):
        _, program = held  # which holds fn only weakly
        places = np.minimum(np.arange(start, start + padded_size), stop - 1)
        chunk = {name: column[places] for name, column in columns.items()}
        try:
            placed = {name: _place(column, sharding) for name, column in chunk.items()}
            results = program(placed)
            _refuse_tracers(jax.tree.leaves(results))
            results = jax.tree.map(_fetch, results)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            stats, there = _memory_stats(program, chunk, sharding)
            limits = device.memory_stats() or {}
            raise MemoryError(
                _memory_advice(stats, there, limits, chunk_size, num_devices, batching)
            ) from error
        return jax.tree.map(lambda leaf: leaf[: stop - start], results)

    return run


def _place(column: Column, sharding: Sharding) -> jax.Array:
    """Place a column on the devices; each process supplies the rows of its own devices."""
    if sharding.is_fully_addressable:
        return jax.device_put(column, sharding)
    if jnp.issubdtype(column.dtype, jax.dtypes.prng_key):
        data = _place(np.asarray(jax.random.key_data(column)), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(column))
    return jax.make_array_from_callback(column.shape, sharding, lambda rows: column[rows])


def _fetch(leaf: jax.Array) -> np.ndarray:
    """Fetch a result to the host; on a mesh JAX loses the shape of an empty one."""
    return jax.device_get(leaf) if leaf.size else np.empty(leaf.shape, leaf.dtype)


def _check_agreement(mesh: Mesh, columns: Mapping[str, Column], options: Any) -> None:
    """Raise in all processes of the mesh unless they were given the same sweep."""
    said = hashlib.sha256(repr(options).encode())
    for name, column in sorted(columns.items()):
        said.update(repr((name, column.dtype, column.shape)).encode())
        is_key = jnp.issubdtype(column.dtype, jax.dtypes.prng_key)
        said.update(np.asarray(jax.random.key_data(column) if is_key else column).tobytes())
    mine = np.frombuffer(said.digest(), np.uint32)
    by_device = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    everyone = NamedSharding(mesh, PartitionSpec())
    said = jax.make_array_from_callback((mesh.size, *mine.shape), by_device, lambda _: mine[None])
    if (np.asarray(jax.jit(lambda x: x, out_shardings=everyone)(said)) != mine).any():
        raise ValueError(
            "the processes of mesh were given different members, chunk_size, batching, fixed or "
            "skip: call the same sweep in all of them"
        )


def _program_of(
    fn: MemberFn, fixed: dict[str, Any], batching: str, mesh: Mesh | None
) -> "_Program":
    """Return the jitted program of `fn`, kept as long as `fn` (a method's object) lives."""
    parts = (fn.__func__, fn.__self__) if isinstance(fn, types.MethodType) else (fn,)
    identity = tuple(map(id, parts))
    # repr tells 1 from 1.0 and from True, inside tuples too. jit compiles again when a setting
    # changes, except for this setting, which it ignores (jax 0.10).
    generator = _setting("jax_default_prng_impl")
    options = (repr(sorted(fixed.items())), batching, mesh, generator)
    try:
        refs = tuple(map(weakref.ref, parts))
    except TypeError:  # no weak references: compile for each call rather than leak it
        return _jitted(lambda: fn, fixed, batching, mesh)

    def alive() -> MemberFn:
        parts: list[Any] = [ref() for ref in refs]
        return types.MethodType(*parts) if len(parts) > 1 else parts[0]

    if identity not in _PROGRAMS:
        _PROGRAMS[identity] = {}
        for part in parts:
            weakref.finalize(part, _PROGRAMS.pop, identity, None).atexit = False
    programs = _PROGRAMS[identity]
    if options not in programs:
        programs[options] = _jitted(alive, fixed, batching, mesh)
    return programs[options]


def _jitted(
    alive: Callable[[], MemberFn], fixed: Mapping[str, Any], batching: str, mesh: Mesh | None
) -> "_Program":
    """Return the program for a chunk: columns (num_members, ...) to results (num_members, ...)."""

    def one(member):
        results = alive()({**member, **fixed})
        for path, leaf in jax.tree.leaves_with_path(results):
            _check_result(jax.tree_util.keystr(path), leaf)
        return results

    chunk = partial(jax.lax.map, one) if batching == "map" else jax.vmap(one)
    if mesh is None:
        return _Program(jax.jit, chunk)
    # Each device loops over its own members. check_vma would require fn's scan carries to be
    # marked as varying over the mesh, which fn does not know about.
    spec = PartitionSpec(mesh.axis_names)
    chunk = jax.shard_map(chunk, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    everywhere = NamedSharding(mesh, PartitionSpec())
    if mesh.is_multi_process:  # every process reads all results
        return _Program(partial(jax.jit, out_shardings=everywhere), chunk, everywhere)
    return _Program(jax.jit, chunk, everywhere)


class _Program:
    """A jitted function of columns; large arrays that it closes over are arguments of the program.

    As constants they would be part of its text and of its executable, and XLA would copy them while
    it compiles. Arrays that a nested `jax.jit` closes over stay constants.
    """

    def __init__(
        self,
        jit: Callable[..., Any],
        fn: Callable[[Mapping[str, Column]], Any],
        everywhere: Sharding | None = None,
    ):
        self._jit, self._program, self._everywhere = jit, jit(fn), everywhere
        self._with_arguments: dict[Any, tuple[Any, ...]] = {}  # by the columns' types and device

    def __call__(self, columns: Mapping[str, Any]) -> Any:
        program, large = self._program_for(columns)
        return program(*large, columns)

    def lower(self, columns: Mapping[str, Any]) -> Any:
        program, large = self._program_for(columns)
        return program.lower(*large, columns)

    def arguments(self, columns: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the program's arguments before the columns."""
        return self._program_for(columns)[1]

    def _program_for(self, columns: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        """Return a jitted program, and its arguments before the columns."""
        if _setting("jax_disable_jit"):
            return self._program, ()
        _refuse_tracers(jax.make_jaxpr(self._program)(columns).consts)
        traced = self._program.trace(columns)  # kept by jit until its caches are cleared
        jaxpr, consts = traced.jaxpr, dict(enumerate(traced.jaxpr.consts))
        places = [at for at, const in consts.items() if getattr(const, "nbytes", 0) >= _LARGE]
        if not places:
            return self._program, ()
        where = self._everywhere or next(iter(columns.values())).sharding
        key = tuple(jaxpr.in_avals), where
        if key not in self._with_arguments or self._with_arguments[key][0] is not jaxpr:

            def program(large, columns):
                # An entry of `large` takes the place of the constant, whose position it keeps.
                results = eval_jaxpr(
                    jaxpr.jaxpr, list((consts | large).values()), *jax.tree.leaves(columns)
                )
                return jax.tree.unflatten(jax.tree.structure(traced.out_info), results)

            large = {at: _place(consts[at], where) for at in places}
            self._with_arguments[key] = jaxpr, self._jit(program), large
        _, program, large = self._with_arguments[key]
        return program, (large,)


def _refuse_tracers(values: Iterable[Any]) -> None:
    """Raise if jit surrounds the sweep, or if `fn` closes over a value that grad or vmap traces."""
    if any(isinstance(value, Tracer) for value in values):
        raise TypeError(
            "a sweep does its own compiling: call it outside of jit, vmap and grad, and make what "
            "they trace in fn a column of members"
        )


def _check_result(path: str, leaf: Any) -> None:
    try:
        dtype = jnp.asarray(leaf).dtype
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"fn must return a pytree of arrays, but result{path} is {leaf!r}"
        ) from error
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        raise TypeError(f"result{path} of fn is a PRNG key: return jax.random.key_data of it")


def _memory_stats(
    program: "_Program", chunk: Mapping[str, Column], sharding: Sharding
) -> tuple[Any, int]:
    """Return XLA's sizes for one device's share, and the bytes of it that are there already.

    The sizes are None if the program doesn't compile.
    """
    shapes = {
        name: jax.ShapeDtypeStruct(column.shape, column.dtype, sharding=sharding)
        for name, column in chunk.items()
    }
    try:
        compiled, large = program.lower(shapes).compile(), program.arguments(shapes)
    except jax.errors.JaxRuntimeError:
        return None, 0
    return compiled.memory_analysis(), sum(leaf.nbytes for leaf in jax.tree.leaves(large))


def _memory_advice(
    stats: Any,
    there: int,
    limits: Mapping[str, int],
    chunk_size: int,
    num_devices: int,
    batching: str,
) -> str:
    """Say what to do about a chunk that doesn't fit, from XLA's sizes for one device's share."""
    share = math.ceil(chunk_size / num_devices)
    smaller, needs = share // 2, "more memory than there is"
    if stats is not None:
        rows = stats.argument_size_in_bytes - there + stats.output_size_in_bytes
        needed = rows + stats.temp_size_in_bytes
        needs = f"{needed:,} bytes on each device"
        if "bytes_limit" in limits:
            free = limits["bytes_limit"] - limits.get("bytes_in_use", 0)
            needs += f", where {free:,} are free"
            # Members that run in turn share their temporaries.
            growing = rows if batching == "map" else needed
            fitting = math.floor(share * (free - needed + growing) / growing)
            smaller = fitting if fitting < share else smaller
    remedy = (
        f"try chunk_size={smaller * num_devices}"
        if smaller > 0
        else "that is one member per device already, or one alone is too large"
    )
    return f"chunk_size={chunk_size} ({batching=}) needs {needs}: {remedy}"


def _assemble(pieces: Sequence[tuple[np.ndarray, Any]], num_members: int) -> Any:
    """Return the results of all pieces, (positions, results), in the members' order."""
    first = _rows_like(pieces[0][1])
    for positions, results in pieces:
        if _rows_like(results) != first:
            raise ValueError(
                "results of different static values differ in structure, shape or dtype and can't "
                f"be stacked: {first} versus {_rows_like(results)} (from member {positions[0]}); "
                "sweep them separately"
            )

    def fill(*leaves):
        stacked = np.empty((num_members, *leaves[0].shape[1:]), leaves[0].dtype)
        for (positions, _), leaf in zip(pieces, leaves, strict=True):
            stacked[positions] = leaf
        return stacked

    return jax.tree.map(fill, *(results for _, results in pieces))


def _rows_like(results: Any) -> tuple[Any, list[tuple[tuple[int, ...], np.dtype]]]:
    leaves, structure = jax.tree.flatten(results)
    return structure, [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
