"""core/processes.py: processes fail together, and those that are not found are named."""

import jax
import numpy as np
import pytest

from experiments.core import processes
from experiments.core.errors import ConfigError
from experiments.core.errors import Failed
from experiments.core.processes import start_processes, together


def fail():
    raise OSError("no disk")


@pytest.mark.parametrize(
    ("act", "others_failed", "raised", "message"),
    [
        (lambda: "data", [False, False], None, ""),
        (lambda: "data", [False, True], Failed, "process 2 of this run has failed; it says why"),
        (fail, [False, False], OSError, "no disk"),
        (fail, [True, True], OSError, "no disk"),
    ],
)
def test_what_fails_in_one_process_fails_in_all(act, others_failed, raised, message, monkeypatch):
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


def test_a_single_process_waits_for_nobody():
    assert together(lambda: "data") == "data"
    with pytest.raises(OSError, match="no disk"):
        together(fail)


@pytest.mark.parametrize("address", ["host", "host:", ":1", "host:port"])
def test_an_address_without_host_or_port_is_refused(address):
    with pytest.raises(ConfigError, match=f"--coordinator {address}: give HOST:PORT"):
        start_processes(address, 1, 0)


@pytest.mark.parametrize("number", ["two", "", "-1"])
def test_processes_that_are_not_found_are_a_sentence(number, monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", number)
    with pytest.raises(ConfigError, match=r"do not find each other .* --coordinator"):
        start_processes("127.0.0.1:1", None, 0)
