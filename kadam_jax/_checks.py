"""What a number given as an argument must be."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def check_real(name: str, value: Any, *, below: float = math.inf, single: bool = True) -> None:
    """Raise TypeError for what is no real number, ValueError for one outside [0, `below`).

    Tracers have a dtype and a shape to be checked, but no value. Unless `single`, any shape will
    do, and all numbers of it are checked.
    """
    value = value if isinstance(value, Tracer) else np.asarray(value)
    if not any(jnp.issubdtype(value.dtype, kind) for kind in (np.floating, np.integer)):
        raise TypeError(f"{name} must be real, got {value!r}")
    if single and value.ndim:
        raise TypeError(f"{name} must be a single number, got one of shape {value.shape}")
    if not isinstance(value, Tracer) and not np.all((value >= 0) & (value < below)):
        raise ValueError(f"{name} must be in [0, {below:g}), got {value}")
