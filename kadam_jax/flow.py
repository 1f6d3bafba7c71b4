r"""Adam and k-Adam in continuous time: an ordinary differential equation beside the discrete run.

The paper's second-order equation (Proposition 2) with the moving averages of Lemma 1, here for k
stages. Time is :math:`t = n\eta`: an optimizer step takes η = `learning_rate`; only this timescale,
p = 1 in the paper's :math:`t = n\eta^p`, leaves both terms of the equation in place. With
:math:`g = \nabla L(\theta)` and :math:`u^{(0)} = g`, for stages i = 1, ..., k,

.. math::

    \tfrac12 \eta \ddot\theta + \dot\theta + \lambda\theta &= -u^{(k)} \\
    \eta \dot m_i &= \tfrac{1-\gamma_i}{\gamma_i} \big(u^{(i-1)} - m_i\big), \qquad
      \eta \dot v_i = \tfrac{1-\beta_i}{\beta_i} \big(|u^{(i-1)}|^2 - v_i\big) \\
    u^{(i)} &= \frac{\sqrt{1-\beta_i^{1+t/\eta}}}{1-\gamma_i^{1+t/\eta}} \frac{m_i}{\sqrt{v_i}}

and everything but θ zero at t = 0, u included (0/0 = 0); ε is added to the bias-corrected root as
in `scale_by_kadam`. `solve_flow` integrates this, `flow_vector_field` hands it to other solvers,
and the rest are closed forms of it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from kadam_jax._flow_closed_forms import (
    continuous_update,
    moving_average_kernel,
    unforced_rates,
    unforced_solution,
)
from kadam_jax._flow_equation import (
    BIAS_CORRECTIONS,
    accumulators,
    cast,
    check_arguments,
    check_count,
    check_function,
    check_name,
    corrections_at,
    gradient_of,
    numbers_of,
    root,
    rounded,
    stage_updates,
    widest_real,
)
from kadam_jax._flow_methods import METHODS
from kadam_jax._flow_solver import FlowSolution, FlowState, solve
from kadam_jax.strategies import Decays

__all__ = [
    "FlowSolution",
    "FlowState",
    "FlowVariables",
    "continuous_update",
    "flow_vector_field",
    "moving_average_kernel",
    "solve_flow",
    "unforced_rates",
    "unforced_solution",
]


class FlowVariables(NamedTuple):
    """What `flow_vector_field` differentiates: θ, dθ/dt and each stage's m and v."""

    params: optax.Params
    velocity: optax.Updates
    mu: tuple[optax.Updates, ...]
    nu: tuple[optax.Updates, ...]  # v, real


