"""Continue a run of Adam as k-Adam with k = 1, or the reverse."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

from kadam_jax._checks import require
from kadam_jax._numerics import accumulator_dtype
from kadam_jax.normalization import ScaleByAdaptiveNormalizationState


def convert_adam_state(state: optax.OptState, like: optax.OptState) -> optax.OptState:
    r"""Convert a state of `optax.adam` or `optax.adamw` to k-Adam's with k = 1, or the reverse.

    The averages are carried over as :math:`m` and :math:`\sqrt{v}`, and step and schedule counts
    are unchanged. Both optimizers may be wrapped, for example by `optax.MultiSteps`, `optax.masked`
    or `optax.inject_hyperparams`; injected hyperparameters that both have are carried over.

    Args:
      state: the state to continue from, such as a restored checkpoint.
      like: a state of the optimizer to continue with, as its `init` returns it, which gives the
        structure and the dtypes.

    Returns:
      The numbers of `state` in the structure and the dtypes of `like`.

    Raises:
      ValueError: the numbers of `state` do not fit into `like`, because k > 1 or the wrappers
        differ.

    Examples:
      >>> import jax.numpy as jnp, optax
      >>> from kadam_jax import kadam
      >>> params, gradient = jnp.zeros(2), jnp.array([3.0, -4.0])
      >>> adamw, optimizer = optax.adamw(0.1), kadam(0.1, k=1, eps=1e-8, weight_decay=1e-4)
      >>> _, state = adamw.update(gradient, adamw.init(params), params)
      >>> state = convert_adam_state(state, like=optimizer.init(params))
      >>> updates, state = optimizer.update(gradient, state, params)
      >>> [round(float(u), 4) for u in updates]
      [-0.1, 0.1]

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`
      (arXiv:2411.05746), Section 4.3: Adam is k-Adam with k = 1.
    """
    to_adam = any(isinstance(node, optax.ScaleByAdamState) for node in _nodes(like))
    injected = iter([node for node in _nodes(like) if _has_hyperparams(node)])

    def converted(node):
        if _has_hyperparams(node):
            place = next(injected, node)  # the same one of the injected optimizers in `like`
            wanted = place.hyperparams | node.hyperparams
            return node._replace(
                hyperparams={name: wanted[name] for name in place.hyperparams},
                inner_state=jax.tree.map(converted, node.inner_state, is_leaf=_is_node),
            )
        if to_adam and isinstance(node, ScaleByAdaptiveNormalizationState):
            return optax.ScaleByAdamState(node.count, node.mu, jax.tree.map(jnp.square, node.rms))
        if not to_adam and isinstance(node, optax.ScaleByAdamState):
            return ScaleByAdaptiveNormalizationState(
                cast(jax.Array, node.count), node.mu, jax.tree.map(_root, node.nu)
            )
        return node

    numbers = jax.tree.leaves(jax.tree.map(converted, state, is_leaf=_is_node))
    places, treedef = jax.tree.flatten(like)
    shapes, wanted = ([jnp.shape(x) for x in leaves] for leaves in (numbers, places))
    hint = (
        "only k = 1 is Adam, and both must have the same wrappers, and a constant learning rate or "
        "a schedule"
    )
    require(shapes == wanted, "state", f"have leaves of shapes {wanted}", shapes, hint=hint)
    return treedef.unflatten(
        jnp.asarray(x).astype(place.dtype) for x, place in zip(numbers, places, strict=True)
    )


def _root(nu):
    return jnp.sqrt(jnp.real(nu).astype(jnp.finfo(accumulator_dtype(nu.dtype)).dtype))


def _nodes(state) -> list[Any]:
    """Return the nodes to convert, each injected one before those inside it."""
    nodes = [x for x in jax.tree.leaves(state, is_leaf=_is_node) if _is_node(x)]
    inside = [_nodes(x.inner_state) if _has_hyperparams(x) else [] for x in nodes]
    return [y for x, within in zip(nodes, inside, strict=True) for y in (x, *within)]


def _is_node(x) -> bool:
    ours = (ScaleByAdaptiveNormalizationState, optax.ScaleByAdamState)
    return isinstance(x, ours) or _has_hyperparams(x)


def _has_hyperparams(x) -> bool:
    return isinstance(x, optax.InjectStatefulHyperparamsState)
