"""Orbax without our `Checkpoints`: each test is the reason for one of its guards."""

import contextlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import SingleDeviceSharding

from tests.train import orbax_alone
from tests.train.orbax_alone import TREE, manager, save
from tests.train.test_checkpoints import names

PROGRAM = [sys.executable, "-m", orbax_alone.__name__]


def restored(opened, step, shape=(30, 50), dtype=jnp.float32):
    where = SingleDeviceSharding(jax.devices()[0])
    template = {"w": jax.ShapeDtypeStruct(shape, dtype, sharding=where)}
    return opened.restore(step, args=ocp.args.StandardRestore(template))["w"]


def test_a_flipped_bit_is_restored_as_another_number(tmp_path):
    with manager(tmp_path / "whole") as opened:
        save(opened, 1)
    files = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("d/*")]
    wrong = 0
    for number, file in enumerate(files):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", folder)
        content = bytearray((folder / file).read_bytes())
        content[len(content) // 2] ^= 0x10
        (folder / file).write_bytes(content)
        with manager(folder) as opened, contextlib.suppress(Exception):
            wrong += not np.array_equal(restored(opened, 1), TREE["w"])
    assert wrong


def test_another_dtype_is_a_cast(tmp_path):
    with manager(tmp_path) as opened:
        save(opened, 1)
        assert restored(opened, 1, dtype=jnp.bfloat16).dtype == jnp.bfloat16


def test_float64_comes_back_as_float32(tmp_path):
    with manager(tmp_path) as opened:
        save(opened, 1, {"w": np.array([0.1])})
        assert restored(opened, 1, (1,), np.float64).dtype == jnp.float32


def test_empty_arrays_are_refused(tmp_path):
    """If writes are asynchronous, a thread also keeps the process from ending for ten minutes."""
    synchronous = manager(tmp_path, enable_async_checkpointing=False)
    with synchronous as opened, pytest.raises(ValueError, match="zero size"):
        save(opened, 1, {"w": jnp.zeros((0, 3))})


def test_a_folder_of_something_else_is_removed_as_an_old_step(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7/thesis.tex").write_text("mine")
    with manager(tmp_path, max_to_keep=1) as opened:
        assert opened.latest_step() == 7
        save(opened, 8)
    assert names(tmp_path) == ["8"]


def test_an_earlier_step_is_not_saved_and_a_negative_one_is(tmp_path):
    with manager(tmp_path) as opened:
        assert save(opened, -1)
        assert save(opened, 5)
        assert not save(opened, 3)
        assert not save(opened, 5.5)


def test_a_failed_write_leaves_files_forgets_steps_and_logs_tracebacks(tmp_path):
    """Whether tasks complain of a closed event loop too depends on which thread fails last."""
    command = [*PROGRAM, "failing", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "['1', '2.orbax-checkpoint-tmp'] None\n"
    assert "Traceback" in done.stderr


def test_a_process_whose_folder_has_vanished_does_not_end(tmp_path):
    command = [*PROGRAM, "vanished", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "failed\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        process.kill()
