"""Metrics of all members on held-out data."""

import itertools

import jax
import numpy as np

from experiments.data.loading import Source, heldout_batches
from experiments.train.config import TrainConfig
from experiments.training.meshes import place_batch
from experiments.training.train import Programs, TrainState


def evaluate(
    programs: Programs,
    state: TrainState,
    source: Source,
    config: TrainConfig,
    mesh: jax.sharding.Mesh,
    share: tuple[int, int] = (0, 1),
) -> dict[str, np.ndarray]:
    """Return means over a split or its first `config.eval_batches` batches, every example once.

    Args:
      programs: The run's programs.
      state: The state of all members.
      source: The split.
      config: Has the batch size and the number of batches.
      mesh: The run's mesh.
      share: From `process_share`.

    Returns:
      Arrays (num_members,) by name, in float64.
    """
    index, count = share
    batches = heldout_batches(source, config.batch_size, process_index=index, process_count=count)
    sums = [
        programs.metrics(state, place_batch(mesh, batch, 0), place_batch(mesh, weights, 0))
        for batch, weights in itertools.islice(batches, config.eval_batches)
    ]
    totals = jax.tree.map(
        lambda *parts: np.sum(parts, axis=0, dtype=np.float64), *jax.device_get(sums)
    )
    weight = totals.pop("weight")
    return {name: total / weight for name, total in totals.items()}
