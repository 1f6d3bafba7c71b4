"""Tests of training/tasks.py and train.py: a run as a pure function, alone and as a member."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.core.errors import ConfigError
from experiments.data import byte_corpus, load_corpus
from experiments.training.optimizers import OPTIMIZERS, make_optimizer
from experiments.training.schedules import warmup_cosine
from experiments.training.tasks import Task, language_task
from experiments.training.train import train_member
from kadam_jax.members import points, sweep
from models.nanogpt import GPTConfig

TINY = GPTConfig(vocab_size=256, context=8, num_layers=1, num_heads=2, width=16, dropout=0.1)


@pytest.fixture(scope="module")
def task():
    return language_task(TINY, load_corpus("embedded"), batch=2)


def parabola(noise=0.0):
    """Return loss (w - noise·batch)²/2; `noise` also randomizes initial weight and dropout."""

    def loss(w, count, batch, key):
        return (w - noise * (batch + jax.random.normal(key))) ** 2 / 2, count + 1

    return Task(
        init=lambda key: (1 + noise * jax.random.normal(key), jnp.zeros((), jnp.int32)),
        loss=loss,
        sample=jax.random.normal,
    )


def test_gradient_descent_on_a_parabola_is_a_geometric_sequence():
    result = train_member(parabola(), optax.sgd(0.25), seed=0, num_steps=6)
    np.testing.assert_allclose(result.loss, 0.75 ** (2 * np.arange(6)) / 2, rtol=1e-6)
    np.testing.assert_allclose(result.params, 0.75**6, rtol=1e-6)
    assert result.state == 6


def test_read_sees_the_state_after_every_step():
    optimizer = optax.scale_by_adam()
    result = train_member(
        parabola(), optimizer, seed=0, num_steps=4, read=lambda state: {"count": state.count}
    )
    assert result.read["count"].tolist() == [1, 2, 3, 4]


def test_a_longer_run_begins_with_the_shorter_one():
    short, long = (
        train_member(parabola(noise=1.0), optax.adam(1e-2), seed=3, num_steps=n) for n in (3, 7)
    )
    np.testing.assert_array_equal(short.loss, long.loss[:3])


def test_a_member_is_the_same_anywhere_in_a_sweep():
    def fn(member):
        optimizer = optax.adam(member["learning_rate"])
        return train_member(parabola(noise=1.0), optimizer, seed=member["seed"], num_steps=4).loss

    members = points(seed=[0, 1, 2], learning_rate=[1e-2, 1e-3, 1e-2])
    whole = sweep(fn, members)
    backwards = sweep(fn, {name: column[::-1] for name, column in members.items()}, chunk_size=1)
    np.testing.assert_allclose(whole, backwards[::-1], rtol=1e-5)
    assert len(np.unique(whole)) == whole.size  # every seed and step draws its own


def layers():
    """Return float32 parameters of all kinds that optimizers distinguish, pulled to 0."""
    shapes = {"embedding": (3, 4), "up": (4, 6), "scale": (4,)}

    def init(key):
        keys = zip(shapes.items(), jax.random.split(key, len(shapes)), strict=True)
        return {name: jax.random.normal(k, s, jnp.float32) for (name, s), k in keys}, {}

    def loss(params, state, batch, key):
        return sum((leaf**2).sum() for leaf in jax.tree.leaves(params)) / 2 + 0 * batch, state

    def sample(key):
        return jax.random.normal(key, dtype=jnp.float32)

    return Task(init, loss, sample=sample)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_with_x64_an_optimizer_keeps_its_states_dtypes(name, x64):
    """Hyperparameters of a sweep are then float64, but parameters stay float32."""
    at = {"learning_rate": 0.1, **OPTIMIZERS[name].usual}
    members = {key: jnp.asarray([value, value]) for key, value in at.items()}
    assert members["learning_rate"].dtype == jnp.float64

    def run(member):
        optimizer = make_optimizer(name, {**member, "k": 2}, warmup_cosine(4, 1, 0.1))
        return train_member(layers(), optimizer, seed=0, num_steps=4)

    ours, alone = jax.jit(jax.vmap(run))(members), jax.jit(lambda: run(at))()
    for found, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(alone), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-6)
    assert {leaf.dtype for leaf in jax.tree.leaves(ours.params)} == {jnp.dtype("float32")}
    assert ours.loss[0, -1] < ours.loss[0, 0]


def test_seed_and_hyperparameters_may_be_traced():
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(seed, learning_rate):
        return train_member(parabola(), optax.adam(learning_rate), seed=seed, num_steps=2).loss

    for seed in range(3):
        assert np.isfinite(run(seed, 1e-3 * seed)).all()


def test_training_lowers_the_heldout_loss_from_chance(task):
    result = train_member(task, optax.adam(2e-2), seed=0, num_steps=30)
    batch = task.sample_heldout(jax.random.key(9))
    np.testing.assert_allclose(result.loss[0], np.log(256), rtol=0.02)
    assert jax.jit(task.evaluate)(result.params, result.state, batch) < 4.5


def test_dropout_is_on_in_training_and_off_in_evaluation(task):
    params, state = task.init(jax.random.key(0))
    params = jax.tree.map(lambda leaf: 10 * leaf, params)
    batch = task.sample(jax.random.key(1))
    losses = {float(task.loss(params, state, batch, jax.random.key(k))[0]) for k in range(3)}
    assert len(losses) == 3
    assert task.evaluate(params, state, batch) == task.evaluate(params, state, batch)


def test_heldout_batches_come_from_the_heldout_split():
    corpus = byte_corpus("t", b"a" * 90 + b"b" * 10)
    split = language_task(TINY, corpus, batch=3)
    key = jax.random.key(0)
    assert set(np.unique(split.sample(key))) == {ord("a")}
    assert set(np.unique(split.sample_heldout(key))) == {ord("b")}


def test_a_vocabulary_too_small_for_the_corpus_is_refused():
    small = GPTConfig(vocab_size=128, context=8, num_layers=1, num_heads=1, width=8)
    with pytest.raises(ConfigError, match=r"model\.vocab_size=128 is below the corpus's 256"):
        language_task(small, load_corpus("embedded"), batch=2)
