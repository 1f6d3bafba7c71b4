"""reproduce/merge.py: shares of a run on several machines, and results that do not fit."""

import json
import shutil
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from experiments.core import plot as plotting
from experiments.core.config import FigureConfig
from experiments.core.errors import Failed
from experiments.core.figure import Figure
from experiments.core.run import ALL, Incomplete, Share
from experiments.core.store import DamagedFile, read_dataset
from experiments.reproduce import pipeline
from experiments.reproduce.merge import merge
from experiments.reproduce.pipeline import place, run_figure
from kadam_jax.members import points

DEVICES = jax.devices()[:1]


@dataclass(frozen=True)
class Config(FigureConfig):
    """Seven members in chunks of two.

    Attributes:
      factor: What changes every number.
    """

    factor: float = 1.0


def compute(config, run):
    y = run.sweep(
        "main",
        lambda member: {"y": config.factor * jnp.sin(member["x"])},
        points(x=np.arange(7, dtype=np.float32)),
        chunk_size=2,
    )["y"]
    return xr.Dataset({"y": ("member", y, {"long_name": "y", "units": "1"})})


def plot(dataset):
    canvas, axes = plotting.canvas(2, 2)
    axes.plot(dataset.y)
    return {"": canvas}


FIGURE = Figure(
    "shared", "Shared", "not in the paper", "", {"smoke": Config()}, compute, plot, minimum={}
)
FIGURES = {"shared": FIGURE}


def run(results, share=ALL, **changes):
    config = replace(Config(), **changes)
    where = place(results, FIGURE, "smoke")
    return run_figure(where, config, DEVICES, share=share)


def start(results, share, **changes):
    with pytest.raises(Incomplete, match="merge the results of the other shares"):
        run(results, Share.parse(share), **changes)


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "-1/2", "a/b", "1/2/3", "1.0/2"])
def test_what_is_no_share_is_refused(text):
    with pytest.raises(ValueError, match="write I/N with 1 <= I <= N"):
        Share.parse(text)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shares_are_disjoint_and_together_all(count):
    starts = range(0, 20, 2)
    parts = [Share(index, count).of(starts) for index in range(count)]
    assert sorted(start for part in parts for start in part) == list(starts)


def test_shares_of_several_machines_give_the_dataset_of_one(tmp_path):
    whole, _ = run(tmp_path / "whole")
    start(tmp_path / "a", "1/3")
    start(tmp_path / "b", "2/3")
    with pytest.raises(Incomplete, match="1 of 4 chunks"):
        run(tmp_path / "c", Share.parse("3/3"))
    for other in "bc":
        assert merge(tmp_path / other, tmp_path / "a", FIGURES)
    joined, reused = run(tmp_path / "a", Share.parse("1/3"))
    assert not reused
    xr.testing.assert_equal(joined, whole)
    assert not list((tmp_path / "a").rglob("*.npz"))


def test_a_second_merge_does_nothing_and_a_finished_dataset_is_taken_over(tmp_path):
    dataset, _ = run(tmp_path / "a")
    (written,) = merge(tmp_path / "a", tmp_path / "b", FIGURES)
    xr.testing.assert_identical(read_dataset(written), dataset)
    assert merge(tmp_path / "a", tmp_path / "b", FIGURES) == []
    start(tmp_path / "c", "1/2")
    assert merge(tmp_path / "c", tmp_path / "b", FIGURES) == []  # it is finished here


def test_what_an_older_run_left_does_not_stand_between_shares(tmp_path):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    run(mine, factor=2.0)  # finished, and three that were interrupted: one sorts before the next
    for factor in (3.0, 4.0, 5.0):
        start(mine, "1/2", factor=factor)
    start(mine, "1/2")
    start(theirs, "2/2")
    assert merge(theirs, mine, FIGURES)
    merged, _ = run(mine)
    alone, _ = run(tmp_path / "alone")
    xr.testing.assert_equal(merged, alone)
    assert not list(mine.rglob(f"chunks/{merged.attrs['key']}"))


def test_a_finished_dataset_does_not_replace_another(tmp_path):
    run(tmp_path / "mine", factor=2.0)
    start(tmp_path / "mine", "1/2")
    run(tmp_path / "theirs")
    before = files(tmp_path / "mine")
    with pytest.raises(Failed, match=r"data\.nc: they differ in the configuration"):
        merge(tmp_path / "theirs", tmp_path / "mine", FIGURES)
    assert files(tmp_path / "mine") == before


def rewritten(name, value):
    """Changes an entry of every identity.json below a folder."""

    def change(folder):
        for path in folder.rglob("identity.json"):
            path.write_text(json.dumps(json.loads(path.read_text()) | {name: value, "key": "x"}))

    return change


@pytest.mark.parametrize(
    ("share", "changes", "damage", "error", "message"),
    [
        ("1/1", {"factor": 2.0}, None, Failed, "they differ in the configuration"),
        ("1/2", {"factor": 2.0}, None, Failed, "they differ in the configuration"),
        ("1/2", {}, rewritten("data_sha256", "other"), Failed, "differ in the data's hash"),
        ("1/2", {}, rewritten("x", "other"), Failed, "code or the versions"),
        ("1/2", {}, rewritten("schema", 0), DamagedFile, "has schema 0, this version reads 1"),
    ],
)
def test_what_does_not_belong_together_is_refused_and_nothing_is_written(
    tmp_path, share, changes, damage, error, message
):
    start(tmp_path / "mine", "2/2")
    before = files(tmp_path / "mine")
    if share == "1/1":
        run(tmp_path / "theirs", **changes)
    else:
        start(tmp_path / "theirs", share, **changes)
    if damage:
        damage(tmp_path / "theirs")
    with pytest.raises(error, match=message):
        merge(tmp_path / "theirs", tmp_path / "mine", FIGURES)
    assert files(tmp_path / "mine") == before


def test_foreign_damaged_and_missing_results_are_refused_by_name(tmp_path):
    with pytest.raises(Failed, match="nowhere holds no results"):
        merge(tmp_path / "nowhere", tmp_path / "mine", FIGURES)
    run(tmp_path / "a")
    with pytest.raises(Failed, match="of a figure that this version does not have"):
        merge(tmp_path / "a", tmp_path / "mine", {})
    shutil.copytree(tmp_path / "a" / "smoke", tmp_path / "renamed" / "old")
    with pytest.raises(Failed, match="is of no preset; there are smoke, laptop, paper"):
        merge(tmp_path / "renamed", tmp_path / "mine", FIGURES)
    path = tmp_path / "a" / "smoke" / "shared" / "data.nc"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedFile, match=r"data\.nc is damaged"):
        merge(tmp_path / "a", tmp_path / "mine", FIGURES)
    assert not (tmp_path / "mine").exists()


def test_a_dataset_of_another_schema_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.core.store.SCHEMA", 0)
    run(tmp_path)
    monkeypatch.undo()
    with pytest.raises(DamagedFile, match=r"data\.nc has schema 0, this version reads 1"):
        read_dataset(tmp_path / "smoke" / "shared" / "data.nc")
    assert pipeline._finished(place(tmp_path, FIGURE, "smoke"), "key", {}) is None
