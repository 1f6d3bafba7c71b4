"""The one place where a Flax NNX module becomes pure functions of arrays.

Optimizers, sweeps and flows see parameters as plain nested dictionaries of arrays, so `jax.tree`,
optax, masks and checkpoints work on them unchanged, and `jax.vmap` gives many members at once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import nnx

Params = dict[Any, Any]
State = dict[Any, Any]


class Functional(NamedTuple):
    """A module as two pure functions; both can be jitted, vmapped and differentiated."""

    init: Callable[[jax.Array], tuple[Params, State]]
    """`init(key) -> (params, state)`."""
    apply: Callable[..., tuple[Any, State]]
    """`apply(params, state, batch, key=None, train=False, **inputs) -> (outputs, state)`."""


def functional(module_factory: Callable[[nnx.Rngs], nnx.Module]) -> Functional:
    """Split a module into a pure `init` and a pure `apply`.

    The module's structure is determined once, abstractly; `apply` only puts arrays back into it. It
    calls `module(batch, rngs=rngs, **inputs)`, where `rngs` is None if nothing random may happen
    (`train=False`, or no key), and otherwise has a `dropout` stream that starts from this call's
    key.

    Args:
      module_factory: builds the module from an `nnx.Rngs`, with `rngs.params()` for its parameters.

    Returns:
      A `Functional`. `params` holds the `nnx.Param`s and `state` every other variable (the running
      averages of BatchNorm, say; `{}` if there is none), both as nested dictionaries of arrays.
      `train`, a Python bool, is the module's mode: in training, BatchNorm uses the batch's
      statistics and `apply` returns the new state; otherwise `state` is returned unchanged.

    Raises:
      ValueError: if the module stores random state, which members and steps would then share.

    Example:

      >>> import jax
      >>> from flax import nnx
      >>> from models.functional import functional
      >>> class Classifier(nnx.Module):
      ...   def __init__(self, rngs):
      ...     self.dense = nnx.Linear(4, 2, rngs=rngs)
      ...   def __call__(self, batch, *, rngs=None):
      ...     return self.dense(batch)
      >>> init, apply = functional(Classifier)
      >>> params, state = init(jax.random.key(0))
      >>> jax.tree.map(jax.numpy.shape, params)
      {'dense': {'bias': (2,), 'kernel': (4, 2)}}
      >>> outputs, state = apply(params, state, jax.numpy.ones((3, 4)))
      >>> outputs.shape, state
      ((3, 2), {})

    References:
      `Flax NNX, the functional API <https://flax.readthedocs.io/en/latest/nnx_basics.html>`_.
    """
    abstract_module = nnx.eval_shape(lambda: module_factory(nnx.Rngs(0)))
    graphdef, _, random_state, _ = nnx.split(abstract_module, nnx.Param, nnx.RngState, ...)
    if jax.tree.leaves(random_state):
        raise ValueError(
            f"module_factory built a module that stores random state ({list(random_state)}); "
            "build its layers without their own rngs and pass on the rngs of each call instead."
        )

    def init(key: jax.Array) -> tuple[Params, State]:
        return _split(module_factory(nnx.Rngs(key)))

    def apply(
        params: Params,
        state: State,
        batch: Any,
        key: jax.Array | None = None,
        train: bool = False,
        **inputs: Any,
    ) -> tuple[Any, State]:
        module = nnx.merge(graphdef, params, state)
        if train:
            module.train()
        else:
            module.eval()
        rngs = nnx.Rngs(dropout=key) if train and key is not None else None
        outputs = module(batch, rngs=rngs, **inputs)
        return outputs, _split(module)[1]

    return Functional(init, apply)


def _split(module: nnx.Module) -> tuple[Params, State]:
    _, params, state = nnx.split(module, nnx.Param, ...)
    return nnx.to_pure_dict(params), nnx.to_pure_dict(state)
