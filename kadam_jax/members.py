"""Sweeps: a pure function over many members inside one compiled program.

A sweep's members are data: a dict of equally long arrays, one row for each member, seeds included.
`grid` and `points` make them, `sweep` runs them all, `sweep_chunks` runs them a piece at a time for
whoever stores finished pieces, and `split_static` takes apart the axes that no program can trace.
"""

import math
import types
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

__all__ = ["Members", "grid", "points", "split_static", "sweep", "sweep_chunks"]

Column = np.ndarray | jax.Array
MemberFn = Callable[[dict[str, Any]], Any]

# Settings that change what a function traces to, though not the arrays that it is given.
_TRACE_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
)

# Where batching="auto" runs members in turn: on a CPU, batched small matrices gain nothing.
_SERIAL_PLATFORMS = frozenset({"cpu"})

# id of a swept function (of its object, for a bound method) -> its executables. An entry goes with
# its function: an executable holds no reference to what it was traced from.
_EXECUTABLES: dict[int, dict[Any, jax.stages.Compiled]] = {}


class Members(dict[str, Column]):
    """Columns of equal length, one row for each member, that know the shape of their grid.

    Attributes:
      axes: the names of the grid's axes, slowest first.
      shape: the lengths of those axes; their product is the number of members.
    """

    def __init__(self, columns: Mapping[str, Column], axes: Sequence[str], shape: Sequence[int]):
        super().__init__(columns)
        self.axes = tuple(axes)
        self.shape = tuple(shape)


def grid(**axes: Any) -> Members:
    """The cartesian product of named axes, in the order of `itertools.product`: first axis slowest.

    Args:
      **axes: for each axis its values, shape (num_values, ...): numbers, bools, rows such as the
        decays of every stage, PRNG keys, or strings (which `sweep` needs to be static). Integers
        stay integers; floats take JAX's default precision. An axis may also be a dict of columns
        (what `points` returns): they vary together along that one axis.

    Returns:
      `Members`: every column has shape (num_members, ...).

    Raises:
      TypeError, ValueError: an axis is empty or no array; two axes hold the same column.

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
    """Members listed one by one: member i takes the i-th value of every column.

    Args:
      **columns: equally long columns, of the kinds that `grid` accepts.

    Returns:
      `Members` with a single axis named "point".

    Raises:
      TypeError, ValueError: a column is empty or no array; lengths differ.

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
    """Runs a pure function for every member inside one compiled program.

    `fn` is traced and compiled once (once for each combination of static values), whatever the
    members' values and however they are chunked, and not again when the same `fn` is swept over
    other values. Like `jax.jit`, this assumes that `fn` is pure: what it closes over is read once.
    A member that turns into NaN does not touch the others.

    Args:
      fn: takes one member, a dict from each column's name to its value (a traced array; a Python
        value for a static column), and returns a pytree of arrays.
      members: what `grid` or `points` returns, or a dict of equally long columns.
      chunk_size: how many members are on the devices at once; None for all. Results leave the
        devices after every chunk. A last chunk that isn't full is padded, not compiled anew.
      mesh: shares each chunk out over all devices of this (single-process) mesh, whatever its axes.
        Every device works on its own members; order and numbers stay the same (to the bit for
        "map"; how XLA sums in "vmap" depends on how many members are side by side).
      batching: "map" runs members in turn and "vmap" side by side; "auto" is "map" on CPUs, where
        batched small matrices gain nothing, and "vmap" on accelerators.
      static: columns that must be Python values, such as k and coupled in `kadam`: one program for
        each combination that occurs.
      grid_shape: give the results the grid's shape in place of the one members axis.

    Returns:
      `fn`'s pytree with NumPy arrays of shape (num_members, ...) in the members' order, or
      (*members.shape, ...) if `grid_shape`.

    Raises:
      TypeError, ValueError: an argument is unusable (before anything is compiled); `fn` returns
        something that isn't an array; results of different static values don't stack.
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
    """The chunks of a sweep one by one, for callers that store each and resume after a stop.

    Args:
      fn, members, chunk_size, mesh, batching: as in `sweep`.
      fixed: further entries of every member's dict, passed on as they are (Python values, told
        apart by their `repr`): the static part that `split_static` took out.
      skip: starts of chunks that are already done and are not to be run.

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
    if not callable(fn):
        raise TypeError(f"fn must be a function of one member's dict, got {fn!r}")
    if chunk_size is None:
        chunk_size = num_members
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, Integral) or chunk_size < 1:
        raise ValueError(f"chunk_size must be an int >= 1 or None, got {chunk_size!r}")
    chunk_size, skip = min(int(chunk_size), num_members), set(skip)
    if mesh is not None and not isinstance(mesh, Mesh):
        raise TypeError(f"mesh must be a jax.sharding.Mesh of devices or None, got {mesh!r}")
    context = jax.sharding.get_abstract_mesh()
    if context.size > 1 and (mesh is None or mesh.abstract_mesh != context):
        raise ValueError(
            f"mesh is {mesh}, but jax.set_mesh has put this code on {context}: pass that mesh, or "
            "sweep outside of jax.set_mesh"
        )
    if batching not in ("auto", "map", "vmap"):
        raise ValueError(f'batching must be "auto", "map" or "vmap", got {batching!r}')
    if strings := sorted(name for name in columns if _is_text(columns[name])):
        raise TypeError(f"columns {strings} hold strings, which can't be traced: make them static")
    if repeated := columns.keys() & (fixed or {}).keys():
        raise ValueError(f"{sorted(repeated)} is both a column and fixed: drop one of them")
    starts = range(0, num_members, chunk_size)
    if unknown := sorted(skip - set(starts)):
        raise ValueError(
            f"skip has {unknown}, which are no starts of chunks with chunk_size={chunk_size} and "
            f"{num_members} members: skip only what a sweep with the same two numbers produced"
        )
    run = _runner(fn, dict(fixed or {}), chunk_size, mesh, batching)

    def chunks():
        for start in starts:
            if start not in skip:
                stop = min(start + chunk_size, num_members)
                yield start, stop, run(columns, start, stop)

    return chunks()


