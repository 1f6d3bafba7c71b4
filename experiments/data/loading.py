"""From a data set to batches: shuffled endlessly for training, in order once for evaluation.

A source is indexed like a NumPy array: an integer gives an example, an array of integers a batch of
them in one gather. The examples in batch n depend only on the seed and n, so processes, workers and
interruptions do not change what is trained on.
"""

import atexit
import multiprocessing
import os
import re
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import absl.flags
import grain
import jax
import numpy as np

from experiments.core.errors import Failed

MAX_EXAMPLES = 2**32 - 1
"""The largest number of examples: grain shuffles indices of 32 bits."""


class Source(Protocol):
    """Examples that are read on request; picklable, so that workers can use it."""

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def __getitem__(self, index: Any) -> Any:
        """Return example `index`, or a batch for an array of indices: a pytree of arrays."""
        ...


@dataclass(frozen=True)
class Data:
    """A data set, ready to be batched.

    Attributes:
      name: Its name in a configuration.
      sha256: Hash of all its content; a position saved for other data is refused.
      train: The training split.
      heldout: The splits that are never trained on: "validation" and "test".
      info: Facts that a task needs: vocab_size, num_classes, num_tokens, ...
    """

    name: str
    sha256: str
    train: Source
    heldout: Mapping[str, Source]
    info: Mapping[str, Any]


class Batches(grain.DatasetIterator):
    """An endless iterator of batches whose position is a number, however they are prepared."""

    def __init__(
        self,
        batches: grain.MapDataset,
        *,
        num_workers: int,
        prefetch: int,
        identity: Mapping[str, Any],
    ):
        super().__init__()
        self._batches = batches
        self._num_workers = num_workers
        self._prefetch = prefetch
        self._identity = dict(identity)
        self._position = 0
        self._running: grain.DatasetIterator | None = None
        # Workers must end before the modules they need, even if nobody calls close.
        atexit.register(_close, weakref.ref(self))

    def __next__(self) -> Any:
        if self._running is None:
            self._running = self._start()
        try:
            batch = next(self._running)
        except RuntimeError as error:
            ended = re.search(r"Worker process was terminated .* exit code (-?\d+)", str(error))
            if ended is None:
                raise
            self.close()
            raise Failed(
                f"a worker that prepares batches has ended (exit code {ended[1]}), perhaps because "
                "memory or /dev/shm is full; use fewer workers, 0 for none, or a smaller prefetch"
            ) from error
        self._position += 1
        if self._num_workers:  # their batches are in shared memory, which must not outlive them
            batch = jax.tree.map(np.array, batch)
        return batch

    def get_state(self) -> dict[str, Any]:
        """Return the number of batches handed out, and what they were made from, as JSON."""
        return {"batches": self._position, **self._identity}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to a position that `get_state` returned, here or in another process.

        Raises:
          Failed: If the batches counted there were made from something else.
        """
        differences = [
            f"{name} was {state.get(name)!r} and is {value!r}"
            for name, value in self._identity.items()
            if state.get(name) != value
        ]
        if differences:
            raise Failed(f"the position belongs to other batches: {'; '.join(differences)}")
        self.close()
        self._position = state["batches"]

    def close(self) -> None:
        """Stop threads and worker processes; the next batch starts them again."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def _start(self) -> grain.DatasetIterator:
        rest = self._batches[self._position :]
        if not self._num_workers:
            threads = min(self._prefetch, 1)
            return iter(rest.to_iter_dataset(grain.ReadOptions(threads, self._prefetch)))
        if not absl.flags.FLAGS.is_parsed():  # grain reads a flag, which only absl.app parses
            absl.flags.FLAGS.mark_as_parsed()
        workers = grain.multiprocessing.MultiprocessingOptions(
            num_workers=self._num_workers, per_worker_buffer_size=max(self._prefetch, 1)
        )
        return iter(rest.to_iter_dataset(grain.ReadOptions(0, 0)).mp_prefetch(workers, _follow))


def _close(reference: weakref.ref[Batches]) -> None:
    if (batches := reference()) is not None:
        batches.close()


