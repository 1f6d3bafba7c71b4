"""Sources of tokens, and the drawing of a batch from them inside a compiled program."""

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data import embedded

HELDOUT = Fraction(1, 10)
"""The share of a text, at its end, that is never trained on."""


@dataclass(frozen=True)
class Corpus:
    """Tokens with a fixed held-out split.

    Attributes:
      name: Its name in a configuration.
      tokens_train: Training tokens, shape (num_train,), uint8.
      tokens_heldout: The last tenth, shape (num_heldout,), uint8.
      vocab_size: Number of token values, not all of which need occur.
      sha256: Hash of the whole text; results with different hashes are never joined.
    """

    name: str
    tokens_train: np.ndarray
    tokens_heldout: np.ndarray
    vocab_size: int
    sha256: str


SOURCES: dict[str, Callable[[], bytes]] = {"embedded": embedded.read}


def byte_corpus(name: str, text: bytes) -> Corpus:
    """Turn `text` into one token per byte, with the last tenth held out."""
    tokens = np.frombuffer(text, dtype=np.uint8)
    num_train = len(tokens) - int(len(tokens) * HELDOUT)
    return Corpus(
        name=name,
        tokens_train=tokens[:num_train],
        tokens_heldout=tokens[num_train:],
        vocab_size=256,
        sha256=hashlib.sha256(text).hexdigest(),
    )


@functools.cache
def load_corpus(name: str) -> Corpus:
    """Return the corpus of that name, read once per process.

    Args:
      name: A key of `SOURCES`.

    Returns:
      Its tokens, one per byte.

    Raises:
      ValueError: If no corpus has that name.

    >>> corpus = load_corpus("embedded")
    >>> corpus.vocab_size, len(set(corpus.tokens_train.tolist())) < 128
    (256, True)
    """
    if name not in SOURCES:
        raise ValueError(f"corpus={name!r} is unknown; give one of {', '.join(sorted(SOURCES))}")
    return byte_corpus(name, SOURCES[name]())


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
