"""A figure's access to the outside world: data, devices, progress and finished chunks."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from experiments.core.errors import DamagedFile, say, stopped
from experiments.core.processes import from_first, is_first
from experiments.core.progress import progress
from experiments.core.store import ChunkStore
from kadam_jax.members import Members, sweep_chunks


@dataclass(frozen=True)
class Run:
    """The run that `compute(config, run)` gets.

    Attributes:
      corpus: The `data.Corpus` that the configuration names, if any.
      mesh: Devices of all processes, to spread members over; None for one device.
      store: The store of finished chunks.
      images: The `data.loading.Data` that the configuration names, if any.
    """

    corpus: Any
    mesh: jax.sharding.Mesh | None
    store: ChunkStore
    images: Any = None
    _swept: set[str] = field(default_factory=set, init=False, repr=False)

    def sweep(
        self,
        name: str,
        fn: Callable[[dict[str, Any]], Mapping[str, jax.Array]],
        members: Members,
        *,
        chunk_size: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Run `kadam_jax.sweep` with progress, keep finished chunks and continue from them.

        If there are several processes, only the first one uses chunks and shows progress.

        Args:
          name: Distinguishes this sweep from others of the same figure; part of a file's name.
          fn: Pure function from a member, a dict of scalars, to a dict of arrays.
          members: From `kadam_jax.grid` or `kadam_jax.points`.
          chunk_size: Members between two writes; None for all of them.

        Returns:
          `fn`'s dict, every array with the grid's axes in front.

        Raises:
          ValueError: If this run already has a sweep of that name, whose chunks on disk would be
            mistaken for those of this one.
        """
        if name in self._swept:
            raise ValueError(f"name={name!r} was already swept in this run; give it another name")
        self._swept.add(name)
        num_members = len(next(iter(members.values())))
        chunk_size = chunk_size or num_members
        starts = range(0, num_members, chunk_size)
        chunks = from_first(lambda: self._finished(name, starts))
        done = sum(len(next(iter(arrays.values()))) for arrays in chunks.values())
        todo = sweep_chunks(fn, members, chunk_size=chunk_size, mesh=self.mesh, skip=set(chunks))
        shown = progress(name, num_members, done)
        with shown if is_first() else contextlib.nullcontext(lambda units: None) as advance:
            for start, stop, arrays in todo:
                from_first(lambda start=start, arrays=arrays: self.store.save(name, start, arrays))
                if stopped:  # Python drops an interrupt during a callback of its garbage collector
                    raise KeyboardInterrupt
                chunks[start] = arrays
                advance(stop - start)
        ordered = [chunks[start] for start in sorted(chunks)]
        results = {key: np.concatenate([arrays[key] for arrays in ordered]) for key in ordered[0]}
        return {key: x.reshape(*members.shape, *x.shape[1:]) for key, x in results.items()}

    def _finished(self, sweep: str, starts: Sequence[int]) -> dict[int, dict[str, np.ndarray]]:
        """Return the intact chunks of a sweep, by the member that they begin with."""
        chunks = {}
        for start in starts:
            try:
                if (arrays := self.store.load(sweep, start)) is not None:
                    chunks[start] = arrays
            except DamagedFile as error:
                say(f"{error}; computing it again")
        if chunks:
            say(f"{sweep}: {len(chunks)} finished chunks found, continuing from them")
        return chunks
