"""The library's fuzzer in a small dose; `python -m tests.fuzz.library` is the large one."""

from tests.fuzz.library import fuzz


def test_random_calls_are_right_or_refused_by_name(capsys):
    assert fuzz(60, seed=7) == 0, capsys.readouterr().out
