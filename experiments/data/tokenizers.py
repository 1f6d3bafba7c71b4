"""Text to token ids: UTF-8 bytes, or GPT-2's byte-pair encoding by tiktoken."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import tiktoken

from experiments.core.errors import Failed


@dataclass(frozen=True)
class Tokenizer:
    """A fixed map from text to ids.

    Attributes:
      name: Its name in a configuration.
      vocab_size: Ids are below it.
      end: The id after a document of a corpus that has several.
      encode: Maps a text to ids with one axis. Cutting a text between a character that is not
        white space and the white space after it does not change its ids.
    """

    name: str
    vocab_size: int
    end: int
    encode: Callable[[str], np.ndarray]


@functools.cache
def _gpt2() -> tiktoken.Encoding:
    try:
        return tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:  # no network, or one that sends something else
        raise Failed(
            "GPT-2's vocabulary is not in tiktoken's cache and cannot be downloaded: run once with "
            "a network, or set TIKTOKEN_CACHE_DIR to a folder that was filled on another machine "
            f"({error})"
        ) from error


TOKENIZERS: dict[str, Tokenizer] = {
    tokenizer.name: tokenizer
    for tokenizer in (
        Tokenizer(
            name="bytes",
            vocab_size=256,
            end=255,  # a byte that never occurs in UTF-8
            encode=lambda text: np.frombuffer(text.encode(), dtype=np.uint8),
        ),
        Tokenizer(
            name="gpt2",
            vocab_size=50257,
            end=50256,
            encode=lambda text: _gpt2().encode_to_numpy(text, disallowed_special=()),
        ),
    )
}
"""Tokenizers by name. GPT-2's vocabulary is loaded when it first encodes; text that looks like one
of its special tokens is encoded as text."""


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
