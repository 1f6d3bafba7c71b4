"""core/claims.py and report.py: verdicts, and the page that shows them."""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
import shutil
from concurrent.futures.process import BrokenProcessPool

import jax
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from experiments.core.claims import (
    INCONCLUSIVE,
    NOT_SUPPORTED,
    SUPPORTED,
    Claim,
    Judgment,
    judge,
    settings,
    verdict,
)
from experiments.core.config import PRESETS, shortfalls
from experiments.core.questions import QUESTIONS
from experiments.core.stats import NOTHING, Estimate, exact, median, share
from experiments.core.store import write_dataset
from experiments.figures import discover
from experiments.figures.stability.stability_plane import claims as stability_plane
from experiments.reproduce import manifest, pipeline, report
from experiments.reproduce.manifest import write_manifest
from experiments.reproduce.pipeline import place, run_figure
from experiments.reproduce.report import STATED, Section, render, write_report
from tests.figures.contract import CLAIMS

FIGURES = discover()
PLANE = FIGURES["stability_plane"]
UNDRAWN = {**FIGURES, PLANE.name: dataclasses.replace(PLANE, plot=lambda dataset: {})}
"""The figures for a page whose pictures do not matter."""


@given(st.floats(-10, 10), st.floats(0, 5), st.floats(0, 5), st.floats(-10, 10), st.floats(0, 5))
def test_an_interval_supports_refutes_or_does_neither(value, below, above, lowest, width):
    estimate = Estimate(value, value - below, value + above, 5)
    accept = (lowest, lowest + width)
    inside = lowest <= estimate.low and estimate.high <= lowest + width
    outside = estimate.high < lowest or estimate.low > lowest + width
    expected = SUPPORTED if inside else NOT_SUPPORTED if outside else INCONCLUSIVE
    assert verdict(estimate, accept) == expected


@pytest.mark.parametrize(
    "estimate", [exact(math.nan, 5), exact(1.0, 0), Estimate(1, 1, math.nan, 5)]
)
def test_without_observations_nothing_is_decided(estimate):
    assert verdict(estimate, (-math.inf, math.inf)) == INCONCLUSIVE


@pytest.mark.parametrize("n", [5, 6, 11, 30])
def test_the_median_interval_covers_at_least_nine_times_in_ten(n):
    samples = np.random.default_rng(0).exponential(size=(4000, n))
    estimates = [median(row) for row in samples]
    covered = np.mean([e.low <= math.log(2) <= e.high for e in estimates])
    assert 0.89 < covered < 0.99
    assert all(e.low <= e.value <= e.high and e.n == n for e in estimates)


def test_share_counts_only_the_points_it_is_about():
    holds, among = xr.DataArray([True, True, False]), xr.DataArray([True, False, True])
    assert share(holds, among) == exact(0.5, 2)
    assert share(holds, among & ~among).n == 0


def data(config):
    return xr.Dataset({"x": 1.0}, attrs={"config": json.dumps(config)})


def test_below_the_minimum_every_verdict_is_inconclusive():
    claim = Claim("c", "f", "§1", "x is 1", "x", lambda d: exact(float(d.x), 5), (1, 1), "one")
    enough = judge(claim, data({"model": {"width": 64}}), {"model.width": 64})
    small = judge(claim, data({"model": {"width": 8}}), {"model.width": 64})
    assert (enough.verdict, enough.remark) == (SUPPORTED, "")
    assert (small.verdict, small.remark) == (INCONCLUSIVE, "at this scale: model.width=8 < 64")
    assert small.estimate == enough.estimate
    alone = dataclasses.replace(claim, minimum={"model.width": 128})  # in addition to the figure's
    remark = judge(alone, data({"model": {"width": 64}}), {"model.width": 64}).remark
    assert remark == "at this scale: model.width=64 < 128"


def test_claims_are_unique_complete_and_about_real_figures():
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert claim.figure in FIGURES
        assert claim.accept[0] <= claim.accept[1]
        assert claim.reason
        assert claim.section
        assert claim.quantity
    ids = {claim.id for claim in CLAIMS}
    assert {claim.corrected_by for claim in CLAIMS} <= {"", *ids}
    assert all(claim.correction for claim in CLAIMS if claim.corrected_by)


