"""Sources of tokens, and the drawing of a batch from them inside a compiled program."""

import functools

import jax
import jax.numpy as jnp

from experiments.data import embedded
from experiments.data.corpus import Corpus, byte_corpus
from experiments.data.tokenizers import BYTES, PAIRS, TOKENIZERS, encoded

CORPORA = {"embedded": BYTES, "embedded_pairs": PAIRS}
"""The tokenizer of each corpus, a name in `TOKENIZERS`; all of them are the embedded text."""


@functools.cache
def load_corpus(name: str) -> Corpus:
    """Return the corpus of that name, read once per process.

    Args:
      name: A key of `CORPORA`.

    Returns:
      Its tokens; whatever the tokenizer, the held-out ones are the same last tenth of the text.

    Raises:
      ValueError: If no corpus has that name.

    >>> corpus = load_corpus("embedded")
    >>> corpus.vocab_size, len(set(corpus.tokens_train.tolist())) < 128
    (256, True)
    >>> corpus = load_corpus("embedded_pairs")
    >>> corpus.vocab_size, corpus.tokens_train.dtype, 3 < corpus.bytes_per_token < 5
    (4096, dtype('uint16'), True)
    """
    if name not in CORPORA:
        raise ValueError(f"corpus={name!r} is unknown; give one of {', '.join(CORPORA)}")
    corpus, tokenizer = byte_corpus(name, embedded.read()), TOKENIZERS[CORPORA[name]]
    if tokenizer.name == BYTES:
        return corpus
    splits, sha256 = encoded(corpus, tokenizer)
    train, heldout = (splits[split].array for split in ("train", "heldout"))
    ratio = tokenizer.bytes_per_token(heldout)
    return Corpus(name, train, heldout, tokenizer.vocab_size, sha256, ratio)


def sample_batch(tokens: jax.Array, key: jax.Array, batch: int, context: int) -> jax.Array:
    """Draw `batch` crops of `context + 1` tokens from uniformly random places; crops may overlap.

    This is pure and runs on the device, so a whole run stays in one compiled program.

    Args:
      tokens: Shape (num_tokens,).
      key: A key for only this batch.
      batch: Number of crops.
      context: Tokens the model sees; one more is taken, the last target.

    Returns:
      Shape (batch, context + 1), int32: inputs are `[:, :-1]`, targets `[:, 1:]`.

    Raises:
      ValueError: If `tokens` is shorter than one crop.

    >>> sample_batch(jnp.arange(9), jax.random.key(0), batch=2, context=3).shape
    (2, 4)
    """
    num_starts = tokens.shape[0] - context
    if num_starts < 1:
        raise ValueError(f"context={context} needs {context + 1} tokens; got {tokens.shape[0]}")
    starts = jax.random.randint(key, (batch, 1), 0, num_starts)
    return tokens[starts + jnp.arange(context + 1)[None]].astype(jnp.int32)
