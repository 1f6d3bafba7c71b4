"""Counted operations are the compiler's, and those of a figure are its members' and steps'."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import __main__ as cli
from experiments.bench import _topologies, hours
from experiments.bench._flops import CountingRun, flops
from experiments.core.errors import Failed
from experiments.figures import discover
from experiments.training.tasks import image_task, text_task
from kadam_jax import points
from models.cnn import IMAGE_SHAPE, CNNConfig
from models.nanogpt import GPTConfig

TEXT = GPTConfig(vocab_size=256, context=32, num_layers=1, num_heads=1, width=64)


@pytest.mark.parametrize("name", ["text", "images"])
def test_counted_operations_are_those_of_the_compiler(name):
    """There are no loops; the compiler also counts a small share of other operations."""
    task, batch = {
        "text": lambda: (text_task(TEXT), jnp.zeros((4, 33), jnp.int32)),
        "images": lambda: (
            image_task(CNNConfig(width=1 / 8)),
            {"image": jnp.zeros((4, *IMAGE_SHAPE)), "label": jnp.zeros(4, jnp.int32)},
        ),
    }[name]()
    params, state = jax.eval_shape(task.init, jax.random.key(0))
    params, state = jax.tree.map(jnp.ones_like, (params, state))
    key = jax.random.key(1)

    def gradient(batch):
        return jax.grad(lambda *inputs: task.loss(*inputs)[0])(params, state, batch, key)

    compiled = jax.jit(gradient).lower(batch).compile().cost_analysis()["flops"]
    (ours,) = flops(gradient, jax.tree.map(lambda leaf: leaf[None], batch))
    assert 0.8 * compiled < ours < 1.05 * compiled


def test_products_in_a_loop_of_unknown_length_are_refused():
    def fn(times):
        def body(carry):
            return carry[0] + 1, carry[1] @ carry[1]

        return jax.lax.while_loop(lambda carry: carry[0] < times, body, (0, jnp.ones((2, 2))))[1]

    with pytest.raises(Failed, match="number of steps depends on its data"):
        flops(fn, jnp.arange(2))


def test_steps_and_members_multiply_a_figures_operations():
    figure = discover()["coarse_graining"]
    smoke = figure.presets["smoke"]
    larger = dataclasses.replace(smoke, num_seeds=3 * smoke.num_seeds)
    one, three = (
        hours.counted(dataclasses.replace(figure, presets={"a": config}), "a")
        for config in (smoke, larger)
    )
    assert three.members == 3 * one.members
    assert one.flops > 0
    assert three.flops == pytest.approx(3 * one.flops)


def test_a_chunks_memory_is_that_of_the_compiled_program():
    config = hours.HoursBenchConfig(
        figures=("coarse_graining",), preset="smoke", chip="cpu", at_once=1
    )
    (table,) = hours.run(config)
    ((*_, at_once, gib),) = table.rows
    assert at_once == 1
    assert 1e-4 < gib < 0.1


def total_of(member):
    return {"sum": member["x"].sum()}


@pytest.mark.parametrize(("at_once", "num_members"), [(None, 2), (1, 1), (3, 3), (9, 4)])
def test_at_once_decides_how_many_members_a_chunk_has(at_once, num_members):
    run = CountingRun(at_once=at_once)
    for size in (4, 1):
        run.sweep("sum", total_of, points(x=jnp.ones((size, 2))), chunk_size=2)
    assert len(run.chunks[total_of]["x"]) == num_members


def test_members_at_once_need_a_chip(capsys):
    assert cli.main(["bench", "hours", "--set", "at_once=1"]) == 2
    assert "at_once=1 needs a chip" in capsys.readouterr().err


def test_a_chip_without_a_compiler_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(_topologies, "PLUGINS", {"tpu": "no_such"})
    assert cli.main(["bench", "hours", "--set", "chip=v5e:2x2"]) == 1
    assert "chip=v5e:2x2 needs no_such" in capsys.readouterr().err
    assert cli.main(["bench", "hours", "--set", "chip=v9:2x2"]) == 2
    assert "chip must be like v5e:2x2" in capsys.readouterr().err


def test_c4_is_counted_without_a_download():
    """Stand-ins for its tokens have their number and dtype, so a program's memory is right."""
    corpus = hours._corpus("c4:gpt2")
    assert corpus.vocab_size == 50257
    assert corpus.tokens_train.dtype == np.uint16
    assert len(corpus.tokens_train) > 20_000 * 64 * 256


def test_an_unknown_figure_is_refused(capsys):
    assert cli.main(["bench", "hours", "--set", "figures=no_such"]) == 2
    assert "figures must be among all, annealing" in capsys.readouterr().err