def test_a_correction_holds_only_if_its_claim_is_supported(plane):
    results, dataset = plane
    first, second = stability_plane.CLAIMS[:2]
    wrong = dataclasses.replace(first, correction="more", corrected_by=second.id)
    estimate = Estimate(1.0, 1.0, 1.0, 5)

    def grouped(verdict):
        judgments = (
            Judgment(wrong, estimate, NOT_SUPPORTED, ""),
            Judgment(second, estimate, verdict, ""),
        )
        where = place(results, PLANE, "smoke")
        section = Section(where, attrs=dataset.attrs, judgments=judgments, origin="x")
        return re.findall(r'data-verdict="([a-z ]+)"', render([section], "smoke"))

    assert grouped(SUPPORTED) == ["holds with a correction", "holds"]
    assert grouped(NOT_SUPPORTED) == ["does not hold", "does not hold"]
    assert grouped(INCONCLUSIVE) == ["does not hold", "not decided"]


def test_every_figure_answers_one_question():
    assert {figure.question for figure in FIGURES.values()} == {*QUESTIONS}
    for figure in FIGURES.values():
        assert {*figure.decided_by} <= {claim.id for claim in figure.claims}


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_every_figure_is_complete(figure):
    assert figure.compute.__module__.endswith(f".{figure.name}.run")
    assert set(PRESETS) - {"evening"} <= set(figure.presets) <= set(PRESETS)
    assert shortfalls(figure.presets["smoke"], figure.minimum) != ()
    for preset in set(figure.presets) - {"smoke"}:
        assert shortfalls(figure.presets[preset], figure.minimum) == (), preset
    for config in figure.presets.values():
        assert figure.caption.format_map(vars(config))
        meanings = "".join(base.__doc__ or "" for base in type(config).__mro__)
        for field in dataclasses.fields(config):
            assert re.search(rf"^\s+{field.name}: ", meanings, re.M), f"{field.name}: no meaning"


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """The smoke plane on disk: (results folder, dataset)."""
    results = tmp_path_factory.mktemp("results")
    where = place(results, PLANE, "smoke")
    dataset, _ = run_figure(where, PLANE.presets["smoke"], jax.devices()[:1])
    return results, dataset


def test_the_page_is_complete_and_needs_no_other_file(plane):
    results, dataset = plane
    page = write_report(results, FIGURES, "smoke", reused={"stability_plane": False})
    html = page.read_text()
    assert html.count("<img") == 1
    assert html.count('decoding="async"') == 1
    assert set(re.findall(r'(?:src|href)="([^"#]{1,10})', html)) == {"data:image"}
    for claim in CLAIMS:
        assert f'id="claim-{claim.id}"' in html
    assert "too small to decide anything" in html
    assert "num_grid=40 &lt; 400" in html
    assert "computed in this run" in html
    assert dataset.attrs["key"] in html
    assert "python -m experiments run stability_plane --preset smoke" in html
    for name in set(FIGURES) - {"stability_plane"}:
        assert f"python -m experiments run {name} --preset smoke" in html
    assert "viewport" in html
    opened = re.findall(r"<details[^>]*?( open)?><summary>The deciding claims", html)
    assert opened == [" open", *[""] * (len(QUESTIONS) - 1)]


def test_a_claim_without_observations_says_so(plane):
    results, dataset = plane
    claim = stability_plane.CLAIMS[0]
    judgment = Judgment(claim, NOTHING, INCONCLUSIVE, "")
    where = place(results, PLANE, "smoke")
    html = render([Section(where, attrs=dataset.attrs, judgments=(judgment,), origin="x")], "smoke")
    row = html.partition(f'id="claim-{claim.id}"')[2].partition("</tr>")[0]
    assert 'data-label="Value">— (no observations)</td>' in row
    assert not re.search(r"\bnan\b", html)


def test_the_page_has_other_presets_verdicts_next_to_its_own(plane):
    results, dataset = plane
    first, second = stability_plane.CLAIMS[:2]
    wrong = dataclasses.replace(
        first, correction="more", corrected_by=second.id, scale="Size tells."
    )
    estimate = Estimate(1.0, 0.5, 1.5, 5)
    own = Judgment(wrong, estimate, SUPPORTED, ""), Judgment(second, estimate, SUPPORTED, "")
    section = Section(
        place(results, PLANE, "smoke"), attrs=dataset.attrs, judgments=own, origin="x"
    )
    other = Judgment(wrong, dataclasses.replace(estimate, n=40), NOT_SUPPORTED, "")
    html = render([section], "laptop", {"evening": {wrong.id: other}})
    assert ">At evening</th>" in html
    rows = [
        html.partition(f'id="claim-{claim.id}"')[2].partition("</tr>")[0]
        for claim in (wrong, second)
    ]
    cells = [row.partition('data-label="At evening">')[2].partition("</td>")[0] for row in rows]
    # The other preset lacks the claim that corrects the first one, which is then the page's own.
    assert "holds with a correction" in cells[0]
    assert "n = 40. Size tells." in cells[0]
    assert "—" in cells[1]
    assert "of 1 claims 1 holds with a correction" in html
    assert "At evening" not in render([section], "laptop")


