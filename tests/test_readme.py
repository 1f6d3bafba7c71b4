"""Tests that the code in README.md runs as shown; the pages of docs run when they are built."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "README.md"


def test_the_examples_run_in_order_and_print_what_they_say(capsys):
    text = PAGE.read_text()
    namespace = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), namespace)
    promised = " ".join(re.findall(r"print\(.*#.* -> (.*)", text)).split()
    printed = capsys.readouterr().out.split()
    assert promised
    assert numbers(printed) == pytest.approx(numbers(promised), abs=1e-3)


def test_every_linked_file_exists():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", PAGE.read_text())
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
    assert len(links) >= 2


def test_every_table_has_a_header():
    for table in re.findall(r"(?:^|\n\n)(\|.*(?:\n\|.*)*)", PAGE.read_text()):
        assert re.fullmatch(r"[| -]+", table.splitlines()[1]), table


def numbers(words):
    return [float({"True": 1, "False": 0}.get(word, word)) for word in words]
