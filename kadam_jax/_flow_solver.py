"""The loops over steps and substeps that solve a flow, and its state as a caller sees it."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from kadam_jax._flow_equation import Numbers, cast, corrections_at, gradient_of, stage_updates
from kadam_jax._flow_methods import METHODS, Part
from kadam_jax._numerics import accumulator_dtype


class FlowState(NamedTuple):
    """The flow at one time; trees are like the parameters, of at least float32."""

    time: jax.Array  # shape=(): t, an optimizer step being η
    params: optax.Params  # θ
    velocity: optax.Updates  # dθ/dt, in units of u
    mu: tuple[optax.Updates, ...]  # m of each stage
    rms: tuple[optax.Updates, ...]  # √v of each stage, real
    updates: tuple[optax.Updates, ...]  # u of each stage; the last one moves the parameters
    integral: Any  # ∫ integrand dt from 0 to t; None without an integrand


class FlowSolution(NamedTuple):
    """What `solve_flow` returns."""

    saved: Any  # save(FlowState) at t = 0, η, ..., stacked: leading axis num_steps + 1
    state: FlowState  # at the end


class Packing:
    """A tree's arrays as one vector for each dtype, in the order in which dtypes appear.

    A substep is then one fused loop: with a loop for each array of a network, compiling takes
    minutes and small arrays cost more to start than to compute.
    """

    def __init__(self, tree):
        leaves, self.treedef = jax.tree.flatten(tree)
        self.shapes = [leaf.shape for leaf in leaves]
        self.members: dict[np.dtype, list[int]] = {}
        for i, leaf in enumerate(leaves):
            self.members.setdefault(leaf.dtype, []).append(i)

    def vectors(self, tree) -> list[jax.Array]:
        """One for each dtype."""
        leaves = self.treedef.flatten_up_to(tree)
        return [jnp.concatenate([leaves[i].ravel() for i in m]) for m in self.members.values()]

    def tree(self, vectors):
        """From vectors of any dtypes."""
        leaves: list[Any] = [None] * len(self.shapes)
        for members, vector in zip(self.members.values(), vectors, strict=True):
            ends = np.cumsum([math.prod(self.shapes[i]) for i in members])
            for i, part in zip(members, jnp.split(vector, ends[:-1]), strict=True):
                leaves[i] = part.reshape(self.shapes[i])
        return self.treedef.unflatten(leaves)


@partial(
    jax.jit,
    static_argnames=(
        *("grad_fn", "num_steps", "substeps", "save", "integrand", "method", "bias_correction"),
    ),
)
def solve(
    params,
    batches,
    p: Numbers,
    *,
    grad_fn,
    num_steps,
    substeps,
    save,
    integrand,
    method,
    bias_correction,
):
    """`kadam_jax.flow.solve_flow`, its arguments checked."""
    packing = Packing(params)
    bases, k = packing.vectors(params), len(p.mu_rates)
    zeros = [jnp.zeros_like(base) for base in bases]
    parts = [
        Part(base, zero, zero, (zero,) * k, (zero.real,) * k)
        for base, zero in zip(bases, zeros, strict=True)
    ]
    start, prepare, substep = METHODS[method]
    constants = prepare(p, 1 / substeps)
    corrections = partial(corrections_at, p, bias_correction=bias_correction)

    def observe(parts, s, integral=None):
        def stages(columns):
            return tuple(packing.tree(vectors) for vectors in zip(*columns, strict=True))

        c = corrections(s)
        return FlowState(
            s * p.learning_rate,
            packing.tree([x.theta for x in parts]),
            packing.tree([x.velocity for x in parts]),
            stages(x.mu for x in parts),
            stages(x.rms for x in parts),
            stages(
                stage_updates(jnp.zeros_like(x.moved), x.mu, x.rms, cast(c, x.real_dtype))
                for x in parts
            ),
            integral,
        )

    def weigh(weight, parts, s, integral):
        """The integral, and the integrand times `weight` substeps more."""
        if integrand is None:
            return None
        weight = weight / substeps * p.learning_rate
        return jax.tree.map(
            lambda total, value: total + weight.astype(total.real.dtype) * value,
            integral,
            integrand(observe(parts, s)),
        )

    def step(carry, now):
        (parts, integral), (n, batch) = carry, now

        def gradient(parts):
            params = packing.tree([x.theta for x in parts])
            return packing.vectors(gradient_of(grad_fn, params, batch, p.coupled_decay))

        def body(carry, j):
            parts, grads, integral = carry
            s = n + j / substeps
            integral = weigh(1.0, parts, s, integral)
            parts, grads = substep(gradient, corrections, constants, p, s, parts, grads)
            return (parts, grads, integral), None

        integral = weigh(-0.5, parts, n, integral)
        carry = parts, start(gradient, parts), integral
        (parts, _, integral), _ = jax.lax.scan(body, carry, jnp.arange(substeps, dtype=n.dtype))
        integral = weigh(0.5, parts, n + 1, integral)
        parts = [x._replace(base=x.theta, moved=jnp.zeros_like(x.moved)) for x in parts]
        return (parts, integral), save(observe(parts, n + 1, integral))

    times = jnp.arange(num_steps, dtype=p.learning_rate.dtype)
    integral = None
    if integrand is not None:
        shapes = jax.eval_shape(lambda: integrand(observe(parts, times[0])))
        integral = jax.tree.map(lambda x: jnp.zeros(x.shape, accumulator_dtype(x.dtype)), shapes)
    first = save(observe(parts, times[0], integral))
    if not jax.tree.leaves(first):
        raise ValueError(
            f"save must return what is to be kept of the state, got {first!r}; to keep nothing "
            "but the final state, return a small part of it, such as state.time"
        )
    (parts, integral), rest = jax.lax.scan(step, (parts, integral), (times, batches))
    saved = jax.tree.map(lambda a, b: jnp.concatenate([jnp.asarray(a)[None], b]), first, rest)
    return FlowSolution(saved, observe(parts, times[-1] + 1, integral))
