"""The results that come with the code: complete, from the current presets, and judged."""

import collections
import dataclasses

import jax
import numpy as np
import pytest
import xarray as xr

from experiments.core.claims import INCONCLUSIVE
from experiments.core.config import to_json
from experiments.core.errors import Failed
from experiments.core.store import read_dataset
from experiments.figures import discover
from experiments.reproduce import pipeline
from experiments.reproduce.commit import BITS, LARGE, commit, rounded
from experiments.reproduce.pipeline import place, run_figure
from tests.committed import PATHS, attrs_and_judgments
from tests.figures.contract import CLAIMS

FIGURES = discover()
PLANE = FIGURES["stability_plane"]


def test_exactly_the_figures_have_laptop_results():
    assert [path.stem for path in PATHS if path.parent.name == "laptop"] == sorted(FIGURES)
    sizes = collections.Counter()
    for path in PATHS:
        sizes[path.parent.name] += path.stat().st_size
    limits = {"laptop": 8e6, "evening": 12e6}  # bytes
    assert {*sizes} <= {*limits}
    assert all(sizes[preset] < limit for preset, limit in limits.items())


def test_decided_verdicts_that_another_preset_changes_have_a_reason():
    verdicts = collections.defaultdict(dict)
    for path in PATHS:
        for claim, judgment in attrs_and_judgments(path)[1].items():
            verdicts[claim][path.parent.name] = judgment.verdict
    changed = {
        claim
        for claim, of in verdicts.items()
        if of["laptop"] != INCONCLUSIVE and of["laptop"] != of.get("evening", of["laptop"])
    }
    assert changed == {claim.id for claim in CLAIMS if claim.scale}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_committed_results_have_the_current_preset_and_verdicts(path):
    attrs, judgments = attrs_and_judgments(path)
    assert attrs["config"] == to_json(FIGURES[path.stem].presets[path.parent.name])
    assert attrs["preset"] == path.parent.name
    assert "dirty" not in attrs["git_commit"] + attrs["claims_commit"]
    assert all(judgment.verdict for judgment in judgments.values())


@pytest.fixture
def where(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "COMMITTED", tmp_path / "committed")
    return place(tmp_path, PLANE, "smoke")


def test_committed_arrays_are_nearly_those_computed(where):
    whole, _ = run_figure(where, PLANE.presets["smoke"], jax.devices()[:1])
    committed = read_dataset(commit(where))
    assert committed.sizes == whole.sizes
    xr.testing.assert_allclose(committed, rounded(whole))
    for name, array in whole.data_vars.items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(committed[name], array, rtol=2.0**-BITS)
            assert (committed[name] == array).all() or array.nbytes > LARGE


def test_values_that_are_not_finite_do_not_change():
    values = np.tile([np.nan, np.inf, -np.inf, 0.0, -1.0], 2000)
    np.testing.assert_array_equal(rounded(xr.Dataset({"x": ("n", values)})).x, values)


def test_only_the_preset_itself_is_committed(where):
    with pytest.raises(FileNotFoundError, match="run it first"):
        commit(where)
    config = dataclasses.replace(PLANE.presets["smoke"], num_grid=10)
    run_figure(where, config, jax.devices()[:1])
    with pytest.raises(Failed, match="num_grid=10"):
        commit(where)
    assert not where.committed.exists()
