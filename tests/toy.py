"""A regression small enough to train in many ways: BatchNorm and dropout see a whole batch."""

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.tasks import Problem
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


def toy_problem(inputs, hidden):
    """Batches of x, (batch, inputs), and y, (batch,)."""
    init, apply = functional(lambda rngs: Network(inputs, hidden, rngs))

    def loss(params, state, batch, key):
        outputs, state = apply(params, state, batch["x"], key, train=True)
        return ((outputs - batch["y"]) ** 2).mean(), state

    def metrics(params, state, batch, weights):
        outputs, _ = apply(params, state, batch["x"])
        return {"loss": weights @ (outputs - batch["y"]) ** 2, "weight": weights.sum()}

    return Problem(init, loss, metrics)
