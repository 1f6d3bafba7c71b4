"""An exponential integrator of second order: one substep of a flow.

It solves the equations (Proposition 2, Lemma 1) of Gould and Tanaka,
`arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_, with fewer gradients than Appendix I does.
"""

from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kadam_jax._numerics import modulus, promoting, quotient, root_of_average
from kadam_jax.flow.equation import Numbers, Part, cast, stage_updates


class Constants(NamedTuple):
    """Factors from each node τ = hx² to the next; `mu_*` and `rms_*` for each stage."""

    step: Any  # h = 1/K
    fractions: jax.Array  # (nodes+1,): τ/h, from 0 to 1
    points: jax.Array  # (nodes, points, 3): a panel's inputs at its nodes -> at points
    mu_loss: jax.Array  # (nodes, k)
    mu_mean: jax.Array  # (nodes, 3, k): a panel's inputs at its nodes -> their mean
    rms_loss: jax.Array  # (nodes, k)
    rms_gain: jax.Array  # (nodes, points, k)
    drift: jax.Array  # (1 - e^(-2h)) / 2
    push: jax.Array  # (nodes,): the force's weights in what the velocity loses
    shift: jax.Array  # (nodes,): and in what the parameters lose


def prepare(p: Numbers, step: float) -> Constants:
    """Compute the factors of substeps of `step` steps."""
    dtype = p.mu_rates.dtype
    x, weights = _radau(NODES)
    lag = -np.expm1(-2 * step * (1 - x * x))
    weights = 2 * step * x * weights
    x = np.concatenate([[0], x])

    def masses(rates, num):
        """Return the kernel's share of each Gauss point, scaled so that constants are kept."""
        points, weights, _ = _panels(x, num)
        ages = step * (np.square(x[1:, None]) - np.square(points))  # (nodes, num)
        exponents = np.log(weights * points)[..., None] - ages[..., None] * rates[None, None]
        return jax.nn.softmax(exponents, axis=1)  # no share is 0/0 at a large rate

    def exponents(rates):
        return -jnp.outer(step * np.diff(x * x), rates)

    losses = [-jnp.expm1(exponents(rates)) for rates in (p.mu_rates, p.nu_rates)]
    return cast(
        Constants(
            step,
            jnp.asarray(x * x),
            jnp.asarray(_panels(x, 3)[2]),
            losses[0],
            jnp.einsum("nqk,nqj->njk", masses(p.mu_rates, 8), _panels(x, 8)[2]),
            -jnp.expm1(exponents(p.nu_rates) / 2),
            jnp.sqrt(losses[1][:, None] * masses(p.nu_rates, 3)),
            -np.expm1(-2 * step) / 2,
            jnp.asarray(2 * weights * (1 - lag)),
            jnp.asarray(weights * lag),
        ),
        dtype,
    )


NODES = 4  # an even number: quadratics go through x at nodes 0, 1, 2, then 2, 3, 4


def _radau(num: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Radau nodes and weights on [0, 1], including the end 1."""
    legendre = np.polynomial.legendre.Legendre.basis
    nodes = np.sort(-(legendre(num - 1) + legendre(num)).roots().real)
    nodes[-1] = 1
    powers = np.arange(num)
    weights = np.linalg.solve(nodes ** powers[:, None], (1 - (-1.0) ** (powers + 1)) / (powers + 1))
    return (1 + nodes) / 2, weights / 2


def _panels(x: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return Gauss points between successive nodes, their weights and the panel's quadratics there.

    Shapes (nodes, num), (nodes, num), (nodes, num, 3).
    """
    points, weights = np.polynomial.legendre.leggauss(num)
    half = np.diff(x)[:, None] / 2
    at = x[:-1, None] + half * (1 + points)
    panels = np.array([x[i : i + 3] for i in range(0, NODES, 2) for _ in range(2)])  # (nodes, 3)
    lagrange = [
        np.prod(
            [
                (at - panels[:, None, i]) / (panels[:, j] - panels[:, i])[:, None]
                for i in range(3)
                if i != j
            ],
            axis=0,
        )
        for j in range(3)
    ]
    return at, half * weights, np.stack(lagrange, -1)


@promoting
def _advance(part: Part, grad, next_grad, next_moved, c: Constants, first, corrections, p) -> Part:
    """Advance a substep with a gradient (and, for decay, θ) linear up to its next value."""
    c, first, corrections, p = cast((c, first, corrections, p), part.real_dtype)
    inputs = [grad + fraction * (next_grad - grad) for fraction in c.fractions]  # at each node
    mus, rmss = [], []
    for i, start in enumerate(stage_updates(grad, part.mu, part.rms, first)):
        mu, rms, outputs = part.mu[i], part.rms[i], [start]
        for node in range(NODES):
            panel = inputs[node // 2 * 2 :][:3]
            mu = mu + c.mu_loss[node, i] * (_combine(c.mu_mean[node, :, i], panel) - mu)
            sizes = [modulus(_combine(point, panel)) for point in c.points[node]]
            rms = root_of_average(rms, c.rms_loss[node, i], sizes, list(c.rms_gain[node, :, i]))
            scale, eps = corrections.scale[node, i], corrections.eps[node, i]
            outputs.append(quotient(scale * mu, rms, eps))
        inputs = outputs
        mus.append(mu)
        rmss.append(rms)
    way = next_moved - part.moved
    forces = [
        x + p.decoupled_decay * (part.theta + fraction * way)
        for x, fraction in zip(inputs[1:], c.fractions[1:], strict=True)
    ]
    drift = c.drift * part.velocity
    return part._replace(
        moved=part.moved + p.learning_rate * (drift - _combine(c.shift, forces)),
        velocity=part.velocity - 2 * drift - _combine(c.push, forces),
        mu=tuple(mus),
        rms=tuple(rmss),
    )


def _combine(weights, arrays):
    return reduce(jnp.add, (weight * x for weight, x in zip(weights, arrays, strict=True)))


def start(gradient, parts: list[Part]):
    """Return the gradient at a step's start; later substeps reuse that at the last one's end."""
    return gradient(parts)


def substep(gradient, corrections, c: Constants, p: Numbers, s, parts: list[Part], grads):
    """Advance all parameters from s = t/η, with gradient `grads`; also return the next gradient."""
    times = corrections(s), jax.vmap(corrections)(s + c.step * c.fractions[1:])

    def advance(next_grads, next_moved):
        each = zip(parts, grads, next_grads, next_moved, strict=True)
        return [_advance(*one, c, *times, p) for one in each]

    way = c.step * p.learning_rate
    drifted = [x.moved + way.astype(x.base.dtype) * x.velocity for x in parts]
    predicted = advance(grads, drifted)
    next_grads = gradient(predicted)
    return advance(next_grads, [x.moved for x in predicted]), next_grads
