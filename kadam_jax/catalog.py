"""The optimizers that the installed optax has, found by introspection."""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import optax
from optax import contrib

__all__ = ["find_optimizers"]


def find_optimizers() -> dict[str, Callable[..., optax.GradientTransformation]]:
    """Return, by name, optax's functions that make an optimizer from a learning rate.

    The first parameter is the learning rate, and the result is annotated as a transformation, or
    not annotated. Transformations such as `scale_by_rprop` are parts of optimizers. Names are those
    of `optax`, or of `optax.contrib`, from which optax moves optimizers to its main namespace.

    >>> found = find_optimizers()
    >>> "adam" in found, "ademamix" in found, "scale_by_adam" in found, "chain" in found
    (True, True, False, False)
    """
    public = {**vars(contrib), **vars(optax)}
    return {name: public[name] for name in sorted(public) if _makes_optimizer(name, public[name])}


def _makes_optimizer(name: str, member: Any) -> bool:
    if not isinstance(member, types.FunctionType | functools.partial):
        return False
    signature = inspect.signature(member)
    result = signature.return_annotation
    return (
        not name.startswith(("_", "scale_by_"))
        and next(iter(signature.parameters), "").endswith("learning_rate")
        and (result is inspect.Signature.empty or "GradientTransformation" in str(result))
    )
