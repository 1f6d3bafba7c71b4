"""Distances between Adam's discrete run and flows from the same weights on the same minibatches."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from experiments.training.tasks import Task
from kadam_jax import kadam, solve_flow

GROUPS = ("all", "rest", "drawn")
"""Parameters that distances are taken over: all measured ones; those outside the embedding, whose
rows of unused tokens move as one; and those that are drawn."""


def leaf_names(params: Any) -> np.ndarray:
    """Return, for every parameter, the name of the array that holds it."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    return np.repeat(names, [leaf.size for _, leaf in leaves])


def places(params: Any, num: int) -> np.ndarray:
    """Draw `num` parameters' places, one at random in each of `num` equal stretches.

    >>> places({"a": np.zeros(60), "b": np.zeros((8, 5))}, 5) // 20
    array([0, 1, 2, 3, 4])
    >>> places(np.zeros(3), 5)
    array([0, 1, 2])
    """
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    ends = np.arange(min(num, size) + 1) * size // min(num, size)
    return np.random.default_rng(0).integers(ends[:-1], ends[1:])


def flow_distances(
    task: Task,
    solvers: Mapping[str, Mapping[str, Any]],
    center: str,
    *,
    num_steps: int,
    num_drawn: int,
    num_measured: int,
    b1: ArrayLike,
    b2: ArrayLike,
    eps: ArrayLike,
) -> Callable[[Mapping[str, jax.Array]], dict[str, jax.Array]]:
    """Return a member function: the discrete run, flows, and their distances from one of these.

    Args:
      task: The training task; dropout is off.
      solvers: Options of `solve_flow`, by the flow's name.
      center: The name that distances are taken from; the discrete run's is "discrete".
      num_steps: Optimizer steps; static.
      num_drawn: Parameters whose trajectories are kept.
      num_measured: Parameters that distances are taken over; all if there are fewer.
      b1: γ.
      b2: β.
      eps: ε.

    Returns:
      A function of a member (`learning_rate`, `seed`) to arrays with a leading axis of processes,
      the discrete run and then the flows: `moved`, θ - θ_0 of the drawn parameters, (num_processes,
      num_steps + 1, num_drawn); and over `GROUPS` the root mean squares `distance` from the center
      and `displacement` from θ_0, (num_processes, num_groups, num_steps + 1).
    """

    def fn(member):
        rate = member["learning_rate"]
        init_key, sample_key = jax.random.split(jax.random.key(member["seed"]))
        params, model_state = task.init(init_key)
        batches = jax.vmap(task.sample)(jax.random.split(sample_key, num_steps))
        drawn, measured = places(params, num_drawn), places(params, num_measured)
        chosen = np.concatenate([drawn, measured])
        is_measured = np.arange(len(chosen)) >= len(drawn)
        outside = leaf_names(params)[chosen] != "embedding"
        groups = np.stack([is_measured, is_measured & outside, ~is_measured])
        shares = groups / groups.sum(1, keepdims=True)

        def observe(params):
            return ravel_pytree(params)[0][chosen]

        def grad_fn(params, batch):
            return jax.grad(task.evaluate)(params, model_state, batch)

        optimizer = kadam(rate, 1, (b1,), (b2,), eps)

        def step(carry, batch):
            params, state = carry
            updates, state = optimizer.update(grad_fn(params, batch), state, params)
            params = optax.apply_updates(params, updates)
            return (params, state), observe(params)

        _, discrete = jax.lax.scan(step, (params, optimizer.init(params)), batches)
        processes = {"discrete": jnp.concatenate([observe(params)[None], discrete])}
        for name, options in solvers.items():
            processes[name] = solve_flow(
                grad_fn,
                params,
                learning_rate=rate,
                num_steps=num_steps,
                b1=(b1,),
                b2=(b2,),
                eps=eps,
                batches=batches,
                save=lambda state: observe(state.params),
                **options,
            ).saved

        def root_mean_squares(difference):
            return jnp.sqrt(jnp.einsum("gi,pni->pgn", shares, jnp.square(difference)))

        theta = jnp.stack(list(processes.values()))
        moved = theta - theta[:, :1]
        return {
            "moved": moved[..., : len(drawn)],
            "distance": root_mean_squares(theta - processes[center][None]),
            "displacement": root_mean_squares(moved),
        }

    return fn
