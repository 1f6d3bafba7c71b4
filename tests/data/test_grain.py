"""Grain without our `Batches`: each test is the reason for one of its guards."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import grain
import pytest
from packaging.version import Version

PROGRAM = """
import multiprocessing, sys, time
import absl.flags, grain

def batches():
    numbers = grain.MapDataset.range(100).batch(3)
    options = grain.multiprocessing.MultiprocessingOptions(num_workers=1)
    return iter(numbers.to_iter_dataset(grain.ReadOptions(0, 0)).mp_prefetch(options))

if __name__ == "__main__":
    if sys.argv[1] != "unparsed":
        absl.flags.FLAGS.mark_as_parsed()
    running = batches()
    batch = next(running)
    print(batch.flags.owndata, *[child.pid for child in multiprocessing.active_children()])
    sys.stdout.flush()
    time.sleep(1000 if sys.argv[1] == "killed" else 0)
"""


@pytest.fixture
def start(tmp_path):
    """`start(case)` is grain alone, with one worker, in a process of its own."""
    (tmp_path / "program.py").write_text(PROGRAM)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return lambda case: subprocess.Popen([sys.executable, tmp_path / "program.py", case], **pipes)


@pytest.mark.skipif(Version(grain.__version__) < Version("0.2.17"), reason="reads no flag")
def test_workers_need_absls_flags_to_be_parsed(start):
    errors = start("unparsed").communicate(timeout=100)[1]
    assert "UnparsedFlagAccessError" in errors


def test_batches_are_in_memory_that_their_iterator_owns(start):
    """Nobody closes the iterator here, so it ends after the modules that it needs."""
    printed, errors = start("ended").communicate(timeout=100)
    assert printed.startswith("False ")
    assert "AttributeError: 'NoneType' object has no attribute" in errors


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_outlive_a_killed_process(start):
    with start("killed") as process:
        worker = int(process.stdout.readline().split()[1])
        process.kill()
        process.wait()
        time.sleep(3)
        alive = Path(f"/proc/{worker}").exists()
        if alive:
            os.kill(worker, signal.SIGKILL)
    assert alive
