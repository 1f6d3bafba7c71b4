"""Tokens on disk, memory-mapped: written once, completely or not at all, and checked when opened.

FOLDER/tokens.json    every split's length and SHA-256, and the ids' dtype
FOLDER/<split>.bin    its ids, one after the other
"""

import hashlib
import json
import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from experiments.core.errors import Failed
from experiments.core.store import atomic, file_sha256

SIDECAR = "tokens.json"


def checked_ids(ids: np.ndarray, vocab_size: int) -> np.ndarray:
    """Convert `ids` to the smallest unsigned dtype for a vocabulary.

    Args:
      ids: Integers.
      vocab_size: One more than the largest id.

    Returns:
      The same numbers as uint8, uint16 or uint32.

    Raises:
      Failed: If an id does not fit.

    >>> [str(checked_ids(np.arange(3), size).dtype) for size in (256, 257, 50257, 65537)]
    ['uint8', 'uint16', 'uint16', 'uint32']
    """
    if ids.size and not (ids.min() >= 0 and ids.max() < vocab_size):
        raise Failed(
            f"token ids from {ids.min()} to {ids.max()} do not fit a vocabulary of {vocab_size}"
        )
    return ids.astype(np.min_scalar_type(vocab_size - 1), copy=False)


class MappedFile:
    """A memory-mapped file, loaded page by page; it stays readable even if it is removed.

    Args:
      path: Where the file is when this is made, or unpickled in another process.
    """

    def __init__(self, path: Path):
        self._path = path
        with path.open("rb") as file:
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedFile, (self._path,)

    def forget(self) -> None:
        """Release the pages that were read; with random access, all of them would soon be held.

        The system keeps them as long as it has the memory; the next use costs a page fault.
        """
        if hasattr(mmap, "MADV_DONTNEED"):
            self.bytes.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True, eq=False)
class Tokens:
    """A sequence of ids, in memory or in a file.

    Attributes:
      where: The ids themselves, or the file that holds them.
      dtype: Their dtype.
      start: Place of the first id there.
      stop: One more than the place of the last id.
    """

    where: np.ndarray | MappedFile
    dtype: np.dtype
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokens, (self.where, self.dtype, self.start, self.stop)

    def halves(self) -> tuple["Tokens", "Tokens"]:
        """Return the first half and the rest."""
        middle = (self.start + self.stop) // 2
        return (
            Tokens(self.where, self.dtype, self.start, middle),
            Tokens(self.where, self.dtype, middle, self.stop),
        )

    @cached_property
    def array(self) -> np.ndarray:
        """Return all ids, shape (len(self),); those in a file are read when they are used."""
        in_file = isinstance(self.where, MappedFile)
        whole = np.frombuffer(self.where.bytes, self.dtype) if in_file else self.where
        return whole[self.start : self.stop]

    def forget(self) -> None:
        """Release the pages of a file, as in `MappedFile.forget`."""
        if isinstance(self.where, MappedFile):
            self.where.forget()


