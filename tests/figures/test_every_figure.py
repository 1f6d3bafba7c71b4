"""The contract of all figures; a figure's own facts are the `CONTRACT` of its test module."""

import dataclasses
import functools
import importlib
import io
import re

import jax
import numpy as np
import pytest
import xarray as xr

from experiments.core import plot as plotting
from experiments.core.claims import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, judge
from experiments.core.config import to_json
from experiments.core.errors import ConfigError
from experiments.core.run import Run
from experiments.core.store import ChunkStore
from experiments.data import load_corpus
from experiments.data.images import load_images
from experiments.figures import discover
from experiments.training.config import ImagesConfig, TrainingConfig

FIGURES = discover()
each_figure = pytest.mark.parametrize("name", FIGURES)


def contract_of(name):
    family = FIGURES[name].compute.__module__.split(".")[2]
    return importlib.import_module(f"tests.figures.{family}.test_{name}").CONTRACT


# Configurations


@each_figure
def test_invalid_configurations_are_refused(name):
    contract = contract_of(name)
    assert contract.figure is FIGURES[name]
    assert contract.refused
    assert not [bad for bad in contract.refused if not refuses(contract.config, bad)]


def refuses(config, bad):
    changes, message = bad if isinstance(bad, tuple) else (bad, next(iter(bad)))
    try:
        dataclasses.replace(config, **changes)
    except ConfigError as error:
        return re.search(message, str(error))


# Claims


@each_figure
def test_every_claim_has_cases(name):
    claims, contract = FIGURES[name].claims, contract_of(name)
    assert list(contract.cases) == [claim.id for claim in claims]
    assert {len(cases) for cases in contract.cases.values()} <= {2, 3}


@each_figure
def test_claims_follow_the_data_if_there_are_enough(name):
    figure, contract, made = FIGURES[name], contract_of(name), {}
    for claim in figure.claims:
        minimum = {**figure.minimum, **claim.minimum}
        assert minimum, f"{claim.id} needs a minimum, or even the smallest dataset decides it"
        field = "num_seeds" if "num_seeds" in minimum else next(iter(minimum))
        enough = dataclasses.replace(figure.presets["laptop"], **claim.minimum)
        few = dataclasses.replace(enough, **{field: minimum[field] - 1})
        verdicts = (SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE)
        for given, verdict in zip(contract.cases[claim.id], verdicts, strict=False):
            if repr(given) not in made:
                made[repr(given)] = contract.made_up(**given)
            data = made[repr(given)]
            judged = judge(claim, data.assign_attrs(config=to_json(enough)), figure.minimum)
            assert judged.verdict == verdict, (claim.id, given, judged.estimate)
            judged = judge(claim, data.assign_attrs(config=to_json(few)), figure.minimum)
            assert judged.verdict == INCONCLUSIVE, (claim.id, given)
            assert f"{field}={minimum[field] - 1} < {minimum[field]}" in judged.remark


# The smallest dataset


@each_figure
def test_a_dataset_is_labeled_and_decides_nothing(name, computed):
    data = computed(contract_of(name))
    for variable in data.variables:
        assert data[variable].attrs["long_name"], variable
        assert data[variable].attrs["units"], variable
    for claim in FIGURES[name].claims:
        assert judge(claim, data, FIGURES[name].minimum).verdict == INCONCLUSIVE, claim.id


@each_figure
def test_plots_need_only_the_dataset_and_are_reproducible(name, computed):
    contract = contract_of(name)
    data = computed(contract)
    files = []
    for _ in range(2):
        with plotting.style():
            pages = FIGURES[name].plot(data)
            files.append({page: svg(canvas) for page, canvas in pages.items()})
    assert files[0] == files[1]
    xr.testing.assert_identical(data, computed(contract))
    panels = {
        page: [axes for axes in canvas.axes if axes.get_subplotspec() and axes.has_data()]
        for page, canvas in pages.items()
    }
    assert {page: len(of) for page, of in panels.items()} == contract.panels
    for page, of in panels.items():
        for panel in of:
            assert panel.get_title(loc="left") or len(of) == 1
            if panel.axison:
                assert labels(pages[page], panel, "x"), (page, panel)
                assert labels(pages[page], panel, "y"), (page, panel)


def svg(canvas):
    file = io.BytesIO()
    plotting.mend_empty_axes(canvas)
    canvas.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def labels(canvas, panel, axis):
    """The labels of the panel, of its column (x) or row (y), or of a page that has both."""
    if canvas.get_supxlabel() and canvas.get_supylabel():
        return [getattr(canvas, f"get_sup{axis}label")()]
    span = {"x": "colspan", "y": "rowspan"}[axis]
    where = getattr(panel.get_subplotspec(), span)
    return [
        label
        for axes in canvas.axes
        if axes.get_subplotspec() and getattr(axes.get_subplotspec(), span) == where
        if (label := getattr(axes, f"get_{axis}label")())
    ]


# Programs


class Diverged(Run):
    """A run whose sweeps only trace their programs, once each; every float is `bad`."""

    def __init__(self, *args, bad, **kwargs):
        super().__init__(*args, **kwargs)
        self.bad = bad
        self.traced = functools.cache(self._traced)

    def _traced(self, fn, fixed, member):
        return jax.eval_shape(lambda member: fn(member | dict(fixed)), dict(member))

    def sweep(self, name, fn, members, **_):
        columns = {key: np.asarray(column) for key, column in members.items()}
        texts = [key for key, column in columns.items() if column.dtype.kind == "U"]
        member = tuple(
            (key, jax.ShapeDtypeStruct(x.shape[1:], jax.dtypes.canonicalize_dtype(x.dtype)))
            for key, x in columns.items()
            if key not in texts
        )
        for values in set(zip(*(columns[key] for key in texts), strict=True)) or {()}:
            results = self.traced(fn, tuple(zip(texts, values, strict=True)), member)
        return {
            key: np.full(
                (*members.shape, *x.shape), self.bad if x.dtype.kind == "f" else 0, x.dtype
            )
            for key, x in results.items()
        }


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN and infinities
@each_figure
def test_programs_mix_no_dtypes_and_diverged_runs_are_drawn(name, tmp_path):
    figure, contract = FIGURES[name], contract_of(name)
    config = figure.presets["smoke"]
    corpus = load_corpus(config.corpus) if isinstance(config, TrainingConfig) else None
    images = load_images("digits", cache=tmp_path) if isinstance(config, ImagesConfig) else None
    for bad, width in contract.diverged:
        store = ChunkStore(tmp_path / f"{bad}{width}")
        run = Diverged(corpus, None, store, images=images, bad=bad)
        promotion = "strict" if width in contract.strict else "standard"
        with jax.enable_x64(width == 64), jax.numpy_dtype_promotion(promotion):
            data = figure.compute(config, run)
        data.attrs["config"] = to_json(config)
        for claim in figure.claims:
            judged = judge(claim, data, {})
            assert not contract.comparison or judged.verdict == INCONCLUSIVE, (bad, width)
        with plotting.style():
            for canvas in figure.plot(data).values():
                plotting.mend_empty_axes(canvas)
                canvas.draw_without_rendering()