def test_pages_judge_the_datasets_of_all_larger_presets(plane, tmp_path, monkeypatch):
    _, dataset = plane
    monkeypatch.setattr(pipeline, "COMMITTED", tmp_path / "none")
    figure = dataclasses.replace(PLANE, presets=dict.fromkeys(PRESETS, PLANE.presets["smoke"]))
    for preset in PRESETS:
        path = place(tmp_path, figure, preset).dataset
        path.parent.mkdir(parents=True)
        write_dataset(path, dataset)
    place(tmp_path, figure, "paper").dataset.write_bytes(b"damaged")

    def columns(preset):
        page = write_report(tmp_path, {figure.name: figure}, preset)
        return re.findall(r">At (\w+)</th>", page.read_text())

    assert columns("laptop") == ["evening"]
    assert columns("evening") == ["laptop"]
    assert columns("smoke") == []


def test_figures_without_the_preset_are_not_on_its_page(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "COMMITTED", tmp_path)  # no committed results, nothing to draw
    having = {name for name, figure in FIGURES.items() if "evening" in figure.presets}
    html = write_report(tmp_path, FIGURES, "evening").read_text()
    assert {*re.findall(r'<section class="figure" id="(\w+)"', html)} == having


def test_a_page_without_what_decides_quotes_another_preset(plane, tmp_path, monkeypatch):
    _, dataset = plane
    monkeypatch.setattr(pipeline, "COMMITTED", tmp_path / "none")
    decides = {PLANE.claims[0].id: "it is {}"}
    figure = dataclasses.replace(
        PLANE, presets={"laptop": PLANE.presets["smoke"]}, decided_by=decides
    )
    related = dataclasses.replace(FIGURES["max_update"], question=figure.question, decided_by={})
    path = place(tmp_path, figure, "laptop").dataset
    path.parent.mkdir(parents=True)
    write_dataset(path, dataset)
    page = write_report(tmp_path, {of.name: of for of in (figure, related)}, "evening")
    words = " ".join(re.sub(r"<.*?>", "", page.read_text()).split())
    assert "No figure that decides this has preset evening. Laptop: Not decided" in words
    assert "Decided by" not in words


def test_at_the_laptop_minimum_the_planes_claims_are_decided(plane):
    _, small = plane
    large = small.assign_attrs(config=json.dumps(dataclasses.asdict(PLANE.presets["laptop"])))
    verdicts = {
        claim.id: judge(claim, large, PLANE.minimum).verdict for claim in stability_plane.CLAIMS
    }
    assert verdicts.pop("unstable-implies-exactly-unstable") == NOT_SUPPORTED
    assert set(verdicts.values()) == {SUPPORTED}


def test_a_wrong_plane_is_not_supported(plane):
    """Claims read the data: C with the wrong sign fails all claims that it should."""
    _, small = plane
    config = json.dumps(dataclasses.asdict(PLANE.presets["laptop"]))
    turned = small.assign(C=-small.C, normal_C=-small.normal_C).assign_attrs(config=config)
    for claim in stability_plane.CLAIMS[:4]:
        assert judge(claim, turned, PLANE.minimum).verdict == NOT_SUPPORTED, claim.id


def test_values_are_escaped(plane):
    results, dataset = plane
    where = place(results, PLANE, "smoke")
    attrs = dataset.attrs | {"command": "<script>alert(1)</script>"}
    html = render([Section(where, attrs=attrs, caption="<b>", origin="x")], "smoke")
    assert "<script>alert" not in html
    assert "&lt;script&gt;" in html
    assert "&lt;b&gt;" in html


def test_the_page_names_the_commit_of_the_rules(plane):
    results, dataset = plane
    html = write_report(results, FIGURES, "smoke").read_text()
    assert dataset.attrs["claims_commit"][:12] in html
    changed = "rules of this figure's claims, or their words, have changed"
    assert changed not in html
    claims = tuple(dataclasses.replace(claim, accept=(0.0, 9.0)) for claim in PLANE.claims)
    others = dict(FIGURES) | {PLANE.name: dataclasses.replace(PLANE, claims=claims)}
    assert changed in write_report(results, others, "smoke").read_text()


