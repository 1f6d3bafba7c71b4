"""The equation that a flow solves: Proposition 2 with the moving averages of Lemma 1.

Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
`arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jax.typing import ArrayLike

from kadam_jax._checks import (
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_DECAY,
    check_bool,
    check_choice,
    check_function,
    check_inexact,
    check_real,
    require,
)
from kadam_jax._numerics import accumulator_dtype, promoted, promoting, quotient
from kadam_jax.strategies import Decays, stage_decays

# The total weight in a moving average of rate a = (1-b)/b at s = t/η, where b = 1/(1+a).
BIAS_CORRECTIONS: Mapping[str, Callable] = MappingProxyType(
    {
        "discrete": lambda rate, s: -jnp.expm1(-(1 + s) * jnp.log1p(rate)),  # 1 - b^(1+s)
        "continuous": lambda rate, s: -jnp.expm1(-jnp.where(s > 0, s, 1) * rate),  # 0/0 at s = 0
    }
)


class Numbers(NamedTuple):
    """The equation's numbers; rates are in units of 1/η."""

    learning_rate: Any
    eps: Any
    coupled_decay: Any
    decoupled_decay: Any
    mu_rates: Any  # (1-γ)/γ of each stage, from a γ that isn't yet rounded
    nu_rates: Any  # (1-β)/β


class Part(NamedTuple):
    """A parameter and its state, as scalars; or all parameters of one dtype, as vectors."""

    base: jax.Array  # θ at the step's start
    moved: jax.Array  # since then: added to θ, a substep's small increment would be rounded
    velocity: jax.Array
    mu: tuple[jax.Array, ...]
    rms: tuple[jax.Array, ...]

    @property
    def theta(self):
        """The current θ."""
        return self.base + self.moved

    @property
    def real_dtype(self):
        """The dtype of the real numbers that go with the parameter."""
        return self.rms[0].dtype


class Corrections(NamedTuple):
    """The corrections of every stage at one time s = t/η."""

    scale: jax.Array  # (k,): √(1-β^(1+s)) / (1-γ^(1+s))
    eps: jax.Array  # (k,): ε √(1-β^(1+s))
    sign: jax.Array | None  # 1 at s = 0 where u(0+) is sign(g), otherwise 0; None if it never is


def numbers_of(learning_rate, k, b1, b2, eps, strategy, weight_decay, coupled) -> Numbers:
    """Check the arguments and compute the equation's numbers before any rounding."""
    hint = "a flow has only one, which sets the unit of time; it cannot be a schedule or an array"
    check_real("learning_rate", learning_rate, POSITIVE, hint=hint)
    check_real("weight_decay", weight_decay, NOT_NEGATIVE)
    check_real("eps", eps, NOT_NEGATIVE)
    check_bool("coupled", coupled, hint="it is part of the program, so it may not be traced")
    b1s = stage_decays("b1", b1, k, strategy, _check_decays)
    b2s = stage_decays("b2", b2, k, strategy, _check_decays)
    _check_stages("b1", b1s)
    _check_stages("b2", b2s)
    return Numbers(
        learning_rate,
        eps,
        coupled_decay=weight_decay if coupled else 0.0,
        decoupled_decay=0.0 if coupled else weight_decay,
        mu_rates=tuple((1 - b) / b for b in b1s),
        nu_rates=tuple((1 - b) / b for b in b2s),
    )


def _check_decays(name: str, decays: Iterable[Any]) -> None:
    for decay in decays:
        check_real(name, decay, POSITIVE_DECAY)


def _check_stages(name: str, decays: tuple[Any, ...]) -> None:
    """Raise ValueError for a decay so near 0 that its rate is not a float32 number."""
    least = np.finfo(np.float32).tiny
    for decay in decays:
        is_large = isinstance(decay, Tracer) or decay >= least
        require(is_large, name, f"be at least {least} at every stage", decay)


def rounded(numbers: Numbers, dtype) -> Numbers:
    """Return the numbers in one dtype, with the rates stacked: (k,)."""
    p = cast(numbers, dtype)
    return p._replace(mu_rates=jnp.stack(p.mu_rates), nu_rates=jnp.stack(p.nu_rates))


def corrections_at(p: Numbers, s, bias_correction: str) -> Corrections:
    """Return the corrections of all stages at s = t/η, a scalar."""
    weight = BIAS_CORRECTIONS[bias_correction]
    scale = jnp.sqrt(weight(p.nu_rates, s))
    sign = jnp.where(s > 0, 0, 1) if bias_correction == "continuous" else None
    return Corrections(scale / weight(p.mu_rates, s), p.eps * scale, sign)


@promoting
def stage_updates(x, mus, rmss, c: Corrections) -> tuple[jax.Array, ...]:
    """Return u of every stage, where `x` is the input of the first."""
    updates = []
    for i, (mu, rms) in enumerate(zip(mus, rmss, strict=True)):
        u = quotient(c.scale[i] * mu, rms, c.eps[i])
        x = u if c.sign is None else u + c.sign * jnp.sign(x)
        updates.append(x)
    return tuple(updates)


def root(nu):
    """Return √v with a finite derivative at 0; a solver's stages may put v a little below 0."""
    return jnp.where(nu != 0, jnp.sqrt(jnp.where(nu != 0, jnp.abs(nu), 1)), 0)


