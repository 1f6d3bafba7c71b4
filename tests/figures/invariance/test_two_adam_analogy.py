"""figures/invariance/two_adam_analogy and its claims."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr

from experiments.figures.invariance.two_adam_analogy import FIGURE
from experiments.figures.invariance.two_adam_analogy.run import (
    ARMS,
    RUNNING_MEAN,
    SECOND_STAGES,
    Config,
    analyze,
)
from experiments.training.tasks import language_task
from experiments.training.train import train_member
from kadam_jax.normalization import scale_by_adaptive_normalization
from kadam_jax.optimizer import kadam
from tests.figures.contract import CORPUS, NETWORK, Contract

TINY = dataclasses.replace(NETWORK, num_heads=2)
CONFIG = Config(
    model=TINY,
    batch=2,
    num_steps=6,
    num_seeds=3,
    learning_rates=(1e-3, 1e-2),
    averaging_steps=2,
    norm_steps=20,
    eval_batches=2,
)


# Training


def queries_and_keys(*shape, seed=0):
    """Return a tree laid out like nanoGPT's parameters."""
    random = np.random.default_rng(seed)
    leaves = [random.standard_normal((*shape, *size)) for size in ((4, 3, 2, 5), (4, 4), (7, 4))]
    qkv, out, embedding = (leaf.astype(np.float32) for leaf in leaves)
    return {"blocks": {0: {"attention": {"qkv": qkv, "out": out}}}, "embedding": embedding}


def outputs(stage, gradients):
    params = queries_and_keys()
    return jax.lax.scan(
        lambda state, g: stage.update(g, state, params)[::-1], stage.init(params), gradients
    )[1]


@pytest.mark.parametrize("name", SECOND_STAGES)
def test_second_stages_match_their_names(name):
    u = queries_and_keys(8)
    b2 = 0.9
    out = outputs(SECOND_STAGES[name](b2, 0.0), u)
    qkv, new = (tree["blocks"][0]["attention"]["qkv"] for tree in (u, out))
    mean_over = {"two_adam_coarse": (1, 4), "adam": None}.get(name, ())
    for n in (0, 7):
        weights = b2 ** np.arange(n, -1, -1) * (1 - b2) / (1 - b2 ** (n + 1))
        average = np.tensordot(weights, qkv[: n + 1] ** 2, 1)[None]
        if mean_over:
            average = average.mean(mean_over, keepdims=True)
        root = 1 if mean_over is None else np.sqrt(average)[0]
        expected = qkv[n] / root
        np.testing.assert_allclose(new[n][:, :2], expected[:, :2], rtol=1e-5)
        values = expected if name == "two_adam_everywhere" else qkv[n]
        np.testing.assert_allclose(new[n][:, 2], values[:, 2], rtol=1e-5)
    changed = bool(np.any(out["embedding"] != u["embedding"]))
    assert changed == (name == "two_adam_everywhere")


def test_two_adam_everywhere_equals_kadam_with_those_decays(data):
    """This is at λ = 0, where no weight decays."""
    task = language_task(TINY, CORPUS, CONFIG.batch)
    with_norm = language_task(dataclasses.replace(TINY, qk_norm=True), CORPUS, CONFIG.batch)

    def init(key):
        params, state = with_norm.init(key)
        attention = params["blocks"][0]["attention"]
        params["blocks"][0]["attention"] = {name: attention[name] for name in ("qkv", "out")}
        return params, state

    optimizer = kadam(1e-3, 2, (CONFIG.b1, 0.0), (CONFIG.b2, RUNNING_MEAN), CONFIG.eps)
    loss = train_member(task._replace(init=init), optimizer, seed=1, num_steps=6).loss
    at = data.loss.sel(arm="two_adam_everywhere", decay="λ = 0", rate=1e-3, seed=1)
    np.testing.assert_allclose(at, loss, rtol=1e-4)


