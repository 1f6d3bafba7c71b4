"""core/processes.py: processes fail together, and missing ones give a message."""

import re

import jax
import numpy as np
import pytest

from experiments.core import processes
from experiments.core.errors import ConfigError, Failed
from experiments.core.processes import start_processes, together
from tests.several import start


def fail():
    raise OSError("no disk")


@pytest.mark.parametrize(
    ("act", "others_failed", "raised", "message"),
    [
        (lambda: "data", [False, False], None, ""),
        (lambda: "data", [False, True], Failed, "process 2 of this run has failed; see its output"),
        (fail, [False, False], OSError, "no disk"),
        (fail, [True, True], OSError, "no disk"),
    ],
)
def test_a_failure_in_one_process_is_one_in_all(act, others_failed, raised, message, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    monkeypatch.setattr(
        processes.multihost_utils,
        "process_allgather",
        lambda failed: np.array([failed, *others_failed]),
    )
    if raised is None:
        assert together(act) == "data"
    else:
        with pytest.raises(raised, match=message):
            together(act)


def test_a_single_process_does_not_wait():
    assert together(lambda: "data") == "data"
    with pytest.raises(OSError, match="no disk"):
        together(fail)


@pytest.mark.parametrize(
    "address", ["host", "host:", ":1", "host:port", "host:0", "host:65536", "host:٣"]
)
def test_an_address_without_host_or_port_is_refused(address):
    with pytest.raises(ConfigError, match=f"--coordinator {address}: give HOST:PORT"):
        start_processes(address, 1, 0)


@pytest.mark.parametrize("number", ["two", "", "-1", "2147483648"])
def test_processes_that_are_not_found_give_one_message(number, monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", number)
    with pytest.raises(ConfigError, match=r"cannot find each other .* --coordinator"):
        start_processes("127.0.0.1:1", None, 0)


# Run by two processes; at the end only the second one fails.
PROGRAM = """
import sys
from pathlib import Path
import jax, numpy as np
from experiments.core import processes
from experiments.core.errors import Failed
from experiments.core.processes import from_first, in_turn, is_first, joined

processes.LEAVING_SECONDS = 1.0
file, _, address, _, num, _, index = sys.argv[1:]
file, index = Path(file), int(index)

def fail():
    raise OSError("no disk")

with joined(False, address, int(num), index):
    print(from_first(lambda: {"process": index, "array": np.arange(1000)})["array"].sum())
    print(in_turn(lambda: file.read_text() if file.exists() else file.write_text("by the first")))
    try:
        from_first(fail)
    except (OSError, Failed) as error:
        print(error)
    if not is_first():
        raise KeyError("alone")
    from_first(lambda: None)
"""


def test_processes_communicate_and_one_failure_ends_the_other(tmp_path):
    program = ("-c", PROGRAM, str(tmp_path / "file"))
    (code, said, why), (other_code, other_said, other_why) = start(program, program)
    failed = "process 0 of this run has failed; see its output"
    assert re.sub(r"\[Gloo\].*\n", "", said) == "499500\n12\nno disk\n"
    assert re.sub(r"\[Gloo\].*\n", "", other_said) == f"499500\nby the first\n{failed}\n"
    assert (code, other_code) == (1, 1)
    assert "Failed: another process of this run has ended" in why
    assert "KeyError: 'alone'" in other_why