def split_static(
    members: Mapping[str, Any], static: Collection[str]
) -> list[tuple[dict[str, Any], np.ndarray, dict[str, Column]]]:
    """Splits members by the values of their static columns, which no program can trace.

    Args:
      members: as in `sweep`.
      static: names of columns of shape (num_members,): integers, bools, floats or strings.

    Returns:
      For each combination of static values that occurs, in order of appearance: those values as a
      dict of Python values, the members' positions, and their remaining columns.

    Raises:
      TypeError, ValueError: a name is unknown, a column isn't one value a member, or none remains.

    Example:
      >>> from kadam_jax.members import grid, split_static
      >>> for fixed, positions, columns in split_static(grid(seed=range(2), k=[1, 2]), ["k"]):
      ...     print(fixed, positions, columns["seed"])
      {'k': 1} [0 2] [0 1]
      {'k': 2} [1 3] [0 1]
    """
    columns = _columns(members)
    if isinstance(static, str):
        raise TypeError(f"static must be a collection of names, such as [{static!r}]")
    static = tuple(static)
    if unknown := sorted(set(static) - columns.keys()):
        raise ValueError(f"static names {unknown} are no columns of members: {sorted(columns)}")
    if columns.keys() == set(static):
        raise ValueError("every column is static: keep one that is traced, such as seed")
    for name in static:
        if not isinstance(columns[name], np.ndarray) or columns[name].ndim != 1:
            raise ValueError(f"static column {name!r} must hold one Python value for each member")
    groups: dict[tuple, list[int]] = {}
    for position in range(_num_members(columns)):
        values = tuple(columns[name][position].item() for name in static)
        groups.setdefault(values, []).append(position)
    return [
        (
            dict(zip(static, values, strict=True)),
            np.array(positions),
            {name: columns[name][np.array(positions)] for name in columns if name not in static},
        )
        for values, positions in groups.items()
    ]


def _columns(members: Mapping[str, Any]) -> dict[str, Column]:
    """Members as a plain dict of checked, equally long arrays."""
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
    """One column, shape (num_values, ...), in a dtype that JAX keeps."""
    if isinstance(values, Tracer):
        raise TypeError(
            f"axis {name!r} is traced: make members and sweep outside of jit, vmap and grad"
        )
    if isinstance(values, jax.Array) and jnp.issubdtype(values.dtype, jax.dtypes.prng_key):
        column = values
    else:
        try:
            column = given = np.asarray(values)
            if not _is_text(given):
                if not (given.dtype == bool or jnp.issubdtype(given.dtype, np.number)):
                    raise TypeError(f"JAX has no {given.dtype} arrays")
                column = given.astype(jax.dtypes.canonicalize_dtype(given.dtype), copy=False)
        except (TypeError, ValueError) as error:  # ragged rows raise ValueError
            raise TypeError(
                f"axis {name!r} must be a sequence of numbers, bools, strings or equal rows of "
                f"them, got {values!r}"
            ) from error
        if given.dtype.kind in "iu" and not np.array_equal(given, column):
            raise ValueError(f"axis {name!r} has integers beyond {column.dtype}: {values!r}")
    if column.ndim == 0:
        raise TypeError(f"axis {name!r} must be a sequence of values, got {values!r}: use [value]")
    if len(column) == 0:
        raise ValueError(f"axis {name!r} is empty: give it at least one value")
    return column


def _is_text(column: Column) -> bool:
    return isinstance(column, np.ndarray) and column.dtype.kind == "U"


