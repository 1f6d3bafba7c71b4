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

import math
from collections.abc import Callable, Mapping
from functools import partial, reduce
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jax.typing import ArrayLike

from kadam_jax.normalization import accumulator_dtype, check_decays, check_eps, hypot
from kadam_jax.strategies import Decays, stage_decays

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

# All the weight in a moving average of rate a = (1-b)/b at s = t/η, where b = 1/(1+a).
BIAS_CORRECTIONS: Mapping[str, Callable] = MappingProxyType(
    {
        "discrete": lambda rate, s: -jnp.expm1(-(1 + s) * jnp.log1p(rate)),  # 1 - b^(1+s)
        "continuous": lambda rate, s: -jnp.expm1(-jnp.where(s > 0, s, 1) * rate),  # 0/0 at s = 0
    }
)


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

    `method="exponential"` costs K+1 gradients a step; measured, one or two of its substeps do what
    100 of Euler's do. Everything but g is linear in what drives it, so over a substep of h = 1/K
    steps, with time s in steps from its start,

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

    The error falls like 1/K².

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
      save: what to keep of the state at t = 0, η, 2η, ...; the parameters by default.
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
        nothing, `grad_fn` not a tree like the parameters, or a name is unknown.
      TypeError: `num_steps`, `substeps` or `k` is no Python int, `learning_rate` is a schedule, or
        a parameter isn't floating point or complex.

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
    numbers = _numbers(learning_rate, k, b1, b2, eps, strategy, weight_decay, coupled)
    params = jax.tree.map(_as_accumulator, params)
    _check_count("num_steps", num_steps)
    _check_count("substeps", substeps)
    _check_name("method", method, METHODS)
    _check_name("bias_correction", bias_correction, BIAS_CORRECTIONS)
    for batch in jax.tree.leaves(batches):
        if jnp.shape(batch)[:1] != (num_steps,):
            raise ValueError(
                f"batches must have a leading axis of num_steps={num_steps}, one minibatch for "
                f"each step, got an array of shape {jnp.shape(batch)}"
            )
    return _solve(
        params,
        batches,
        _rounded(numbers, _widest_real(jax.tree.leaves(params))),
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
    :math:`dy/dx = 2x\eta f`, and no step evaluates the next step's minibatch.

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
    numbers = _numbers(learning_rate, k, b1, b2, eps, strategy, weight_decay, coupled)
    _check_name("bias_correction", bias_correction, BIAS_CORRECTIONS)

    def y0(params):
        params = jax.tree.map(_as_accumulator, params)
        zeros = jax.tree.map(jnp.zeros_like, params)
        return FlowVariables(params, zeros, (zeros,) * k, (jax.tree.map(jnp.real, zeros),) * k)

    def f(t, y, args):
        leaves, treedef = jax.tree.flatten(y.params)
        p = _rounded(numbers, _widest_real(leaves))
        corrections = _corrections(p, t / p.learning_rate, bias_correction)
        grads = _gradient(grad_fn, y.params, args, p.coupled_decay)

        def slopes(theta, velocity, grad, mu, nu):
            q, c = _cast((p, corrections), velocity.real.dtype)
            inputs = (grad, *_updates(grad, mu, [_root(v) for v in nu], c))
            force = inputs[-1] + q.decoupled_decay * theta
            return FlowVariables(
                velocity,
                -2 / q.learning_rate * (velocity + force),
                tuple(q.mu_rates[i] / q.learning_rate * (inputs[i] - m) for i, m in enumerate(mu)),
                tuple(
                    q.nu_rates[i] / q.learning_rate * (jnp.square(jnp.abs(inputs[i])) - v)
                    for i, v in enumerate(nu)
                ),
            )

        flat = treedef.flatten_up_to
        columns = zip(*map(flat, y.mu), strict=True), zip(*map(flat, y.nu), strict=True)
        results = map(slopes, leaves, flat(y.velocity), flat(grads), *columns)
        params, velocity, mu, nu = zip(*results, strict=True)
        stages = (tuple(map(treedef.unflatten, zip(*x, strict=True))) for x in (mu, nu))
        return FlowVariables(treedef.unflatten(params), treedef.unflatten(velocity), *stages)

    return f, y0


def moving_average_kernel(
    tau: ArrayLike, t: ArrayLike, decay: ArrayLike, *, learning_rate: ArrayLike
) -> jax.Array:
    r"""The weight of what came at time τ in a moving average at time t >= τ.

    .. math:: K_\alpha(\tau, t) = \frac{1-\alpha}{\eta\alpha}
      \exp\Big(-\frac{1-\alpha}{\eta\alpha} (t-\tau)\Big)

    Args:
      tau: τ, any shape, in the unit of `learning_rate`.
      t: t, any shape.
      decay: α, γ for m and β for v, in (0, 1).
      learning_rate: η.

    Returns:
      K, with the broadcast shape, in units of 1/`learning_rate`.

    Raises:
      ValueError: a concrete scalar `decay` is outside (0, 1).

    Examples:
      >>> print(f"{moving_average_kernel(0.0, 0.0, 0.5, learning_rate=0.1):.1f}")
      10.0

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Lemma 1.
    """
    check_decays("decay", [decay], open_at_zero=True)
    rate = jnp.asarray((1 - decay) / decay / learning_rate)
    return rate * jnp.exp(-rate * (jnp.asarray(t) - tau))


def continuous_update(
    gradient: Callable[[jax.Array], jax.Array],
    t: ArrayLike,
    *,
    learning_rate: ArrayLike,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    bias_correction: str = "discrete",
    panels: int = 64,
) -> jax.Array:
    r"""Proposition 1: the update u(t) that a given history of gradients leads to.

    .. math:: u(t) = \frac{\sqrt{1-\beta^{1+t/\eta}}}{1-\gamma^{1+t/\eta}}
      \int_0^t K_\gamma(\tau, t) g(\tau)\, d\tau
      \Big/ \sqrt{\int_0^t K_\beta(\tau, t) |g(\tau)|^2\, d\tau}

    Each integral is taken in :math:`(t-\tau)/\eta \cdot (1-\alpha)/\alpha`, up to 40 of these units
    back, by eight Gauss nodes in each of `panels` equal panels: exact to rounding for gradients
    that are smooth on a panel's scale.

    Args:
      gradient: g(τ), from a scalar to an array; it is vmapped.
      t: a scalar time, at least 0.
      learning_rate: η, in the unit of `t`.
      b1: γ in (0, 1).
      b2: β in (0, 1).
      bias_correction: as in `solve_flow`.
      panels: how many panels, a Python int.

    Returns:
      u(t), of the gradient's shape.

    Raises:
      ValueError: a concrete `b1` or `b2` is outside (0, 1), or `bias_correction` unknown.

    Examples:
      >>> import jax.numpy as jnp
      >>> print(f"{continuous_update(jnp.cos, 1.0, learning_rate=0.01):.3f}")
      0.723

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Proposition 1.
    """
    p = _numbers(learning_rate, 1, b1, b2, 0.0, "naive", 0.0, False)
    _check_count("panels", panels)
    _check_name("bias_correction", bias_correction, BIAS_CORRECTIONS)
    p = _rounded(p, jnp.promote_types(jnp.result_type(t, float), jnp.float32))
    s = jnp.asarray(t, p.learning_rate.dtype) / p.learning_rate
    nodes, weights = np.polynomial.legendre.leggauss(8)
    nodes = (np.arange(panels)[:, None] + (nodes + 1) / 2).ravel() / panels
    weights = np.tile(weights / 2, panels) / panels

    def average(rate, function):
        ages = jnp.minimum(rate * s, 40) * nodes.astype(s.dtype)  # in the kernel's own time
        masses = jnp.minimum(rate * s, 40) * weights.astype(s.dtype) * jnp.exp(-ages)
        values = jax.vmap(lambda age: function(gradient((s - age / rate) * p.learning_rate)))(ages)
        return jnp.tensordot(masses.astype(values.dtype), values, 1)

    mu = average(p.mu_rates[0], lambda g: g)
    nu = average(p.nu_rates[0], lambda g: jnp.square(jnp.abs(g)))
    c = _corrections(p, s, bias_correction)
    return _updates(gradient(jnp.zeros_like(s)), [mu], [_root(nu)], c)[0]


def unforced_rates(
    learning_rate: ArrayLike, weight_decay: ArrayLike
) -> tuple[jax.Array, jax.Array]:
    r"""The two rates at which parameters without any update decay.

    .. math:: k_\pm = \frac{1 \pm \sqrt{1 - 2\lambda\eta}}{\eta}

    Args:
      learning_rate: η > 0, any shape.
      weight_decay: λ with 0 <= 2λη < 1, any shape.

    Returns:
      (k₊, k₋), in units of 1/t.

    Raises:
      ValueError: a concrete 2λη is outside [0, 1).

    Examples:
      >>> print("{:.1f} {:.4f}".format(*unforced_rates(0.01, 0.1)))
      199.9 0.1001

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Appendix C.
    """
    twice = 2 * weight_decay * learning_rate
    if not isinstance(twice, Tracer) and not (np.min(twice) >= 0 and np.max(twice) < 1):
        raise ValueError(f"2 * weight_decay * learning_rate must be in [0, 1), got {twice}")
    larger = 1 + jnp.sqrt(1 - jnp.asarray(twice))
    return larger / learning_rate, jnp.asarray(2 * weight_decay) / larger


def unforced_solution(
    t: ArrayLike,
    params: ArrayLike,
    velocity: ArrayLike = 0.0,
    *,
    learning_rate: ArrayLike,
    weight_decay: ArrayLike,
) -> jax.Array:
    r"""Parameters at time t if u is 0 throughout and decay decoupled.

    .. math:: \theta(t) = a e^{-k_+ t} + b e^{-k_- t}, \qquad
      a = -\frac{\dot\theta(0) + k_- \theta(0)}{k_+ - k_-}, \quad b = \theta(0) - a

    with :math:`k_\pm` from `unforced_rates`. All arguments broadcast.

    Args:
      t: time since the start.
      params: θ(0).
      velocity: dθ/dt(0).
      learning_rate: η.
      weight_decay: λ, with 0 <= 2λη < 1.

    Returns:
      θ(t).

    Raises:
      ValueError: a concrete 2λη is outside [0, 1).

    Examples:
      >>> print(f"{unforced_solution(1.0, 2.0, learning_rate=0.01, weight_decay=0.1):.4f}")
      1.8105

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Appendix C.
    """
    plus, minus = unforced_rates(learning_rate, weight_decay)
    params = jnp.asarray(params)
    a = -(minus * params + velocity) / (plus - minus)
    return a * jnp.exp(-plus * t) + (params - a) * jnp.exp(-minus * t)


class _Numbers(NamedTuple):
    """The equation's numbers; rates are in units of 1/η."""

    learning_rate: Any
    eps: Any
    coupled_decay: Any
    decoupled_decay: Any
    mu_rates: Any  # (1-γ)/γ of each stage, from a γ that isn't rounded yet
    nu_rates: Any  # (1-β)/β


class _Corrections(NamedTuple):
    """Of every stage at one time s = t/η."""

    scale: jax.Array  # (k,): √(1-β^(1+s)) / (1-γ^(1+s))
    eps: jax.Array  # (k,): ε √(1-β^(1+s))
    sign: jax.Array | None  # 1 at s = 0 where u(0+) is sign(g), else 0; None if it never is


class _Packing:
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


class _Part(NamedTuple):
    """All parameters of one dtype and what belongs to them: vectors."""

    base: jax.Array  # θ at the step's start
    moved: jax.Array  # since then: in θ itself a substep's small increment would be rounded
    velocity: jax.Array
    mu: tuple[jax.Array, ...]
    rms: tuple[jax.Array, ...]

    @property
    def theta(self):
        return self.base + self.moved

    @property
    def real_dtype(self):
        return self.rms[0].dtype


class _Euler(NamedTuple):
    step: Any  # 1/K
    mu_loss: jax.Array  # (k,): 1 - e^(-x)
    mu_gain: jax.Array  # (k,): x e^(-x)
    rms_loss: jax.Array  # (k,): 1 - e^(-y/2)
    rms_gain: jax.Array  # (k,): √(y e^(-y))

    @classmethod
    def prepare(cls, p, step):
        x, y = p.mu_rates * step, p.nu_rates * step
        gain = jnp.sqrt(y * jnp.exp(-y))
        return cls(step, -jnp.expm1(-x), x * jnp.exp(-x), -jnp.expm1(-y / 2), gain)


class _Exponential(NamedTuple):
    """From each node τ = hx² to the next; `mu_*` and `rms_*` of each stage."""

    step: Any  # h = 1/K
    fractions: jax.Array  # (nodes+1,): τ/h, from 0 to 1
    points: jax.Array  # (nodes, points, 3): what makes the input there from that at a panel's nodes
    mu_loss: jax.Array  # (nodes, k)
    mu_mean: jax.Array  # (nodes, 3, k): what makes the input's mean from that at a panel's nodes
    rms_loss: jax.Array  # (nodes, k)
    rms_gain: jax.Array  # (nodes, points, k)
    drift: jax.Array  # (1 - e^(-2h)) / 2
    push: jax.Array  # (nodes,): the force's weights in what the velocity loses
    shift: jax.Array  # (nodes,): and the parameters

    @classmethod
    def prepare(cls, p, step):
        dtype = p.mu_rates.dtype
        x, weights = _radau(NODES)
        lag = -np.expm1(-2 * step * (1 - x * x))
        weights = 2 * step * x * weights
        x = np.concatenate([[0], x])

        def masses(rates, num):
            """The kernel's share of each Gauss point; scaled, so that constants are kept."""
            points, weights, _ = _panels(x, num)
            ages = step * (np.square(x[1:, None]) - np.square(points))  # (nodes, num)
            shares = (weights * points)[..., None] * jnp.exp(-ages[..., None] * rates[None, None])
            return shares / shares.sum(1, keepdims=True)

        def exponents(rates):
            return -jnp.outer(step * np.diff(x * x), rates)

        losses = [-jnp.expm1(exponents(rates)) for rates in (p.mu_rates, p.nu_rates)]
        return _cast(
            cls(
                step,
                jnp.asarray(x * x),
                jnp.asarray(_panels(x, 3)[2]),
                losses[0],
                jnp.einsum("nqk,nqj->njk", masses(p.mu_rates, 8), _panels(x, 8)[2]),
                -jnp.expm1(exponents(p.nu_rates) / 2),
                jnp.sqrt(losses[1][:, None] * masses(p.nu_rates, 3)),
                -np.expm1(-2 * step) / 2,
                2 * weights * (1 - lag),
                weights * lag,
            ),
            dtype,
        )


NODES = 4  # an even number: quadratics go through x at nodes 0, 1, 2, then 2, 3, 4


def _radau(num: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Radau nodes and weights on [0, 1], the end 1 among them."""
    legendre = np.polynomial.legendre.Legendre.basis
    nodes = np.sort(-(legendre(num - 1) + legendre(num)).roots().real)
    nodes[-1] = 1
    powers = np.arange(num)
    weights = np.linalg.solve(nodes ** powers[:, None], (1 - (-1.0) ** (powers + 1)) / (powers + 1))
    return (1 + nodes) / 2, weights / 2


def _panels(x: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gauss points between successive nodes, their weights, and the quadratics of the panel there.

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


def _euler_part(part: _Part, grad, c: _Euler, corrections: _Corrections, p: _Numbers) -> _Part:
    """Appendix I's substep."""
    c, corrections, p = _cast((c, corrections, p), part.real_dtype)
    *inputs, update = (grad, *_updates(grad, part.mu, part.rms, corrections))
    force = part.velocity + update + p.decoupled_decay * part.theta
    return part._replace(
        moved=part.moved + c.step * p.learning_rate * part.velocity,
        velocity=part.velocity - 2 * c.step * force,
        mu=tuple(
            mu + (c.mu_gain[i] * inputs[i] - c.mu_loss[i] * mu) for i, mu in enumerate(part.mu)
        ),
        rms=tuple(
            hypot(rms - c.rms_loss[i] * rms, c.rms_gain[i] * jnp.abs(inputs[i]))
            for i, rms in enumerate(part.rms)
        ),
    )


def _exponential_part(
    part: _Part, grad, next_grad, next_moved, c: _Exponential, first, corrections, p
) -> _Part:
    """A substep for a gradient and, where it decays, a θ that go linearly to their next values."""
    c, first, corrections, p = _cast((c, first, corrections, p), part.real_dtype)
    inputs = [grad + fraction * (next_grad - grad) for fraction in c.fractions]  # at each node
    mus, rmss = [], []
    for i, start in enumerate(_updates(grad, part.mu, part.rms, first)):
        mu, rms, outputs = part.mu[i], part.rms[i], [start]
        for node in range(NODES):
            panel = inputs[node // 2 * 2 :][:3]
            mu = mu + c.mu_loss[node, i] * (_combine(c.mu_mean[node, :, i], panel) - mu)
            rms = rms - c.rms_loss[node, i] * rms
            squared = zip(c.rms_gain[node, :, i], c.points[node], strict=True)
            rms = _norm([rms, *(gain * jnp.abs(_combine(point, panel)) for gain, point in squared)])
            scale, eps = corrections.scale[node, i], corrections.eps[node, i]
            outputs.append(_normalized(mu, rms, scale, eps))
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


@jax.custom_jvp
def _norm(arrays):
    """√Σa² of a list, each a >= 0, exact under scaling by powers of two, 0 with a derivative of 0.

    The derivative is written out since XLA takes minutes over a chain of derivatives of `hypot`.
    """
    largest = reduce(jnp.maximum, arrays)
    scale = jnp.where(largest != 0, largest, jnp.inf)
    return largest * jnp.sqrt(sum(jnp.square(a / scale) for a in arrays))


@_norm.defjvp
def _norm_jvp(primals, tangents):
    norm = _norm(*primals)
    scale = jnp.where(norm != 0, norm, jnp.inf)
    return norm, _combine([a / scale for a in primals[0]], tangents[0])


def _combine(weights, arrays):
    return reduce(jnp.add, (weight * x for weight, x in zip(weights, arrays, strict=True)))


def _euler(gradient, corrections, c: _Euler, p, s, parts: list[_Part], grads):
    now = corrections(s)
    each = zip(parts, gradient(parts), strict=True)
    return [_euler_part(part, grad, c, now, p) for part, grad in each], grads


def _exponential(gradient, corrections, c: _Exponential, p, s, parts: list[_Part], grads):
    times = corrections(s), jax.vmap(corrections)(s + c.step * c.fractions[1:])

    def advance(next_grads, next_moved):
        each = zip(parts, grads, next_grads, next_moved, strict=True)
        return [_exponential_part(*one, c, *times, p) for one in each]

    way = c.step * p.learning_rate
    drifted = [x.moved + way.astype(x.real_dtype) * x.velocity for x in parts]
    predicted = advance(grads, drifted)
    next_grads = gradient(predicted)
    return advance(next_grads, [x.moved for x in predicted]), next_grads


class _Method(NamedTuple):
    start: Callable  # (gradient, parts) -> what a step's first substep needs of the gradient
    prepare: Callable  # (numbers, 1/K) -> what doesn't depend on the time
    substep: Callable  # -> parts at its end, and what the next one needs of the gradient


METHODS: Mapping[str, _Method] = MappingProxyType(
    {
        "euler": _Method(lambda gradient, parts: None, _Euler.prepare, _euler),
        "exponential": _Method(
            lambda gradient, parts: gradient(parts), _Exponential.prepare, _exponential
        ),
    }
)


@partial(
    jax.jit,
    static_argnames=(
        *("grad_fn", "num_steps", "substeps"),
        *("save", "integrand", "method", "bias_correction"),
    ),
)
def _solve(
    params,
    batches,
    p: _Numbers,
    *,
    grad_fn,
    num_steps,
    substeps,
    save,
    integrand,
    method,
    bias_correction,
):
    packing = _Packing(params)
    bases, k = packing.vectors(params), len(p.mu_rates)
    zeros = [jnp.zeros_like(base) for base in bases]
    parts = [
        _Part(base, zero, zero, (zero,) * k, (zero.real,) * k)
        for base, zero in zip(bases, zeros, strict=True)
    ]
    start, prepare, substep = METHODS[method]
    constants = prepare(p, 1 / substeps)
    corrections = partial(_corrections, p, bias_correction=bias_correction)

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
                _updates(jnp.zeros_like(x.moved), x.mu, x.rms, _cast(c, x.real_dtype))
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
            return packing.vectors(_gradient(grad_fn, params, batch, p.coupled_decay))

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


def _gradient(grad_fn, params, batch, coupled_decay):
    """The gradient, cast to the parameters' dtypes, with coupled decay."""
    grads = grad_fn(params) if batch is None else grad_fn(params, batch)
    want, got = (jax.tree.map(jnp.shape, tree) for tree in (params, grads))
    if want != got:
        raise ValueError(
            f"grad_fn must return the loss's gradient, shaped like params, {want}; got {got}. "
            "Is it the loss itself? jax.grad makes the gradient."
        )
    return jax.tree.map(
        lambda g, x: jnp.asarray(g, x.dtype) + coupled_decay.astype(x.real.dtype) * x, grads, params
    )


def _updates(x, mus, rmss, c: _Corrections) -> tuple[jax.Array, ...]:
    """u of every stage, the first one's input being `x`."""
    updates = []
    for i, (mu, rms) in enumerate(zip(mus, rmss, strict=True)):
        u = _normalized(mu, rms, c.scale[i], c.eps[i])
        x = u if c.sign is None else u + c.sign * jnp.sign(x)
        updates.append(x)
    return tuple(updates)


def _normalized(mu, rms, scale, eps):
    """0/0 is 0 with a zero derivative; `!= 0`, since `> 0` would hide a NaN."""
    return scale * mu / jnp.where(rms != 0, rms + eps, jnp.inf)


def _root(nu):
    """√v with a finite derivative at 0; a solver's stages may put v a little below it."""
    return jnp.where(nu != 0, jnp.sqrt(jnp.where(nu != 0, jnp.abs(nu), 1)), 0)


def _corrections(p: _Numbers, s, bias_correction: str) -> _Corrections:
    """Of all stages at s = t/η, a scalar."""
    weight = BIAS_CORRECTIONS[bias_correction]
    root = jnp.sqrt(weight(p.nu_rates, s))
    sign = jnp.where(s > 0, 0, 1) if bias_correction == "continuous" else None
    return _Corrections(root / weight(p.mu_rates, s), p.eps * root, sign)


def _as_accumulator(x) -> jax.Array:
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        raise TypeError(f"params must be floating point or complex, got an array of {x.dtype}")
    return x.astype(accumulator_dtype(x.dtype))


def _widest_real(leaves) -> np.dtype:
    return jnp.result_type(*(leaf.real.dtype for leaf in leaves))


def _cast(tree, dtype):
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)


def _rounded(numbers: _Numbers, dtype) -> _Numbers:
    """In one dtype, the rates stacked: (k,)."""
    p = _cast(numbers, dtype)
    return p._replace(mu_rates=jnp.stack(p.mu_rates), nu_rates=jnp.stack(p.nu_rates))


def _numbers(learning_rate, k, b1, b2, eps, strategy, weight_decay, coupled) -> _Numbers:
    """Checked, and made before any rounding."""
    if callable(learning_rate):
        raise TypeError("learning_rate must be a number, a flow's unit of time, got a schedule")
    if not isinstance(learning_rate, Tracer) and not learning_rate > 0:
        raise ValueError(f"learning_rate must be positive, got {learning_rate}")
    check_eps(eps)
    check = partial(check_decays, open_at_zero=True)
    b1s = stage_decays("b1", b1, k, strategy, check)
    b2s = stage_decays("b2", b2, k, strategy, check)
    return _Numbers(
        learning_rate,
        eps,
        coupled_decay=weight_decay if coupled else 0.0,
        decoupled_decay=0.0 if coupled else weight_decay,
        mu_rates=tuple((1 - b) / b for b in b1s),
        nu_rates=tuple((1 - b) / b for b in b2s),
    )


def _check_count(name: str, value: int) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise TypeError(f"{name} must be a Python int, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def _check_name(argument: str, name: str, table: Mapping[str, Any]) -> None:
    if name not in table:
        raise ValueError(f"{argument} must be one of {', '.join(table)}, got {name!r}")
