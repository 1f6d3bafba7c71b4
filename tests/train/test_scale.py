"""Meshes of members x data, sharded parameters and processes give one device's numbers."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from experiments import __main__ as cli
from experiments.bench._programs import collectives
from experiments.core.config import ConfigError
from experiments.train.config import TrainConfig
from experiments.train.programs import programs_of
from experiments.training.meshes import (
    MeshConfig,
    make_mesh,
    place_batch,
    process_share,
    state_shardings,
)
from experiments.training.tasks import text_task
from models.nanogpt import GPTConfig
from tests.several import start
from tests.training.toy import toy_task

SWEEP = ["learning_rate=1e-3,3e-3", "seed=0,1,2,3"]
CONFIG = TrainConfig(num_steps=6, batch_size=16, warmup_steps=2, optimizer="adamw")
MESHES = [(2, 4), (8, 1), (1, 8)]


def batches():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 16, 8)).astype(np.float32)
    return {"x": x, "y": x.sum(2)}


@functools.cache
def trained(shape, shard_above=None):
    """Return (programs, state, losses of all steps, validation sums) on a mesh of that shape."""
    config = dataclasses.replace(CONFIG, mesh=MeshConfig(*shape, shard_above))
    programs, _, mesh = programs_of(config, toy_task(8, 16), SWEEP, jax.devices())
    first, rest = (
        place_batch(mesh, jax.tree.map(lambda leaf, part=part: leaf[part], batches()), 1)
        for part in (slice(3), slice(3, 6))
    )
    state, records = programs.steps(programs.start(), first, np.int32(0))
    state, more = programs.steps(state, rest, np.int32(3))
    losses = np.concatenate([records["loss"], more["loss"]], axis=1)
    held = place_batch(mesh, jax.tree.map(lambda leaf: leaf[0], batches()), 0)
    weights = place_batch(mesh, np.arange(16) % 3 / 2, 0)
    return programs, state, losses, programs.metrics(state, held, weights)


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_a_mesh_gives_the_losses_of_one_device(shape):
    assert len(jax.devices()) == 8
    _, state, losses, sums = trained(shape)
    _, state_of_one, losses_of_one, sums_of_one = trained((1, 1))
    np.testing.assert_allclose(losses, losses_of_one, rtol=1e-6)
    np.testing.assert_allclose(sums["loss"], sums_of_one["loss"], rtol=1e-6)
    for ours, theirs in zip(jax.tree.leaves(state), jax.tree.leaves(state_of_one), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 4), (1, 8)], ids=str)
def test_sharded_parameters_give_the_same_losses(shape):
    programs, state, losses, _ = trained(shape, 100)
    np.testing.assert_allclose(losses, trained((1, 1))[2], rtol=1e-6)
    kernel = state.params["first"]["kernel"]  # (8 members, 8, 16)
    assert kernel.addressable_shards[0].data.size == kernel.size // 8
    for leaf, expected in zip(
        jax.tree.leaves(state), jax.tree.leaves(programs.template), strict=True
    ):
        assert leaf.sharding.is_equivalent_to(expected.sharding, leaf.ndim)
    assert state.params["last"]["bias"].sharding.is_fully_replicated == (shape[0] == 1)


def text_programs(shape, shard_above=None, num_members=None, **fields):
    """Return programs of a small nanoGPT, whose sizes devices don't divide, and five batches."""
    model = GPTConfig(vocab_size=257, context=16, num_layers=1, num_heads=2, width=54, dropout=0.0)
    config = dataclasses.replace(CONFIG, mesh=MeshConfig(*shape, shard_above), **fields)
    seeds = ",".join(map(str, range(num_members or shape[0])))
    programs, _, mesh = programs_of(config, text_task(model), [f"seed={seeds}"], jax.devices())
    tokens = np.random.default_rng(0).integers(0, 257, (5, 16, 17), dtype=np.int32)
    return programs, place_batch(mesh, tokens, 1)


@functools.cache
def losses_of_one_device(num_members):
    """Return the losses of that nanoGPT's steps."""
    programs, batches = text_programs((1, 1), num_members=num_members)
    return programs.steps(programs.start(), batches, np.int32(0))[1]["loss"]