def _follow(worker: int, num_workers: int) -> None:
    """Make a worker end when its main process does, even if killed, but not on Ctrl-C."""
    del worker, num_workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def training_batches(
    data: Data,
    *,
    batch_size: int,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
    num_workers: int = 0,
    prefetch: int = 2,
    augment: grain.transforms.RandomMap | Callable[[Any, np.random.Generator], Any] | None = None,
) -> Batches:
    """Return endless batches of the training split, every example once before any is repeated.

    The order is a pseudorandom permutation computed index by index, so nothing of the data's length
    is kept in memory. Every epoch has its own order, and a batch may extend into the next epoch.

    Args:
      data: The data set, whose `train` is read.
      batch_size: Examples in a batch, over all processes.
      seed: Decides the order and the augmentation.
      process_index: Determines which rows of every batch are made here: the batches of the
        `process_count` processes, stacked in order, are the batch of a single process.
      process_count: Number of processes that share a batch.
      num_workers: Processes that prepare batches; 0 for a thread of this process.
      prefetch: Batches that each worker prepares ahead; 0 with `num_workers=0` prepares every batch
        on request.
      augment: Changes an example at random: `augment(example, generator)`; each example's generator
        depends on the seed and the example's place in the endless order.

    Returns:
      An iterator of batches with leading axis `batch_size // process_count`; it continues exactly
      from `set_state(get_state())`, even with another number of workers or processes.

    Raises:
      ValueError: If `batch_size` is not a positive multiple of `process_count`, `process_index` is
        not below `process_count`, the seed does not fit into 32 bits, or a count is negative.
      Failed: If there is nothing to train on.

    >>> data = Data("ten", "0", np.arange(10), {}, {})
    >>> batches = training_batches(data, batch_size=5, seed=0, prefetch=0)
    >>> sorted([*next(batches), *next(batches)]) == list(range(10))
    True
    >>> position = batches.get_state()
    >>> third = next(batches).tolist()
    >>> batches.set_state(position)
    >>> next(batches).tolist() == third
    True
    """
    rows = _rows(batch_size, process_index, process_count)
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed} must be at least 0 and below 2**32")
    for name, value in (("num_workers", num_workers), ("prefetch", prefetch)):
        if value < 0:
            raise ValueError(f"{name}={value} must not be negative")
    if not 1 <= len(data.train) <= MAX_EXAMPLES:
        raise Failed(f"{data.name} has {len(data.train)} training examples, not 1 to 2**32 - 1")
    examples = grain.MapDataset.range(len(data.train)).seed(seed).shuffle().repeat()
    if augment is not None:
        examples = examples.map(data.train.__getitem__).random_map(augment)
    batches = examples.batch(rows, drop_remainder=True)
    if augment is None:
        batches = batches.map(data.train.__getitem__)  # one gather for all of its indices
    return Batches(
        batches[process_index::process_count],
        num_workers=num_workers,
        prefetch=prefetch,
        identity={"data": data.sha256, "seed": seed, "batch_size": batch_size},
    )


def heldout_batches(
    source: Source, batch_size: int, *, process_index: int = 0, process_count: int = 1
) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield every example of a held-out split once, in order, in batches of one shape.

    The last batch is filled up with copies of the last example that have weight 0, so
    `sum(weights * values) / sum(weights)` over all batches is the mean over all examples.

    Args:
      source: The split.
      batch_size: Examples in a batch, over all processes.
      process_index: Determines which rows of every batch are made here.
      process_count: Number of processes that share a batch.

    Yields:
      A batch and its weights, 0 or 1, shape (batch_size // process_count,), float32.

    Raises:
      ValueError: If `batch_size` is not a positive multiple of `process_count`, or `process_index`
        is not below `process_count`.

    >>> for batch, weights in heldout_batches(np.arange(5), 3):
    ...     print(batch, weights)
    [0 1 2] [1. 1. 1.]
    [3 4 4] [1. 1. 0.]
    """
    rows = _rows(batch_size, process_index, process_count)
    for start in range(process_index * rows, len(source) + process_index * rows, batch_size):
        indices = np.arange(start, start + rows)
        batch = source[np.minimum(indices, len(source) - 1)]
        yield batch, (indices < len(source)).astype(np.float32)


def _rows(batch_size: int, process_index: int, process_count: int) -> int:
    if not 0 <= process_index < process_count:
        raise ValueError(
            f"process_index={process_index} must be at least 0 and below "
            f"process_count={process_count}"
        )
    if batch_size < 1 or batch_size % process_count:
        raise ValueError(
            f"batch_size={batch_size} must be a positive multiple of the number of processes, "
            f"{process_count}"
        )
    return batch_size // process_count
