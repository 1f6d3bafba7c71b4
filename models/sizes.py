"""Limits on the sizes of a network's arrays."""

import math

MOST_ENTRIES = 2**31 - 1
"""Limit for one array, since indices into it are 32-bit integers."""
MOST_LAYERS = 1000
"""Limit on layers, since the compiled program contains every layer."""


def check_sizes(**shapes: tuple[int, ...]) -> None:
    """Raise for arrays of parameters with too many entries, before anything is allocated.

    Args:
      shapes: the shape of each array, by the names of the fields that decide it, joined by "_and_".

    Raises:
      ValueError: if an array has 2^31 entries or more.

    Example:

      >>> check_sizes(vocab_size_and_width=(50257, 384))
    """
    for fields, shape in shapes.items():
        if math.prod(map(int, shape)) > MOST_ENTRIES:  # Python's integers do not overflow
            raise ValueError(
                f"{fields.replace('_and_', ' and ')} must be smaller: an array of parameters would "
                f"have shape {' x '.join(map(str, shape))}; at most {MOST_ENTRIES} entries are "
                "possible"
            )
