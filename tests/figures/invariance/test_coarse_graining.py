"""figures/invariance/coarse_graining: the three runs, their distances, and the claims."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from experiments.core.stats import ENDS
from experiments.figures.invariance import coarse_graining as figure
from experiments.training.tasks import language_task
from experiments.training.train import train_member
from kadam_jax import kadam
from models.nanogpt import query_key_slices
from tests.figures.contract import CORPUS, NETWORK, Contract

TINY = dataclasses.replace(
    figure.FIGURE.presets["smoke"],
    model=dataclasses.replace(NETWORK, num_heads=2, width=16, dropout=0.0, qk_norm=True),
    num_steps=12,
    eval_every=6,
)


@pytest.fixture(scope="module")
def task():
    return language_task(TINY.model, CORPUS, TINY.batch)


def test_the_first_run_is_adams(data, task):
    adam = kadam(TINY.learning_rate, 1, (TINY.b1,), (TINY.b2,), TINY.eps)
    expected = train_member(task, adam, seed=1, num_steps=TINY.num_steps)
    run = data.sel(seed=1, run="adam")
    np.testing.assert_allclose(run.loss, expected.loss, rtol=1e-5)
    np.testing.assert_allclose(run.training_loss[1], expected.loss[6:].mean(), rtol=1e-5)
    slices = jnp.stack(list(query_key_slices(expected.params).values()))
    kept = figure.run.chosen_entries(TINY, slices)
    np.testing.assert_allclose(run.trajectory[-1], slices[kept], rtol=1e-3, atol=1e-6)


def test_each_query_and_key_matrix_shares_one_second_moment(task):
    """In the first step u is g over the root mean square of its slice; elsewhere it is ±1."""

    @jax.jit
    def at_the_start():
        params, state = task.init(jax.random.key(0))
        batch, key = task.sample(jax.random.key(1)), jax.random.key(2)
        return params, jax.grad(lambda p: task.loss(p, state, batch, key)[0])(params)

    params, grads = at_the_start()

    @jax.jit
    def first_updates(coarse):
        chain = figure.run.optimizer(TINY, coarse)
        return chain.update(grads, chain.init(params), params)[0]

    for coarse in (True, False):
        updates = first_updates(coarse)
        u, g = updates["blocks"][0], grads["blocks"][0]["attention"]["qkv"]
        shared = jnp.sqrt(jnp.mean(g**2, axis=(0, 3), keepdims=True))
        expected = jnp.where(coarse & figure.run.QUERIES_AND_KEYS, g / shared, jnp.sign(g))
        np.testing.assert_allclose(
            u["attention"]["qkv"] / -TINY.learning_rate, expected, rtol=1e-4, atol=1e-6
        )
        np.testing.assert_allclose(abs(u["up"]), TINY.learning_rate, rtol=1e-4)


def test_only_the_control_sees_other_batches(data):
    first = data.loss.isel(step=0)
    assert (first.sel(run="coarse") == first.sel(run="adam")).all()
    assert (first.sel(run="reordered") != first.sel(run="adam")).all()
    assert (data.distance.sel(run="adam") == 0).all()
    apart = data.distance.sel(run=["coarse", "reordered"])
    assert (apart.sel(part="slices") > 0).all()
    assert (apart.isel(step=0).sel(run="coarse", part="others") == 0).all()
    assert (apart.isel(step=-1) > 0).all()


def test_distances_are_norms_of_both_parts(task):
    shapes, _ = jax.eval_shape(task.init, jax.random.key(0))
    zeros = jax.tree.map(lambda x: jnp.zeros((1, *x.shape)), shapes)
    runs = jax.tree.map(lambda x: jnp.concatenate([x, x + 2]), zeros)
    total = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    in_slices = 2 * TINY.model.num_layers * TINY.model.width**2
    squares = jax.jit(figure.run._norms)(runs, zeros) ** 2
    np.testing.assert_allclose(
        squares, [[0, 0], [4 * in_slices, 4 * (total - in_slices)]], rtol=1e-5
    )


def synthetic(apart=0.05, control=0.5, harm=0.0, spread=0.0):
    """Make a dataset in which the runs end `apart`, with `spread` as the range over seeds."""
    seeds = np.linspace(-1, 1, 9)
    distance = np.zeros((9, 1, 3, 2))
    distance[:, 0, 1] = (apart * (1 + spread * seeds))[:, None]
    distance[:, 0, 2] = control
    loss = np.full((9, 1, 3), 2.0)
    loss[:, 0, 1] += harm * 0.01 + spread * 0.01 * seeds
    loss[:, 0, 2] += 0.01 * np.where(seeds < 0, -1, 1)
    return xr.Dataset(
        {
            "distance": (("seed", "step", "run", "part"), distance),
            "heldout_loss": (("seed", "eval_step", "run"), loss),
        },
        {"run": list(figure.run.RUNS), "part": list(figure.run.PARTS), "end": list(ENDS)},
    )


CONTRACT = Contract(
    figure.FIGURE,
    TINY,
    panels={"": 6},
    refused=[
        ({"eval_every": 5}, "eval_every must divide num_steps=12, got 5"),
        ({"num_parameters": 0}, "num_parameters must be at least 1, got 0"),
    ],
    made_up=synthetic,
    cases={
        "coarse-graining-trajectories-agree": ({}, {"apart": 0.5}, {"apart": 0.1, "spread": 0.2}),
        "coarse-graining-less-than-data-order": ({}, {"apart": 0.9}, {"apart": 0.5, "spread": 0.2}),
        "coarse-graining-harmless-for-the-loss": (
            {"spread": 0.2},
            {"harm": 3.0, "spread": 0.2},
            {"harm": 1.0, "spread": 0.5},
        ),
    },
)