def _num_members(columns: Mapping[str, Column]) -> int:
    return len(next(iter(columns.values())))


def _runner(
    fn: MemberFn, fixed: dict[str, Any], chunk_size: int, mesh: Mesh | None, batching: str
) -> Callable[[Mapping[str, Column], int, int], Any]:
    """`run(columns, start, stop)`: the results of those members, on the host."""
    placed = jax.device_put(0)  # respects jax.default_device
    if isinstance(placed, Tracer):
        raise TypeError("a sweep compiles by itself: call it outside of jit")
    if mesh is None:
        num_devices = 1
        device = sharding = next(iter(placed.devices()))
    else:
        num_devices, device = mesh.size, mesh.devices.flat[0]
        sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    if batching == "auto":
        batching = "map" if device.platform in _SERIAL_PLATFORMS else "vmap"
    padded_size = math.ceil(chunk_size / num_devices) * num_devices
    executables = _executables_of(fn)
    settings = tuple(getattr(jax.config, name) for name in _TRACE_SETTINGS)
    values = repr(sorted(fixed.items()))  # tells 1 from 1.0 and from True, inside tuples too
    program = (getattr(fn, "__func__", None), values, batching, sharding, settings)

    def run(columns, start, stop):
        places = np.minimum(np.arange(start, start + padded_size), stop - 1)
        chunk = {name: column[places] for name, column in columns.items()}
        avals = tuple((name, array.shape, array.dtype) for name, array in sorted(chunk.items()))
        compiled = None
        try:
            chunk = jax.device_put(chunk, sharding)
            compiled = executables.get((program, avals))
            if compiled is None:
                compiled = _jitted(fn, fixed, batching, mesh).lower(chunk).compile()
                executables[program, avals] = compiled
            results = jax.device_get(compiled(chunk))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            limits = device.memory_stats() or {}
            raise MemoryError(
                _memory_advice(compiled, limits, chunk_size, num_devices, batching)
            ) from error
        return jax.tree.map(lambda leaf: leaf[: stop - start], results)

    return run


def _executables_of(fn: MemberFn) -> dict[Any, jax.stages.Compiled]:
    """The executables made for `fn`, kept for as long as it (a bound method's object) lives."""
    owner = fn.__self__ if isinstance(fn, types.MethodType) else fn
    if id(owner) not in _EXECUTABLES:
        try:
            weakref.finalize(owner, _EXECUTABLES.pop, id(owner), None).atexit = False
        except TypeError:  # not weakly referable: compile for each call rather than leak it
            return {}
        _EXECUTABLES[id(owner)] = {}
    return _EXECUTABLES[id(owner)]


def _jitted(fn: MemberFn, fixed: Mapping[str, Any], batching: str, mesh: Mesh | None):
    """The program for one chunk: columns (num_members, ...) -> results (num_members, ...)."""

    def one(member):
        results = fn({**member, **fixed})
        for path, leaf in jax.tree.leaves_with_path(results):
            _check_result(jax.tree_util.keystr(path), leaf)
        return results

    chunk = partial(jax.lax.map, one) if batching == "map" else jax.vmap(one)
    if mesh is not None:
        # Each device loops over its own members. check_vma would demand that fn's scan carries be
        # marked as varying over the mesh, of which fn knows nothing.
        spec = PartitionSpec(mesh.axis_names)
        chunk = jax.shard_map(chunk, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(chunk)


def _check_result(path: str, leaf: Any) -> None:
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
        raise TypeError(f"fn must return a pytree of arrays, but result{path} is {leaf!r}")
    if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
        raise TypeError(f"result{path} of fn is a PRNG key: return jax.random.key_data of it")


def _memory_advice(
    compiled: jax.stages.Compiled | None,
    limits: Mapping[str, int],
    chunk_size: int,
    num_devices: int,
    batching: str,
) -> str:
    """What to do about a chunk that doesn't fit, from XLA's own sizes for one device's share."""
    stats = compiled.memory_analysis() if compiled is not None else None
    share = math.ceil(chunk_size / num_devices)
    smaller, needs = share // 2, "more memory than there is"
    if stats is not None:
        rows = stats.argument_size_in_bytes + stats.output_size_in_bytes
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
        else "that is one member a device already, or one alone is too large"
    )
    return f"chunk_size={chunk_size} ({batching=}) needs {needs}: {remedy}"


def _assemble(pieces: Sequence[tuple[np.ndarray, Any]], num_members: int) -> Any:
    """Results of all pieces, (positions, results), in the members' order."""
    first = _rows_like(pieces[0][1])
    for positions, results in pieces:
        if _rows_like(results) != first:
            raise ValueError(
                "results of different static values differ in structure, shape or dtype and can't "
                f"be stacked: {first} against {_rows_like(results)} (from member {positions[0]}); "
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