def solve_flow(
    grad_fn: Callable[..., optax.Updates],
    params: optax.Params,
    *,
    learning_rate: ArrayLike,
    num_steps: int,
    substeps: int = 100,
    k: int = 1,
    b1: Decays = 0.9,
    b2: Decays = 0.999,
    eps: ArrayLike = 1e-30,
    strategy: str = "inverse_exp",
    weight_decay: ArrayLike = 0.0,
    coupled: bool = False,
    batches: Any = None,
    save: Callable[[FlowState], Any] = lambda state: state.params,
    integrand: Callable[[FlowState], Any] | None = None,
    method: str = "euler",
    bias_correction: str = "discrete",
) -> FlowSolution:
    r"""Solve continuous-time Adam (k = 1) or k-Adam over the time of `num_steps` optimizer steps.

    `method="euler"` is Appendix I's scheme with :math:`\Delta t = \eta/K`, K = `substeps`, one
    gradient g_j a substep and :math:`x = (1-\gamma)/(\gamma K)`,

    .. math::

        \theta_{j+1} = \theta_j + \Delta t\, \psi_j, \quad
        \psi_{j+1} = \psi_j - \tfrac{2}{K} (\psi_j + u_j + \lambda\theta_j), \quad
        m_{j+1} = e^{-x} (m_j + x g_j)

    (v like m). The left Riemann sum multiplies a constant gradient by :math:`x/(e^x-1)`, not by 1:
    .9994 for γ = .9 and K = 100, but .585 for γ = .01. The error falls like 1/K.

    `method="exponential"` costs K+1 gradients a step; measured, one (a quadratic, a logistic
    regression) to four (a transformer) of its substeps do what 100 of Euler's do. Everything but g
    is linear in what drives it, so over a substep of h = 1/K steps, with time s in steps from its
    start,

    - g is taken linear in s between its values at both ends, the later one taken where the same
      substep with g frozen leads; the next substep starts with that value;
    - u is found at nodes :math:`s = h x^2`, since it grows like √t from t = 0 and after every
      change of minibatch, and is smooth in x. A stage's input between nodes is a quadratic in x
      (the linear g is one): m is its exact average, v that of its square at three Gauss points;
    - with :math:`f = u + \lambda\theta`, at the nodes and by Gauss-Radau quadrature in x,

    .. math::

        \psi(h) &= e^{-2h} \psi(0) - 2 \int_0^h e^{-2(h-s)} f\, ds \\
        \theta(h) &= \theta(0) + \eta \Big(\tfrac{1-e^{-2h}}{2} \psi(0)
          - \int_0^h \big(1-e^{-2(h-s)}\big) f\, ds\Big)

    The error falls like 1/K². As λθ is part of f, λη should be well below K.

    Decoupled decay is the λθ above; with `coupled`, g is :math:`\nabla L + \lambda\theta` instead.
    Minibatch n is held during :math:`[n\eta, (n+1)\eta)`, and the gradient taken at every substep.

    The solver is compiled once for each `grad_fn`, `save` and `integrand` (as objects: define them
    once) and each shape; other numbers don't compile it again and may be traced. Memory doesn't
    grow with `num_steps` or `substeps` but for what `save` keeps.

    Args:
      grad_fn: `grad_fn(params)`, or `grad_fn(params, batch)` with `batches`: the loss's gradient.
      params: θ at t = 0, a tree of floating-point or complex arrays.
      learning_rate: η > 0, the time of one step.
      num_steps: how many steps, a Python int.
      substeps: K, a Python int.
      k, b1, b2, strategy: the stages and their decays as in `scale_by_kadam`; all in (0, 1).
      eps: ε, outside the bias-corrected root.
      weight_decay: λ.
      coupled: whether decay enters the gradient; static.
      batches: a tree of arrays with a leading axis of `num_steps`, or None.
      save: what to keep of the state at t = 0, η, 2η, ...; the parameters by default, such as
        `lambda state: state.params["w"]`.
      integrand: a function of the state, in whose `integral` it is None, that is integrated over
        time by the trapezoidal rule over substeps, without any of them being kept.
      method: "euler" or "exponential".
      bias_correction: "discrete", the paper's with b^(1+t/η); or "continuous", what makes the
        average of a constant that constant, :math:`e^{-at/\eta}` with a = (1-b)/b in place of
        b^(1+t/η). Then u(0+) is sign(g), and the flow is nearer to the first discrete steps.

    Returns:
      A `FlowSolution`.

    Raises:
      ValueError: a number is out of range, `batches` has another leading axis, `save` returns
        nothing, `grad_fn` not a tree like the parameters, there are none, or a name is unknown.
      TypeError: `num_steps`, `substeps` or `k` is no Python int, `learning_rate` or `weight_decay`
        no scalar (a schedule, say), a parameter neither floating point nor complex, or the gradient
        of a real one complex.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> grad_fn = jax.grad(lambda w: jnp.sum((w - 3.0) ** 2))
      >>> solution = solve_flow(
      ...     grad_fn, jnp.zeros(2), learning_rate=0.1, num_steps=20, substeps=4,
      ...     method="exponential",
      ... )
      >>> solution.saved.shape
      (21, 2)
      >>> print(solution.saved[::10, 0].round(2))
      [0.   0.88 1.81]

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Section 2.2, Appendices C and I.
    """
    numbers = numbers_of(learning_rate, k, b1, b2, eps, strategy, weight_decay, coupled)
    params = accumulators(params)
    check_function("grad_fn", grad_fn)
    check_function("save", save)
    check_count("num_steps", num_steps)
    check_count("substeps", substeps)
    check_name("method", method, METHODS)
    check_name("bias_correction", bias_correction, BIAS_CORRECTIONS)
    for batch in jax.tree.leaves(batches):
        if jnp.shape(batch)[:1] != (num_steps,):
            raise ValueError(
                f"batches must have a leading axis of num_steps={num_steps}, one minibatch for "
                f"each step, got an array of shape {jnp.shape(batch)}"
            )
    taken = ("params",) if batches is None else ("params", "batch")
    check_arguments("grad_fn", grad_fn, taken, "batches= says whether it is given a batch")
    return solve(
        params,
        batches,
        rounded(numbers, widest_real(jax.tree.leaves(params))),
        grad_fn=grad_fn,
        num_steps=num_steps,
        substeps=substeps,
        save=save,
        integrand=integrand,
        method=method,
        bias_correction=bias_correction,
    )


