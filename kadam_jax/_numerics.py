"""Arithmetic that float32 needs: roots of sums of squares, 0/0, and weights of averages.

The derivatives are written out, to second order, where JAX's own would be NaN: at 0/0, at the root
of 0 and at decays of 0. JAX forgets a custom rule once it has differentiated a scan backwards, and
then differentiates what the rule did, so each rule here returns an expression whose own derivative
is right.
"""

from collections.abc import Callable
from functools import partial, reduce, wraps

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike


def promoted(*values: ArrayLike | DTypeLike) -> np.dtype:
    """Return JAX's standard promotion, under `jax_numpy_dtype_promotion="strict"` too."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*values)


def promoting(fn: Callable) -> Callable:
    """Wrap `fn` so that reals multiply complex numbers under strict promotion too."""

    @wraps(fn)
    def promotes(*args):
        with jax.numpy_dtype_promotion("standard"):
            return fn(*args)

    return promotes


def accumulator_dtype(dtype: DTypeLike) -> np.dtype:
    """Return a dtype of at least float32, complex where `dtype` is."""
    if jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize == 1:
        return np.dtype(np.float32)  # JAX promotes none of eight bits
    return promoted(dtype, jnp.float32)


_still = jax.lax.stop_gradient


def _moved(x):
    """Return 0 with the derivative of x, to be added to a number that has no derivative."""
    return x - _still(x)


def ratio(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return x / y with a derivative that divides by y twice, since 1/y² could overflow."""
    value = _still(x / y)
    return value + (_moved(x) - value * _moved(y)) * _still(1 / y)


# A root of a sum of squares has a kink where all of them are 0, but its square is smooth. Second
# derivatives through a state that starts at 0 are right if the tangent of a root at 0 is that of
# half its square: x ẋ itself, not divided by the root.


def _or_one(root):
    return jnp.where(root < jnp.finfo(root.dtype).tiny, 1, root)


def modulus(x: jax.Array) -> jax.Array:
    """Return |x|; at 0 the tangent is that of |x|²/2."""
    # JAX does not accept a NumPy array that a vmap within a jit passes directly to a custom rule.
    return _modulus(jnp.where(True, x, 0))


@jax.custom_jvp
def _modulus(x):
    return jnp.abs(x)


@_modulus.defjvp
def _modulus_jvp(primals, tangents):
    (x,), (x_dot,) = primals, tangents
    return _modulus_rule(jnp.abs(x), x, x_dot)


def _modulus_rule(size, x, x_dot):
    if not jnp.iscomplexobj(x):
        slope = jnp.where(x == 0, x, jnp.sign(x))
        return _still(size) + _still(slope) * _moved(x), slope * x_dot
    size = _still(size)
    size = size + jnp.real(_still(_slope(size, x)) * _moved(x))
    return size, jnp.real(_slope(size, x) * x_dot)


def _slope(size, x):
    return jnp.conj(x) * ratio(jnp.ones_like(size), _or_one(size)).astype(x.dtype)


# hypot and quotient avoid 0/0 by a maximum with the smallest normal number, a single operation: the
# fewer operations, the faster XLA compiles.


