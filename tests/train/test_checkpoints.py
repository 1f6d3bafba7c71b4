"""Checkpoints come back bit for bit or not at all, whatever happens to disk or process."""

import contextlib
import errno
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

from experiments.core.errors import ConfigError, Failed
from experiments.core.store import DamagedFile
from experiments.train import checkpoint_files
from experiments.train.checkpoint_files import SCORES, read_scores
from experiments.train.checkpoints import Checkpoints
from kadam_jax import kadam
from tests.train import saver

CONFIG = {"k": 2, "model": {"width": 64, "norm": "layer"}, "sweep": ["seed=0,1"]}


class State(NamedTuple):
    params: Any
    empty: tuple
    nothing: None
    keys: Any


@contextlib.contextmanager
def opened(folder, config=CONFIG, **options):
    with contextlib.closing(Checkpoints(folder, config=config, **options)) as checkpoints:
        yield checkpoints


def abstract(tree, sharding=None):
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
    )


def state_at(step):
    rng = np.random.default_rng(step)
    params = {"a/b.c": jnp.asarray(rng.normal(size=(30, 50)), jnp.float32), "": jnp.arange(step)}
    return State(params, (), None, jax.random.split(jax.random.key(step), 3))


def bits(leaf):
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return str(leaf.dtype), *bits(jax.random.key_data(leaf))
    return str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes()


def assert_same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert bits(a) == bits(b)


def fill(folder, steps=(10, 20), **options):
    with opened(folder, **options) as checkpoints:
        for step in steps:
            checkpoints.save(step, state_at(step), {"batches": step})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_all_kinds_of_leaves_come_back_bit_for_bit(tmp_path):
    nans = np.array([0x7FC00001, 0xFF800000, 0x80000000, 1], np.uint32).view(np.float32)
    arrays = {
        "state": state_at(3),
        "nan": jnp.asarray(nans),
        "list": [{}, jnp.zeros((0, 3)), (jnp.bfloat16(1.1), jnp.float16(0.1)), [None]],
        "small": (jnp.arange(-2, 3, dtype=jnp.int8), jnp.array([True, False]), jnp.uint32(2**31)),
        "other key": jax.random.key(7, impl="rbg"),
        "raw key": jax.random.PRNGKey(1),
        "host": np.arange(3.0, dtype=np.float32),
    }
    position = {"epoch": 1, "nested": {"worker": [1, None, "x"]}}
    with opened(tmp_path) as checkpoints:
        assert checkpoints.restore(abstract(arrays)) is None
        checkpoints.save(7, arrays, position)
    with opened(tmp_path) as checkpoints:
        step, restored, found = checkpoints.restore(abstract(arrays))
    assert step == 7
    assert found == position
    assert_same(restored, arrays)


def test_a_save_survives_donated_arrays_and_changed_positions(tmp_path):
    add = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)
    arrays = {"w": jnp.zeros((1000, 1000)), "b": jnp.zeros(())}
    template, position = abstract(arrays), {"batches": 0}
    with opened(tmp_path) as checkpoints:
        for step in range(1, 5):
            checkpoints.save(step, arrays, position)
            arrays = jax.block_until_ready(add(arrays))
            position["batches"] = step
            _, restored, found = checkpoints.restore(template)
            assert [np.unique(leaf) for leaf in restored.values()] == [step - 1] * 2
            assert found == {"batches": step - 1}


@pytest.mark.parametrize(
    ("losses", "best", "kept"),
    [
        ([3.0, 1.0, 2.0, 4.0, 5.0], 2, [2, 4, 5]),
        ([float("nan"), 3.0, float("-inf"), None, float("nan")], 2, [2, 4, 5]),
        ([2.0, 2.0, 1.0, 1.0, 3.0], 3, [3, 4, 5]),
        ([None, float("nan"), None, None, None], None, [4, 5]),
    ],
)
def test_the_newest_and_the_best_are_kept(tmp_path, losses, best, kept):
    for step, loss in enumerate(losses, 1):  # reopened: the best is remembered on disk
        with opened(tmp_path) as checkpoints:
            if step > 1:
                checkpoints.restore(abstract(state_at(step - 1)))
            checkpoints.save(step, state_at(step), {})
            if loss is not None:
                checkpoints.score(step, {"loss": loss, "accuracy": 0.5})
    steps = [name for name in names(tmp_path) if name != SCORES]
    assert steps == [str(step) for step in kept]
    with opened(tmp_path) as checkpoints:
        assert checkpoints.best_step() == best
        assert checkpoints.latest_step() == 5
        if best is None:
            with pytest.raises(ConfigError, match=r"no checkpoint in .* has a finite loss"):
                checkpoints.restore(abstract(state_at(5)), which="best")
        else:
            step, restored, _ = checkpoints.restore(abstract(state_at(best)), which="best")
            assert step == best
            assert_same(restored, state_at(best))


