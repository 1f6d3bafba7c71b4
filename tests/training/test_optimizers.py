"""Tests of training/optimizers.py and training/trials.py: each optimizer is one row."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from experiments.core.stats import holm, paired_mean, paired_p_value
from experiments.data import byte_corpus
from experiments.figures.optimizer import optimizer_comparison, rate_sensitivity
from experiments.train.config import TrainConfig, hyperparameters, optimizer_of
from experiments.training.config import ContendersConfig
from experiments.training.optimizers import (
    OPTIMIZERS,
    USUAL,
    Optimizer,
    make_optimizer,
    strategy_decays,
)
from experiments.training.schedules import warmup_constant, warmup_cosine
from experiments.training.trials import optimizer_trial, text_trial
from kadam_jax import kadam
from models.nanogpt import GPTConfig
from tests.kadam_jax.support.scanning import jit_feed

NUM_STEPS = 12
MODEL = GPTConfig(vocab_size=256, context=8, num_layers=1, num_heads=2, width=8)
SMALL = ContendersConfig(model=MODEL, batch=2, num_steps=3, warmup_steps=1, eval_batches=2)
CORPUS = byte_corpus("text", b"the quick brown fox jumps over the lazy dog. " * 40)
PARAMS = {"embedding": jnp.ones((3, 4)), "up": jnp.full((4, 6), 0.5), "scale": jnp.ones(4)}
IGNORED = {"rmsprop": {"b1"}, "muon": {"b2"}, "sgd": {"b2"}}
"""Hyperparameters that have no effect on a matrix."""


def member_of(name, **changes):
    return {"learning_rate": 0.1, **OPTIMIZERS[name].usual, **changes}


def run(optimizer, num_steps=NUM_STEPS):
    """Return parameters and state after steps on fixed noise gradients."""
    keys = jax.random.split(jax.random.key(0), len(PARAMS))
    grads = {
        name: jax.random.normal(key, (NUM_STEPS, *leaf.shape))[:num_steps]
        for key, (name, leaf) in zip(keys, PARAMS.items(), strict=True)
    }
    params, _, states = jit_feed(optimizer, grads, PARAMS)
    return jax.tree.map(lambda x: x[-1], (params, states))


FALLING = warmup_cosine(NUM_STEPS, 3, 0.1)


def ours(name, **changes):
    shape = FALLING if OPTIMIZERS[name].decays_rate else warmup_constant(NUM_STEPS, 3, 0.1)
    return make_optimizer(name, member_of(name, **{"k": 2, **changes}), shape)


def rate(count):
    return 0.1 * FALLING(count)


THEIRS = {
    "adamw": ({}, optax.adamw(rate, 0.9, 0.999, weight_decay=1e-2)),
    "nadamw": ({}, optax.nadamw(rate, 0.9, 0.999, weight_decay=1e-2)),
    "lion": ({}, optax.lion(rate, 0.9, 0.99, weight_decay=1e-2)),
    "kadam": ({"k": 3}, kadam(rate, 3, (0.9,) * 3, (0.999,) * 3, weight_decay=1e-2)),
}


@pytest.mark.parametrize("name", THEIRS)
def test_a_row_is_the_optimizer_of_its_name(name):
    changes, theirs = THEIRS[name]
    found, _ = run(ours(name, **changes))
    expected, _ = run(theirs)
    for leaf in PARAMS:
        np.testing.assert_allclose(found[leaf], expected[leaf], rtol=1e-5)


def test_schedule_free_is_optaxs_and_uses_its_average():
    found, state = run(ours("schedule_free_adamw"))
    theirs = contrib.schedule_free_adamw(0.1, warmup_steps=3, weight_decay=1e-2)
    expected, theirs_state = run(theirs)
    evaluated = OPTIMIZERS["schedule_free_adamw"].evaluated(state, found)
    averages = contrib.schedule_free_eval_params(theirs_state, expected)
    for leaf in PARAMS:
        np.testing.assert_allclose(found[leaf], expected[leaf], rtol=1e-5)
        np.testing.assert_allclose(evaluated[leaf], averages[leaf], rtol=1e-5)
        assert not np.allclose(evaluated[leaf], found[leaf], rtol=1e-3)


def test_muon_is_for_matrices_and_adam_for_lookups():
    found, _ = run(ours("muon"), num_steps=4)
    adam, _ = run(
        optax.nadamw(rate, OPTIMIZERS["muon"].usual["b1"], 0.999, weight_decay=1e-2),
        num_steps=4,
    )
    for leaf in ("embedding", "scale"):
        np.testing.assert_allclose(found[leaf], adam[leaf], rtol=1e-6)
    assert not np.allclose(found["up"], adam["up"], rtol=1e-2)


def test_muon_treats_heads_separately():
    leaf = jax.random.normal(jax.random.key(0), (4, 3, 2, 4))
    apart = {f"up{i}{j}": leaf[:, i, j] for i in range(3) for j in range(2)}
    optimizer = ours("muon")

    def update(tree):
        grads = jax.tree.map(lambda x: jnp.stack([jnp.sin(x)] * 2), tree)
        _, updates, _ = jit_feed(optimizer, grads, tree)
        return jax.tree.map(lambda x: x[-1], updates)

    together = update({"qkv": leaf})["qkv"]
    for name, part in update(apart).items():
        np.testing.assert_allclose(together[:, int(name[2]), int(name[3])], part, atol=1e-6)


def test_muons_updates_are_as_large_as_adams():
    params = {"up": jnp.zeros((16, 16))}
    sizes = []
    for name in ("muon", "adamw"):
        member = member_of(name, learning_rate=1.0, weight_decay=0.0)
        optimizer = make_optimizer(name, member, lambda count: 1.0)
        grads = {"up": jax.random.normal(jax.random.key(0), (8, 16, 16))}
        _, updates, _ = jit_feed(optimizer, grads, params)
        sizes.append(float(jnp.sqrt(jnp.mean(updates["up"][-1] ** 2))))
    assert 0.5 < sizes[0] / sizes[1] < 2


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_hyperparameters_of_a_member_may_be_traced(name):
    @jax.jit
    def fn(member):
        params, state = run(ours(name, **member))
        return OPTIMIZERS[name].evaluated(state, params)["up"].sum()

    base = fn(member_of(name))
    assert np.isfinite(base)
    for change in ({"learning_rate": 0.2}, {"b1": 0.5}, {"b2": 0.9}, {"weight_decay": 0.5}):
        has_effect = fn(member_of(name, **change)) != base
        is_ignored = not IGNORED.get(name, set()).isdisjoint(change)
        assert has_effect != is_ignored, f"{change}, IGNORED.get({name!r}): {IGNORED.get(name)}"


def test_each_stage_may_have_its_own_decays():
    decays = {"b1_1": 0.9, "b1_2": 0.5, "b2_1": 0.99, "b2_2": 0.8}
    member = {"learning_rate": 0.1, "weight_decay": 0.0, "k": 2, **decays}
    found, _ = run(make_optimizer("kadam", member, lambda count: 1.0))
    expected, _ = run(kadam(0.1, 2, (0.9, 0.5), (0.99, 0.8)))
    np.testing.assert_allclose(found["up"], expected["up"], rtol=1e-6)


def test_a_new_optimizer_is_one_row(monkeypatch):
    """The train command and the comparisons accept it, train with it and measure through it."""

    def make(at, schedule):
        return optax.sgd(schedule, momentum=at["b1"])

    def zeros(opt_state, params):
        return jax.tree.map(jnp.zeros_like, params)

    row = Optimizer(make, usual=USUAL | {"b1": 0.5}, evaluated=zeros)
    monkeypatch.setitem(OPTIMIZERS, "heavy_ball", row)
    config = TrainConfig(optimizer="heavy_ball", b1=0.5, warmup_steps=3, num_steps=NUM_STEPS)
    found, _ = run(optimizer_of(config, hyperparameters(config)))
    expected, _ = run(optax.sgd(lambda count: 1e-3 * FALLING(count), momentum=0.5))
    np.testing.assert_allclose(found["up"], expected["up"], rtol=1e-6)

    smoke = optimizer_comparison.FIGURE.presets["smoke"]
    compared = dataclasses.replace(smoke, optimizers=("adamw", "heavy_ball", "kadam"))
    assert compared.grid("heavy_ball") == compared.grid("adamw")
    smoke = rate_sensitivity.FIGURE.presets["smoke"]
    dataclasses.replace(smoke, optimizers=("adamw", "heavy_ball"))
    trial = text_trial(SMALL, CORPUS)
    losses = optimizer_trial("heavy_ball", trial, 3, 1, 0.1)(member_of("heavy_ball", seed=0))
    np.testing.assert_allclose(losses["test"], np.log(256), rtol=1e-5)


def test_the_naive_strategy_gives_every_stage_the_usual_decays():
    assert strategy_decays(2, "naive") == {"b1": USUAL["b1"], "b2": USUAL["b2"]}


def test_the_measured_parameters_are_those_of_evaluated():
    trial = text_trial(SMALL, CORPUS)
    zeros = trial(optax.sgd(0.1), 0, lambda opt_state, params: jax.tree.map(jnp.zeros_like, params))
    np.testing.assert_allclose(zeros["test"], np.log(256), rtol=1e-5)


def test_paired_intervals_cover_the_mean_even_with_few_seeds():
    """A bootstrap alone would cover it in 87 of these cases."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        _, low, high = paired_mean(rng.normal(1.0, 1.0, 5)).ends
        covered += low <= 1.0 <= high
    assert covered >= 91


def test_a_paired_interval_agrees_with_the_paired_test():
    rng = np.random.default_rng(1)
    for _ in range(20):
        differences = rng.exponential(1.0, 6) - 0.3
        _, low, high = paired_mean(differences).ends
        assert low <= 0 <= high or paired_p_value(differences) < 0.05


def test_differences_that_are_not_finite_decide_nothing():
    assert np.isnan(paired_mean([1.0, np.inf]).ends).all()
    assert np.isnan(paired_p_value([1.0, np.nan]))
    assert holm([np.nan, 0.01]).tolist() == [1.0, 0.02]
    with pytest.raises(ValueError, match="at least 2"):
        paired_mean([1.0])


def test_holm_adjusts_at_most_as_bonferroni_and_keeps_order():
    p = np.random.default_rng(1).uniform(size=12)
    adjusted = holm(p)
    assert (adjusted >= p).all()
    assert (adjusted <= np.minimum(1, 12 * p) + 1e-15).all()
    assert (np.diff(adjusted[np.argsort(p)]) >= 0).all()
