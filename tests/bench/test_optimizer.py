"""Tests of the optimizer's benchmark on a tiny model: what can be judged without a clock."""

import pytest

from experiments.bench import optimizer
from experiments.bench._measuring import markdown
from models.nanogpt import GPTConfig

TINY = GPTConfig(vocab_size=64, context=8, num_layers=1, num_heads=1, width=8)


@pytest.fixture(scope="module")
def table():
    config = optimizer.OptimizerBenchConfig(
        TINY, ks=(1,), compile_ks=(2,), repeats=1, compile_repeats=1
    )
    (table,) = optimizer.run(config)
    return table


def column(table, name):
    """Return a column by the row's optimizer and k."""
    i = table.columns.index(name)
    return {tuple(row[:2]): row[i] for row in table.rows}


def test_every_optimizer_has_a_row_for_every_k(table):
    assert {tuple(row[:2]) for row in table.rows} == {
        optimizer.ADAMW, *((name, k) for name in optimizer.OPTIMIZERS for k in (1, 2))
    }  # fmt: skip
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert "GLIBC_TUNABLES" in markdown(table)


def test_only_ks_are_timed_and_ratios_are_to_adamw(table):
    milliseconds, ratios = column(table, "step, ms"), column(table, "over adamw")
    assert ratios[optimizer.ADAMW] == 1
    for key, time in milliseconds.items():
        if key[1] == 2:
            assert time == ratios[key] == ""
        else:
            assert ratios[key] == pytest.approx(time / milliseconds[optimizer.ADAMW])
    assert all(seconds > 0 for seconds in column(table, "compile, s").values())


def test_traffic_and_peak_memory(table):
    floats, peak = column(table, "floats per parameter"), column(table, "peak, MiB")
    for key, floor in column(table, "floor 4k+3").items():
        assert floor == 4 * key[1] + 3 <= floats[key]
    # A step takes parameters, gradients and 2k copies, and writes its results over them.
    sizes = {key: (2 + 2 * key[1]) for key in peak}
    one_copy = peak["kadam", 1] / sizes["kadam", 1]
    assert peak["kadam", 2] == pytest.approx(sizes["kadam", 2] * one_copy, rel=0.1)


def test_the_limits_are_those_of_k_adam(table):
    i = table.columns.index("limit")
    assert {tuple(row[:2]): row[i] for row in table.rows if row[i]} == {
        ("kadam", 1): 1.0, ("kadam", 2): 2.0
    }  # fmt: skip