def test_the_best_survives_a_late_score(tmp_path):
    """A checkpoint can be scored when it is older than others; steps without one cannot."""
    with opened(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state_at(1), {})
        checkpoints.score(1, {"loss": 1.0})
        checkpoints.score(7, {"loss": 0.0})
        for step in (2, 3):
            checkpoints.save(step, state_at(step), {})
            checkpoints.score(step, {"loss": 2.0})
        assert checkpoints.best_step() == 1
    assert names(tmp_path) == ["1", "3", SCORES]
    assert read_scores(tmp_path) == {1: {"loss": 1.0}, 3: {"loss": 2.0}}


def test_the_score_of_a_step_saved_again_is_forgotten(tmp_path):
    with opened(tmp_path) as checkpoints:
        checkpoints.save(1, state_at(1), {})
        checkpoints.save(2, state_at(2), {})
        checkpoints.score(2, {"loss": 1.0})
    with opened(tmp_path) as checkpoints:
        checkpoints.restore(abstract(state_at(1)), which=1)
        checkpoints.save(2, state_at(2), {})
        assert checkpoints.best_step() is None


@pytest.mark.parametrize("content", ["", "{}", "{}" + 32 * "0", "garbage"])
def test_damaged_scores_are_reported_and_harm_no_checkpoint(content, tmp_path, capsys):
    with opened(tmp_path) as checkpoints:
        checkpoints.save(1, state_at(1), {})
        checkpoints.score(1, {"loss": 1.0})
    (tmp_path / SCORES).write_text(content)
    with opened(tmp_path) as checkpoints:
        assert f"{tmp_path / SCORES} is damaged" in capsys.readouterr().err
        assert checkpoints.best_step() is None
        assert checkpoints.restore(abstract(state_at(1)))[0] == 1
        checkpoints.score(1, {"loss": 2.0})
    assert read_scores(tmp_path) == {1: {"loss": 2.0}}


def test_scores_that_cannot_be_written_raise_one_sentence(tmp_path):
    with opened(tmp_path) as checkpoints:
        save_and_wait(checkpoints, 1, state_at(1))
        with (
            files_of_at_most(10),
            pytest.raises(Failed, match=rf"a checkpoint in {tmp_path} was not .*File too large"),
        ):
            checkpoints.score(1, {"loss": 2.0})
    assert names(tmp_path) == ["1"]


def test_a_given_step_is_restored_or_reported_missing(tmp_path):
    fill(tmp_path)
    with opened(tmp_path) as checkpoints:
        assert_same(checkpoints.restore(abstract(state_at(10)), which=10)[1], state_at(10))
        with pytest.raises(ConfigError, match=r"no step 15; there are \[10, 20\]"):
            checkpoints.restore(abstract(state_at(10)), which=15)


def test_resuming_from_an_earlier_step_replaces_later_ones(tmp_path):
    fill(tmp_path, steps=(10, 20, 30), keep=3)
    with opened(tmp_path, keep=3) as checkpoints:
        with pytest.raises(ValueError, match=r"step must be above 30, .* got 15"):
            checkpoints.save(15, state_at(15), {})
        checkpoints.restore(abstract(state_at(10)), which=10)
        assert names(tmp_path) == ["10", "20", "30"]
        checkpoints.save(15, state_at(15), {})
    assert names(tmp_path) == ["10", "15"]


def training_state(k=2, width=3, dtype=jnp.float32):
    params = {"dense": {"kernel": jnp.ones((width, 2), dtype)}}
    return {"params": params, "opt_state": kadam(1e-3, k).init(params)}


