"""Runs whose query and key norms are recorded: the discrete run and the flow (§4.2)."""

from collections.abc import Callable, Mapping

import jax
import numpy as np
import optax

from experiments.figures.invariance.queries_and_keys import inner, observed, scaled, stacked
from experiments.training.tasks import Task
from experiments.training.train import train_member
from kadam_jax import record_squared_norm, scale_by_kadam, solve_flow

TERMS = ("decayed", "growth", "radial")
"""Fields of `RecordSquaredNormState`."""

MemberFunction = Callable[[Mapping[str, jax.Array]], dict[str, jax.Array]]


def discrete_norms(
    task: Task, chosen: np.ndarray, *, num_steps: int, learning_rate: float, b2: float, eps: float
) -> MemberFunction:
    """Return a member function for Adam's run with decoupled weight decay on matrices.

    Args:
      task: The training task.
      chosen: Places of the slices that are recorded.
      num_steps: Static.
      learning_rate: η.
      b2: β.
      eps: ε.

    Returns:
      A function of a member (`b1`, `weight_decay`, `seed`, and `scale`, a factor on queries and
      keys at the start) to ‖W‖² after every step, `true`, and the `TERMS` that predict it, each
      (num_steps, num_chosen).
    """

    def fn(member):
        def init(key):
            params, state = task.init(key)
            return scaled(params, member["scale"]), state

        def pick(tree):
            return stacked(tree)[chosen]

        weight_decay = member["weight_decay"]
        optimizer = optax.chain(
            scale_by_kadam(1, (member["b1"],), (b2,), eps),
            observed(record_squared_norm(learning_rate, weight_decay, axes=(1, 2)), pick),
            optax.add_decayed_weights(
                weight_decay, lambda p: jax.tree.map(lambda x: x.ndim > 1, p)
            ),
            optax.scale_by_learning_rate(learning_rate),
            observed(_squared_norm_after(), pick),
        )

        def read(opt_state):
            _, record, _, _, true = opt_state
            return {term: getattr(record, term) for term in TERMS} | {"true": true}

        scaled_task = task._replace(init=init)
        return train_member(
            scaled_task, optimizer, seed=member["seed"], num_steps=num_steps, read=read
        ).read

    return fn


def _squared_norm_after() -> optax.GradientTransformation:
    """Keep ‖W‖² after the step as the state; belongs at the end of a chain."""
    return optax.GradientTransformation(
        lambda w: inner(w, w), lambda step, _, w: (step, inner(w + step, w + step))
    )


def flow_norms(
    task: Task, *, num_steps: int, substeps: int, learning_rate: float, b2: float, eps: float
) -> MemberFunction:
    """Return a member function: the flow without decay or dropout, each minibatch held for a step.

    Args:
      task: The training task.
      num_steps: Static.
      substeps: Substeps of the exponential integrator in a step.
      learning_rate: η.
      b2: β.
      eps: ε.

    Returns:
      A function of a member (`b1`, `seed`) to ‖W_0‖², `initial`, to ‖W‖² - ‖W_0‖² at the end,
      `true`, and to its predictions: `theorem` η∫‖u‖²; `full`, which adds -2∫⟨W, u⟩; and
      `velocity`, which also has ‖dW/dt‖² in place of ‖u‖²; each (num_slices,).
    """

    def integrand(state):
        w, u, velocity = map(stacked, (state.params, state.updates[-1], state.velocity))
        return {"radial": inner(w, u), "u": inner(u, u), "velocity": inner(velocity, velocity)}

    def squared_norm_and_integrals(state):
        w = stacked(state.params)
        return inner(w, w), state.integral

    def fn(member):
        init_key, sample_key = jax.random.split(jax.random.key(member["seed"]))
        params, model_state = task.init(init_key)
        solution = solve_flow(
            jax.grad(lambda params, batch: task.evaluate(params, model_state, batch)),
            params,
            learning_rate=learning_rate,
            num_steps=num_steps,
            substeps=substeps,
            b1=(member["b1"],),
            b2=(b2,),
            eps=eps,
            batches=jax.vmap(task.sample)(jax.random.split(sample_key, num_steps)),
            save=squared_norm_and_integrals,
            integrand=integrand,
            method="exponential",
        )
        squared_norm, integrals = solution.saved
        u, velocity, radial = (integrals[key][-1] for key in ("u", "velocity", "radial"))
        return {
            "initial": squared_norm[0],
            "true": squared_norm[-1] - squared_norm[0],
            "theorem": learning_rate * u,
            "full": learning_rate * u - 2 * radial,
            "velocity": learning_rate * velocity - 2 * radial,
        }

    return fn
