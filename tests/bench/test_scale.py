"""Programs compiled for chips that are not there, where their compiler is installed."""

import jax
import pytest

from experiments import __main__ as cli
from experiments.bench import _topologies, scale
from experiments.bench._programs import traffic
from experiments.bench.optimizer import compile_step, parameters
from models.nanogpt import GPTConfig

CHIPS = "v5e:2x2"
TINY = GPTConfig(vocab_size=64, context=8, num_layers=1, num_heads=1, width=128)
tpu = pytest.mark.skipif(bool(_topologies.missing(CHIPS, None)), reason="needs libtpu")


@tpu
@pytest.mark.parametrize("k", [1, 2])
def test_an_update_moves_the_fewest_floats(k):
    params = parameters(TINY)
    leaves = jax.tree.leaves(params)
    compiled = compile_step(("kadam", k), params, _topologies.devices(CHIPS, None)[0])
    num_bytes, fusions = traffic(compiled.as_text())
    assert num_bytes / 4 / sum(leaf.size for leaf in leaves) == pytest.approx(4 * k + 3, rel=0.01)
    assert fusions <= len(leaves)
    assert compiled.memory_analysis().temp_size_in_bytes == 0


@tpu
def test_sharded_training_compiles_for_tpus():
    config = scale.ScaleBenchConfig(
        topologies=(CHIPS,), ks=(1,), tasks=("text",), layouts=("sharded",), preset="smoke"
    )
    _, steps = scale.run(config)
    one, sharded = (dict(zip(steps.columns, row, strict=True)) for row in steps.rows)
    assert (one["layout"], sharded["layout"]) == ("one chip", "sharded")
    assert sharded["state"] < 0.3 * one["state"]
    assert one["over parameters"] == 0 < sharded["over parameters"] < 2.1


def test_a_topology_without_a_compiler_is_skipped_by_name(monkeypatch, capsys):
    monkeypatch.setattr(_topologies, "PLUGINS", {"tpu": "no_such", "cuda": "no_such"})
    assert cli.main(["bench", "scale"]) == 0
    said = capsys.readouterr()
    for name in scale.ScaleBenchConfig().topologies:
        assert f"{name} is skipped: it needs no_such" in said.err
    assert "Training steps" in said.out


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("topologies=v9:2x2", "topologies must be like v5e:2x2"),
        ("topologies=v5e:four", "topologies must be like v5e:2x2"),
        ("topologies=h100:1x8", "topologies must be like v5e:2x2"),
        ("layouts=diagonal", "layouts must be among data, sharded"),
        ("tasks=audio", "tasks must be among text, images"),
        ("preset=huge", "preset must be among smoke, laptop, paper"),
    ],
)
def test_an_unknown_name_is_refused(assignment, message, capsys):
    assert cli.main(["bench", "scale", "--set", assignment]) == 2
    assert message in capsys.readouterr().err
