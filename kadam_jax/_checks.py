"""Checks of arguments: all of the library's checks are here, with messages in one style.

A message reads "NAME must REQUIREMENT, got VALUE; HINT". It is a TypeError if the value is of the
wrong kind and a ValueError if it is of the right kind but out of range. For a traced value, the
kind and the shape are checked, since it has no number to check.
"""

import inspect
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike


class Range(NamedTuple):
    """A range of real numbers that an argument may lie in; NaN is in no range."""

    words: str
    contains: Callable[[np.ndarray], np.ndarray]


FINITE = Range("be finite", np.isfinite)
NOT_NEGATIVE = Range("be finite and at least 0", lambda x: (x >= 0) & (x < np.inf))
POSITIVE = Range("be finite and above 0", lambda x: (x > 0) & (x < np.inf))
AT_LEAST_0 = Range("be at least 0", lambda x: x >= 0)  # infinity too
DECAY = Range("be in [0, 1)", lambda x: (x >= 0) & (x < 1))
POSITIVE_DECAY = Range("be in (0, 1)", lambda x: (x > 0) & (x < 1))
INJECTED = (
    "optax.inject_hyperparams takes the parameters' dtype unless it gets "
    "hyperparam_dtype=jnp.float32"
)
TRACED = "call this outside of functions that JAX traces (jax.jit, jax.vmap, jax.grad)"


def require(
    holds: object,
    name: str,
    requirement: str,
    got: object,
    *,
    hint: str = "",
    error: type[Exception] = ValueError,
) -> None:
    """Raise `error` unless `holds`; `requirement` completes "NAME must"."""
    if not holds:
        raise error(f"{name} must {requirement}, got {got}" + (f"; {hint}" if hint else ""))


@np.errstate(all="ignore")  # whatever the user's setting: the checks catch bad rounding
def check_real(
    name: str,
    value: Any,
    within: Range,
    *,
    single: bool = True,
    dtype: DTypeLike | None = None,
    hint: str = "",
) -> np.ndarray | jax.Array:
    """Check real numbers: a single one, or an array of any shape unless `single`.

    With `dtype`, the numbers are judged after rounding to it as XLA rounds: numbers too small for
    its full precision become 0.

    Returns:
      The numbers as given, on the host unless they are traced or on other hosts' devices.

    Raises:
      TypeError: `value` is not real (a bool, a string, a complex number, a Fraction, None, ... are
        not) or not single.
      ValueError: a number that can be read is out of range.
    """
    numbers = _array(value)
    words = f"be {'a real number' if single else 'real numbers'} (Python, NumPy or JAX)"
    require(_is_real(numbers.dtype), name, words, repr(value), hint=hint, error=TypeError)
    if single:
        shape = f"an array of shape {numbers.shape}"
        require(not numbers.ndim, name, "be a single number", shape, hint=hint, error=TypeError)
    if is_known(numbers):
        rounded, words = np.asarray(numbers), within.words
        if dtype is not None:
            tiny = jnp.finfo(dtype).tiny
            rounded = rounded.astype(dtype)
            rounded = np.where(np.abs(rounded) < tiny, 0, rounded)
            words += f" once rounded to {np.dtype(dtype)}, where less than {tiny:.2g} is 0"
        bad = ~np.asarray(within.contains(rounded))
        require(not bad.any(), name, words, next(iter(numbers[bad]), None), hint=hint)
    return numbers


def check_number(name: str, value: Any, within: Range, *, hint: str = "") -> float:
    """Check a single real number that is known, not traced, and return it as a Python float."""
    number = check_real(name, value, within, hint=hint)
    words = "be a known number"
    require(is_known(number), name, words, "a traced one", hint=TRACED, error=TypeError)
    return float(number)


