"""Tests that PAPER.md, the index from the paper to the code and back, is correct."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from experiments.figures import discover
from tests.committed import judgment

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "PAPER.md").read_text()
FIGURES = discover()
CLAIMS = {claim.id: claim for figure in FIGURES.values() for claim in figure.claims}

# The numbered parts of the paper, and how many there are.
NUMBERED = {
    "Definition": 3,
    "Algorithm": 1,
    "Lemma": 2,
    "Proposition": 3,
    "Theorem": 3,
    "Assumption": 2,
}
SUBSECTIONS = {1: 0, 2: 2, 3: 3, 4: 3, 5: 0, 6: 0, 7: 0}
EQUATIONS, PICTURES, APPENDICES = 19, 16, "ABCDEFGHIJKLMNOP"


def table(heading):
    """Return rows of the table below a heading, each a dict of cells by column."""
    lines = re.search(rf"\n## {heading}.*\n\n(\|.*(?:\n\|.*)*)", TEXT)[1].splitlines()
    head, _, *body = ([cell.strip() for cell in re.split(r"(?<!\\)\|", x)[1:-1]] for x in lines)
    return [dict(zip(head, cells, strict=True)) for cells in body]


def links(text):
    """Return name and target of every link to code."""
    return re.findall(r"\[`([\w.]+)`\]\(([^)]+)\)", text)


STATED, EQUATION_ROWS, SECTIONS, DRAWN = map(
    table, ("Definitions", "Equations", "Sections", "Figures")
)
USED = sorted(
    {
        (row.get("in", row["paper"]), *link)
        for row in (*STATED, *EQUATION_ROWS, *SECTIONS)
        for link in links(row["functions"])
    }
)
OURS = links(TEXT.split("## Not in the paper")[1])


def resolved(name):
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def references(function):
    """Return the parts of the paper that the references of a docstring name."""
    text = function.__doc__.partition("References:")[2]
    return set(re.findall(rf"(?:{'|'.join(NUMBERED)}) \d|Appendix [A-P]\b|§\d(?:\.\d)?", text))


def public_functions():
    """Return all functions that the library's three public packages export, by shortest name."""
    found = {}
    for face in ("kadam_jax", "kadam_jax.flow", "kadam_jax.invariance"):
        module = importlib.import_module(face)
        for name in module.__all__:
            if inspect.isfunction(getattr(module, name)):
                found.setdefault(getattr(module, name), f"{face}.{name}")
    return {name: function for function, name in found.items()}


def test_every_part_of_the_paper_has_one_row():
    numbered = [f"{kind} {n + 1}" for kind, num in NUMBERED.items() for n in range(num)]
    assert sorted(row["paper"] for row in STATED) == sorted(numbered)
    assert [row["paper"] for row in EQUATION_ROWS] == [f"({n + 1})" for n in range(EQUATIONS)]
    sections = [
        f"§{section}" + (f".{part}" if part else "")
        for section, parts in SUBSECTIONS.items()
        for part in range(parts + 1)
    ]
    appendices = [f"Appendix {letter}" for letter in APPENDICES]
    assert [row["paper"] for row in SECTIONS] == sections + appendices


@pytest.mark.parametrize(("part", "name", "target"), USED)
def test_a_rows_function_exists_and_names_the_row(part, name, target):
    function = resolved(name)
    assert Path(inspect.getfile(inspect.unwrap(function))) == ROOT / target
    assert part in references(function)


@pytest.mark.parametrize("name", [name for name in public_functions() if name not in dict(OURS)])
def test_parts_named_in_a_docstring_list_the_function(name):
    function = public_functions()[name]
    rows = {part for part, used, _ in USED if resolved(used) is function}
    assert rows, f"{name} is in no row of PAPER.md: name it in one, or under 'Not in the paper'"
    assert rows == references(function)


def test_every_theory_module_links_the_paper_once():
    for target in {target for _, _, target in USED if target.startswith("kadam_jax")}:
        assert (ROOT / target).read_text().count("https://arxiv.org/abs/2411.05746") == 1, target


@pytest.mark.parametrize(("name", "target"), OURS)
def test_tools_not_in_the_paper_are_public_and_cite_no_part(name, target):
    function = public_functions()[name]
    assert Path(inspect.getfile(function)) == ROOT / target
    assert not references(function)


def test_every_picture_is_drawn_by_the_figure_that_claims_it():
    drawn = [(row["paper"], name) for row in DRAWN for name, _ in links(row["figures"])]
    said = [
        (f"Fig. {number}" if number else figure.paper, name)
        for name, figure in FIGURES.items()
        for number in re.findall(r"\d+", figure.paper) or [""]
    ]
    assert {*said} - {*drawn} == set(), "give these a row in PAPER.md, under Figures"
    assert sorted(drawn) == sorted(said)
    pictures = [f"Fig. {n + 1}" for n in range(PICTURES)]
    assert [part for part, _ in drawn if part != "not in the paper"] == pictures


@pytest.mark.parametrize("row", DRAWN, ids=lambda row: row["paper"])
def test_a_figure_is_run_by_the_command_next_to_it(row):
    ((name, _),) = links(row["figures"])
    assert row["command"] == f"`python -m experiments run {name}`"


def test_links_to_figures_resolve():
    for row in (*STATED, *EQUATION_ROWS, *SECTIONS, *DRAWN):
        for name, target in links(row["figures"]):
            assert importlib.import_module(target.replace("/", ".")).FIGURE is FIGURES[name]


def test_a_row_with_a_function_names_a_figure_or_says_none():
    for row in (*STATED, *EQUATION_ROWS, *SECTIONS):
        holds = not row["functions"] or links(row["figures"]) or row["figures"].startswith("none")
        assert holds, row["paper"]


@pytest.mark.parametrize("row", STATED + SECTIONS, ids=lambda row: row["paper"])
def test_stated_numbers_are_those_of_committed_datasets(row):
    stated = re.findall(
        r"(?:(-?\d[\d.e-]*)(?: \[(\S+), (\S+)\])? \()?"
        r"`([a-z\d]+(?:-[a-z\d.]+)+)`(?: at `(\w+)`)?",
        row["found"],
    )
    for value, low, high, name, preset in stated:
        claim = CLAIMS[name]
        assert claim.figure in dict(links(row["figures"]))
        if value:
            estimate = judgment(claim, preset).estimate
            found = (estimate.value, estimate.low, estimate.high)
            assert [float(end or value) for end in (value, low, high)] == pytest.approx(found, 5e-3)