def test_the_run_with_the_layer_is_adamw_with_decay_on_qk(data):
    task = language_task(dataclasses.replace(TINY, qk_norm=True), CORPUS, CONFIG.batch)
    rate, places = 1e-2, np.array([1.0, 1.0, 0.0]).reshape(3, 1, 1)

    def decay(updates, params):
        weight_decay = 1 / (2 * rate * CONFIG.averaging_steps)
        masked = jax.tree.map(jnp.zeros_like, params)
        masked["blocks"][0]["attention"]["qkv"] = (
            places[None] * params["blocks"][0]["attention"]["qkv"]
        )
        return jax.tree.map(lambda u, w: u + weight_decay * w, updates, masked)

    optimizer = optax.chain(
        scale_by_adaptive_normalization(CONFIG.b1, CONFIG.b2, CONFIG.eps),
        optax.stateless(decay),
        optax.scale(-rate),
    )
    loss = train_member(task, optimizer, seed=2, num_steps=6).loss
    at = data.loss.sel(arm="adam_qk_norm", decay="λ > 0", rate=rate, seed=2)
    np.testing.assert_allclose(at, loss, rtol=1e-4)


def test_arms_begin_with_the_same_weights_and_then_differ(data):
    plain = data.loss.sel(arm=list(SECOND_STAGES))
    first, last = plain.isel(step=0), plain.sel(rate=1e-2).isel(step=-1)
    np.testing.assert_allclose(first, first.isel(arm=[0, 0, 0, 0]), rtol=1e-6)
    for arm in list(SECOND_STAGES)[1:]:
        assert (last.sel(arm=arm) != last.sel(arm="adam")).all()


# Analysis


def random_results(config, num_slices=3):
    random = np.random.default_rng(1)
    shape = (2, config.num_seeds, config.norm_steps, num_slices)
    names = ("squared_norm", "squared_update", "scale", "cosine")
    followed = {name: random.uniform(0.5, 1.5, shape) for name in names}
    members = (len(ARMS), len(config.learning_rates), 2, config.num_seeds)
    return (
        followed,
        random.uniform(2, 3, (*members, config.num_steps)),
        random.uniform(2, 3, (*members, 2)),
    )


def test_norms_are_compared_with_averages_of_earlier_updates():
    followed, *losses = random_results(CONFIG)
    data = analyze(CONFIG, followed, *losses)
    rate = CONFIG.learning_rate
    for place, decay_rate in enumerate((0.0, 1 / (2 * rate * CONFIG.averaging_steps))):
        keep = 1 / (1 + 2 * decay_rate * rate)
        average = 0.0
        for n in range(CONFIG.norm_steps - 1):
            average = keep * average + rate**2 * keep * followed["squared_update"][place, 0, n]
            ratio = followed["squared_norm"][place, 0, n + 1] / average
            np.testing.assert_allclose(data.ratio[place, 0, :, n], ratio, rtol=1e-5)
    product = np.sqrt(followed["squared_norm"]) * followed["scale"]  # steps 18, 19 and 10, 11
    drift = product[:, :, 18:].mean(2) / product[:, :, 10:12].mean(2)
    np.testing.assert_allclose(data.drift, drift, rtol=1e-9)
    np.testing.assert_allclose(data.final_ratio, data.ratio[..., -2:].mean("norm_step"))
    np.testing.assert_allclose(data.final_cosine, followed["cosine"][:, :, 10:].mean(2))


def test_a_learning_rate_is_chosen_on_the_other_seeds():
    followed, loss, final = random_results(CONFIG)
    final[1, 0, 1] = np.nan  # diverged in all seeds
    final[2, 1, 0, 2] = np.nan  # in one seed
    data = analyze(CONFIG, followed, loss, final)
    for arm in range(len(ARMS)):
        for decay in range(2):
            for seed in range(CONFIG.num_seeds):
                others = np.delete(final[arm, :, decay, :, 1], seed, axis=1).mean(axis=1)
                best = np.argmin(np.where(np.isnan(others), np.inf, others))
                at = data.isel(arm=arm, decay=decay, seed=seed)
                assert at.tuned_rate == CONFIG.learning_rates[best]
                np.testing.assert_array_equal(at.tuned_loss, final[arm, best, decay, seed])


