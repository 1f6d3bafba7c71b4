"""How learning rates change over a run: a linear warm-up from 0, and what follows it."""

from collections.abc import Callable, Mapping

import optax


def warmup_cosine(
    num_steps: int, warmup_steps: int, final_rate: float, peak: float = 1.0
) -> optax.Schedule:
    """A linear warm-up from 0 to the peak, then a cosine.

    Args:
      num_steps: Of the whole run.
      warmup_steps: Of the warm-up, below num_steps.
      final_rate: The cosine's end, as a share of the peak.
      peak: The highest learning rate; 1 for what multiplies a learning rate.

    Returns:
      The schedule, a function of the number of steps done before.

    >>> shape = warmup_cosine(num_steps=10, warmup_steps=2, final_rate=0.5)
    >>> [round(float(shape(count)), 3) for count in (0, 1, 2, 6, 10)]
    [0.0, 0.5, 1.0, 0.75, 0.5]
    """
    return optax.warmup_cosine_decay_schedule(0.0, peak, warmup_steps, num_steps, final_rate * peak)


def warmup_constant(
    num_steps: int, warmup_steps: int, final_rate: float, peak: float = 1.0
) -> optax.Schedule:
    """The same warm-up, then the peak to the end."""
    del num_steps, final_rate
    warmup = optax.linear_schedule(0.0, peak, warmup_steps)
    return optax.join_schedules([warmup, optax.constant_schedule(peak)], [warmup_steps])


SCHEDULES: Mapping[str, Callable[..., optax.Schedule]] = {
    "constant": warmup_constant,
    "cosine": warmup_cosine,
}
"""By what follows the warm-up."""
