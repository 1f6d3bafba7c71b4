"""Tasks that train instantly: a regression with BatchNorm and dropout, and a toy trial."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from experiments.training.tasks import Task
from models.functional import functional


class Network(nnx.Module):
    """One hidden layer."""

    def __init__(self, inputs, hidden, rngs):
        self.first = nnx.Linear(inputs, hidden, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(hidden, momentum=0.9, rngs=rngs)
        self.last = nnx.Linear(hidden, 1, rngs=rngs)

    def __call__(self, x, *, rngs=None):
        hidden = jnp.tanh(self.norm(self.first(x)))
        if rngs is not None:
            hidden = hidden * jax.random.bernoulli(rngs.dropout(), 0.8, hidden.shape)
        return self.last(hidden)[:, 0]


def toy_task(inputs, hidden):
    """Return batches of x, (batch, inputs), and y, (batch,)."""
    init, apply = functional(lambda rngs: Network(inputs, hidden, rngs))

    def loss(params, state, batch, key):
        outputs, state = apply(params, state, batch["x"], key, train=True)
        return ((outputs - batch["y"]) ** 2).mean(), state

    def metrics(params, state, batch, weights):
        outputs, _ = apply(params, state, batch["x"])
        return {"loss": weights @ (outputs - batch["y"]) ** 2, "weight": weights.sum()}

    return Task(init, loss, metrics)


def valley(optimizer, seed, evaluated=lambda opt_state, params: params):
    """Run an instant trial: a long valley with noise, at a place that differs by seed."""
    key = jax.random.key(seed)
    goal = 1 + 0.3 * jax.random.normal(key, (4,))
    curvatures = jnp.array([1.0, 3.0, 10.0, 30.0])

    def step(carry, n):
        params, state = carry
        noise = jax.random.normal(jax.random.fold_in(key, n), (4,))
        updates, state = optimizer.update(curvatures * (params - goal) + noise, state, params)
        return (optax.apply_updates(params, updates), state), None

    start = jnp.zeros(4)
    (params, state), _ = jax.lax.scan(step, (start, optimizer.init(start)), jnp.arange(8))
    away = evaluated(state, params) - goal
    loss = (curvatures * away**2).mean()
    return {"validation": loss, "validation_loss": loss, "test": away**2}
