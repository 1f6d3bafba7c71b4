"""The loops over steps and substeps that solve a flow, and the state that a caller sees.

Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
`arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_: Section 2.2 and Appendix I.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from kadam_jax._checks import check_choice, check_function, check_integer, require
from kadam_jax._numerics import accumulator_dtype, add_compensated
from kadam_jax.flow import euler, exponential
from kadam_jax.flow.equation import (
    BIAS_CORRECTIONS,
    Numbers,
    Part,
    accumulators,
    cast,
    corrections_at,
    gradient_of,
    numbers_of,
    rounded,
    stage_updates,
    widest_real,
)
from kadam_jax.strategies import Decays


class Method(NamedTuple):
    """The functions that compute a substep."""

    start: Callable  # (gradient, parts) -> what a step's first substep needs from the gradient
    prepare: Callable  # (numbers, 1/K) -> what does not depend on the time
    substep: Callable  # -> parts at its end, and what the next one needs from the gradient


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "euler": Method(euler.start, euler.prepare, euler.substep),
        "exponential": Method(exponential.start, exponential.prepare, exponential.substep),
    }
)


class FlowState(NamedTuple):
    """The flow at one time; trees are like the parameters, of at least float32."""

    time: jax.Array  # shape=(): t, where an optimizer step takes η
    params: optax.Params  # θ
    velocity: optax.Updates  # dθ/dt, in units of u
    mu: tuple[optax.Updates, ...]  # m of each stage
    rms: tuple[optax.Updates, ...]  # √v of each stage, real
    updates: tuple[optax.Updates, ...]  # u of each stage; the last one moves the parameters
    integral: Any  # ∫ integrand dt from 0 to t; None without an integrand


class Integral(NamedTuple):
    """A sum over many substeps, in trees like the integrand; both are None without an integrand."""

    total: Any
    lost: Any  # the part of `total` lost to rounding


class FlowSolution(NamedTuple):
    """The result of `solve_flow`."""

    saved: Any  # save(FlowState) at t = 0, η, ..., stacked: leading axis num_steps + 1
    state: FlowState  # at the end


class Packing:
    """Packs a tree's arrays into one vector for each dtype, in the order in which dtypes appear.

    A substep is then one fused loop. With a loop for each array of a network, compiling takes
    minutes, and small arrays cost more to launch than to compute.
    """

    def __init__(self, tree):
        leaves, self.treedef = jax.tree.flatten(tree)
        self.shapes = [leaf.shape for leaf in leaves]
        self.members: dict[np.dtype, list[int]] = {}
        for i, leaf in enumerate(leaves):
            self.members.setdefault(leaf.dtype, []).append(i)

    def vectors(self, tree) -> list[jax.Array]:
        """Return one vector for each dtype."""
        leaves = self.treedef.flatten_up_to(tree)
        return [jnp.concatenate([leaves[i].ravel() for i in m]) for m in self.members.values()]

    def tree(self, vectors):
        """Return the tree from vectors of any dtypes."""
        leaves: list[Any] = [None] * len(self.shapes)
        for members, vector in zip(self.members.values(), vectors, strict=True):
            ends = np.cumsum([math.prod(self.shapes[i]) for i in members])
            for i, part in zip(members, jnp.split(vector, ends[:-1]), strict=True):
                leaves[i] = part.reshape(self.shapes[i])
        return self.treedef.unflatten(leaves)


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

    It is :math:`\tfrac12\eta\ddot\theta + \dot\theta + \lambda\theta = -u^{(k)}` (Proposition 2),
    with m and v as in `kadam_jax.flow`.

    `method="euler"` is Appendix I's scheme with :math:`\Delta t = \eta/K`, K = `substeps`, one
    gradient g_j a substep and :math:`x = (1-\gamma)/(\gamma K)`,

    .. math::

        \theta_{j+1} = \theta_j + \Delta t\, \psi_j, \quad
        \psi_{j+1} = \psi_j - \tfrac{2}{K} (\psi_j + u_j + \lambda\theta_j), \quad
        m_{j+1} = e^{-x} (m_j + x g_j)

    (v like m). The left Riemann sum multiplies a constant gradient by :math:`x/(e^x-1)`, not by 1:
    .9994 for γ = .9 and K = 100, but .585 for γ = .01. The error falls like 1/K.

    `method="exponential"` costs K+1 gradients per step. In measurements, one (for a quadratic or a
    logistic regression) to four (for a transformer) of its substeps are as accurate as 100 of
    Euler's. Everything except g is linear in what drives it, so over a substep of h = 1/K steps,
    with time s in steps from its start,

    - g is taken to be linear in s between its values at both ends; the later value is taken at the
      point that the same substep reaches with g frozen, and the next substep starts with it;
    - u is found at nodes :math:`s = h x^2`, since it grows like √t from t = 0 and after every
      change of minibatch but is smooth in x. A stage's input between nodes is a quadratic in x
      (the linear g is one): m is its exact average, v that of its square at three Gauss points;
    - with :math:`f = u + \lambda\theta` at the nodes and Gauss-Radau quadrature in x,

    .. math::

        \psi(h) &= e^{-2h} \psi(0) - 2 \int_0^h e^{-2(h-s)} f\, ds \\
        \theta(h) &= \theta(0) + \eta \Big(\tfrac{1-e^{-2h}}{2} \psi(0)
          - \int_0^h \big(1-e^{-2(h-s)}\big) f\, ds\Big)

    The error falls like 1/K². As λθ is part of f, λη should be well below K.

    Decoupled decay is the λθ above; with `coupled`, g is :math:`\nabla L + \lambda\theta` instead.
    Minibatch n is held during :math:`[n\eta, (n+1)\eta)`, and the gradient is taken at every
    substep.

    The solver is compiled once for each `grad_fn`, `save` and `integrand` (as objects, so define
    them once) and each shape; other numbers may be traced and don't compile it again. If one of the
    functions has no hash, as is the case for modules that hold arrays and for plain dataclasses,
    the solver is compiled at every call. Memory doesn't grow with `num_steps` or `substeps`, except
    for what `save` keeps.

    Args:
      grad_fn: `grad_fn(params)`, or `grad_fn(params, batch)` with `batches`: the loss's gradient.
      params: θ at t = 0, a tree of floating-point or complex arrays.
      learning_rate: η > 0, the time of one step.
      num_steps: how many steps, a Python int.
      substeps: K, a Python int.
      k, b1, b2, strategy: the stages and their decays, as in `scale_by_kadam`; all in (0, 1).
      eps: ε, added outside the bias-corrected root.
      weight_decay: λ.
      coupled: whether decay enters the gradient; static.
      batches: a tree of arrays with a leading axis of `num_steps`, or None.
      save: what to keep of the state at t = 0, η, 2η, ...; the parameters by default, such as
        `lambda state: state.params["w"]`.
      integrand: a function of the state (whose `integral` is None there) that is integrated over
        time by the trapezoidal rule over substeps, without keeping any of its values.
      method: "euler" or "exponential".
      bias_correction: "discrete", the paper's correction with b^(1+t/η); or "continuous", which
        makes the average of a constant equal that constant, with :math:`e^{-at/\eta}`, a = (1-b)/b,
        in place of b^(1+t/η). Then u(0+) is sign(g), and the flow is closer to the first discrete
        steps.

    Returns:
      A `FlowSolution`.

    Raises:
      ValueError: a number is out of range, the leading axis of `batches` is not `num_steps` long,
        `save` returns nothing, `grad_fn` does not return a tree like the parameters, there are no
        parameters, or a name is unknown.
      TypeError: `num_steps`, `substeps` or `k` is not a Python int, `learning_rate` or
        `weight_decay` is not a scalar (for example, a schedule), a parameter is neither floating
        point nor complex, or the gradient of a real parameter is complex.

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
      §2.2, Proposition 2, Appendix I.
    """
    numbers = numbers_of(learning_rate, k, b1, b2, eps, strategy, weight_decay, coupled)
    params = accumulators(params)
    num_steps = check_integer("num_steps", num_steps)
    substeps = check_integer("substeps", substeps)
    check_choice("method", method, METHODS)
    check_choice("bias_correction", bias_correction, BIAS_CORRECTIONS)
    for batch in jax.tree.leaves(batches):
        words = f"have a leading axis of num_steps={num_steps}, one minibatch for each step"
        shape = jnp.shape(batch)
        require(shape[:1] == (num_steps,), "batches", words, f"an array of shape {shape}")
    taken = ("params",) if batches is None else ("params", "batch")
    check_function("grad_fn", grad_fn, taken, hint="batches= says whether it is given a batch")
    check_function("save", save, ("state",))
    if integrand is not None:
        check_function("integrand", integrand, ("state",))
    static = Static(grad_fn, num_steps, substeps, save, integrand, method, bias_correction)
    # A function without a hash may be one that can change, so its program is not kept.
    kept = _has_hash(static)
    solve = partial(_compiled_solve, static) if kept else jax.jit(partial(_solve, static))
    return solve(params, batches, rounded(numbers, widest_real(jax.tree.leaves(params))))


