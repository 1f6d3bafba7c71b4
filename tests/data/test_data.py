"""experiments/data: the split, the crops and the embedded text."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.data import byte_corpus, embedded, load_corpus, sample_batch


@pytest.mark.parametrize("length", [0, 1, 9, 10, 1003])
def test_the_splits_make_up_the_text_and_a_tenth_is_held_out(length):
    text = bytes(i % 251 for i in range(length))
    corpus = byte_corpus("t", text)
    joined = np.concatenate([corpus.tokens_train, corpus.tokens_heldout])
    assert joined.tobytes() == text
    assert len(corpus.tokens_heldout) == length // 10
    assert corpus.sha256 == hashlib.sha256(text).hexdigest()


def test_embedded_text_leaves_most_of_the_vocabulary_unused():
    corpus = load_corpus("embedded")
    assert corpus is load_corpus("embedded")
    assert corpus.tokens_train.dtype == np.uint8
    assert corpus.vocab_size == 256
    assert len(np.unique(corpus.tokens_train)) < 128
    assert len(corpus.tokens_train) > 200_000
    assert embedded.read() == embedded.read()


def test_an_unknown_corpus_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match="corpus='c5' is unknown; give one of embedded"):
        load_corpus("c5")


def test_a_batch_has_contiguous_crops_from_everywhere():
    num_tokens, context = 12, 4
    batch = sample_batch(jnp.arange(num_tokens), jax.random.key(0), 500, context)
    assert batch.shape == (500, context + 1)
    np.testing.assert_array_equal(batch - batch[:, :1], np.tile(np.arange(context + 1), (500, 1)))
    assert set(batch[:, 0].tolist()) == set(range(num_tokens - context))


def test_a_batch_depends_on_its_key_alone():
    tokens = jnp.arange(100, dtype=jnp.uint8)
    keys = jax.random.split(jax.random.key(1), 4)
    apart = jnp.stack([sample_batch(tokens, key, 3, 8) for key in keys])
    together = jax.jit(jax.vmap(lambda key: sample_batch(tokens, key, 3, 8)))(keys)
    np.testing.assert_array_equal(apart, together)
    assert len(np.unique(apart[:, :, 0])) > 4


def test_a_text_must_have_at_least_one_crop():
    assert sample_batch(jnp.arange(5), jax.random.key(0), 2, 4).tolist() == [[0, 1, 2, 3, 4]] * 2
    with pytest.raises(ValueError, match="context=4 needs 5 tokens; got 4"):
        sample_batch(jnp.arange(4), jax.random.key(0), 2, 4)
