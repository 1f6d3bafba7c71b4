"""Arithmetic that float32 needs: roots of sums of squares, 0/0, and weights of averages."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike


def accumulator_dtype(dtype: DTypeLike) -> np.dtype:
    """At least float32, complex where `dtype` is."""
    return jnp.promote_types(dtype, jnp.float32)


# hypot and quotient keep 0/0 out by a maximum with the smallest normal number, one operation, and
# have their derivatives written out: of 0/0 it is 0. The fewer operations, the faster XLA compiles.


@jax.custom_jvp
def hypot(a: jax.Array, b: jax.Array) -> jax.Array:
    """√(a²+b²) for a, b >= 0, exact under scaling by powers of two; at (0, 0) the derivative is 0.

    The ratio is used once: XLA's CPU fusion writes out a quotient that has two users.
    """
    largest = jnp.maximum(a, b)
    ratio = jnp.minimum(a, b) / jnp.maximum(largest, jnp.finfo(a.dtype).tiny)
    return largest * jnp.sqrt(1 + jnp.square(ratio))


@hypot.defjvp
def _hypot_jvp(primals, tangents):
    (a, b), (a_dot, b_dot) = primals, tangents
    root = hypot(a, b)
    divisor = jnp.where(root != 0, root, jnp.inf)
    return root, a / divisor * a_dot + b / divisor * b_dot


@jax.custom_jvp
def quotient(numerator: jax.Array, rms: jax.Array, eps: jax.Array) -> jax.Array:
    """numerator / (rms + eps), and 0/0 = 0 with derivative 0."""
    return numerator / jnp.maximum(rms + eps, jnp.finfo(rms.dtype).tiny)


@quotient.defjvp
def _quotient_jvp(primals, tangents):
    (numerator, rms, eps), (numerator_dot, rms_dot, eps_dot) = primals, tangents
    ratio = quotient(numerator, rms, eps)
    idle = (rms == 0) & ((numerator == 0) | (eps == 0))
    divisor = jnp.where(idle, jnp.inf, rms + eps)
    return ratio, (numerator_dot - ratio * (rms_dot + eps_dot)) / divisor


def average_weight(gain: jax.Array, count: jax.Array) -> jax.Array:
    """1 - (1-gain)^count, all the weight in a moving average after `count` steps."""
    below_one = jnp.where(gain < 1, gain, 0)
    return jnp.where(gain < 1, -jnp.expm1(count.astype(gain.dtype) * jnp.log1p(-below_one)), 1)
