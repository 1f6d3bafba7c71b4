"""One run as a pure function, a `lax.scan` over optimizer steps for a sweep to map over members."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from experiments.tasks import Task


class TrainResult(NamedTuple):
    """One member's run."""

    loss: jax.Array
    """(num_steps,): of each step's batch, before the step."""
    read: Any
    """`read(opt_state)` after each step; leaves have a leading axis of num_steps."""
    params: Any
    """Parameters at the end."""
    state: Any
    """The model's own state at the end."""


def train_member(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    seed: jax.Array | int,
    num_steps: int,
    stop: jax.Array | int | None = None,
    read: Callable[[Any], Any] = lambda opt_state: (),
) -> TrainResult:
    """Trains one member inside the caller's compiled program, with no trip to the host.

    Initial weights come from `seed`; the batch and the dropout of step n from `seed` and n, so that
    a member is the same wherever it stands in a sweep and however long it runs.

    Args:
      task: What is trained.
      optimizer: May be built from tracers.
      seed: May be traced.
      num_steps: Static.
      stop: Steps from this one on are skipped and recorded as NaN; may be traced, so that members
        of one program can differ in length: those that run in turn then save the time, those side
        by side do not. None for no skipping.
      read: Picks from the optimizer's state what is recorded after every step.

    Returns:
      A `TrainResult`; XLA drops the computation of whatever the caller drops.

    >>> from experiments.tasks import Task
    >>> slope = Task(
    ...     init=lambda key: (jnp.zeros(()), ()), sample=lambda key: 3.0,
    ...     loss=lambda w, state, batch, key: (batch * w, state),
    ...     sample_heldout=None, evaluate=None)
    >>> train_member(slope, optax.sgd(1.0), seed=0, num_steps=3).loss.tolist()
    [0.0, -9.0, -18.0]
    """
    init_key, run_key = jax.random.split(jax.random.key(seed))
    params, state = task.init(init_key)

    def step(carry, index):
        params, state, opt_state = carry
        sample_key, dropout_key = jax.random.split(jax.random.fold_in(run_key, index))
        (loss, state), grads = jax.value_and_grad(task.loss, has_aux=True)(
            params, state, task.sample(sample_key), dropout_key
        )
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return (params, state, opt_state), (loss, read(opt_state))

    def step_or_skip(carry, index):
        def skip(carry, index):
            records = jax.eval_shape(step, carry, index)[1]
            return carry, jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), records)

        return jax.lax.cond(index < stop, step, skip, carry, index)

    start = (params, state, optimizer.init(params))
    body = step if stop is None else step_or_skip
    (params, state, _), (losses, readings) = jax.lax.scan(body, start, jnp.arange(num_steps))
    return TrainResult(losses, readings, params, state)
