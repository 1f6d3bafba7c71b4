"""A figure on several processes: the bits of one process, and only one writes."""

import signal

import jax
import pytest

from experiments.core.errors import Failed
from experiments.core.store import read_dataset
from experiments.reproduce import pipeline
from experiments.reproduce.pipeline import place, run_figure
from experiments.reproduce.reissue import differences
from tests.reproduce.toy_figure import FIGURE, PRESETS
from tests.several import start

TOY = ("-m", "tests.reproduce.toy_figure")


def test_two_processes_continue_a_figure_to_the_bits_of_one(tmp_path):
    one, two, unused = (place(tmp_path / name, FIGURE, "smoke") for name in ("1", "2", "unused"))
    options = ("--preset", "smoke", "--devices", "2", "--results")
    folders = [(*options, str(tmp_path / name)) for name in ("2", "unused")]
    first, second = start(*((*TOY, "die", "run", "toy", *folder) for folder in folders))
    assert (first[0], second[0] != 0) == (-signal.SIGTERM, True), (first, second)
    assert [path.name for path in two.folder.glob("chunks/*/*")] == ["main-000000.npz"]

    first, second = start(*((*TOY, "reproduce", *folder) for folder in folders))
    assert (first[0], second[0]) == (0, 0), (first, second)
    assert "main: 1 finished chunks found" in first[2]
    assert first[1].endswith("report-smoke.html\n")
    assert ("toy" in second[1], "toy" in second[2]) == (False, False), second
    assert not unused.folder.exists()

    run_figure(one, PRESETS["smoke"], jax.devices()[:4])
    assert differences(read_dataset(one.dataset), read_dataset(two.dataset)) == []
    assert {path.name for path in one.folder.iterdir()} == {
        path.name for path in two.folder.iterdir()
    }


def test_processes_that_differ_in_their_figure_are_refused(monkeypatch):
    first = {"figure": "toy", "code": "a", "versions": "b"}
    monkeypatch.setattr(pipeline, "from_first", lambda act: first)
    pipeline._check_same("toy", {"code": "a", "versions": "b"})
    with pytest.raises(Failed, match="differs from process 0 in code and versions; give all"):
        pipeline._check_same("toy", {"code": "b", "versions": "a"})
    with pytest.raises(Failed, match="in figure"):
        pipeline._check_same("max_update", {"code": "a", "versions": "b"})
