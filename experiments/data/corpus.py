"""A text as tokens, with a part that is never trained on."""

import hashlib
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

HELDOUT = Fraction(1, 10)
"""The share of a text, at its end, that is never trained on."""


@dataclass(frozen=True)
class Corpus:
    """Tokens with a fixed held-out split.

    Attributes:
      name: Its name in a configuration.
      tokens_train: Training tokens, shape (num_train,), of the smallest unsigned dtype that holds
        the vocabulary.
      tokens_heldout: Tokens that are never trained on, shape (num_heldout,): a text's last tenth,
        or C4's validation shards or every tenth document.
      vocab_size: Number of token values, not all of which need occur.
      sha256: Hash of the text, or of its tokens if it is not the embedded one by bytes;
        results with different hashes are never joined.
      bytes_per_token: Bytes of held-out text for each of its tokens. A held-out loss in nats per
        token, divided by this, is in nats per byte, which does not depend on the tokenizer.
    """

    name: str
    tokens_train: np.ndarray
    tokens_heldout: np.ndarray
    vocab_size: int
    sha256: str
    bytes_per_token: float = 1.0


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


def decoded(tokens: np.ndarray) -> str:
    """Return the text of bytes; what a split leaves of a divided character is replaced."""
    return tokens.tobytes().decode(errors="replace")
