"""Tests of the training benchmark on a tiny network, with a twin that echoes its input."""

import sys

import jax
import pytest

from experiments.bench import train
from experiments.bench._measuring import markdown
from models.functional import functional
from models.nanogpt import GPTConfig, NanoGPT

TINY = GPTConfig(vocab_size=16, context=8, num_layers=1, num_heads=1, width=8, dropout=0.0)
TWIN = """
import json, sys
print("a line before")
print(json.dumps({"step_ms": 1e6 if "--compile" in sys.argv else float("--width=8" in sys.argv)}))
"""


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(train, "SIZES", {"tiny": (TINY, 2)})
    monkeypatch.setattr(train, "SECONDS", 0.01)


def test_every_variant_has_a_row_with_tokens_and_ratios(tiny, tmp_path):
    twin = tmp_path / "twin.py"
    twin.write_text(TWIN)
    config = train.TrainBenchConfig(twin=str(twin), twin_python=sys.executable, repeats=1)
    (table,) = train.run(config)
    rows = {row[1]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert list(rows) == ["flax, jit", "torch, eager", "torch.compile"]
    assert rows["flax, jit"]["over ours"] == 1
    assert (rows["torch, eager"]["ms"], rows["torch.compile"]["ms"]) == (1, 1e6)
    for row in rows.values():
        assert row["tokens/s"] * row["ms"] / 1e3 == pytest.approx(2 * 8)
        assert row["over ours"] == pytest.approx(row["ms"] / rows["flax, jit"]["ms"])
    assert "tiny" in markdown(table)


def test_a_twin_that_fails_is_named_with_its_last_words(tiny, tmp_path):
    twin = tmp_path / "twin.py"
    twin.write_text("raise SystemExit('no torch here')")
    config = train.TrainBenchConfig(twin=str(twin), twin_python=sys.executable, repeats=1)
    with pytest.raises(OSError, match=r"twin.py.*no torch here"):
        train.run(config)


def test_the_step_trains():
    step = train.training_step(TINY, 2)
    losses = [step() for _ in range(30)]
    assert losses[-1] < losses[0] - 0.1


def test_operations_agree_with_xlas_count():
    """XLA also counts elementwise operations, so ours are fewer, but more than half."""
    config = GPTConfig(
        vocab_size=256, context=64, num_layers=2, num_heads=2, width=128, dropout=0.0
    )
    init, apply = functional(lambda rngs: NanoGPT(config, rngs=rngs))
    params, _ = init(jax.random.key(0))
    tokens = jax.numpy.zeros((4, 64), int)
    loss = jax.grad(lambda p: apply(p, {}, tokens)[0].sum())
    counted = jax.jit(loss).lower(params).compile().cost_analysis()["flops"]
    assert 0.6 < train.flops(config, 4) / counted < 1.05
