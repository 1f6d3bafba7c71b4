"""Flows to solve (a quadratic, a logistic regression, nanoGPT), and diffrax's methods on them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from experiments.training.tasks import Task
from kadam_jax import flow_vector_field


class FlowProblem(NamedTuple):
    """A flow to solve."""

    grad_fn: Callable[[jax.Array, Any], jax.Array]
    start: jax.Array
    """Initial parameters, a vector."""
    batches: Any
    """Minibatches; the leading axis has one entry per step."""
    rate: float
    """Learning rate."""

    @property
    def num_steps(self) -> int:
        """The number of steps that the flow lasts."""
        return len(jax.tree.leaves(self.batches)[0])


def quadratic(key: jax.Array, *, rate: float, num_steps: int) -> FlowProblem:
    """Return a quadratic of ten parameters with curvatures 0.1 to 1, the same at every step."""
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((10, 10)))[0]
    hessian = jnp.asarray(turn @ np.diag(np.geomspace(0.1, 1, 10)) @ turn.T)
    start, steps = jax.random.normal(key, 10), jnp.zeros(num_steps)
    return FlowProblem(lambda theta, _: hessian @ theta, start, steps, rate)


def logistic(key: jax.Array, *, rate: float, num_steps: int) -> FlowProblem:
    """Return a logistic regression of ten parameters with sixteen new examples at every step."""
    drawn = jax.random.normal(key, (16 * num_steps + 1, 11))  # one draw compiles faster
    rows, start = drawn[:-1].reshape(num_steps, 16, 11), drawn[-1]
    examples, noise = rows[..., 1:], rows[..., 0]
    labels = examples @ jnp.linspace(-2, 2, 10) + noise > 0

    def loss(theta, batch):
        examples, labels = batch
        return optax.sigmoid_binary_cross_entropy(examples @ theta, labels.astype(float)).mean()

    return FlowProblem(jax.grad(loss), start[1:] / 3, (examples, labels), rate)


def network(key: jax.Array, *, task: Task, rate: float, num_steps: int) -> FlowProblem:
    """Return a task without dropout, with a new batch at every step.

    The parameters are one vector, because with separate arrays diffrax's steps compile slowly.
    """
    init_key, sample_key = jax.random.split(key)
    params, state = task.init(init_key)
    start, tree_of = ravel_pytree(jax.tree.map(lambda x: x.astype(float), params))
    return FlowProblem(
        jax.grad(lambda theta, batch: task.evaluate(tree_of(theta), state, batch)),
        start,
        jax.vmap(task.sample)(jax.random.split(sample_key, num_steps)),
        rate,
    )


def by_diffrax(
    problem: FlowProblem, solver: Any, in_x: ArrayLike, substeps: ArrayLike, **decays: float
) -> jax.Array:
    """Solve step by step, so that no step evaluates the next minibatch; return final parameters.

    Args:
      problem: The flow to solve.
      solver: An explicit Runge-Kutta method of diffrax.
      in_x: Whether substeps are evenly spaced in x, where t = (n + x²)η within step n, or in t; may
        be traced.
      substeps: Number of substeps in each step; may be traced, so one program serves all numbers.
      decays: The decays `b1` and `b2`.
    """
    f, y0 = flow_vector_field(problem.grad_fn, learning_rate=problem.rate, **decays)

    def step(y, now):
        n, batch = now

        def slope(x, y, args):
            s, speed = jnp.where(in_x, x * x, x), jnp.where(in_x, 2 * x, 1)
            dy = f((n + s) * problem.rate, y, args)
            return jax.tree.map(lambda dy: speed * problem.rate * dy, dy)

        def substep(j, carry):
            y, state = carry
            ends = j / substeps, (j + 1) / substeps
            y, _, _, state, _ = solver.step(term, *ends, y, batch, state, made_jump=False)
            return y, state

        term = diffrax.ODETerm(slope)
        start = y, solver.init(term, 0.0, 1 / substeps, y, batch)
        return jax.lax.fori_loop(0, substeps, substep, start)[0], None

    times = jnp.arange(problem.num_steps, dtype=float)
    return jax.lax.scan(step, y0(problem.start), (times, problem.batches))[0].params
