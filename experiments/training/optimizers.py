"""The optimizers and schedules that a configuration can name, as tables."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from kadam_jax import kadam

OPTIMIZERS: Mapping[str, Callable[[optax.Schedule, Any], optax.GradientTransformation]] = {
    "kadam": lambda rate, at: kadam(
        rate,
        at.k,
        at.b1,
        at.b2,
        at.eps,
        strategy=at.strategy,
        weight_decay=at.weight_decay,
        coupled=at.coupled,
    ),
    "adamw": lambda rate, at: optax.adamw(rate, at.b1, at.b2, at.eps, weight_decay=at.weight_decay),
    "nadamw": lambda rate, at: optax.nadamw(
        rate, at.b1, at.b2, at.eps, weight_decay=at.weight_decay
    ),
    "rmsprop": lambda rate, at: _decayed(
        optax.scale_by_rms(at.b2, at.eps, eps_in_sqrt=False, bias_correction=True), rate, at
    ),
    "lion": lambda rate, at: optax.lion(rate, at.b1, at.b2, weight_decay=at.weight_decay),
    "sgd": lambda rate, at: _decayed(optax.trace(at.b1), rate, at),
}
"""What `make_optimizer` calls with the schedule and the hyperparameters, by name."""

EPS = {"kadam": 1e-30}
"""Each optimizer's own epsilon where the configuration gives none; `OPTAX_EPS` for the others."""
OPTAX_EPS = 1e-8

SCHEDULES: Mapping[str, Callable[[int, float], optax.Schedule]] = {
    "constant": lambda num_steps, final_rate: optax.constant_schedule(1.0),
    "cosine": lambda num_steps, final_rate: optax.cosine_decay_schedule(1.0, num_steps, final_rate),
}
"""What follows the warm-up, from 1 on: (num_steps, final_rate) -> schedule."""


def make_optimizer(
    config: Any, hyperparameters: Mapping[str, ArrayLike]
) -> optax.GradientTransformation:
    """The optimizer that a configuration describes.

    Args:
      config: Has the fields of `experiments.train.config.TrainConfig` from `optimizer` to
        `clip_norm`.
      hyperparameters: The numeric ones among them, by name; may be traced.

    Returns:
      Gradient clipping, if there is any, before the optimizer with its schedule.

    >>> from experiments.train.config import TextTraining, hyperparameters
    >>> config = TextTraining(optimizer="sgd", b1=0.0, learning_rate=0.5, clip_norm=2.0)
    >>> optimizer = make_optimizer(config, hyperparameters(config))
    >>> params, grads = jnp.zeros(()), jnp.array(4.0)
    >>> state = optimizer.init(params)
    >>> for _ in range(2):  # the warm-up begins at 0
    ...     updates, state = optimizer.update(grads, state, params)
    >>> round(float(updates), 4)
    -0.01
    """
    at = SimpleNamespace(k=config.k, strategy=config.strategy, coupled=config.coupled)
    at.__dict__.update(hyperparameters)
    warmup_steps = config.warmup_steps
    after = SCHEDULES[config.schedule](config.num_steps - warmup_steps, config.final_rate)
    warmup = optax.linear_schedule(0.0, 1.0, warmup_steps)
    shape = optax.join_schedules([warmup, after], [warmup_steps])
    dtype = jnp.result_type(at.learning_rate)  # where JAX has float64, a schedule's is that
    optimizer = OPTIMIZERS[config.optimizer](
        lambda count: at.learning_rate * jnp.asarray(shape(count), dtype), at
    )
    if "clip_norm" not in hyperparameters:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(at.clip_norm), optimizer)


def _decayed(
    scaling: optax.GradientTransformation, rate: optax.Schedule, at: Any
) -> optax.GradientTransformation:
    """`scaling` with decoupled weight decay and the learning rate, as `optax.adamw` has them."""
    decay = optax.add_decayed_weights(at.weight_decay)
    return optax.chain(scaling, decay, optax.scale_by_learning_rate(rate))