def check_hyperparameter(name: str, value: Any, within: Range, *, hint: str = "") -> None:
    """Check a single real number, traced or not, that is still the number the user gave.

    `optax.inject_hyperparams` makes arrays of the parameters' dtype: in bfloat16 a decay of 0.999
    is 1, and if one parameter is complex, every number is complex.
    """
    if isinstance(value, jax.Array):
        is_complex = jnp.issubdtype(value.dtype, jnp.complexfloating)
        is_narrow = jnp.issubdtype(value.dtype, jnp.floating) and value.dtype.itemsize < 4
        is_kept = not (is_complex or (within is DECAY and is_narrow))
        words = "have dtype float32 or float64"
        require(is_kept, name, words, value.dtype, hint=INJECTED, error=TypeError)
    check_real(name, value, within, hint=hint)


def check_integer(name: str, value: Any, least: int = 1, *, hint: str = "") -> int:
    """Check that `value` is a Python or NumPy int in [least, 2**31); bools are not ints."""
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    require(is_integer, name, "be a Python int", repr(value), hint=hint, error=TypeError)
    number = int(value)
    require(number >= least, name, f"be at least {least}", value, hint=hint)
    require(number < 2**31, name, "be below 2**31", value, hint=hint)
    return number


def check_bool(name: str, value: Any, *, hint: str = "") -> bool:
    """Check that `value` is a Python or NumPy bool."""
    is_bool = isinstance(value, bool | np.bool_)
    require(is_bool, name, "be a Python bool", repr(value), hint=hint, error=TypeError)
    return bool(value)


def check_choice(name: str, value: Any, choices: Iterable[str], *, hint: str = "") -> None:
    """Check that a string is one of `choices`, such as a table's keys."""
    choices = list(choices)
    words = f"be one of {', '.join(choices)}"
    require(isinstance(value, str), name, words, repr(value), hint=hint, error=TypeError)
    require(value in choices, name, words, repr(value), hint=hint)


def check_function(name: str, value: Any, arguments: Iterable[str] = (), *, hint: str = "") -> None:
    """Check that `value` can be called, with all of `arguments` by position if there are any."""
    require(callable(value), name, "be a function", repr(value), hint=hint, error=TypeError)
    arguments = tuple(arguments)
    if not arguments:
        return
    try:
        inspect.signature(value).bind(*arguments)
    except ValueError:  # a builtin without a signature
        return
    except TypeError as error:
        words = f"take ({', '.join(arguments)})"
        require(False, name, words, f"{value!r}: {error}", hint=hint, error=TypeError)


def check_inexact(name: str, dtype: DTypeLike, *, hint: str = "") -> None:
    """Check a dtype that derivatives can have: floating point or complex."""
    try:
        is_inexact = jnp.issubdtype(dtype, np.inexact)
    except TypeError:  # not a dtype
        is_inexact = False
    words = "be floating point or complex"
    shown = dtype if isinstance(dtype, np.dtype) else repr(dtype)
    require(is_inexact, name, words, shown, hint=hint, error=TypeError)


def check_shape(name: str, value: Any, *shapes: tuple[int, ...], hint: str = "") -> None:
    """Check that an array's shape is one of `shapes`."""
    words = f"have shape {' or '.join(map(str, shapes))}"
    require(np.shape(value) in shapes, name, words, np.shape(value), hint=hint)


def is_known(value: Any) -> bool:
    """Return whether an array's numbers can be read: neither traced nor on other hosts' devices."""
    if isinstance(value, Tracer):
        return False
    return not isinstance(value, jax.Array) or value.is_fully_addressable


def _array(value: Any) -> np.ndarray | jax.Array:
    """Return `value` as an array, on the host if readable; an object array if it is not one."""
    if not isinstance(value, jax.Array) and hasattr(value, "__jax_array__"):  # flax's variables
        value = value.__jax_array__()
    if isinstance(value, jax.Array) and not (is_known(value) and _is_real(value.dtype)):
        return value
    try:
        return np.asarray(value)
    except jax.errors.TracerArrayConversionError:  # a sequence of tracers
        return jnp.asarray(value)
    except (TypeError, ValueError):  # ragged rows
        return np.asarray(None)


def _is_real(dtype: np.dtype) -> bool:
    """Return whether JAX has such real numbers; it lacks NumPy's long doubles and durations."""
    is_real = any(jnp.issubdtype(dtype, kind) for kind in (np.floating, np.integer))
    return is_real and dtype.kind not in "mM" and dtype.itemsize <= 8
