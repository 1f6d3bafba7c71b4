"""Equal parts of a batch."""

from typing import Any

import jax


def interleaved(batch: Any, count: int) -> Any:
    """Cut a batch into parts that are used in turn.

    A part takes every `count`-th example, so that all devices, which hold neighbors, work on each.

    Args:
      batch: a tree of arrays (batch, ...).
      count: number of parts; must divide the batch.

    Returns:
      The tree with leaves (count, batch / count, ...).

    Example:

      >>> import jax.numpy as jnp
      >>> from models.parts import interleaved
      >>> interleaved(jnp.arange(6), 2).tolist()
      [[0, 2, 4], [1, 3, 5]]
    """
    return jax.tree.map(lambda leaf: leaf.reshape(-1, count, *leaf.shape[1:]).swapaxes(0, 1), batch)