def flow_vector_field(
    grad_fn: Callable[..., optax.Updates],
    *,
    learning_rate: ArrayLike,
    k: int = 1,
    b1: Decays = 0.9,
    b2: Decays = 0.999,
    eps: ArrayLike = 1e-30,
    strategy: str = "inverse_exp",
    weight_decay: ArrayLike = 0.0,
    coupled: bool = False,
    bias_correction: str = "discrete",
) -> tuple[
    Callable[[ArrayLike, FlowVariables, Any], FlowVariables],
    Callable[[optax.Params], FlowVariables],
]:
    r"""The flow as :math:`\dot y = f(t, y, \text{args})`, as diffrax and others take it.

    It is what `solve_flow` converges to with many substeps. `args` is the minibatch, or None.
    As u grows like √t from t = 0, and again after a change of minibatch, no solver shows its order
    there: integrate step by step, within each in x with :math:`t = (n + x^2)\eta`,
    :math:`dy/dx = 2x\eta f`, and no step evaluates the next step's minibatch. Order 2 is then seen
    in full, of higher ones 3: a step's first substep stays off. Methods whose stages put v below 0
    where it starts from 0, as those of high order do, need substeps small enough.

    Args:
      grad_fn, learning_rate, k, b1, b2, eps, strategy, weight_decay, coupled, bias_correction: as
        in `solve_flow`.

    Returns:
      `f(t, y, args)`, y and its result being `FlowVariables`, and `y0(params)`, y at t = 0.

    Raises:
      ValueError, TypeError: as in `solve_flow`.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> f, y0 = flow_vector_field(jax.grad(lambda w: jnp.sum(w**2)), learning_rate=0.1)
      >>> y = y0(jnp.ones(2))
      >>> for j in range(1000):  # Euler's method over ten steps
      ...     y = jax.tree.map(lambda y, dy: y + 1e-3 * dy, y, f(j * 1e-3, y, None))
      >>> print(y.params.round(2))
      [0.16 0.16]

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Lemma 1, Propositions 1 and 2.
    """
    numbers = numbers_of(learning_rate, k, b1, b2, eps, strategy, weight_decay, coupled)
    check_function("grad_fn", grad_fn)
    check_name("bias_correction", bias_correction, BIAS_CORRECTIONS)

    def y0(params):
        params = accumulators(params)
        zeros = jax.tree.map(jnp.zeros_like, params)
        return FlowVariables(params, zeros, (zeros,) * k, (jax.tree.map(jnp.real, zeros),) * k)

    def f(t, y, args):
        p = rounded(numbers, widest_real(jax.tree.leaves(y.params)))
        corrections = corrections_at(p, t / p.learning_rate, bias_correction)
        grads = gradient_of(grad_fn, y.params, args, p.coupled_decay)

        def slopes(theta, velocity, grad, *averages):
            mu, nu = averages[:k], averages[k:]
            q, c = cast((p, corrections), velocity.real.dtype)
            inputs = (grad, *stage_updates(grad, mu, [root(v) for v in nu], c))
            mu_rates, nu_rates = q.mu_rates / q.learning_rate, q.nu_rates / q.learning_rate
            return FlowVariables(
                velocity,
                -2 / q.learning_rate * (velocity + inputs[-1] + q.decoupled_decay * theta),
                tuple(mu_rates[i] * (inputs[i] - m) for i, m in enumerate(mu)),
                tuple(nu_rates[i] * (jnp.square(jnp.abs(inputs[i])) - v) for i, v in enumerate(nu)),
            )

        each = jax.tree.map(slopes, y.params, y.velocity, grads, *y.mu, *y.nu)
        outer, inner = map(jax.tree.structure, (y.params, FlowVariables(0, 0, (0,) * k, (0,) * k)))
        return jax.tree.transpose(outer, inner, each)

    return f, y0
