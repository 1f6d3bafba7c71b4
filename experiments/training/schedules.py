"""Schedules of the learning rate: a linear warm-up from 0, and what follows it."""

from collections.abc import Callable, Mapping

import optax


def warmup_cosine(
    num_steps: int, warmup_steps: int, final_rate: float, peak: float = 1.0
) -> optax.Schedule:
    """Return a linear warm-up from 0 to the peak, followed by a cosine.

    Args:
      num_steps: Steps of the whole run.
      warmup_steps: Steps of the warm-up, below num_steps.
      final_rate: The cosine's end, as a share of the peak.
      peak: The highest learning rate; 1 for a factor on a learning rate.

    Returns:
      The schedule, a function of the number of steps already done.

    >>> shape = warmup_cosine(num_steps=10, warmup_steps=2, final_rate=0.5)
    >>> [round(float(shape(count)), 3) for count in (0, 1, 2, 6, 10)]
    [0.0, 0.5, 1.0, 0.75, 0.5]
    """
    return optax.warmup_cosine_decay_schedule(0.0, peak, warmup_steps, num_steps, final_rate * peak)


def warmup_constant(
    num_steps: int, warmup_steps: int, final_rate: float, peak: float = 1.0
) -> optax.Schedule:
    """Return the same warm-up, followed by the peak until the end."""
    del num_steps, final_rate
    warmup = optax.linear_schedule(0.0, peak, warmup_steps)
    return optax.join_schedules([warmup, optax.constant_schedule(peak)], [warmup_steps])


SCHEDULES: Mapping[str, Callable[..., optax.Schedule]] = {
    "constant": warmup_constant,
    "cosine": warmup_cosine,
}
"""The schedules, named after the part that follows the warm-up."""