@pytest.mark.parametrize(
    ("shape", "shard_above"),
    [((1, 8), 100), ((1, 8), None), ((2, 4), 100)],
    ids=str,
)
def test_a_step_moves_each_parameter_once_each_way(shape, shard_above):
    """Gradients are reduced once, even the embedding's from its two uses; shards are gathered."""
    programs, batches = text_programs(shape, shard_above=shard_above)
    moved = collectives(programs.lower(batches).compile().as_text())
    params = jax.tree.leaves(programs.template.params)
    num_bytes = sum(leaf.size // leaf.shape[0] * 4 for leaf in params)
    # Gradients of parameters with fewer parts than devices are reduced in two steps.
    least, most = (2, 2.12) if shard_above else (1, 1.01)
    assert 0.99 * least < sum(moved.values()) / num_bytes < most
    _, records = programs.steps(programs.start(), batches, np.int32(0))
    np.testing.assert_allclose(records["loss"], losses_of_one_device(shape[0]), rtol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4)], ids=str)
def test_microbatches_give_the_losses_of_a_whole_batch(shape):
    (programs, batches), (whole, _) = (text_programs(shape, microbatches=count) for count in (4, 1))
    (_, records), (_, expected) = (
        each.steps(each.start(), batches, np.int32(0)) for each in (programs, whole)
    )
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(records[name], expected[name], rtol=1e-6)
    if shape == (1, 1):  # elsewhere gradients outweigh a part of one sequence
        memory, of_whole = (
            each.lower(batches).compile().memory_analysis().temp_size_in_bytes
            for each in (programs, whole)
        )
        assert memory < of_whole


def test_the_longest_axis_with_most_parts_is_sharded():
    mesh = make_mesh(MeshConfig(1, 8), jax.devices(), 1, 8)
    shapes = {
        **{"a": (1, 16, 24), "b": (1, 16, 30), "c": (1, 3, 700)},
        **{"d": (1, 8), "e": (1,), "f": (1, 3, 5)},
    }
    leaves = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
    found = state_shardings(mesh, leaves, 8)
    assert {name: tuple(where.spec) for name, where in found.items()} == {
        "a": ("members", None, "data"),
        "b": ("members", "data", None),
        "c": ("members", None, "data"),
        "d": ("members", None),
        "e": ("members",),
        "f": ("members", None, None),
    }
    assert found["c"].shard_shape(shapes["c"]) == (1, 3, 175)  # 8 does not divide 700; 4 does
    assert {name for name, where in found.items() if where.mesh != mesh} == {"c"}


def test_a_mesh_gives_members_as_many_devices_as_divide():
    devices = jax.devices()
    for num_members, members in ((1, 1), (2, 2), (6, 2), (12, 4), (8, 8)):
        mesh = make_mesh(MeshConfig(), devices, num_members, 16)
        assert dict(mesh.shape) == {"members": members, "data": 1}  # a CPU shares its cores
        assert mesh.axis_types == (AxisType.Auto,) * 2
    assert dict(make_mesh(MeshConfig(data=4), devices, 6, 16).shape) == {"members": 2, "data": 4}
    assert process_share(mesh) == (0, 1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MeshConfig(members=4, data=4), "members=4 x data=4 needs 16 devices; there are 8"),
        (MeshConfig(members=4), "the number of members, 6, must be a multiple of mesh.members=4"),
        (MeshConfig(data=8), "the batch_size, 12, must be a multiple of mesh.data=8"),
    ],
)
def test_a_mesh_that_does_not_fit_raises(config, message):
    with pytest.raises(ConfigError, match=message):
        make_mesh(config, jax.devices(), 6, 12)
    for value in (0, 1.5, float("nan"), "2"):
        with pytest.raises(ConfigError, match=rf"mesh\.data must be an integer .* got {value!r}"):
            MeshConfig(data=value)


TEXT = (
    *("train", "text", "--preset", "smoke", "--set", "model.width=8", "--set", "model.context=8"),
    *("--set", "num_steps=6", "--set", "eval_every=3", "--set", "save_every=3"),
    *("--set", "warmup_steps=2", "--set", "log_every=1", "--set", "steps_per_call=3"),
    *("--set", "optimizer=sgd", "--sweep", "seed=0,1"),  # sgd compiles fastest
)


def test_two_processes_give_the_losses_of_one(tmp_path):
    together = ("--output", str(tmp_path / "two"), "--devices", "1", "--set", "mesh.members=1")
    outputs = start(*[("-m", "experiments", *TEXT, *together)] * 2)
    assert [code for code, *_ in outputs] == [0, 0], outputs
    assert cli.main([*TEXT, "--output", str(tmp_path / "one"), "--devices", "1"]) == 0
    ours, theirs = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("two", "one")
    )
    assert len(ours) == len(theirs) == 2 * (6 + 2 + 1)
    for a, b in zip(ours, theirs, strict=True):
        assert {k: a[k] for k in ("step", "split", "member")} == {
            k: b[k] for k in ("step", "split", "member")
        }
        np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-6)
