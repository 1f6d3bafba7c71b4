"""Tests that README.md is short, that its code runs as shown, and that numbers are right.

So are those of the paper's corrections, in docs/theory/index.md.
"""

import re
from pathlib import Path

import pytest

from experiments.figures import discover
from experiments.reproduce.answers import counts, groups
from tests.committed import judgment

PAGE = Path(__file__).parents[1] / "README.md"
TEXT = PAGE.read_text()
QUESTIONS = (PAGE.parent / "docs" / "faq.md").read_text()
CORRECTIONS = (PAGE.parent / "docs" / "theory" / "index.md").read_text()
FIGURES = discover()
CLAIMS = {claim.id: claim for figure in FIGURES.values() for claim in figure.claims}
# A number, perhaps with its interval, the claim that judges it, and its preset if not laptop.
NUMBER, CLAIM = r"(-?\d[\d.e-]*)(?: \[(\S+), (\S+)\])?", r"`([a-z\d]+(?:-[a-z\d.]+)+)`"
STATED = [
    re.findall(rf"{NUMBER}\s+\({CLAIM}(?: at `(\w+)`)?\)", text) for text in (TEXT, CORRECTIONS)
]


def test_the_examples_run_in_order_and_print_what_they_say(capsys):
    namespace = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), namespace)
    promised = " ".join(re.findall(r"print\(.*#.* -> (.*)", TEXT)).split()
    printed = capsys.readouterr().out.split()
    assert promised
    assert numbers(printed) == pytest.approx(numbers(promised), abs=1e-3)


def numbers(words):
    return [float({"True": 1, "False": 0}.get(word, word)) for word in words]


@pytest.mark.parametrize("stated", [*STATED[0], *STATED[1]], ids=lambda stated: stated[3])
def test_stated_numbers_are_those_of_committed_datasets(stated):
    value, low, high, name, preset = stated
    claim = CLAIMS[name]
    estimate = judgment(claim, preset).estimate
    # A gain that is negative is stated as a loss.
    found = sorted(abs(end) for end in (estimate.low, estimate.value, estimate.high))
    low, high = (low, high) if low else (value, value)
    assert [float(low), float(value), float(high)] == pytest.approx(found, rel=5e-3)


def test_counts_are_those_of_the_verdicts():
    judgments = [judgment(claim, "laptop") for claim in CLAIMS.values()]
    verdicts = counts(groups(judgments).values())
    for text in (TEXT, QUESTIONS):
        assert verdicts in text.replace("\n", " ")


def test_counts_are_those_of_the_catalog():
    assert f"{len(FIGURES)} figures" in TEXT
    assert re.search(rf"\b{len(CLAIMS)}\sclaims", TEXT)
    assert min(map(len, STATED)) >= 5


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 120