class Crops:
    """Crops of `context + 1` tokens, one beginning at every `stride`-th token of every part.

    With `stride=context` they cover a part once as inputs and once as targets, except for a
    remainder at its end that is shorter than a crop.

    Args:
      parts: The tokens that are cropped; no crop extends from one part into the next.
      context: Number of tokens that a model sees; one more is taken, the last target.
      stride: Tokens between the beginnings of two crops.

    >>> parts = in_memory({"a": [np.arange(8)], "b": [np.arange(4)]}, vocab_size=8).tokens
    >>> Crops(list(parts.values()), context=3, stride=2)[np.arange(4)]
    array([[0, 1, 2, 3],
           [2, 3, 4, 5],
           [4, 5, 6, 7],
           [0, 1, 2, 3]], dtype=int32)
    """

    def __init__(self, parts: Sequence[Tokens], context: int, stride: int = 1):
        self._arguments = (parts, context, stride)
        self._parts = tuple(part for part in parts if len(part) > context)
        self._width = context + 1
        self._stride = stride
        counts = [1 + (len(part) - self._width) // stride for part in self._parts]
        self._firsts = np.cumsum([0, *counts])

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        return Crops, self._arguments

    @cached_property
    def _windows(self) -> list[np.ndarray]:
        return [
            sliding_window_view(part.array, self._width)[:: self._stride] for part in self._parts
        ]

    def __getitem__(self, index: Any) -> np.ndarray:
        """Return crop `index`, or one for each index of an array, (..., context + 1), int32."""
        index = np.asarray(index)
        if index.size and not (index.min() >= 0 and index.max() < len(self)):
            raise IndexError(f"crop {index} of {len(self)}")
        part_of = np.searchsorted(self._firsts, index, side="right") - 1
        crops = np.empty((*index.shape, self._width), np.int32)
        for number in np.unique(part_of):
            here = part_of == number
            crops[here] = self._windows[number][index[here] - self._firsts[number]]
            self._parts[number].forget()
        return crops


class Splits(NamedTuple):
    """The ids of a file or text."""

    tokens: dict[str, Tokens]
    """The ids of each split."""
    sha256: str
    """Hash of all ids."""


def in_memory(blocks: Mapping[str, Iterable[np.ndarray]], vocab_size: int) -> Splits:
    """Return checked ids without a file, from blocks of ids by the split's name."""
    whole = {
        split: checked_ids(np.concatenate([np.empty(0, np.uint8), *ids]), vocab_size)
        for split, ids in blocks.items()
    }
    return Splits(
        {split: Tokens(ids, ids.dtype, 0, len(ids)) for split, ids in whole.items()},
        _joined(hashlib.sha256(ids.data).hexdigest() for ids in whole.values()),
    )


def write_tokens(folder: Path, blocks: Mapping[str, Iterable[np.ndarray]], vocab_size: int) -> None:
    """Write ids as they come; the folder appears when it is complete.

    Args:
      folder: The new folder; if another process puts it there first, that one stays.
      blocks: Blocks of ids, by the split's name.
      vocab_size: Determines the ids' dtype.

    Raises:
      Failed: If an id does not fit the vocabulary, or the disk is full or read-only; then nothing
        is left behind.
    """
    try:
        with atomic(folder) as temporary:
            temporary.mkdir()
            splits = {}
            for split in blocks:
                digest, num_tokens = hashlib.sha256(), 0
                with _file(temporary, split).open("wb") as file:
                    for block in blocks[split]:
                        ids = checked_ids(block, vocab_size)
                        file.write(ids.data)
                        digest.update(ids.data)
                        num_tokens += len(ids)
                splits[split] = {"num_tokens": num_tokens, "sha256": digest.hexdigest()}
            dtype = np.min_scalar_type(vocab_size - 1).str
            sidecar = json.dumps({"dtype": dtype, "splits": splits}, indent=2)
            (temporary / SIDECAR).write_text(sidecar)
    except OSError as error:
        if not (folder / SIDECAR).exists():
            raise Failed(
                f"the tokens could not be written to {folder}: {error.strerror}; move the cache "
                "with --set cache=FOLDER, or with another HOME for a figure without that field"
            ) from error


def open_tokens(folder: Path) -> Splits:
    """Open what `write_tokens` wrote, after comparing the hash of every file with the recorded one.

    Raises:
      Failed: If anything is missing or has changed.
    """
    tokens = {}
    try:
        sidecar = json.loads((folder / SIDECAR).read_text())
        dtype, splits = np.dtype(sidecar["dtype"]), sidecar["splits"]
        for split, expected in splits.items():
            path, num_tokens = _file(folder, split), expected["num_tokens"]
            if path.stat().st_size != num_tokens * dtype.itemsize:
                raise ValueError(f"{split} has another length")
            if file_sha256(path) != expected["sha256"]:
                raise ValueError(f"{split} has another hash")
            where = MappedFile(path) if num_tokens else np.empty(0, dtype)
            tokens[split] = Tokens(where, dtype, 0, num_tokens)
        return Splits(tokens, _joined(expected["sha256"] for expected in splits.values()))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Failed(
            f"the tokens in {folder} are damaged ({error}); delete that folder, and they are made "
            "again"
        ) from error
    except OSError as error:
        raise Failed(f"the tokens in {folder} cannot be read: {error.strerror}") from error


def _file(folder: Path, split: str) -> Path:
    return folder / f"{split}.bin"


def _joined(digests: Iterable[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()