@pytest.mark.parametrize(
    ("template", "config", "said"),
    [
        (
            training_state(k=3),
            CONFIG | {"k": 3},
            ["k: 2 in the checkpoint, 3 in this run"],
        ),
        (training_state(k=1), CONFIG, ["['opt_state']", "mu", "absent in this run"]),
        (
            training_state(width=5),
            CONFIG | {"model": {"width": 128, "norm": "layer", "depth": 2}},
            [
                "model.width: 64 in the checkpoint, 128 in this run",
                "model.depth: absent in the checkpoint, 2 in this run",
            ],
        ),
        (
            training_state(width=5),
            CONFIG,
            [
                "['params']['dense']['kernel']: float32[3, 2] in the checkpoint, "
                "float32[5, 2] in this run",
            ],
        ),
        (training_state(dtype=jnp.bfloat16), CONFIG, ["bfloat16[3, 2] in this run"]),
        (
            training_state(),
            CONFIG | {"sweep": []},
            ["sweep: ['seed=0,1'] in the checkpoint, [] in this run"],
        ),
        (
            training_state() | {"key": jax.random.key(0)},
            CONFIG,
            ["['key']: absent in the checkpoint, key<fry>[] in this run"],
        ),
        (
            training_state(),
            {"k": 2},
            ["model.norm: layer in the checkpoint, absent in this run", "sweep", "model.width"],
        ),
    ],
)
def test_another_runs_checkpoint_raises_with_all_differences(tmp_path, template, config, said):
    with opened(tmp_path) as checkpoints:
        checkpoints.save(1, training_state(), {})
    with opened(tmp_path, config) as checkpoints, pytest.raises(ConfigError) as refused:
        checkpoints.restore(abstract(template))
    for part in [str(tmp_path / "1"), *said]:
        assert part in str(refused.value)
    about_leaves = "\n  ['" in str(refused.value)  # leaves would hide the cause
    assert about_leaves == (config == CONFIG)
    with opened(tmp_path) as checkpoints:
        assert_same(checkpoints.restore(abstract(training_state()))[1], training_state())


def meshed(shape, *axes):
    devices = jax.devices()[: int(np.prod(shape))]
    mesh = jax.make_mesh(shape, ("members", "data"), (AxisType.Auto,) * 2, devices=devices)
    return NamedSharding(mesh, PartitionSpec(*axes))


@pytest.mark.parametrize(
    "target",
    [
        lambda: meshed((2, 4), "members", "data"),
        lambda: meshed((4, 1), None, "members"),
        lambda: meshed((1, 8)),
        lambda: SingleDeviceSharding(jax.devices()[3]),
        lambda: None,
    ],
)
def test_arrays_saved_on_eight_devices_restore_on_others(tmp_path, target):
    saved, wanted = meshed((8, 1), "members"), target()
    matrix = jax.device_put(jnp.arange(128.0).reshape(8, 16), saved)
    arrays = {
        "matrix": matrix,
        "keys": jax.device_put(jax.random.split(jax.random.key(0), (8, 4)), saved),
    }
    with opened(tmp_path) as checkpoints:
        checkpoints.save(1, arrays, {})
        _, restored, _ = checkpoints.restore(abstract(arrays, wanted))
    assert_same(restored, arrays)
    for leaf in restored.values():
        expected = wanted or SingleDeviceSharding(jax.devices()[0])
        assert leaf.sharding.is_equivalent_to(expected, leaf.ndim)


def missing(path):
    path.unlink()


