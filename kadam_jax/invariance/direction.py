"""The direction of scale-invariant weights, and the component of their gradients along them.

Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
`arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_: Proposition 3, Lemma 2, Assumption 1.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from kadam_jax._checks import NOT_NEGATIVE, check_choice, check_real
from kadam_jax._slices import (
    AxesOfLeaves,
    inner,
    map_slices,
    real_dtype,
    root_mean_square,
    size,
    wide,
)

# Λ from η, r = ‖W‖, ‖dŴ/dt‖² and ⟨Ŵ, u⟩.
_LAMBDAS: dict[str, Callable[..., jax.Array]] = {
    "paper": lambda rate, r, speed, radial: rate * r * speed / 2,
    "without_r": lambda rate, r, speed, radial: rate * speed / 2,
    "radial": lambda rate, r, speed, radial: rate * speed / 2 - radial / r,
}


def direction_residual(
    weights,
    velocity,
    acceleration,
    updates,
    *,
    learning_rate: ArrayLike,
    form: str = "radial",
    axes: AxesOfLeaves = None,
):
    r"""Compute the residual of Proposition 3's equation for the direction Ŵ = W/‖W‖.

    .. math::

        \tfrac12 \eta \ddot{\hat W} + \dot{\hat W} + \Lambda \hat W + u / r, \qquad r = \|W\|

    with Λ given by `form`:

    - "paper": :math:`\tfrac12 \eta r \|\dot{\hat W}\|^2`. The r is a slip: the equation was divided
      by r, but this term was not.
    - "without_r": :math:`\tfrac12 \eta \|\dot{\hat W}\|^2`, which still drops ⟨Ŵ, u⟩.
    - "radial": :math:`\tfrac12 \eta \|\dot{\hat W}\|^2 - \langle \hat W, u \rangle / r`, which
      Appendix J's derivation gives when only ηṙ is dropped. Where W obeys
      :math:`\lambda W + \dot W + \tfrac12\eta\ddot W = -u` its residual is exactly
      :math:`-\eta (\dot r / r) \dot{\hat W}`.

    As η falls at fixed t, the last form's residual vanishes; those of the others do not (γ = 0.9,
    an elementwise √v). λ appears in none of the forms, since it changes only r.

    Args:
      weights: W, a tree; no slice may be 0, since that has no direction and gives NaN.
      velocity: dW/dt, a tree like `weights`, with t in units in which a step is η.
      acceleration: d²W/dt²; on a solution of the equation above, -(2/η)(λW + dW/dt + u).
      updates: u, in units of the learning rate.
      learning_rate: η; may be traced.
      form: "paper", "without_r" or "radial".
      axes: the axes a slice spans, see `kadam_jax.invariance`.

    Returns:
      A tree like `weights`, in units of 1/t, to be compared with u/r.

    Raises:
      ValueError: `form` is unknown, a concrete `learning_rate` is negative, a leaf lacks an axis,
        or the trees differ.
      TypeError: `learning_rate` is not a single real number; `axes` is neither None, ints nor a
        function.

    Examples:
      >>> import jax.numpy as jnp
      >>> w, u, rate = jnp.array([3.0, 4.0]), jnp.array([1.0, -1.0]), 0.01
      >>> velocity = -u
      >>> acceleration = -(2 / rate) * (velocity + u)
      >>> for form in ("without_r", "radial"):
      ...     residual = direction_residual(
      ...         w, velocity, acceleration, u, learning_rate=rate, form=form
      ...     )
      ...     print(form, f"{jnp.linalg.norm(residual):.4f}")
      without_r 0.0400
      radial 0.0001

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Proposition 3, Appendix J.
    """
    check_choice("form", form, _LAMBDAS)
    check_real("learning_rate", learning_rate, NOT_NEGATIVE)

    def residual(w, over, w_dot, w_ddot, u):
        w, w_dot, w_ddot, u = (wide(x) for x in (w, w_dot, w_ddot, u))
        rate = jnp.asarray(learning_rate, real_dtype(w))

        def dot(a, b):
            return inner(a, b, over, keepdims=True)

        r = math.sqrt(size(w, over)) * root_mean_square(w, over)
        hat = w / r
        r_dot = dot(hat, w_dot)
        hat_dot = (w_dot - r_dot * hat) / r
        r_ddot = dot(hat_dot, w_dot) + dot(hat, w_ddot)
        hat_ddot = (w_ddot - r_ddot * hat - 2 * r_dot * hat_dot) / r
        decay = _LAMBDAS[form](rate, r, dot(hat_dot, hat_dot), dot(hat, u))
        return rate * hat_ddot / 2 + hat_dot + decay * hat + u / r

    return map_slices(residual, axes, weights, velocity, acceleration, updates)


class RadialInnerProducts(NamedTuple):
    """Trees like the weights, with one number for each slice."""

    inner: Any  # ⟨W, g⟩
    cosine: Any  # ⟨W, g⟩ / (‖W‖ ‖g‖), 0 where either is 0
    chance: Any  # root mean square of the cosine of random directions, 1/√N


def radial_inner_products(weights, gradients, *, axes: AxesOfLeaves = None) -> RadialInnerProducts:
    r"""Compute ⟨W, g⟩ and the cosine between a weight and a gradient or update of any step.

    A loss with L(Φ_s(W)) = L(W), Φ_s(W) = e^s W (scale invariance for factors α = e^s > 0; the
    paper's sW is not the identity at s = 0), has

    .. math:: 0 = \frac{d}{ds} L(e^s W) \Big|_{s=0} = \langle W, \nabla_W L(W) \rangle

    (Lemma 2, Appendix K). Assumption 1 neglects ⟨W, g⟩ for gradients of earlier steps too. The
    inner product falls with ‖g‖ but the cosine does not, so compare the cosine with chance:
    independent random directions in N dimensions have a root mean square cosine of 1/√N.

    Args:
      weights: W, a tree.
      gradients: g, or u, a tree like `weights`. For gradients of many steps, vmap over them.
      axes: the axes a slice spans, see `kadam_jax.invariance`.

    Returns:
      `inner`, `cosine` and `chance`, trees like `weights` with one number for each slice. The
      cosine is right even for gradients whose squares underflow or overflow.

    Raises:
      ValueError: a leaf lacks an axis, or the trees or their shapes differ.
      TypeError: `axes` is neither None, ints nor a function.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> target = jnp.array([1.0, 2.0, 2.0, 0.0])
      >>> loss = lambda w: -w @ target / jnp.linalg.norm(w)
      >>> w = jnp.array([1.0, 0.0, 0.0, 2.0])
      >>> products = radial_inner_products(w, jax.grad(loss)(w))
      >>> abs(round(float(products.cosine), 5)), float(products.chance)
      (0.0, 0.5)

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Lemma 2, Assumption 1, Appendix G, Appendix K.
    """

    def unit(x, over):  # with mean square 1 over a slice
        root = root_mean_square(x, over)
        return x / jnp.where(root != 0, root, jnp.inf)

    def cosine(w, over, g):
        w, g = wide(w), wide(g)
        return inner(unit(w, over), unit(g, over), over) / size(w, over)

    def chance(w, over):
        w = wide(w)
        dimensions = size(w, over) * (2 if jnp.iscomplexobj(w) else 1)
        kept = [n for axis, n in enumerate(w.shape) if axis not in over]
        return jnp.full(kept, 1 / math.sqrt(dimensions), real_dtype(w))

    return RadialInnerProducts(
        map_slices(lambda w, over, g: inner(w, g, over), axes, weights, gradients),
        map_slices(cosine, axes, weights, gradients),
        map_slices(chance, axes, weights),
    )