def test_the_coarse_stage_is_a_scale_and_the_run_is_sound(data):
    assert data.sizes["slice"] == 4
    assert (abs(data.cosine) <= 1 + 1e-6).all()
    for name in ("ratio", "scale", "inverse_norm", "final_loss", "tuned_loss"):
        assert (data[name] > 0).all()


def test_gains_are_over_adam_at_its_best_rate(data):
    gains = data.tuned_loss.sel(arm="adam") - data.tuned_loss.sel(arm="two_adam_coarse")
    expected = gains.isel(decay=1).sel(split="heldout").mean().item()
    assert data.gain_two_adam_coarse_best_1[0] == pytest.approx(expected)


# Claims

LAPTOP = FIGURE.presets["laptop"]


def made_up(layer=0.1, stage=0.1, drift=1.0, factor=19.0, cosine=0.99, spread=0.0):
    """Make what claims read from the figure's dataset. The layer gains `layer` nats and every
    2-Adam `stage`; the rest is the same for both decays; `spread` is added to all by seed."""
    noise = np.linspace(-spread, spread, LAPTOP.num_seeds)[:, None] * np.ones(2)
    gains = (
        np.array([layer, 0.0, *[stage] * 3])[:, None]
        + noise[:, 0] * (np.array(ARMS) != "adam")[:, None]
    )
    slices = ("decay", "seed", "slice")
    both = np.ones((2, 1, 1))
    return xr.Dataset(
        {
            "drift": (slices, (drift + noise) * both),
            "final_ratio": (slices, factor * (1 + noise) * both),
            "final_cosine": (slices, (cosine + noise) * both),
            "momentum_factor": 19.0,
            "tuned_loss": (
                ("arm", "decay", "seed", "split"),
                2.5 - gains[:, None, :, None] * np.ones((1, 2, 1, 2)),
            ),
        },
        {"arm": list(ARMS), "split": ["train", "heldout"]},
    )


LAYER = ({}, {"layer": -0.1}, {"layer": 0.0, "spread": 0.1})
RECOVERS = ({"stage": 0.06}, {"stage": 0.04}, {"layer": 0.0, "spread": 0.1})
CONTRACT = Contract(
    FIGURE,
    CONFIG,
    panels={"": 6, "training": 4},
    strict=(32,),
    diverged=((np.nan, 64), (np.nan, 32)),
    refused=[
        ({"model": dataclasses.replace(TINY, qk_norm=True)}, "model.qk_norm"),
        {"num_seeds": 1},
        {"learning_rates": ()},
        {"learning_rates": (0.0, 1.0)},
        {"norm_steps": 19},
        {"eval_batches": 0},
    ],
    made_up=made_up,
    cases={
        "norm-scales-like-the-second-stage-with-decay": (
            {},
            {"drift": 1.2},
            {"drift": 1.05, "spread": 0.01},
        ),
        "norm-scales-like-the-second-stage-without-decay": (
            {},
            {"drift": 0.8},
            {"drift": 0.95, "spread": 0.01},
        ),
        "norm-is-the-root-of-the-average": ({"factor": 1.0}, {}, {"factor": 1.15, "spread": 0.01}),
        "norm-is-the-root-of-the-corrected-average": (
            {},
            {"factor": 1.0},
            {"factor": 16.0, "spread": 0.02},
        ),
        "elementwise-stage-keeps-the-direction": (
            {},
            {"cosine": 0.9},
            {"cosine": 0.95, "spread": 0.01},
        ),
    }
    | {
        f"{name}-{decay}": cases
        for decay in ("with-decay", "without-decay")
        for name, cases in {
            "normalization-layer-helps": LAYER,
            "two-adam-everywhere-recovers-half": RECOVERS,
            "two-adam-elementwise-recovers-half": RECOVERS,
            "two-adam-coarse-recovers-half": RECOVERS,
        }.items()
    },
)
