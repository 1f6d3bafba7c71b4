"""figures/invariance/inner_products: what is recorded, Lemma 2, and the claims."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from experiments.core.stats import ENDS
from experiments.figures.invariance import inner_products as figure
from experiments.figures.invariance.inner_products import claims
from experiments.figures.invariance.queries_and_keys import stacked
from experiments.training.tasks import language_task
from kadam_jax import scale_by_kadam
from models.nanogpt import query_key_slices
from tests.figures.contract import CORPUS, NETWORK, Contract

TINY = dataclasses.replace(
    figure.FIGURE.presets["smoke"],
    model=dataclasses.replace(NETWORK, num_heads=2, width=16, dropout=0.0),
    num_steps=12,
    exact_steps=6,
)


def test_products_are_those_of_a_run_whose_gradients_were_kept(data):
    model = TINY.networks["qk_norm"]
    task = language_task(model, CORPUS, TINY.batch)
    init_key, run_key = jax.random.split(jax.random.key(1))
    params, state = task.init(init_key)
    optimizer = scale_by_kadam(1, (TINY.b1,), (TINY.b2,), TINY.eps)
    opt_state = optimizer.init(params)

    @jax.jit
    def step(params, opt_state, index):
        sample_key, dropout_key = jax.random.split(jax.random.fold_in(run_key, index))
        grads, _ = jax.grad(task.loss, has_aux=True)(
            params, state, task.sample(sample_key), dropout_key
        )
        u, opt_state = optimizer.update(grads, opt_state)
        moved = jax.tree.map(lambda p, u: p - TINY.learning_rate * u, params, u)
        return moved, opt_state, grads, u

    def flat(tree):
        return np.stack([np.ravel(x).astype(float) for x in query_key_slices(tree).values()])

    weights, gradients, updates, roots, square = [], [], [], [], 0.0
    for index in range(TINY.num_steps):
        weights.append(flat(params))
        params, opt_state, grads, u = step(params, opt_state, index)
        gradients.append(flat(grads))
        updates.append(flat(u))
        square = TINY.b2 * square + (1 - TINY.b2) * gradients[-1] ** 2
        roots.append(np.sqrt(square / (1 - TINY.b2 ** (index + 1))))
    end, w, g, u = flat(params), np.stack(weights), np.stack(gradients), np.stack(updates)

    def cosine(a, b):
        return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)

    run = data.sel(network="qk_norm", seed=1)
    close = {"rtol": 1e-3, "atol": 1e-6}
    np.testing.assert_allclose(run.inner, (end[None] * g).sum(-1), rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(run.cosine, cosine(end[None], g), **close)
    np.testing.assert_allclose(run.update_cosine, cosine(end[None], u), **close)
    np.testing.assert_allclose(run.own_cosine, cosine(w, g), **close)
    own = -TINY.learning_rate * g / np.stack(roots)
    let_through = 1 - TINY.b1 ** (TINY.num_steps - np.arange(TINY.num_steps)[:, None])
    share = (own * g).sum(-1) / np.linalg.norm(end, axis=-1) / np.linalg.norm(g, axis=-1)
    np.testing.assert_allclose(run.own_share, let_through * share, **close)
    radial = abs(2 * (w * u).sum(-1)) / (TINY.learning_rate * (u**2).sum(-1))
    np.testing.assert_allclose(run.radial_share, np.median(radial, -1), rtol=1e-3)


def test_both_passes_are_the_same_to_the_bit(data):
    assert (data.repeat_error == 0).all()


def test_with_orthogonal_noise_the_mean_is_each_gradients_part():
    steps, late = 400, np.s_[1, 100:]  # of the second pass

    def tree(qkv):
        return {"blocks": {0: {"attention": {"qkv": qkv}}}}

    def one_pass(end, keys):
        adam = figure.run._observed_adam(TINY, end)
        start = jax.random.normal(jax.random.key(0), (8, 3, 8, 8))

        def step(carry, key):
            w, state = carry
            noise = jax.random.normal(key, w.shape)
            inner, square = ((w * x).sum((0, 3), keepdims=True) for x in (noise, w))
            u, state = adam.update(tree(noise - inner / square * w), state, tree(w))
            moved = w - TINY.learning_rate * u["blocks"][0]["attention"]["qkv"]
            return (moved, state), state.products

        (w, _), products = jax.lax.scan(step, (start, adam.init(tree(start))), keys)
        return stacked(tree(w)), products

    @jax.jit
    def both_passes():
        keys = jax.random.split(jax.random.key(1), steps)
        return jax.lax.scan(one_pass, jnp.zeros((16, 8, 8)), jnp.stack([keys, keys]))[1]

    products = both_passes()
    let_through = 1 - TINY.b1 ** (steps - np.arange(steps)[:, None])
    expected = let_through * products["own_share"][1]
    np.testing.assert_allclose(products["cosine"][late].mean(), expected[100:].mean(), rtol=0.1)


def test_own_gradients_are_orthogonal_only_under_qk_norm(data):
    cosines = abs(data.own_cosine)
    assert cosines.sel(network="no_qk_norm").max() > 100 * cosines.sel(network="qk_norm").max()
    assert abs(data.exact_cosine).max() < 1e-4


def test_stated_numbers_have_intervals(data):
    stated = [array for array in data.data_vars.values() if array.dims == ("end",)]
    assert stated
    for array in stated:
        value, low, high = array.values
        assert low <= value <= high


def synthetic(qk=0.01, plain=0.1, end=0.0, own=1e-6, radial=0.01, share=1.0, spread=0.0):
    """Make a dataset with these values of what claims read, spread by `spread` over seeds."""
    seeds = 1 + spread * np.linspace(-1, 1, 9)
    shape = (2, 9, 100, 4)
    level = np.array([qk, plain])[:, None, None, None] * seeds[:, None, None]
    inner = np.broadcast_to(level, shape).copy()
    inner[:, :, -claims.LAST_STEPS :] *= end
    dims = ("network", "seed", "step", "slice")
    radial_share = np.broadcast_to(radial * seeds[:, None], shape[:3])
    return xr.Dataset(
        {
            "cosine": (dims, np.broadcast_to(level, shape)),
            "inner": (dims, inner),
            "own_share": (dims, np.full(shape, qk / share)),
            "chance": ((), 0.02),
            "radial_share": (dims[:3], radial_share),
            "exact_cosine": (
                ("seed", "exact_step", "slice"),
                np.broadcast_to(own * seeds[:, None, None], (9, 5, 4)),
            ),
        },
        {"network": ["qk_norm", "no_qk_norm"], "end": list(ENDS)},
    )


CONTRACT = Contract(
    figure.FIGURE,
    TINY,
    panels={"": 6},
    refused=[({"exact_steps": 13}, "exact_steps must be from 1 to num_steps=12, got 13")],
    made_up=synthetic,
    cases={
        "inner-products-less-with-qk-norm": ({}, {"qk": 0.09}),
        "inner-products-vanish-toward-the-end": ({}, {"end": 1.0}),
        "assumption-1-chance": ({}, {"qk": 0.06}, {"qk": 0.03, "spread": 0.2}),
        "inner-products-are-momentums": ({}, {"share": 2.0}, {"share": 1.15, "spread": 0.2}),
        "lemma-2-orthogonal-gradients": ({}, {"own": 1e-2}, {"own": 1e-4, "spread": 0.2}),
        "radial-term-negligible": ({}, {"radial": 1.0}, {"radial": 0.1, "spread": 0.2}),
    },
)