def test_committed_datasets_are_shown_if_nothing_was_run(plane, tmp_path, monkeypatch):
    results, _ = plane
    monkeypatch.setattr(pipeline, "COMMITTED", tmp_path / "committed")
    own, elsewhere = (place(folder, PLANE, "smoke") for folder in (results, tmp_path / "new"))
    elsewhere.committed.parent.mkdir(parents=True)
    shutil.copy(own.dataset, elsewhere.committed)
    html = write_report(tmp_path / "new", FIGURES, "smoke").read_text()
    assert "1 figure committed with the code, not run here" in html
    assert html.count("<img") == 1
    assert not elsewhere.dataset.exists()
    assert own.shown == own.dataset
    for kind in ("png", "svg"):  # the same results give the same bytes
        name = f"stability_plane.{kind}"
        assert (elsewhere.folder / name).read_bytes() == (own.folder / name).read_bytes()
    elsewhere.committed.write_bytes(b"damaged")
    assert (
        f"{elsewhere.committed} is damaged"
        in write_report(tmp_path / "new", FIGURES, "smoke").read_text()
    )


def test_a_changed_dataset_or_plot_redraws_its_figure(plane, tmp_path, monkeypatch):
    family, results = tmp_path / "stability", tmp_path / "results"
    shutil.copytree(pipeline.folder_of(PLANE).parent, family)
    monkeypatch.setattr(pipeline, "folder_of", lambda figure: family / figure.name)
    where = place(results, PLANE, "smoke")
    where.folder.mkdir(parents=True)
    shutil.copy(place(plane[0], PLANE, "smoke").dataset, where.dataset)

    pictures = [where.folder / f"stability_plane.{kind}" for kind in ("png", "svg")]
    expected = [(plane[0] / "smoke" / PLANE.name / path.name).read_bytes() for path in pictures]

    def redrawn():
        before = [path.stat().st_mtime_ns if path.exists() else 0 for path in pictures]
        write_report(results, {PLANE.name: PLANE}, "smoke")
        assert [path.read_bytes() for path in pictures] == expected  # drawn again, the same bytes
        return before != [path.stat().st_mtime_ns for path in pictures]

    assert redrawn()
    assert not redrawn()
    for file, decides in (("__init__.py", False), ("claims.py", False), ("plot.py", True)):
        with (family / PLANE.name / file).open("a") as code:
            code.write("# changed\n")
        assert redrawn() == decides, file
    write_dataset(where.dataset, plane[1].assign_attrs(note="computed again"))
    assert redrawn()
    pictures[1].unlink()
    assert redrawn()
    assert not redrawn()


def test_figures_are_drawn_in_processes(plane, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "WORTH_PROCESSES", 1)
    own, copied = (place(folder, PLANE, "smoke") for folder in (plane[0], tmp_path))
    copied.folder.mkdir(parents=True)
    shutil.copy(own.dataset, copied.dataset)
    report._draw_in_processes([copied])
    image = "stability_plane.png"
    assert (copied.folder / image).read_bytes() == (own.folder / image).read_bytes()


@pytest.mark.parametrize("error", [OSError(38, "no semaphores"), BrokenProcessPool("killed")])
def test_what_processes_cannot_draw_is_left_to_the_page(tmp_path, monkeypatch, error):
    asked = []

    def refuse(*arguments):
        asked.append(arguments)
        raise error

    monkeypatch.setattr(report, "WORTH_PROCESSES", 1)
    monkeypatch.setattr(report.concurrent.futures, "ProcessPoolExecutor", refuse)
    report._draw_in_processes([place(tmp_path, PLANE, "laptop")])  # of the committed dataset
    assert asked


def test_a_copied_dataset_is_drawn_for_the_page(plane, tmp_path):
    own, copied = (place(folder, PLANE, "smoke") for folder in (plane[0], tmp_path))
    copied.folder.mkdir(parents=True)
    image = "stability_plane.png"
    (copied.folder / image).write_bytes(b"of an older dataset")
    os.utime(copied.folder / image, (0, 0))
    shutil.copy(own.dataset, copied.dataset)
    write_report(tmp_path, FIGURES, "smoke")
    assert (copied.folder / image).read_bytes() == (own.folder / image).read_bytes()
    drawn = (copied.folder / image).stat().st_mtime_ns
    write_report(tmp_path, FIGURES, "smoke")
    assert (copied.folder / image).stat().st_mtime_ns == drawn


