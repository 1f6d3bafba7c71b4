"""The dtypes that a network may compute in."""

from typing import Literal, get_args

import jax

Dtype = Literal["float32", "bfloat16", "float16", "float64"]


def check_dtype(dtype: str) -> None:
    """Raise for a name that is not one of `Dtype`.

    Args:
      dtype: a name.

    Raises:
      ValueError: if the name is unknown.

    Example:

      >>> check_dtype("bfloat16")
    """
    if dtype not in get_args(Dtype):
        raise ValueError(f"dtype must be one of {', '.join(get_args(Dtype))}, got {dtype!r}.")


def check_enabled(dtype: str) -> None:
    """Raise for "float64" if JAX would turn it into float32, before anything is compiled.

    Args:
      dtype: one of `Dtype`.

    Raises:
      ValueError: if JAX does not compute in it.

    Example:

      >>> check_enabled("bfloat16")
    """
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(f"dtype={dtype!r} needs JAX_ENABLE_X64=1 in the environment.")