@jax.custom_jvp
def hypot(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return √(a²+b²) for a, b >= 0, exact under scaling by powers of two; its slope at 0 is 0.

    The ratio is used once: XLA's CPU fusion writes out a quotient that has two users.
    """
    largest = jnp.maximum(a, b)
    smaller = jnp.minimum(a, b) / jnp.maximum(largest, jnp.finfo(a.dtype).tiny)
    return largest * jnp.sqrt(1 + jnp.square(smaller))


@hypot.defjvp
def _hypot_jvp(primals, tangents):
    def slopes(root):
        return [jnp.where(root == 0, 0, ratio(x, _or_one(root))) for x in primals]

    root = _with_slopes(hypot(*primals), slopes, primals)
    return root, _along(slopes(root), tangents)


@jax.custom_jvp
def root_mean_square(
    rms: jax.Array, size: jax.Array, gain: jax.Array, rms_loss: jax.Array, rms_gain: jax.Array
) -> jax.Array:
    """Return √((1-gain) rms² + gain size²), an average's next root, given 1-√(1-gain) and √gain.

    The part of rms that is kept is rounded by half a unit in the last place of rms itself, so for a
    small 1-gain the result has a relative error of up to 1/√(1-gain) roundings.

    The derivatives are those of the formula, so `rms_loss` and `rms_gain` have none. The tangent of
    a root of 0, argument or result, is that of half its square.
    """
    del gain
    return hypot(rms - rms_loss * rms, rms_gain * size)


@root_mean_square.defjvp
def _root_mean_square_jvp(primals, tangents):
    rms, size, gain, *_ = primals

    def slopes(root):
        divisor = _or_one(root)
        return [
            (1 - gain) * ratio(_or_one(rms), divisor),
            gain * ratio(_or_one(size), divisor),
            (size * ratio(size, divisor) - rms * ratio(rms, divisor)) / 2,
        ]

    root = _with_slopes(root_mean_square(*primals), slopes, (rms, size, gain))
    return root, _along(slopes(root), tangents[:3])


def _with_slopes(value, slopes, arguments):
    """Return `value` with the derivative given by `slopes(value)`, one for each argument."""
    value, largest = _still(value), jnp.finfo(value.dtype).max
    # An infinite slope times a move, which is 0, would be NaN.
    fixed = [jnp.clip(_still(slope), -largest, largest) for slope in slopes(value)]
    return value + _along(fixed, map(_moved, arguments))


def _along(slopes, tangents):
    first, *others = (slope * x for slope, x in zip(slopes, tangents, strict=True))
    return sum(others, first)


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def quotient(
    numerator: jax.Array, rms: jax.Array, eps: jax.Array, num_stages: int = 1
) -> jax.Array:
    """Return numerator / (rms + eps), with 0/0 = 0.

    At rms = 0 the derivative with respect to rms is 0. At 0/eps the derivative is 1/eps, or 0
    where (1/eps)^(2 num_stages), which second derivatives through all stages contain, overflows.
    """
    divisor = jnp.maximum(rms + eps, jnp.finfo(rms.dtype).tiny)
    return numerator / divisor.astype(numerator.dtype)


@quotient.defjvp
def _quotient_jvp(num_stages, primals, tangents):
    (numerator, rms, eps), (numerator_dot, rms_dot, eps_dot) = primals, tangents
    tiny = float(jnp.finfo(rms.dtype).tiny)
    too_small = tiny ** (1 / (2 * num_stages))
    at_rest = (rms == 0) & ((eps < tiny) | ((numerator == 0) & (eps < too_small)))
    divisor = jnp.where(rms == 0, 0, rms) + eps
    divisor_dot = jnp.where(rms == 0, 0, rms_dot) + eps_dot
    inverse = jnp.where(at_rest, 0, ratio(jnp.ones_like(divisor), _or_one(divisor)))
    divisor, divisor_dot, inverse = (
        x.astype(numerator.dtype) for x in (divisor, divisor_dot, inverse)
    )
    value = _still(quotient(numerator, rms, eps, num_stages))
    value = value + (_moved(numerator) - value * _moved(divisor)) * _still(inverse)
    return value, (numerator_dot - value * divisor_dot) * inverse


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def quotient_and_modulus(
    numerator: jax.Array, rms: jax.Array, eps: jax.Array, num_stages: int = 1
) -> tuple[jax.Array, jax.Array]:
    """Return `quotient` and its modulus, from a division of its own instead of |quotient|."""
    value, size = (quotient(x, rms, eps, num_stages) for x in (numerator, jnp.abs(numerator)))
    return value, size


@quotient_and_modulus.defjvp
def _quotient_and_modulus_jvp(num_stages, primals, tangents):
    _, size = quotient_and_modulus(*primals, num_stages)
    value, value_dot = _quotient_jvp(num_stages, primals, tangents)
    size, size_dot = _modulus_rule(size, value, value_dot)
    return (value, size), (value_dot, size_dot)


@jax.custom_jvp
def average_weight(gain: jax.Array, count: jax.Array) -> jax.Array:
    """Return 1 - (1-gain)^count, the total weight in a moving average after `count` steps."""
    below_one = jnp.where(gain < 1, gain, 0)
    return jnp.where(gain < 1, -jnp.expm1(count.astype(gain.dtype) * jnp.log1p(-below_one)), 1)


@average_weight.defjvp
def _average_weight_jvp(primals, tangents):
    (gain, count), (gain_dot, _) = primals, tangents

    def power(exponent):  # and 0^0 = 1
        below_one = jnp.where(gain < 1, _still(gain), 0)
        small = jnp.exp(exponent.astype(gain.dtype) * jnp.log1p(-below_one))
        return jnp.where(gain < 1, small, (exponent == 0).astype(gain.dtype))

    def slope(exponent):
        return exponent.astype(gain.dtype) * power(jnp.maximum(exponent - 1, 0))

    weight = _still(average_weight(gain, count)) + slope(count) * _moved(gain)
    curved = power(jnp.maximum(count - 1, 0)) - slope(jnp.maximum(count - 1, 0)) * _moved(gain)
    return weight, count.astype(gain.dtype) * curved * gain_dot


@jax.custom_jvp
def root_of_average(
    rms: jax.Array, loss: jax.Array, sizes: list[jax.Array], gains: list[jax.Array]
) -> jax.Array:
    """Return √((1-loss)² rms² + Σ gain² size²), exact under scaling by powers of two.

    Derivatives are as in `root_mean_square`; they are written out here as well since XLA needs
    minutes to compile a chain of derivatives of `hypot`.
    """
    roots = [rms - loss * rms, *(gain * size for gain, size in zip(gains, sizes, strict=True))]
    if len(roots) == 2:
        return hypot(*roots)
    largest = reduce(jnp.maximum, roots)
    scale = jnp.where(largest != 0, largest, jnp.inf)
    return largest * jnp.sqrt(sum(jnp.square(x / scale) for x in roots))


@root_of_average.defjvp
def _root_of_average_jvp(primals, tangents):
    rms, loss, sizes, gains = primals
    roots, weights = [rms, *sizes], [1 - loss, *gains]

    def slopes(root):
        divisor = _or_one(root)
        pairs = list(zip(roots, weights, strict=True))
        by_root = [weight * weight * ratio(_or_one(x), divisor) for x, weight in pairs]
        by_weight = [weight * x * ratio(x, divisor) for x, weight in pairs]
        return [*by_root, *by_weight]

    rms_dot, loss_dot, sizes_dot, gains_dot = tangents
    root = _with_slopes(root_of_average(*primals), slopes, [*roots, *weights])
    return root, _along(slopes(root), [rms_dot, *sizes_dot, -loss_dot, *gains_dot])


def add_compensated(
    total: jax.Array, lost: jax.Array, term: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return total + lost + term as a rounded total and the part that its rounding loses.

    A sum of many terms that is carried this way is right to about one rounding of the total,
    whereas the total alone would lose every term below half a unit in its last place.
    """
    term = lost + term
    new = total + term
    taken = new - total
    lost = (total - (new - taken)) + (term - taken)
    return new, jnp.where(jnp.isfinite(new), lost, 0)
