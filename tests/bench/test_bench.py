"""Tests that every benchmark rejects bad settings before it measures."""

import dataclasses

import numpy as np
import pytest

from experiments import __main__ as cli
from experiments import bench
from experiments.bench import _topologies
from experiments.bench._measuring import BenchConfig, Table, dataset
from experiments.core.store import read_dataset, write_dataset


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


def test_a_table_is_the_same_read_from_its_dataset(tmp_path):
    table = Table(
        "Speed of 2",
        ("what", "ms", "limit", "s", "limit"),
        [("a", 1, 2.5, "", 3.0), ("", 2, "", "", "no")],
    )
    write_dataset(tmp_path / "speed_1.nc", dataset(table, BenchConfig()))
    data = read_dataset(tmp_path / "speed_1.nc")
    assert data.title == table.title
    columns = {name: column.values.tolist() for name, column in data.items()}
    np.testing.assert_equal(
        columns,
        {
            **{"what": ["a", ""], "ms": [1, 2], "limit": [2.5, np.nan]},
            **{"s": [np.nan, np.nan], "limit (5)": ["3.0", "no"]},
        },
    )


def test_an_empty_table_is_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(_topologies, "PLUGINS", {"tpu": "no_such", "cuda": "no_such"})
    assert cli.main(["bench", "scale", "--save", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"scale_1.nc", "scale_2.nc"}
    assert read_dataset(tmp_path / "scale_2.nc").title.startswith("Training steps, compiled")
