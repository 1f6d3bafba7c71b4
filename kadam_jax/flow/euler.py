"""Appendix I's scheme: a substep of one parameter, and of all of them.

Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
`arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from kadam_jax._numerics import modulus, promoting, root_of_average
from kadam_jax.flow.equation import Corrections, Numbers, Part, cast, stage_updates


class Constants(NamedTuple):
    """Factors that do not change in time; x and y are the rates of m and v, times 1/K."""

    step: Any  # 1/K
    mu_loss: jax.Array  # (k,): 1 - e^(-x)
    mu_gain: jax.Array  # (k,): x e^(-x)
    rms_loss: jax.Array  # (k,): 1 - e^(-y/2)
    rms_gain: jax.Array  # (k,): √(y e^(-y))


def prepare(p: Numbers, step: float) -> Constants:
    """Compute the factors for substeps of `step` steps."""
    x, y = p.mu_rates * step, p.nu_rates * step
    gain = jnp.sqrt(y * jnp.exp(-y))
    return Constants(step, -jnp.expm1(-x), x * jnp.exp(-x), -jnp.expm1(-y / 2), gain)


def start(gradient, parts: list[Part]) -> None:
    """Return None: each substep takes its own gradient."""


@promoting
def advance(one: Part, g, c: Constants, corrections: Corrections, p: Numbers) -> Part:
    r"""Advance one parameter by one substep: scalars in, scalars out.

    .. math::

        \theta &\gets \theta + \Delta t\, \psi \\
        \psi &\gets \psi + \Delta t\, \dot\psi, \qquad
          \dot\psi = -\tfrac{2}{\eta} (\psi + u + \lambda\theta) \\
        m &\gets e^{-x} (m + x g), \qquad v \gets e^{-y} (v + y |g|^2)

    with :math:`\Delta t = \eta/K` and all right-hand sides at the substep's start; stage i > 1
    takes the u of stage i-1 for g. √v is kept instead of v.
    """
    *inputs, u = (g, *stage_updates(g, one.mu, one.rms, corrections))
    theta, psi = one.theta, one.velocity
    return Part(
        base=one.base,
        moved=one.moved + c.step * p.learning_rate * psi,
        velocity=psi - 2 * c.step * (psi + u + p.decoupled_decay * theta),
        mu=tuple(
            m + (c.mu_gain[i] * x - c.mu_loss[i] * m)
            for i, (x, m) in enumerate(zip(inputs, one.mu, strict=True))
        ),
        rms=tuple(
            root_of_average(r, c.rms_loss[i], [modulus(x)], [c.rms_gain[i]])
            for i, (x, r) in enumerate(zip(inputs, one.rms, strict=True))
        ),
    )


def substep(gradient, corrections, c: Constants, p: Numbers, s, parts: list[Part], grads):
    """Run `advance` for all parameters, from s = t/η."""
    now = corrections(s)
    advance_all = jax.vmap(advance, in_axes=(0, 0, None, None, None))
    each = zip(parts, gradient(parts), strict=True)
    return [advance_all(x, g, *cast((c, now, p), x.real_dtype)) for x, g in each], grads