@pytest.mark.parametrize("spoil", [os.mkfifo, lambda path: path.symlink_to("gone")])
def test_a_file_that_is_not_an_image_does_not_block_the_page(plane, tmp_path, spoil):
    where = place(tmp_path, PLANE, "smoke")
    where.folder.mkdir(parents=True)
    shutil.copy(place(plane[0], PLANE, "smoke").dataset, where.dataset)
    spoil(where.folder / "stability_plane.png")
    assert PLANE.title in write_report(tmp_path, FIGURES, "smoke").read_text()


def test_a_results_folder_lists_its_content(plane):
    results, dataset = plane
    entry = json.loads((results / "smoke" / "manifest.json").read_text())["stability_plane"]
    assert entry["key"] == dataset.attrs["key"]
    assert entry["command"] == dataset.attrs["command"]
    file = place(results, PLANE, "smoke").dataset
    assert entry["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert set(entry["key_parts"]) == {
        "configuration",
        "data",
        "versions",
        "precision",
        "platform",
        "code",
    }


def test_damaged_datasets_are_listed_as_such(tmp_path):
    (tmp_path / "figure").mkdir()
    (tmp_path / "figure" / "data.nc").write_bytes(b"damaged")
    entries = json.loads(write_manifest(tmp_path).read_text())
    assert "is damaged" in entries["figure"]["problem"]


def test_a_run_that_ends_during_a_manifest_write_is_listed(plane, tmp_path, monkeypatch):
    results, _ = plane
    shutil.copytree(results / "smoke", tmp_path, dirs_exist_ok=True)
    later, real = tmp_path / "later" / "data.nc", manifest.atomic

    @contextlib.contextmanager
    def slow(path):
        with real(path) as temporary:
            yield temporary
            later.parent.mkdir(exist_ok=True)
            shutil.copy(tmp_path / "stability_plane" / "data.nc", later)

    monkeypatch.setattr(manifest, "atomic", slow)
    assert set(json.loads(write_manifest(tmp_path).read_text())) == {"later", "stability_plane"}


@pytest.mark.parametrize("content", ["{", "[]", '{"stability_plane": {"key": "edited"}}', None])
def test_a_manifest_that_does_not_match_is_written_again(plane, content):
    path = plane[0] / "smoke" / "manifest.json"
    before = path.read_bytes()
    path.unlink()
    if content:
        path.write_text(content)
    run_figure(place(plane[0], PLANE, "smoke"), PLANE.presets["smoke"], jax.devices()[:1])
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({name: None}, f"lacks what is needed (&#39;{name}&#39;)") for name in STATED),
        ({"config": '{"num_grid": 5}'}, "lacks what is needed"),
        ({"figure": "max_update"}, "belongs to the figure max_update, not stability_plane"),
    ],
)
def test_a_dataset_of_another_version_or_figure_is_named(plane, tmp_path, changes, message):
    where = place(tmp_path, PLANE, "smoke")
    attrs = {k: x for k, x in (plane[1].attrs | changes).items() if x is not None}
    write_dataset(where.dataset, plane[1].drop_attrs().assign_attrs(attrs))
    assert message in write_report(tmp_path, UNDRAWN, "smoke").read_text()


def test_the_page_says_what_differs_from_the_current_preset(plane, tmp_path):
    where = place(tmp_path, PLANE, "smoke")
    config = json.dumps(json.loads(plane[1].attrs["config"]) | {"num_grid": 7, "was": [1, 2]})
    write_dataset(where.dataset, plane[1].assign_attrs(config=config, overrides="[]"))
    html = write_report(tmp_path, UNDRAWN, "smoke").read_text()
    assert "<b>Differs from the preset:</b> num_grid=7, was=1,2</p>" in html


def test_outside_git_the_page_names_no_commit(plane):
    attrs = plane[1].attrs | {"claims_commit": "unknown"}
    html = render([Section(place(plane[0], PLANE, "smoke"), attrs=attrs, origin="x")], "smoke")
    assert "is unknown, because it was computed outside git." in html
    assert "before they were computed" not in html


def test_settings_are_the_configuration(plane):
    _, dataset = plane
    assert settings(dataset).num_grid == PLANE.presets["smoke"].num_grid
