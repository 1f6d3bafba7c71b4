"""Each figure's smallest dataset, computed once for all tests and all workers."""

import fcntl
import os
import pickle

import pytest

from tests.figures.contract import SMALL_NETWORK


@pytest.fixture(scope="session")
def computed(tmp_path_factory):
    """`computed(contract)` returns a copy of a figure's smallest dataset."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the workers share it

    def dataset(contract):
        path = folder / f"{contract.figure.name}.pickle"
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                data = contract.compute(tmp_path_factory.mktemp(contract.figure.name))
                path.write_bytes(pickle.dumps(data))
        return pickle.loads(path.read_bytes())

    return dataset


@pytest.fixture(scope="module")
def data(request, computed):
    """The smallest dataset of the figure that the module tests."""
    return computed(request.module.CONTRACT)


@pytest.fixture
def small_network(monkeypatch):
    """nanoGPT and the CNN are replaced by networks that compile quickly."""
    for name, stand_in in SMALL_NETWORK.items():
        monkeypatch.setattr(name, stand_in)
