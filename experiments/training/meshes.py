"""Devices as a grid of members x data, for computing members and holding parts of a batch."""

import dataclasses
import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from experiments.core.errors import ConfigError

AXES = ("members", "data")
COPIES = "copies"
"""The axis of devices that hold the same part of a parameter that has fewer parts than devices."""


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """The layout of devices.

    Attributes:
      members: Number of devices that share the members; None for as many as divide the number of
        members.
      data: Number of devices that share each batch; None for the remaining devices, or for 1 on
        CPUs.
      shard_above: Parameters with more entries than this are also sharded over the data axis (fully
        sharded data parallelism), into as many parts as divide one of their axes evenly; None
        shards none.
    """

    members: int | None = None
    data: int | None = None
    shard_above: int | None = None

    def __post_init__(self):
        for name, least in (("members", 1), ("data", 1), ("shard_above", 0)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, Integral) and least <= value < 2**31):
                raise ConfigError(
                    f"mesh.{name} must be an integer in [{least}, 2^31), got {value!r}"
                )


def make_mesh(
    config: MeshConfig, devices: Sequence[jax.Device], num_members: int, batch_size: int
) -> Mesh:
    """Lay out devices for `num_members` members that each see batches of `batch_size`.

    If the configuration leaves it open, members get as many devices as divide the numbers of
    devices and of members, and batches get the rest; on CPUs the rest stays idle, since devices
    there share the same cores.

    Args:
      config: The sizes that are given.
      devices: The devices of all processes.
      num_members: Members of the sweep; 1 for a single run.
      batch_size: Examples in a batch, over all devices.

    Returns:
      A mesh with the axes "members" and "data", both managed by the compiler.

    Raises:
      ConfigError: If members or batch don't divide over the mesh, or the mesh doesn't fit the
        devices.

    >>> dict(make_mesh(MeshConfig(), jax.devices()[:1], num_members=3, batch_size=8).shape)
    {'members': 1, 'data': 1}
    """
    given = config.members, config.data
    members, data = given
    if members is None:
        members = int(np.gcd(num_members, len(devices) // (data or 1) or 1))
    if data is None:
        shared = devices[0].platform != "cpu" or jax.process_count() > 1
        data = int(np.gcd(batch_size, len(devices) // members)) if shared else 1
    shape = f"mesh of members={members} x data={data}"
    if members * data > len(devices):
        raise ConfigError(f"a {shape} needs {members * data} devices; there are {len(devices)}")
    for what, number, axis, size in (
        ("number of members", num_members, "mesh.members", members),
        ("batch_size", batch_size, "mesh.data", data),
    ):
        if number % size:
            raise ConfigError(f"the {what}, {number}, must be a multiple of {axis}={size}")
    if jax.process_count() > 1 and members * data < len(devices):
        raise ConfigError(f"a {shape} leaves some of the {len(devices)} devices without work")
    return jax.make_mesh(
        (members, data), AXES, axis_types=(AxisType.Auto,) * 2, devices=devices[: members * data]
    )


def sharding(mesh: Mesh, *axes: str | None) -> NamedSharding:
    """Return the sharding of leading axes over the mesh's; without axes, each device has a copy."""
    return NamedSharding(mesh, PartitionSpec(*axes))


def state_shardings(mesh: Mesh, abstract_state: Any, shard_above: int | None) -> Any:
    """Choose how to hold a state whose leaves are (num_members, ...).

    Args:
      mesh: From `make_mesh`.
      abstract_state: The state's shapes.
      shard_above: As in `MeshConfig`.

    Returns:
      A sharding for each leaf.
    """

    def one(leaf):
        spec = ["members", *[None] * (leaf.ndim - 1)]
        sizes = dict(enumerate(leaf.shape[1:], start=1))
        parts = {axis: math.gcd(size, mesh.shape["data"]) for axis, size in sizes.items()}
        cut = max(sizes, key=lambda axis: (parts[axis], sizes[axis]), default=0)
        if (
            shard_above is None
            or math.prod(sizes.values()) <= shard_above
            or parts.get(cut, 1) == 1
        ):
            return sharding(mesh, *spec)
        spec[cut] = "data"
        return sharding(_cut(mesh, parts[cut]), *spec)

    return jax.tree.map(one, abstract_state)


def _cut(mesh: Mesh, parts: int) -> Mesh:
    """Return the mesh with a data axis of `parts` devices, and an axis of copies if more are left.

    It has the same devices in the same order, so that one program can use both.
    """
    if parts == mesh.shape["data"]:
        return mesh
    devices = mesh.devices.reshape(mesh.shape["members"], -1, parts)
    return Mesh(devices, ("members", COPIES, "data"), axis_types=(AxisType.Auto,) * 3)


def process_share(mesh: Mesh) -> tuple[int, int]:
    """Return which part of every batch this process holds.

    Returns:
      (index, count): the batch is cut into `count` parts along the data axis, and this process
      reads part `index`; processes that differ only in members read the same part.

    Raises:
      ConfigError: If processes hold overlapping or unequal parts.
    """
    owners = np.vectorize(lambda device: device.process_index)(mesh.devices)
    columns = {
        process: tuple(np.flatnonzero((owners == process).any(axis=0)).tolist())
        for process in sorted({*owners.flat})
    }
    parts = sorted({*columns.values()})
    if sum(map(len, parts)) != mesh.shape["data"] or len({*map(len, parts)}) > 1:
        raise ConfigError(
            f"mesh.data={mesh.shape['data']} is spread over the processes unevenly: {columns}; "
            "choose mesh.data to be a multiple of a process's devices, or to divide them"
        )
    return parts.index(columns[jax.process_index()]), len(parts)


def place_batch(mesh: Mesh, batch: Any, axis: int) -> Any:
    """Place this process's part of a batch; examples, along `axis`, go to the data axis."""
    where = sharding(mesh, *[None] * axis, "data")
    return jax.tree.map(
        lambda array: jax.make_array_from_process_local_data(where, np.asarray(array)), batch
    )