def truncated(path):
    os.truncate(path, path.stat().st_size // 2)


def emptied(path):
    os.truncate(path, 0)


def garbled(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [missing, truncated, emptied, garbled])
def test_a_damaged_newest_checkpoint_is_reported_and_skipped(tmp_path, capsys, damage):
    fill(tmp_path / "whole")
    newest = tmp_path / "whole/20"
    files = [path.relative_to(newest) for path in newest.rglob("*") if path.is_file()]
    assert len(files) > 8
    reported = set()
    for number, file in enumerate(files):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", folder)
        damage(folder / "20" / file)
        with opened(folder) as checkpoints:
            # state_at(20) and state_at(10) differ in a shape, which shows what was read
            whole = checkpoint_files.damaged_file(folder / "20") is None
            step = 20 if whole else 10
            found, restored, position = checkpoints.restore(abstract(state_at(step)))
            assert (found, position) == (step, {"batches": step})
            assert_same(restored, state_at(step))
        said = capsys.readouterr().err
        if not whole:
            reported.add(file.as_posix())
            assert said.count("\n") == 1
            assert f"the checkpoint {folder / '20'} is damaged: " in said
        else:
            assert not said
    # Only orbax's own marks, which no restore reads, may be damaged without a message.
    marks = {"commit_success.txt", "_CHECKPOINT_METADATA"}
    assert {file.as_posix() for file in files if file.name not in marks} == reported


def test_training_continues_past_a_damaged_checkpoint(tmp_path, capsys):
    fill(tmp_path, steps=(10, 20))
    shutil.rmtree(tmp_path / "20/arrays")
    with opened(tmp_path) as checkpoints:
        assert checkpoints.restore(abstract(state_at(10)))[0] == 10
        checkpoints.save(20, state_at(20), {"batches": 20})
    with opened(tmp_path) as checkpoints:
        assert_same(checkpoints.restore(abstract(state_at(20)))[1], state_at(20))
    assert names(tmp_path) == ["10", "20"]
    assert capsys.readouterr().err.count("is damaged") == 1


def test_no_intact_checkpoint_raises_one_error(tmp_path, capsys):
    fill(tmp_path)
    shutil.rmtree(tmp_path / "20/run")
    emptied(tmp_path / "10/arrays/_METADATA")
    with opened(tmp_path) as checkpoints:
        with pytest.raises(
            DamagedFile, match="no intact checkpoint, steps tried: 20, 10; start over"
        ):
            checkpoints.restore(abstract(state_at(10)))
        assert checkpoints.best_step() is None
    assert capsys.readouterr().err.count("\n") == 2


def test_the_next_best_replaces_a_damaged_best(tmp_path):
    with opened(tmp_path, keep=3) as checkpoints:
        for step, loss in [(1, 2.0), (2, 1.0), (3, 3.0)]:
            checkpoints.save(step, state_at(step), {})
            checkpoints.score(step, {"loss": loss})
    garbled(next((tmp_path / "2/arrays/d").iterdir()))
    with opened(tmp_path, keep=3) as checkpoints:
        assert checkpoints.restore(abstract(state_at(1)), which="best")[0] == 1


@pytest.mark.parametrize("foreign", ["notes.txt", "7", "7/thesis.tex", "backup/20/arrays/x"])
def test_something_else_in_the_folder_is_named(tmp_path, foreign):
    fill(tmp_path)
    path = tmp_path / foreign
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    name = foreign.split("/")[0]
    with pytest.raises(ConfigError, match=f"{tmp_path / name} is not a checkpoint"):
        Checkpoints(tmp_path, config=CONFIG)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("below", ["", "run/checkpoints"])
def test_an_impossible_folder_is_named(tmp_path, below):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / below
    with pytest.raises(Failed, match=rf"{folder} cannot be written to \((File exists|Not a dir)"):
        Checkpoints(folder, config=CONFIG)


def test_a_forbidden_folder_is_named(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(Failed, match=r"cannot be written to \(Permission denied\)"):
        Checkpoints(tmp_path / "run", config=CONFIG)


def save_and_wait(checkpoints, step, arrays):
    checkpoints.save(step, arrays, {})
    checkpoints.wait()


@contextlib.contextmanager
def files_of_at_most(num_bytes):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def full_disk():
    def refuse(folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_files, "_write_checksums", refuse)
        yield


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [(full_disk, "No space left on device"), (lambda: files_of_at_most(200_000), "File too large")],
)
def test_a_full_disk_raises_and_leaves_nothing_half_written(
    tmp_path, capfd, caplog, trouble, reason
):
    noise = np.random.default_rng(0).normal(size=(8, 100_000))  # all of them fail
    large = {str(number): jnp.asarray(row, jnp.float32) for number, row in enumerate(noise)}
    with opened(tmp_path, keep=1) as checkpoints:
        save_and_wait(checkpoints, 1, large)
        with trouble():
            with pytest.raises(Failed, match=rf"a checkpoint in {tmp_path} was not .*{reason}"):
                save_and_wait(checkpoints, 2, large)
            assert names(tmp_path) == ["1"]
        assert checkpoints.latest_step() == 1
        assert checkpoints.best_step() is None
        assert_same(checkpoints.restore(abstract(large))[1], large)
        checkpoints.save(2, large, {})
    assert names(tmp_path) == ["2"]
    assert "Traceback" not in capfd.readouterr().err
    assert not [record for record in caplog.records if record.exc_info]


def test_late_files_of_a_failed_write_are_removed(tmp_path):
    """Threads that have not noticed recreate the folder, or fill it while it is being removed."""
    (tmp_path / "1").mkdir()

    def write():
        for place in range(40):
            with contextlib.suppress(FileNotFoundError):
                half = tmp_path / "2.orbax-checkpoint-tmp" / "arrays"
                half.mkdir(parents=True, exist_ok=True)
                (half / str(place)).write_bytes(b"")
            time.sleep(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    checkpoint_files.remove_unfinished(tmp_path)
    writer.join()
    assert names(tmp_path) == ["1"]


def test_a_vanished_folder_raises_one_sentence(tmp_path):
    folder = tmp_path / "run"
    with opened(folder) as checkpoints:
        shutil.rmtree(folder)
        folder.write_text("a file")
        with pytest.raises(Failed, match=f"a checkpoint in {folder} was not written: "):
            save_and_wait(checkpoints, 1, state_at(1))
    assert folder.read_text() == "a file"


def test_a_position_that_is_not_json_raises_type_error(tmp_path):
    with opened(tmp_path) as checkpoints:
        with pytest.raises(TypeError, match="not JSON serializable"):
            checkpoints.save(1, state_at(1), {"batches": object()})
        assert checkpoints.latest_step() is None


@pytest.mark.parametrize("keep", [0, 1.5])
def test_an_option_out_of_range_is_named(tmp_path, keep):
    with pytest.raises(ValueError, match=f"keep must be an integer of at least 1, got {keep}"):
        Checkpoints(tmp_path, config=CONFIG, keep=keep)


@pytest.mark.parametrize("step", [-1, 1.5, "1", None])
def test_a_step_that_is_not_a_number_of_steps_raises(tmp_path, step):
    with (
        opened(tmp_path) as checkpoints,
        pytest.raises(ValueError, match=f"step must be an integer .* got {step!r}"),
    ):
        checkpoints.save(step, state_at(1), {})
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "leaf",
    [3.0, "x", np.array(["x"]), np.array([object()]), np.zeros(2, np.float64)],
    ids=["number", "string", "strings", "objects", "float64"],
)
def test_a_leaf_that_would_not_come_back_the_same_is_named(tmp_path, leaf):
    with (
        opened(tmp_path) as checkpoints,
        pytest.raises(TypeError, match=r"leaf \['a'\]\['b'\] must be an array, got "),
    ):
        checkpoints.save(1, {"a": {"b": leaf}, "c": jnp.ones(2)}, {})
    assert names(tmp_path) == []


@pytest.mark.parametrize("arrays", [{}, {"a": None}, (), jnp.zeros((0, 2))], ids=str)
def test_arrays_without_an_entry_raise(tmp_path, arrays):
    with (
        opened(tmp_path) as checkpoints,
        pytest.raises(ValueError, match="arrays must have an entry"),
    ):
        checkpoints.save(1, arrays, {})
    assert names(tmp_path) == []


def test_checksums_are_those_of_the_files(tmp_path):
    fill(tmp_path, steps=(1,))
    for item in checkpoint_files.ITEMS:
        folder = tmp_path / "1" / item
        checksums = json.loads((folder / checkpoint_files.CHECKSUMS).read_text())
        for name, checksum in checksums.items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == checksum


def test_ten_random_kills_each_leave_an_intact_checkpoint(tmp_path):
    command = [sys.executable, "-m", "tests.train.saver", str(tmp_path)]
    environment = {**os.environ, "XLA_FLAGS": ""}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    rng, saved, interrupted = np.random.default_rng(0), 0, 0
    with subprocess.Popen(command, env=environment, **pipes) as process:
        for delay in rng.uniform(0, 0.3, size=10):
            process.stdin.write("again\n")
            pid, start = (int(process.stdout.readline()) for _ in range(2))
            assert start >= saved
            saved = [int(process.stdout.readline()) for _ in range(2)][-1]  # one is complete
            time.sleep(delay)
            os.kill(pid, signal.SIGKILL)
            for line in iter(process.stdout.readline, "killed\n"):
                saved = int(line)
            interrupted += any(".orbax-checkpoint-tmp" in name for name in names(tmp_path))
            with opened(tmp_path, saver.CONFIG) as checkpoints:
                step, arrays, position = checkpoints.restore(saver.template())
                assert step >= saved
                assert position == {"step": step}
                assert_same(arrays, saver.arrays_at(step))
                best, arrays, _ = checkpoints.restore(saver.template(), which="best")
                assert_same(arrays, saver.arrays_at(best))
        process.stdin.close()
    assert interrupted > 0
