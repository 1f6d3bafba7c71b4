"""How large a network's arrays may be."""

import math

MOST_ENTRIES = 2**31 - 1
"""Of one array: places in it are integers of 32 bits."""
MOST_LAYERS = 1000
"""Every layer is a part of the compiled program."""


def check_sizes(**shapes: tuple[int, ...]) -> None:
    """Refuses arrays of parameters with too many entries, before anything is allocated.

    Args:
      shapes: the shape of an array by the names of the fields that decide it, joined by "_and_".

    Raises:
      ValueError: if one has 2^31 entries or more.

    Example:

      >>> check_sizes(vocab_size_and_width=(50257, 384))
    """
    for fields, shape in shapes.items():
        if math.prod(map(int, shape)) > MOST_ENTRIES:  # Python's integers do not overflow
            raise ValueError(
                f"{fields.replace('_and_', ' and ')} must be smaller: an array of parameters would "
                f"be {' x '.join(map(str, shape))}, and {MOST_ENTRIES} entries are the most."
            )
