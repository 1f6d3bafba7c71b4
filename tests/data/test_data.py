"""experiments/data: the split, the crops and the embedded text."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from experiments.data import byte_corpus, embedded, load_corpus, sample_batch, tokenizers
from experiments.data.text import load_text


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


def test_byte_pairs_are_the_same_text_with_the_same_split():
    pairs, whole = load_corpus("embedded_pairs"), load_corpus("embedded")
    assert (pairs.vocab_size, pairs.tokens_train.dtype) == (4096, np.uint16)
    for split in ("tokens_train", "tokens_heldout"):
        written = "".join(map(tokenizers._pairs().id_to_token, getattr(pairs, split).tolist()))
        text = getattr(whole, split).tobytes().decode()
        words = ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
        assert written == "".join(word for word, _ in words)
    assert pairs.bytes_per_token == len(whole.tokens_heldout) / len(pairs.tokens_heldout)
    assert whole.bytes_per_token == 1


def test_the_loader_has_the_same_byte_pairs(tmp_path):
    pairs = load_corpus("embedded_pairs")
    data = load_text("embedded", tokenizer="pairs", context=4, cache=tmp_path)
    assert data.info["vocab_size"] == 4096
    np.testing.assert_array_equal(data.train[9], pairs.tokens_train[9:14])
    np.testing.assert_array_equal(data.heldout["validation"][0], pairs.tokens_heldout[:5])


def test_byte_pairs_depend_on_the_training_text_alone(monkeypatch):
    train, found = b"to be or not to be, " * 9, set()
    for heldout in (b"that is the question", b"and so to bed, to be"):
        monkeypatch.setattr(embedded, "read", lambda heldout=heldout: train + heldout)
        found.add(tokenizers._pairs.__wrapped__().to_str())
    assert len(found) == 1
    assert tokenizers.byte_pairs("so to bed", 300).to_str() not in found


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
