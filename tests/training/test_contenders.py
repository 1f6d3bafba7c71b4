"""training/contenders.py and training/trials.py."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from experiments.core.stats import holm, paired_mean, paired_p_value
from experiments.data import byte_corpus
from experiments.training.contenders import (
    CONTENDERS,
    USUAL,
    kadam_contender,
    schedule,
    strategy_decays,
)
from experiments.training.trials import text_trial
from kadam_jax import kadam
from models.nanogpt import GPTConfig
from tests.kadam_jax.scanning import jit_feed

NUM_STEPS = 12
MODEL = GPTConfig(vocab_size=256, context=8, num_layers=1, num_heads=2, width=8)
CORPUS = byte_corpus("text", b"the quick brown fox jumps over the lazy dog. " * 40)
PARAMS = {"embedding": jnp.ones((3, 4)), "up": jnp.full((4, 6), 0.5), "scale": jnp.ones(4)}


def member_of(name, **changes):
    return {"rate": 0.1, **CONTENDERS[name].usual, **changes}


def run(optimizer, num_steps=NUM_STEPS):
    """Parameters and state after steps on fixed noise gradients."""
    keys = jax.random.split(jax.random.key(0), len(PARAMS))
    grads = {
        name: jax.random.normal(key, (NUM_STEPS, *leaf.shape))[:num_steps]
        for key, (name, leaf) in zip(keys, PARAMS.items(), strict=True)
    }
    params, _, states = jit_feed(optimizer, grads, PARAMS)
    return jax.tree.map(lambda x: x[-1], (params, states))


def ours(name, **changes):
    contender = CONTENDERS[name]
    shape = schedule(contender, NUM_STEPS, 3, 0.1)
    return contender.make(member_of(name, **changes), shape)


def rate_of(name, **_):
    shape = schedule(CONTENDERS[name], NUM_STEPS, 3, 0.1)
    return lambda count: 0.1 * shape(count)


THEIRS = {
    "adamw": lambda rate: optax.adamw(rate, 0.9, 0.999, weight_decay=1e-2),
    "nadamw": lambda rate: optax.nadamw(rate, 0.9, 0.999, weight_decay=1e-2),
    "lion": lambda rate: optax.lion(rate, 0.9, 0.99, weight_decay=1e-2),
    "kadam_2": lambda rate: kadam(rate, 2, (0.9, 0.9), (0.999, 0.999), weight_decay=1e-2),
    "kadam_3": lambda rate: kadam(rate, 3, (0.9,) * 3, (0.999,) * 3, weight_decay=1e-2),
}


@pytest.mark.parametrize("name", THEIRS)
def test_a_contender_is_the_optimizer_of_its_name(name):
    found, _ = run(ours(name))
    expected, _ = run(THEIRS[name](rate_of(name)))
    for leaf in PARAMS:
        np.testing.assert_allclose(found[leaf], expected[leaf], rtol=1e-5)


def test_schedule_free_is_optax_own_and_measured_through_its_average():
    found, state = run(ours("schedule_free_adamw"))
    theirs = contrib.schedule_free_adamw(0.1, warmup_steps=3, weight_decay=1e-2)
    expected, theirs_state = run(theirs)
    evaluated = CONTENDERS["schedule_free_adamw"].evaluated(state, found)
    averages = contrib.schedule_free_eval_params(theirs_state, expected)
    for leaf in PARAMS:
        np.testing.assert_allclose(found[leaf], expected[leaf], rtol=1e-5)
        np.testing.assert_allclose(evaluated[leaf], averages[leaf], rtol=1e-5)
        assert not np.allclose(evaluated[leaf], found[leaf], rtol=1e-3)


def test_muon_is_for_matrices_and_adam_for_what_is_looked_up():
    found, _ = run(ours("muon"), num_steps=4)
    adam, _ = run(
        optax.nadamw(rate_of("muon"), CONTENDERS["muon"].usual["b1"], 0.999, weight_decay=1e-2),
        num_steps=4,
    )
    for leaf in ("embedding", "scale"):
        np.testing.assert_allclose(found[leaf], adam[leaf], rtol=1e-6)
    assert not np.allclose(found["up"], adam["up"], rtol=1e-2)


def test_muons_heads_are_apart():
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
        optimizer = CONTENDERS[name].make(
            member_of(name, rate=1.0, weight_decay=0.0), lambda count: 1.0
        )
        grads = {"up": jax.random.normal(jax.random.key(0), (8, 16, 16))}
        _, updates, _ = jit_feed(optimizer, grads, params)
        sizes.append(float(jnp.sqrt(jnp.mean(updates["up"][-1] ** 2))))
    assert 0.5 < sizes[0] / sizes[1] < 2


@pytest.mark.parametrize("name", CONTENDERS)
def test_everything_of_a_member_may_be_traced(name):
    contender = CONTENDERS[name]
    shape = schedule(contender, NUM_STEPS, 3, 0.1)

    @jax.jit
    def fn(member):
        params, state = run(contender.make(member, shape))
        return contender.evaluated(state, params)["up"].sum()

    base = fn(member_of(name))
    assert np.isfinite(base)
    for change in ({"rate": 0.2}, {"b1": 0.5}, {"b2": 0.9}, {"weight_decay": 0.5}):
        ignored = {"rmsprop": "b1", "muon": "b2"}.get(name)  # of a matrix
        assert (fn(member_of(name, **change)) == base) == (ignored in change)


def test_each_stage_may_have_its_own_decays():
    member = {"rate": 0.1, "weight_decay": 0.0, "b1_1": 0.9, "b1_2": 0.5, "b2_1": 0.99, "b2_2": 0.8}
    found, _ = run(kadam_contender(2).make(member, lambda count: 1.0))
    expected, _ = run(kadam(0.1, 2, (0.9, 0.5), (0.99, 0.8)))
    np.testing.assert_allclose(found["up"], expected["up"], rtol=1e-6)


def test_the_naive_strategy_gives_every_stage_the_usual_decays():
    assert strategy_decays(2, "naive") == {"b1": USUAL["b1"], "b2": USUAL["b2"]}


def test_the_measured_parameters_are_what_evaluated_gives():
    trial = text_trial(MODEL, CORPUS, batch=2, num_steps=3, eval_batches=2)
    zeros = trial(optax.sgd(0.1), 0, lambda opt_state, params: jax.tree.map(jnp.zeros_like, params))
    np.testing.assert_allclose(zeros["test"], np.log(256), rtol=1e-5)


def test_paired_intervals_cover_the_mean_even_with_few_seeds():
    """A bootstrap alone covers it in 87 of these cases."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        _, low, high = paired_mean(rng.normal(1.0, 1.0, 5)).ends
        covered += low <= 1.0 <= high
    assert covered >= 91


def test_a_paired_interval_excludes_0_only_where_the_test_does():
    rng = np.random.default_rng(1)
    for _ in range(20):
        differences = rng.exponential(1.0, 6) - 0.3
        _, low, high = paired_mean(differences).ends
        assert low <= 0 <= high or paired_p_value(differences) < 0.05


def test_differences_that_are_not_finite_say_nothing():
    assert np.isnan(paired_mean([1.0, np.inf]).ends).all()
    assert np.isnan(paired_p_value([1.0, np.nan]))
    assert holm([np.nan, 0.01]).tolist() == [1.0, 0.02]
    with pytest.raises(ValueError, match="at least 2"):
        paired_mean([1.0])


def test_holm_never_rejects_what_bonferroni_keeps_out_of_order():
    p = np.random.default_rng(1).uniform(size=12)
    adjusted = holm(p)
    assert (adjusted >= p).all()
    assert (adjusted <= np.minimum(1, 12 * p) + 1e-15).all()
    assert (np.diff(adjusted[np.argsort(p)]) >= 0).all()
