"""Tests of what every benchmark rejects before it measures."""

import dataclasses

import pytest

from experiments import __main__ as cli
from experiments import bench


def numbers(value):
    """Return the numbers of a field, which may have several."""
    values = value if isinstance(value, tuple) else (value,)
    return [x for x in values if type(x) in (int, float)]


NUMBERS = [
    (name, field.name)
    for name, benchmark in bench.discover().items()
    for field in dataclasses.fields(benchmark.config)
    if numbers(getattr(benchmark.config, field.name))
]


@pytest.mark.parametrize(("name", "field"), NUMBERS)
@pytest.mark.parametrize("value", ["0", "-1"])
def test_a_number_that_is_not_positive_is_named(name, field, value, capsys):
    assert cli.main(["bench", name, "--set", f"{field}={value}"]) == 2
    assert f"{field} must be positive, got" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["train", "cnn"])
@pytest.mark.parametrize("dtype", ["float99", "int32", "float64"])
def test_an_unsupported_dtype_raises(name, dtype, capsys):
    assert cli.main(["bench", name, "--set", f"dtype={dtype}"]) == 2
    assert dtype in capsys.readouterr().err
