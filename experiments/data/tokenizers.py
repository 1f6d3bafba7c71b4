"""Text to token ids: UTF-8 bytes, GPT-2's byte pairs by tiktoken, or byte pairs trained here."""

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import tiktoken
from tokenizers import Tokenizer as Merges
from tokenizers import models, pre_tokenizers, trainers

from experiments.core.errors import Failed
from experiments.data import embedded
from experiments.data.corpus import Corpus, byte_corpus, decoded
from experiments.data.tokens import Splits, in_memory

BYTES, PAIRS, GPT2 = "bytes", "pairs", "gpt2"


@dataclass(frozen=True)
class Tokenizer:
    """A fixed map from text to ids.

    Attributes:
      name: Its name in a configuration.
      vocab_size: Ids are below it.
      end: The id after a document of a corpus that has several.
      encode: Maps a text to ids with one axis. Cutting a text between a character that is not
        white space and the white space after it does not change its ids.
      num_bytes: Returns the bytes of text that each id stands for, (vocab_size,); none for `end`.
      version: Returns whatever decides the ids besides the name.
    """

    name: str
    vocab_size: int
    end: int
    encode: Callable[[str], np.ndarray]
    num_bytes: Callable[[], np.ndarray]
    version: Callable[[], str] = lambda: ""

    def bytes_per_token(self, ids: np.ndarray) -> float:
        """Return the mean number of bytes that an id of a text stands for."""
        return float(self.num_bytes()[ids].mean())


@functools.cache
def _gpt2() -> tiktoken.Encoding:
    try:
        return tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:  # no network, or one that sends something else
        raise Failed(
            f"GPT-2's vocabulary could not be downloaded ({type(error).__name__}); run once with a "
            "network, or set TIKTOKEN_CACHE_DIR to a folder filled on another machine"
        ) from error


def byte_pairs(text: str, vocab_size: int) -> Merges:
    """Train byte pairs, within the words of GPT-2's pattern; equal texts give equal pairs.

    >>> byte_pairs("to be or not to be", vocab_size=259).encode("to be").tokens
    ['to', 'Ġbe']
    """
    found = Merges(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False
    )
    found.train_from_iterator([text], trainer)
    return found


NUM_PAIRS = 4095
"""Ids of the byte pairs trained here, single bytes included; one more ends a document."""


@functools.cache
def _pairs() -> Merges:
    """Return byte pairs of the embedded text, without what is held out."""
    corpus = byte_corpus("embedded", embedded.read())
    return byte_pairs(decoded(corpus.tokens_train), NUM_PAIRS)


TOKENIZERS: dict[str, Tokenizer] = {
    tokenizer.name: tokenizer
    for tokenizer in (
        Tokenizer(
            name=BYTES,
            vocab_size=256,
            end=255,  # a byte that never occurs in UTF-8
            encode=lambda text: np.frombuffer(text.encode(), dtype=np.uint8),
            num_bytes=lambda: np.array([1] * 255 + [0]),
        ),
        Tokenizer(
            name=GPT2,
            vocab_size=50257,
            end=50256,
            encode=lambda text: _gpt2().encode_to_numpy(text, disallowed_special=()),
            num_bytes=lambda: np.array(
                [len(_gpt2().decode_single_token_bytes(token)) for token in range(50256)] + [0]
            ),
        ),
        Tokenizer(
            name=PAIRS,
            vocab_size=NUM_PAIRS + 1,
            end=NUM_PAIRS,
            encode=lambda text: np.array(_pairs().encode(text).ids, np.uint16),
            num_bytes=lambda: np.array(
                [len(_pairs().id_to_token(token)) for token in range(NUM_PAIRS)] + [0]
            ),
            version=lambda: hashlib.sha256(_pairs().to_str().encode()).hexdigest(),
        ),
    )
}
"""Tokenizers by name. GPT-2's vocabulary is loaded, and the byte pairs of the embedded text are
trained, when they first encode; text that looks like a special token is encoded as text."""


LONGEST_WORD = 2**20
"""Number of characters that are encoded together; a longer word is cut."""
LAST_END = re.compile(r".*\S(?=[ \n])", re.DOTALL)


def whole_words(blocks: Iterable[str], longest: int = LONGEST_WORD) -> Iterator[str]:
    """Yield the same text in blocks that end where a tokenizer may start afresh.

    GPT-2's pattern matches white space only at its beginning, so no token extends from a character
    that is not white space to white space after it. Only a word, or white space, of more than
    `longest` characters is cut elsewhere, always at the same places, so time is linear in the
    text's length, and memory does not grow.

    >>> list(whole_words(["to be, o", "r not to", " be"], longest=8))
    ['to be,', ' or not', ' to be']
    """
    held, num_held = [], 0
    for block in blocks:
        held.append(block)
        num_held += len(block)
        if num_held < longest:
            continue
        text, start = "".join(held), 0
        while len(text) - start >= longest:
            window = text[start : start + longest]
            end = LAST_END.match(window)
            yield window[: end.end() if end else longest]
            start += end.end() if end else longest
        held, num_held = [text[start:]], len(text) - start
    yield "".join(held)


def encoded(corpus: Corpus, tokenizer: Tokenizer) -> Splits:
    """Return the ids of a corpus of bytes by split, each of which is encoded on its own."""
    texts = {"train": decoded(corpus.tokens_train), "heldout": decoded(corpus.tokens_heldout)}
    blocks = {split: map(tokenizer.encode, whole_words([text])) for split, text in texts.items()}
    return in_memory(blocks, tokenizer.vocab_size)