def _zeros(x) -> jax.Array:
    """Return the start of a sum of arrays like `x`; in `jax.shard_map` it varies as `x` does."""
    return jnp.zeros_like(x, accumulator_dtype(jnp.result_type(x)))


class Static(NamedTuple):
    """The arguments of `solve_flow` that are part of the program."""

    grad_fn: Callable
    num_steps: int
    substeps: int
    save: Callable
    integrand: Callable | None
    method: str
    bias_correction: str


def _solve(static: Static, params, batches, p: Numbers) -> FlowSolution:
    """Run `solve_flow` on checked arguments."""
    grad_fn, num_steps, substeps, save, integrand, method, bias_correction = static
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

    def weigh(weight, parts, s, integral: Integral):
        """Return the integral plus the integrand times `weight` substeps."""
        if integrand is None:
            return integral
        weight = weight / substeps * p.learning_rate
        values, treedef = jax.tree.flatten(integrand(observe(parts, s)))
        each = zip(*map(treedef.flatten_up_to, integral), values, strict=True)

        def add(total, lost, value):
            term = weight.astype(total.dtype) * jnp.asarray(value, total.dtype)
            return add_compensated(total, lost, term)

        sums = [add(*one) for one in each]
        return Integral(*(treedef.unflatten(x[i] for x in sums) for i in range(2)))

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
        return (parts, integral), save(observe(parts, n + 1, integral.total))

    times = jnp.arange(num_steps, dtype=p.learning_rate.dtype)
    integral = Integral(None, None)
    if integrand is not None:
        zeros = jax.tree.map(_zeros, integrand(observe(parts, times[0])))
        integral = Integral(zeros, zeros)
    first = save(observe(parts, times[0], integral.total))
    hint = "to keep nothing but the final state, return a small part of it, such as state.time"
    require(jax.tree.leaves(first), "save", "return what is to be kept", repr(first), hint=hint)
    (parts, integral), rest = jax.lax.scan(step, (parts, integral), (times, batches))
    saved = jax.tree.map(lambda a, b: jnp.concatenate([jnp.asarray(a)[None], b]), first, rest)
    return FlowSolution(saved, observe(parts, times[-1] + 1, integral.total))


_compiled_solve = partial(jax.jit, static_argnums=0)(_solve)


def _has_hash(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
