"""Queries and keys of all heads: the weights of nanoGPT that qk-norm makes scale-invariant (§4.1).

A tree is nanoGPT's parameters, their gradients or their updates. A leaf "qkv" is (width, 3, heads,
head_size), queries first, then keys, then values.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from models.nanogpt import query_key_slices


def stacked(tree: Mapping[str, Any]) -> jax.Array:
    """Return every head's query and key matrix, (num_slices, width, head_size)."""
    return jnp.stack(list(query_key_slices(tree).values()))


def inner(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return ⟨a, b⟩ of every slice, (num_slices,)."""
    return jnp.sum(a * b, axis=(1, 2))


def others(tree: Mapping[str, Any]) -> list[jax.Array]:
    """Return everything that is neither a query nor a key."""
    leaves = jax.tree.leaves_with_path(tree)
    return [leaf[:, 2] if _is_qkv(path) else leaf for path, leaf in leaves]


def scaled(tree: Mapping[str, Any], factor: jax.Array | float) -> Any:
    """Multiply all queries and keys by a factor; under qk-norm the loss does not change."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf.at[:, :2].multiply(factor) if _is_qkv(path) else leaf, tree
    )


def on_queries_and_keys(stage: optax.GradientTransformation) -> optax.GradientTransformation:
    """Apply `stage` to queries and keys only, as leaves (width, 2, heads, head_size)."""

    def take(tree):
        return {layer: block["attention"]["qkv"][:, :2] for layer, block in tree["blocks"].items()}

    def update(updates, state, params=None):
        changed, state = stage.update(take(updates), state, take(params))
        blocks = {}
        for layer, block in updates["blocks"].items():
            qkv = block["attention"]["qkv"].at[:, :2].set(changed[layer])
            blocks[layer] = {**block, "attention": {**block["attention"], "qkv": qkv}}
        return {**updates, "blocks": blocks}, state

    return optax.GradientTransformation(lambda params: stage.init(take(params)), update)


def observed(
    recorder: optax.GradientTransformation, pick: Callable[[Any], Any] = stacked
) -> optax.GradientTransformation:
    """Feed what `pick` takes from updates and parameters to `recorder`; leave updates unchanged."""

    def update(updates, state, params=None):
        return updates, recorder.update(pick(updates), state, pick(params))[1]

    return optax.GradientTransformation(lambda params: recorder.init(pick(params)), update)


def without_qk_norm(params: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the parameters of a network with qk-norm into those of one without."""
    kept = ("qkv", "out")
    blocks = {
        layer: {**block, "attention": {name: block["attention"][name] for name in kept}}
        for layer, block in params["blocks"].items()
    }
    return {**params, "blocks": blocks}


def _is_qkv(path) -> bool:
    return path[-1].key == "qkv"
