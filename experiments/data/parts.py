"""A corpus file as a stream of token ids: plain UTF-8, or C4's documents.

The file is read block by block, never as a whole.
"""

import codecs
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.core.errors import Failed
from experiments.core.store import file_sha256
from experiments.data.corpus import HELDOUT
from experiments.data.tokenizers import Tokenizer, whole_words

BLOCK = 2**20
LONGEST_LINE = 2**26
"""Largest number of bytes of a document; C4's have less than a hundredth of it."""

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Part:
    """A file of a corpus.

    Attributes:
      name: The file's name.
      key: Identifies its content and how that is split.
      num_blocks: Its length in units of `BLOCK`.
      ids: `ids(tokenizer, split, advance)` yields arrays of ids and calls `advance(1)` for every
        block of the file it has read; it reads the whole file for each split.
    """

    name: str
    key: str
    num_blocks: int
    ids: Callable[[Tokenizer, str, Advance], Iterator[np.ndarray]]


def utf8_part(path: Path) -> Part:
    """Return a UTF-8 text as a part, with its last tenth of characters held out, as in nanoGPT."""

    def ids(tokenizer: Tokenizer, split: str, advance: Advance) -> Iterator[np.ndarray]:
        length = sum(map(len, characters(path)))
        cut = int(length * (1 - HELDOUT))
        start, stop = {"train": (0, cut), "heldout": (cut, length)}[split]
        section = _section(characters(path, advance), start, stop)
        return map(tokenizer.encode, whole_words(section))

    return Part(path.name, file_sha256(path), -(-path.stat().st_size // BLOCK), ids)


def characters(path: Path, advance: Advance = lambda units: None) -> Iterator[str]:
    """Yield the text of a file, block by block.

    Raises:
      Failed: If it is not UTF-8; the message has the first invalid byte and its place.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield _decoded(path.name, decoder, block, file.tell())
            advance(1)
        yield _decoded(path.name, decoder, b"", file.tell())


def _decoded(name: str, decoder: codecs.IncrementalDecoder, block: bytes, end: int) -> str:
    pending, _ = decoder.getstate()
    try:
        return decoder.decode(block, final=not block)
    except UnicodeDecodeError as error:
        place = end - len(block) - len(pending) + error.start
        wrong = (pending + block)[error.start]
        raise Failed(f"{name} is not UTF-8: byte {wrong:#04x} at offset {place}") from error


def _section(blocks: Iterable[str], start: int, stop: int) -> Iterator[str]:
    """Yield characters `start` to `stop` of a text given in blocks."""
    place = 0
    for block in blocks:
        yield block[max(start - place, 0) : max(stop - place, 0)]
        place += len(block)


def c4_part(path: Path, every: int) -> Part:
    """Return a shard of C4 (gzipped JSON lines), with the tokenizer's end after every document.

    Args:
      path: The shard.
      every: One in this many documents is held out: 1 for all, 0 for none.
    """

    def ids(tokenizer: Tokenizer, split: str, advance: Advance) -> Iterator[np.ndarray]:
        for number, text in enumerate(documents(path, advance), 1):
            heldout = every > 0 and number % every == 0
            if heldout == (split == "heldout"):
                ids = [tokenizer.encode(words) for words in whole_words([text])]
                yield np.concatenate([*ids, np.array([tokenizer.end], ids[0].dtype)])

    num_blocks = -(-path.stat().st_size // BLOCK)
    return Part(path.name, f"{file_sha256(path)} {every}", num_blocks, ids)


def documents(path: Path, advance: Advance = lambda units: None) -> Iterator[str]:
    """Yield the texts of a shard, line by line; blank lines are skipped.

    Raises:
      Failed: If the shard is truncated or damaged, or a line does not have C4's format.
    """
    line_number = done = 0
    try:
        with path.open("rb") as packed, gzip.open(packed) as lines:
            while line := lines.readline(LONGEST_LINE + 1):
                line_number += 1
                if len(line) > LONGEST_LINE:
                    raise ValueError(f"it has more than {LONGEST_LINE} bytes")
                if line.strip():
                    # JSON may escape half of a surrogate pair, which UTF-8 cannot encode.
                    yield json.loads(line)["text"].encode(errors="replace").decode()
                advance(packed.tell() // BLOCK - done)
                done = packed.tell() // BLOCK
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Failed(f"{path} is damaged after line {line_number}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Failed(
            f"{path}, line {line_number}, is not a JSON object with a text: {error!r}"
        ) from error
