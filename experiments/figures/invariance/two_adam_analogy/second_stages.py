"""Second stages after Adam's own with γ₂ = 0, which §4.2 compares with a layer's effect."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from experiments.figures.invariance.queries_and_keys import inner, on_queries_and_keys
from kadam_jax import (
    radial_inner_products,
    scale_by_adaptive_normalization,
    scale_by_coarse_grained_normalization,
)


def elementwise(b2: ArrayLike, eps: ArrayLike) -> optax.GradientTransformation:
    """Build the elementwise stage of 2-Adam."""
    return scale_by_adaptive_normalization(0.0, b2, eps)


def coarse(b2: ArrayLike, eps: ArrayLike) -> optax.GradientTransformation:
    """Build a stage with one second moment per query and key, (width, 2, heads, head_size)."""
    return scale_by_coarse_grained_normalization((0, 3), 0.0, b2, eps)


SECOND_STAGES: Mapping[str, Callable[..., optax.GradientTransformation]] = {
    "adam": lambda b2, eps: optax.identity(),
    "two_adam_everywhere": elementwise,
    "two_adam_elementwise": lambda b2, eps: on_queries_and_keys(elementwise(b2, eps)),
    "two_adam_coarse": lambda b2, eps: on_queries_and_keys(coarse(b2, eps)),
}
"""Functions `stage(b2, eps)` for all parameters."""


def one_of(
    stages: Sequence[optax.GradientTransformation], place: jax.Array
) -> optax.GradientTransformation:
    """Build the stage at `place`, which may be traced."""

    def use(place, updates, states, params):
        updates, state = stages[place].update(updates, states[place], params)
        return updates, (*states[:place], state, *states[place + 1 :])

    def update(updates, states, params=None):
        branches = [partial(use, place) for place in range(len(stages))]
        return jax.lax.switch(place, branches, updates, states, params)

    return optax.GradientTransformation(
        lambda params: tuple(stage.init(params) for stage in stages), update
    )


class StageEffectsState(NamedTuple):
    """State of `stage_effects`."""

    coarse: Any
    elementwise: Any
    seen: dict[str, jax.Array]
    """For every slice at the latest step: `squared_norm` ‖W‖²; `squared_update` ‖u‖²; `scale`, by
    which the coarse-grained stage multiplies u; and `cosine` of u and the elementwise stage's
    output."""


def stage_effects(b2: ArrayLike, eps: ArrayLike) -> optax.GradientTransformation:
    """Leave updates unchanged and record what a second stage of either kind would do to them.

    Updates and parameters are slices, (num_slices, width, head_size).
    """
    stages = scale_by_coarse_grained_normalization((1, 2), 0.0, b2, eps), elementwise(b2, eps)

    def init(w):
        zero = jnp.zeros(len(w), w.dtype)
        seen = dict.fromkeys(("squared_norm", "squared_update", "scale", "cosine"), zero)
        return StageEffectsState(*(stage.init(w) for stage in stages), seen)

    def update(u, state, w=None):
        (scaled, coarse_state), (turned, elementwise_state) = (
            stage.update(u, of_stage) for stage, of_stage in zip(stages, state[:2], strict=True)
        )
        seen = {
            "squared_norm": inner(w, w),
            "squared_update": inner(u, u),
            "scale": jnp.sqrt(inner(scaled, scaled) / inner(u, u)),
            "cosine": radial_inner_products(u, turned, axes=(1, 2)).cosine,
        }
        return u, StageEffectsState(coarse_state, elementwise_state, seen)

    return optax.GradientTransformation(init, update)