def square(x):
    """Return |x|², whose derivatives, even at 0, are those of a polynomial."""
    return jnp.real(x * jnp.conj(x))


def gradient_of(grad_fn, params, batch, coupled_decay):
    """Return the gradient, cast to the parameters' dtypes, with coupled decay."""
    grads = grad_fn(params) if batch is None else grad_fn(params, batch)
    want, got = (jax.tree.map(jnp.shape, tree) for tree in (params, grads))
    # Trees of a class without __eq__, and thus their shapes, are never equal.
    leaves, others = map(jax.tree.leaves, (params, grads))
    holds = jax.tree.structure(params) == jax.tree.structure(grads)
    holds = holds and [*map(jnp.shape, leaves)] == [*map(jnp.shape, others)]
    words = f"return the loss's gradient, shaped like params, {want}"
    require(holds, "grad_fn", words, got, hint="jax.grad makes the gradient of a loss")

    def of_leaf(grad, x):
        holds = jnp.iscomplexobj(x) or not jnp.iscomplexobj(grad)
        words = "return real gradients for real params"
        require(holds, "grad_fn", words, jnp.result_type(grad), error=TypeError)
        return jnp.asarray(grad, x.dtype) + coupled_decay.astype(x.dtype) * x

    return jax.tree.map(of_leaf, grads, params)


def accumulators(params):
    """Return arrays of at least float32 for all parameters."""
    require(jax.tree.leaves(params), "params", "hold at least one array", repr(params))
    return jax.tree.map(_accumulator, params)


def _accumulator(x) -> jax.Array:
    x = jnp.asarray(x)
    check_inexact("params", x.dtype)
    return x.astype(accumulator_dtype(x.dtype))


def widest_real(leaves) -> np.dtype:
    """Return the dtype of scalars that all leaves share."""
    return promoted(*(leaf.real.dtype for leaf in leaves))


def cast(tree, dtype):
    """Return every leaf as an array of that dtype."""
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)


class FlowVariables(NamedTuple):
    """The variables of `flow_vector_field`: θ, dθ/dt and each stage's m and v."""

    params: optax.Params
    velocity: optax.Updates
    mu: tuple[optax.Updates, ...]
    nu: tuple[optax.Updates, ...]  # v, real


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
    r"""Return the flow as :math:`\dot y = f(t, y, \text{args})`, for diffrax and other solvers.

    It is :math:`\tfrac12\eta\ddot\theta + \dot\theta + \lambda\theta = -u^{(k)}` (Proposition 2),
    with m and v as in `kadam_jax.flow`.

    It is what `solve_flow` converges to with many substeps. `args` is the minibatch, or None.
    Since u grows like √t from t = 0, and again after each change of minibatch, no solver reaches
    its order there. Instead, integrate step by step, and within each step in x, with
    :math:`t = (n + x^2)\eta` and :math:`dy/dx = 2x\eta f`; then no step evaluates the next step's
    minibatch. Methods of order 2 then reach their full order, and those of higher order reach 3,
    since the error of a step's first substep remains. Methods whose stages make v negative where it
    starts from 0, as high-order methods do, need small enough substeps.

    Args:
      grad_fn, learning_rate, k, b1, b2, eps, strategy, weight_decay, coupled, bias_correction: as
        in `solve_flow`.

    Returns:
      `f(t, y, args)`, where y and the result are `FlowVariables`, and `y0(params)`, y at t = 0.

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
      §2.2, Lemma 1, Proposition 1, Proposition 2.
    """
    numbers = numbers_of(learning_rate, k, b1, b2, eps, strategy, weight_decay, coupled)
    check_function("grad_fn", grad_fn)
    check_choice("bias_correction", bias_correction, BIAS_CORRECTIONS)

    def y0(params):
        params = accumulators(params)
        # Separate arrays, since variables that hold one array twice cannot be donated.
        velocity, *mu = (jax.tree.map(jnp.zeros_like, params) for _ in range(k + 1))
        nu = [jax.tree.map(lambda x: jnp.zeros_like(x.real), params) for _ in range(k)]
        return FlowVariables(params, velocity, tuple(mu), tuple(nu))

    def f(t, y, args):
        p = rounded(numbers, widest_real(jax.tree.leaves(y.params)))
        corrections = corrections_at(p, t / p.learning_rate, bias_correction)
        grads = gradient_of(grad_fn, y.params, args, p.coupled_decay)

        @promoting
        def slopes(theta, velocity, grad, *averages):
            mu, nu = averages[:k], averages[k:]
            q, c = cast((p, corrections), velocity.real.dtype)
            inputs = (grad, *stage_updates(grad, mu, [root(v) for v in nu], c))
            mu_rates, nu_rates = q.mu_rates / q.learning_rate, q.nu_rates / q.learning_rate
            return FlowVariables(
                velocity,
                -2 / q.learning_rate * (velocity + inputs[-1] + q.decoupled_decay * theta),
                tuple(mu_rates[i] * (inputs[i] - m) for i, m in enumerate(mu)),
                tuple(nu_rates[i] * (square(inputs[i]) - v) for i, v in enumerate(nu)),
            )

        each = jax.tree.map(slopes, y.params, y.velocity, grads, *y.mu, *y.nu)
        outer, inner = map(jax.tree.structure, (y.params, FlowVariables(0, 0, (0,) * k, (0,) * k)))
        return jax.tree.transpose(outer, inner, each)

    return f, y0
