"""Tests that the code in README.md and in the pages of docs runs as shown."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@each_page
def test_the_examples_run_in_order_and_print_what_they_say(page, capsys):
    text = page.read_text()
    namespace = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, str(page), "exec"), namespace)
    promised = " ".join(re.findall(r"print\(.*#.* -> (.*)", text)).split()
    printed = capsys.readouterr().out.split()
    assert promised
    assert numbers(printed) == pytest.approx(numbers(promised), abs=1e-3)


@each_page
def test_every_linked_file_exists(page):
    links = re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert len(links) >= 2


@each_page
def test_every_table_has_a_header(page):
    for table in re.findall(r"(?:^|\n\n)(\|.*(?:\n\|.*)*)", page.read_text()):
        assert re.fullmatch(r"[| -]+", table.splitlines()[1]), table


def numbers(words):
    return [float({"True": 1, "False": 0}.get(word, word)) for word in words]
