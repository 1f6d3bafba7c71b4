"""What a figure's `compute` may use of the outside world: devices, progress and finished chunks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from experiments.core.errors import DamagedFile, say, stopped
from experiments.core.progress import progress
from experiments.core.store import ChunkStore
from kadam_jax.members import sweep_chunks


@dataclass(frozen=True)
class Share:
    """Every `count`-th chunk, from number `index` on, for one of several machines.

    >>> Share.parse("2/3").of(range(0, 70, 10))
    [10, 40]
    """

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Share":
        """From "I/N", 1 <= I <= N.

        Raises:
          ValueError: If it is anything else.
        """
        index, slash, count = text.partition("/")
        if not (
            slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)
        ):
            raise ValueError(f"{text!r} is no share; write I/N with 1 <= I <= N, such as 1/2")
        return cls(int(index) - 1, int(count))

    def of(self, starts: Sequence[int]) -> list[int]:
        """Those that are this machine's."""
        return list(starts[self.index :: self.count])


ALL = Share()


class Incomplete(Exception):
    """This machine's share is done, and the others' is not here; the message says what is next."""


@dataclass(frozen=True)
class Run:
    """Handed to `compute(config, run)`.

    Attributes:
      corpus: The `data.Corpus` that the configuration names, if it names one.
      mesh: Devices to spread members over; None for one device.
      store: Where finished chunks are kept.
      share: Which chunks are computed here.
      images: The `data.loading.Data` that the configuration names, if it names images.
    """

    corpus: Any
    mesh: jax.sharding.Mesh | None
    store: ChunkStore
    share: Share = ALL
    images: Any = None

    def sweep(
        self,
        name: str,
        fn: Callable[[dict[str, Any]], Mapping[str, jax.Array]],
        members: Mapping[str, Any],
        *,
        chunk_size: int | None = None,
        batching: str = "auto",
        grid_shape: bool = False,
    ) -> dict[str, np.ndarray]:
        """`kadam_jax.sweep` that shows progress, keeps finished chunks and continues from them.

        Args:
          name: Tells this sweep from others of the same figure; part of a file's name.
          fn: Pure function from one member, a dict of scalars, to a dict of arrays.
          members: From `kadam_jax.grid` or `kadam_jax.points`.
          chunk_size: Members between two writes; None for all of them.
          batching: As in `kadam_jax.sweep`.
          grid_shape: As there: members lead every array as the axes of their grid, not as one.

        Returns:
          `fn`'s dict, every array with the members stacked on a leading axis.

        Raises:
          Incomplete: If chunks of other shares are missing.
        """
        num_members = len(next(iter(members.values())))
        chunk_size = chunk_size or num_members
        starts = range(0, num_members, chunk_size)
        found = {start: self._finished(name, start) for start in starts}
        chunks = {start: arrays for start, arrays in found.items() if arrays is not None}
        if chunks:
            say(f"{name}: {len(chunks)} finished chunks found, continuing from them")
        done = sum(len(next(iter(arrays.values()))) for arrays in chunks.values())
        others = set(starts) - set(self.share.of(starts))
        todo = sweep_chunks(
            fn,
            members,
            chunk_size=chunk_size,
            mesh=self.mesh,
            batching=batching,
            skip={*chunks, *others},
        )
        with progress(name, num_members, done) as advance:
            for start, stop, arrays in todo:
                self.store.save(name, start, arrays)
                if stopped:  # Python drops an interrupt that falls into a callback of its collector
                    raise KeyboardInterrupt
                chunks[start] = arrays
                advance(stop - start)
        if missing := others - set(chunks):
            raise Incomplete(
                f"{name}: {len(starts) - len(missing)} of {len(starts)} chunks are here; merge the "
                "results of the other shares, then run the same command again"
            )
        ordered = [chunks[start] for start in sorted(chunks)]
        results = {key: np.concatenate([arrays[key] for arrays in ordered]) for key in ordered[0]}
        if not grid_shape:
            return results
        return {key: x.reshape(*members.shape, *x.shape[1:]) for key, x in results.items()}

    def _finished(self, sweep: str, start: int) -> dict[str, np.ndarray] | None:
        try:
            return self.store.load(sweep, start)
        except DamagedFile as error:
            say(f"{error}; computing it again")
            return None
