"""Tests of training/tasks.py: the losses and the metrics of the two networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.data import byte_corpus
from experiments.training.tasks import image_task, language_task, text_task
from models.cnn import CNNConfig
from models.nanogpt import GPTConfig

GPT = GPTConfig(vocab_size=16, context=6, num_layers=1, num_heads=2, width=8, dropout=0.5)
WEIGHTS = np.float32([1, 1, 0, 1])


def tokens():
    return jax.random.randint(jax.random.key(1), (4, 7), 0, 16)


def images():
    keys = jax.random.split(jax.random.key(1))
    image = jax.random.normal(keys[0], (4, 32, 32, 3))
    return {"image": image, "label": jax.random.randint(keys[1], (4,), 0, 10)}


CASES = {
    "text": (text_task(GPT), tokens()),
    "images": (image_task(CNNConfig(width=1 / 64)), images()),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """(task, params, state, batch), with weights large enough for dropout to matter."""
    task, batch = CASES[request.param]
    params, state = jax.jit(task.init)(jax.random.key(0))
    return task, jax.tree.map(lambda leaf: 3 * leaf, params), state, batch


def test_metrics_are_weighted_sums_over_examples(case):
    task, params, state, batch = case
    metrics = jax.jit(task.metrics)
    whole = metrics(params, state, batch, WEIGHTS)
    copies = [jax.tree.map(lambda leaf, i=i: leaf[np.full(4, i)], batch) for i in range(4)]
    rows = [metrics(params, state, copy, np.float32([1, 1, 1, 1])) for copy in copies]
    assert whole["weight"] == 3
    for name, value in whole.items():
        apart = sum(weight * row[name] / 4 for weight, row in zip(WEIGHTS, rows, strict=True))
        np.testing.assert_allclose(value, apart, rtol=1e-4)


def test_padding_changes_nothing(case):
    task, params, state, batch = case
    other = jax.tree.map(lambda leaf: leaf.at[2].set(leaf[0]), batch)
    metrics = jax.jit(task.metrics)
    given, padded = (metrics(params, state, rows, WEIGHTS) for rows in (batch, other))
    for name in given:
        np.testing.assert_array_equal(given[name], padded[name])


def test_dropout_is_on_only_in_training():
    task, batch = CASES["text"]
    params, state = task.init(jax.random.key(0))
    params = jax.tree.map(lambda leaf: 10 * leaf, params)
    loss = jax.jit(task.loss)
    losses = {float(loss(params, state, batch, jax.random.key(i))[0]) for i in range(3)}
    ones = jnp.ones(4)
    metrics = jax.jit(task.metrics)
    assert len(losses) == 3
    assert metrics(params, state, batch, ones) == metrics(params, state, batch, ones)


def test_batch_norm_uses_batch_statistics_only_in_training():
    task, batch = CASES["images"]
    loss, metrics = jax.jit(task.loss), jax.jit(task.metrics)
    params, fresh = jax.jit(task.init)(jax.random.key(0))
    first, trained = loss(params, fresh, batch, None)
    second, _ = loss(params, trained, batch, None)
    moved = jax.tree.map(lambda before, after: bool((before != after).any()), fresh, trained)
    assert all(jax.tree.leaves(moved))
    assert first == second
    assert metrics(params, fresh, batch, WEIGHTS) != metrics(params, trained, batch, WEIGHTS)


def test_accuracy_counts_correct_largest_logits():
    task, batch = CASES["images"]
    params, state = jax.jit(task.init)(jax.random.key(0))
    params["bias"] = jnp.where(jnp.arange(10) == 7, 1e3, 0.0)
    labels = jnp.array([7, 1, 7, 7])
    sums = jax.jit(task.metrics)(params, state, batch | {"label": labels}, WEIGHTS)
    assert sums["accuracy"] == 2
    np.testing.assert_allclose(sums["loss"], 1e3, rtol=1e-2)


def test_the_figures_task_adds_batches_of_both_splits():
    corpus = byte_corpus("t", bytes(range(15)) * 90 + b"\x0f" * 150)
    model = GPTConfig(vocab_size=256, context=6, num_layers=1, num_heads=2, width=8)
    task, whole = language_task(model, corpus, batch=4), text_task(model)
    params, state = task.init(jax.random.key(0))
    train, heldout = (f(jax.random.key(1)) for f in (task.sample, task.sample_heldout))
    assert train.shape == heldout.shape == (4, 7)
    assert (heldout == 15).all()
    assert (train < 15).all()
    mean = jax.jit(whole.metrics)(params, state, heldout, np.full(4, 0.25, np.float32))["loss"]
    np.testing.assert_allclose(jax.jit(task.evaluate)(params, state, heldout), mean, rtol=1e-6)
