"""reproduce/reissue.py: committed datasets keep their arrays only if numbers are the same."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
import xarray as xr

from experiments.core.errors import Failed
from experiments.core.store import read_dataset, write_dataset
from experiments.figures import discover
from experiments.reproduce import pipeline, reissue
from experiments.reproduce.commit import commit
from experiments.reproduce.pipeline import place, run_figure

PLANE = discover()["stability_plane"]
DEVICES = jax.devices()[:1]
BEFORE = "b" * 40


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A folder in which the previous code has computed and committed its smoke dataset."""
    folder = tmp_path_factory.mktemp("previous")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "COMMITTED", folder / "committed")
        patch.setattr(pipeline, "code_digest", lambda folder: "before")
        where = place(folder / "before", PLANE, "smoke")
        dataset, _ = run_figure(where, PLANE.presets["smoke"], DEVICES)
        write_dataset(where.dataset, dataset.assign_attrs(git_commit=BEFORE, rules="of before"))
        commit(where)
    return folder


@pytest.fixture
def committed(before, tmp_path, monkeypatch):
    """The committed smoke dataset of the previous code, which is also in its results folder."""
    shutil.copytree(before, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(pipeline, "COMMITTED", tmp_path / "committed")
    monkeypatch.setattr(reissue, "git_commit", lambda: "a" * 40)
    return place(tmp_path / "before", PLANE, "smoke")


def reissued(where, figure=PLANE):
    now = where.folder.parents[2] / "now"
    places = [place(now, figure, "smoke")]
    return list(reissue.reissue(places, now, where.folder.parents[1], DEVICES))


def test_equal_numbers_keep_their_arrays_under_the_new_key(committed):
    old = read_dataset(committed.committed)
    assert reissued(committed) == [committed.committed]
    new = read_dataset(committed.committed)
    xr.testing.assert_identical(new.drop_attrs(deep=False), old.drop_attrs(deep=False))
    now = read_dataset(place(committed.folder.parents[2] / "now", PLANE, "smoke").dataset)
    for name in ("key", "key_parts", "rules", "claims_commit"):
        assert new.attrs[name] == now.attrs[name] != old.attrs[name] or name == "claims_commit"
    changed = {name for name in new.attrs if new.attrs[name] != old.attrs.get(name)}
    assert changed <= {"key", "key_parts", "rules", "claims_commit", "reissued"}
    assert new.attrs["git_commit"] == BEFORE
    assert new.attrs["reissued"] == f"{'a' * 40}, equal at smoke size to {BEFORE}"


def test_labels_follow_unless_they_are_the_presets_own(committed):
    current = read_dataset(committed.committed).C.long_name
    for path in (committed.dataset, committed.committed):
        dataset = read_dataset(path)
        dataset.C.attrs["long_name"] = "old words"
        if path == committed.committed:
            dataset.level_b1.attrs["long_name"] = "K = 100"
        write_dataset(path, dataset)
    reissued(committed)
    new = read_dataset(committed.committed)
    assert (new.C.long_name, new.level_b1.long_name) == (current, "K = 100")


@pytest.mark.parametrize("name", ["C", "exact_growth_rate", "level_b1"])
def test_a_single_different_bit_is_refused(committed, name):
    dataset, content = read_dataset(committed.dataset), committed.committed.read_bytes()
    values = dataset[name].values
    values.flat[0] = np.nextafter(values.flat[0], np.inf, dtype=values.dtype)
    write_dataset(committed.dataset, dataset)
    with pytest.raises(Failed, match=f"stability_plane: {name}: 1 of {values.size} values"):
        reissued(committed)
    assert committed.committed.read_bytes() == content


def test_another_preset_is_refused(committed):
    presets = {**PLANE.presets, "laptop": PLANE.presets["smoke"]}
    smoke = dataclasses.replace(PLANE.presets["smoke"], num_grid=41)
    with pytest.raises(Failed, match=r"attribute config.*has another configuration"):
        reissued(committed, dataclasses.replace(PLANE, presets={**presets, "smoke": smoke}))


def test_uncommitted_code_has_no_key_to_give(committed, monkeypatch):
    monkeypatch.setattr(reissue, "git_commit", lambda: "a" * 40 + "+dirty")
    with pytest.raises(Failed, match="commit what has changed first"):
        reissued(committed)


def test_signs_of_zero_are_differences_and_labels_are_not():
    old = xr.Dataset({"x": ("n", np.array([0.0, np.nan]), {"units": "1"}), "t": ("n", ["a", "b"])})
    assert reissue.differences(old, old.assign(x=old.x.assign_attrs(units="m"))) == []
    signed = old.assign(x=("n", np.array([-0.0, np.nan]), {"units": "1"}))
    assert reissue.differences(old, signed) == ["x: 1 of 2 values, by at most 0"]
    for other, how in (
        (old.assign(x=old.x.astype(np.float32)), "x: another shape or type"),
        (old.assign(t=("n", ["a", "c"])), "t: other values"),
        (old.assign_attrs(config=json.dumps({})), "attribute config"),
    ):
        assert reissue.differences(old, other) == [how]
