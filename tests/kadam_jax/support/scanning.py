"""How the optimizer tests feed gradients, given in advance, to an optimizer: one `lax.scan`."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

from kadam_jax.normalization import ScaleByAdaptiveNormalizationState


def feed(optimizer, gradients, params=None):
    """Scan the leading axis of `gradients`; return every step's parameters, updates and states.

    Without `params` the optimizer gets none, and the returned ones start at 0.
    """
    start = jax.tree.map(lambda g: jnp.zeros_like(g[0]), gradients) if params is None else params

    def step(carry, gradient):
        now, state = carry
        updates, state = optimizer.update(gradient, state, None if params is None else now)
        now = optax.apply_updates(now, updates)
        return (now, state), (now, updates, state)

    return jax.lax.scan(step, (start, optimizer.init(start)), gradients)[1]


_jitted = partial(jax.jit, static_argnums=0)(feed)


def jit_feed(*args):
    """`feed` as one program, for NumPy arrays, on which nothing has to be compiled."""
    return jax.device_get(_jitted(*args))


def jit_updates(optimizer, gradients):
    """The updates alone."""
    return jit_feed(optimizer, gradients)[1]


def stages_of(state):
    """The states of the stages, wherever they are in an optimizer's state for arrays or dicts."""
    nodes = [node for node in jax.tree.leaves(state, is_leaf=_is_stage) if _is_stage(node)]
    return [stage for node in nodes for stage in _split(node)]


def _split(node):
    if not isinstance(node.mu, tuple):
        return [node]
    return [node._replace(mu=mu, rms=rms) for mu, rms in zip(node.mu, node.rms, strict=True)]


def _is_stage(x):
    return isinstance(x, ScaleByAdaptiveNormalizationState)
