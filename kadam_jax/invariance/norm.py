"""Predictions of ‖W‖² along a run, and the moving average of ‖u‖² that it resembles.

Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
`arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_: Theorem 2, Appendices I and J.
"""

from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jax.typing import ArrayLike

from kadam_jax._checks import DECAY, NOT_NEGATIVE, check_hyperparameter, check_real
from kadam_jax._numerics import add_compensated, promoted
from kadam_jax._slices import AxesOfLeaves, inner, map_slices, wide
from kadam_jax.normalization import with_params


def predicted_squared_norm(
    initial: ArrayLike,
    updates_or_statistics: ArrayLike,
    *,
    learning_rate: ArrayLike,
    weight_decay: ArrayLike,
    radial: ArrayLike | None = None,
) -> jax.Array:
    r"""Predict ‖W‖² at every step from the updates: Theorem 2, or the full form with ⟨W, u⟩.

    .. math::

        \varphi_n = \|W_0\|^2 e^{-2\lambda n \eta}
            + \eta \sum_{m<n} e^{-2\lambda (n-m) \eta} f_m, \qquad
        f_m = \eta \|u_m\|^2 - 2 \langle W_m, u_m \rangle

    (Appendix I with Δt = η), where η = `learning_rate` and λ = `weight_decay`; if η changes, λη is
    summed. Sums are compensated, so that steps below float32's resolution of ‖W‖² count too.

    Theorem 2 drops -2⟨W, u⟩, which for gradients that are noise is 2γ/(1-γ) times the term that it
    keeps (see `momentum_factor`); even for γ = 0, an elementwise √v turns an orthogonal g into a u
    that is not orthogonal.

    On a discrete run with λ = 0 the full form is the identity ‖W - ηu‖² = ‖W‖² + η(η‖u‖² - 2⟨W, u⟩)
    and proves nothing. On a flow, given the means of ‖u‖² and ⟨W, u⟩ over each step, it has ‖u‖² in
    place of the ‖dW/dt‖² that Appendix J starts from. That is right for a u that changes little
    within a step: with gradients that are noise, held during a step, it is 1% off at γ = 0.8, 7% at
    0.5 and 70% at 0.01, where ‖dW/dt‖² stays within 1%.

    Args:
      initial: ‖W_0‖², one for each slice, of any shape S.
      updates_or_statistics: ‖u_m‖², (N, \*S); or u_m itself, (N, \*S, ...), with the slice's own
        axes last. On a flow, dW/dt may stand in for u here.
      learning_rate: η, a scalar or one for each m, (N,); may be traced, as `weight_decay` may.
      weight_decay: λ of decoupled decay; for coupled decay, which is inside u, give 0.
      radial: ⟨W_m, u_m⟩, (N, \*S), for the full form; None for Theorem 2.

    Returns:
      φ_0, ..., φ_N, (N+1, \*S), at least float32.

    Raises:
      ValueError: shapes do not fit, or a concrete `initial`, ‖u‖², `learning_rate` or
        `weight_decay` is negative.
      TypeError: one of these or `radial` is not real, or `weight_decay` is not a single number.

    Examples:
      >>> import jax.numpy as jnp
      >>> u = jnp.array([[1.0, 1.0], [0.0, 1.0]])
      >>> predicted_squared_norm(4.0, u, learning_rate=0.1, weight_decay=0.0)
      Array([4.  , 4.02, 4.03], dtype=float32)
      >>> predicted_squared_norm(
      ...     4.0, u, learning_rate=0.1, weight_decay=0.0, radial=jnp.array([-0.5, 0.0])
      ... )
      Array([4.  , 4.12, 4.13], dtype=float32)

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Theorem 2, Appendix I, Appendix J.
    """
    check_real("initial", initial, NOT_NEGATIVE, single=False)
    check_real("learning_rate", learning_rate, NOT_NEGATIVE, single=False)
    check_real("weight_decay", weight_decay, NOT_NEGATIVE)
    initial, squares = wide(initial), wide(updates_or_statistics)
    shape = (*squares.shape[:1], *initial.shape)
    if squares.ndim == 0 or squares.shape[: len(shape)] != shape:
        raise ValueError(
            f"updates_or_statistics must have shape (num_steps, *{initial.shape}, ...), which "
            f"contains the shape of initial, got {squares.shape}"
        )
    if squares.ndim > len(shape):
        squares = inner(squares, squares, tuple(range(len(shape), squares.ndim)))
    elif not isinstance(squares, Tracer) and jnp.any(squares.real < 0):
        raise ValueError(
            f"updates_or_statistics of shape (num_steps, *{initial.shape}) must be ‖u‖², at least "
            "0, but has negative entries; u itself has the slice's own axes after those"
        )
    radials = jnp.zeros_like(squares) if radial is None else wide(radial)
    if radials.shape != shape:
        raise ValueError(f"radial must have shape {shape}, got {radials.shape}")
    for name, values in (("updates_or_statistics", squares), ("radial", radials)):
        if jnp.iscomplexobj(values):
            raise TypeError(f"{name} must be real, got {values.dtype}; ⟨a, b⟩ is Re Σ conj(a) b")
    dtype = promoted(initial, squares, radials)
    rates = jnp.asarray(learning_rate, dtype)
    if rates.shape not in ((), shape[:1]):
        raise ValueError(f"learning_rate must be a scalar or ({shape[0]},), got {rates.shape}")

    def step(carry, now):
        (total, lost), (square, radial, rate) = carry, now
        source = rate * square - 2 * radial
        total, lost = _advance(total, lost, source, rate, weight_decay)
        return (total, lost), total

    zeros = jnp.zeros_like(squares, dtype, shape=shape[1:])  # in shard_map it varies as u does
    initial = initial.astype(dtype) + zeros
    per_step = (squares.astype(dtype), radials.astype(dtype), jnp.broadcast_to(rates, shape[:1]))
    return jnp.concatenate([initial[None], jax.lax.scan(step, (initial, zeros), per_step)[1]])


def _sum_of_trees(*trees):
    return jax.tree.map(lambda *leaves: reduce(jnp.add, leaves), *trees)


class RecordSquaredNormState(NamedTuple):
    """The terms of ‖W‖² after `count` steps, trees like the parameters with one number per slice.

    With the correction for momentum, ‖W‖² is `decayed + momentum_factor(b1) * growth`.
    """

    count: jax.Array  # shape=(), dtype=int32, saturating: steps done
    decayed: Any  # ‖W_0‖² e^{-2λt}
    growth: Any  # η ∫ e^{-2λ(t-τ)} ‖u‖² dτ, as in Theorem 2
    radial: Any  # -2 ∫ e^{-2λ(t-τ)} ⟨W, u⟩ dτ, which Theorem 2 drops
    lost: tuple[Any, Any, Any]  # the part of each lost to rounding, so that long runs stay exact

    @property
    def theorem(self):
        """‖W‖² according to Theorem 2."""
        return _sum_of_trees(self.decayed, self.growth, *self.lost[:2])

    @property
    def full(self):
        """‖W‖² with the radial term."""
        return _sum_of_trees(self.decayed, self.growth, self.radial, *self.lost)


def record_squared_norm(
    learning_rate: optax.ScalarOrSchedule,
    weight_decay: ArrayLike = 0.0,
    *,
    axes: AxesOfLeaves = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Predict ‖W‖² of every slice along a run, in one pass and with six numbers per slice.

    .. math::

        x_{n+1} = e^{-2\lambda\eta_n} (x_n + \eta_n f_n), \qquad
        f_n = \eta_n \|u_n\|^2 \;\text{(growth)}, \quad -2 \langle W_n, u_n \rangle
        \;\text{(radial)}

    This is `predicted_squared_norm` with its terms kept apart, each a compensated sum that stays
    accurate in float32 through a million steps. Put it where u_n passes: after the normalization,
    and before decoupled weight decay and the learning rate. Inside `jax.shard_map` each shard
    records its own part of a slice; the sum over shards (`jax.lax.psum`) is the slice's.

    Args:
      learning_rate: η, a scalar (may be traced) or a schedule of the step count.
      weight_decay: λ of decoupled decay (may be traced); 0 for coupled decay, which is inside u.
      axes: the axes a slice spans, see `kadam_jax.invariance`.

    Returns:
      A transformation that leaves updates unchanged, with a `RecordSquaredNormState`. Its `update`
      needs `params`; after N updates the state describes ‖W_N‖².

    Raises:
      ValueError: a concrete rate is negative; `update` got no `params`; a leaf lacks an axis.
      TypeError: a rate is not a single real number; `axes` is neither None, ints nor a function.

    Examples:
      >>> import jax.numpy as jnp, optax
      >>> optimizer = optax.chain(
      ...     optax.scale_by_adam(), record_squared_norm(0.1), optax.scale(-0.1)
      ... )
      >>> w = jnp.array([3.0, 4.0])
      >>> state = optimizer.init(w)
      >>> updates, state = optimizer.update(jnp.array([4.0, -3.0]), state, w)
      >>> w = optax.apply_updates(w, updates)
      >>> [round(float(x), 3) for x in (w @ w, state[1].theorem, state[1].full)]
      [25.22, 25.02, 25.22]

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Theorem 2, Appendix I, Appendix J.
    """
    if not callable(learning_rate):
        check_hyperparameter("learning_rate", learning_rate, NOT_NEGATIVE)
    check_hyperparameter("weight_decay", weight_decay, NOT_NEGATIVE)

    def init_fn(params):
        decayed = map_slices(lambda w, over: inner(w, w, over), axes, params)
        # Separate arrays, since a state that holds one array twice cannot be donated.
        growth, radial, *lost = (jax.tree.map(jnp.zeros_like, decayed) for _ in range(5))
        return RecordSquaredNormState(
            jnp.zeros([], jnp.int32), decayed, growth, radial, tuple(lost)
        )

    def update_fn(updates, state, params=None, **extra_args):
        del extra_args
        rate: Any = learning_rate(state.count) if callable(learning_rate) else learning_rate
        if params is None:
            raise ValueError(
                "record_squared_norm needs params: call update(updates, state, params)"
            )
        leaves = [param for _, param in with_params(updates, params)]  # there may be others
        params = jax.tree.structure(updates).unflatten(leaves)
        sources = (
            jax.tree.map(jnp.zeros_like, state.decayed),
            map_slices(lambda u, over: rate * inner(u, u, over), axes, updates),
            map_slices(lambda w, over, u: -2 * inner(w, u, over), axes, params, updates),
        )
        terms, treedef = jax.tree.flatten((state.decayed, state.growth, state.radial))
        each = zip(terms, *map(treedef.flatten_up_to, (state.lost, sources)), strict=True)
        advanced = [_advance(x, y, source, rate, weight_decay) for x, y, source in each]
        terms, lost = (treedef.unflatten(x[i] for x in advanced) for i in range(2))
        count = jnp.asarray(optax.safe_increment(state.count))
        return updates, RecordSquaredNormState(count, *terms, lost=lost)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def momentum_factor(b1: ArrayLike) -> jax.Array:
    r"""Compute (1+γ)/(1-γ), the true growth of ‖W‖² over Theorem 2's if gradients are noise.

    Let :math:`u_n = (1-\gamma) \sum_j \gamma^j \hat g_{n-j}`, where :math:`\hat g_n`, the gradient
    divided by a slowly moving √v, has mean square σ², is uncorrelated between steps and is
    orthogonal to W_n. Then

    .. math::

        \mathbb{E}\|u_n\|^2 &= (1-\gamma)^2 \sum_j \gamma^{2j} \sigma^2
            = \frac{1-\gamma}{1+\gamma} \sigma^2 \\
        -2\,\mathbb{E}\langle W_n, u_n \rangle
            &= 2\eta (1-\gamma) \sum_j \gamma^j \sum_{i<j}
               \mathbb{E}\langle u_{n-j+i}, \hat g_{n-j} \rangle
            = 2\eta (1-\gamma) \sum_j \gamma^j (1-\gamma^j) \sigma^2
            = \frac{2\gamma}{1+\gamma} \eta \sigma^2

    because W has moved by -ηu at each of the j steps since it was orthogonal to
    :math:`\hat g_{n-j}`. ‖W‖² grows by η times :math:`\eta\|u\|^2 - 2\langle W, u\rangle`, which is
    ησ². That is (1+γ)/(1-γ) times the η‖u‖² that Theorem 2 keeps. In other words, each gradient
    enters W with a total weight of one, however γ spreads it. The factor is reached after some
    1/(1-γ) steps, describes the discrete run, and is too large if gradients are correlated.

    Args:
      b1: decay γ of the first moment, in [0, 1), any shape; may be traced.

    Returns:
      The factor by which to multiply Theorem 2's growth (or its ‖u‖²), with the shape of `b1`.

    Raises:
      ValueError: a concrete `b1` is outside [0, 1).
      TypeError: `b1` is not real.

    Examples:
      >>> float(momentum_factor(0.5))
      3.0

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Theorem 2.
    """
    check_real("b1", b1, DECAY, single=False)
    gain = wide(1 - (b1 if isinstance(b1, jax.Array) else np.asarray(b1)))  # rounded once
    return (2 - gain) / gain


class MovingAverage(NamedTuple):
    """The average w_n = decay · w_{n-1} + weight · x_n."""

    decay: jax.Array  # the average's; 1 for a sum
    weight: jax.Array  # a new entry's
    gain: jax.Array  # weight / (1 - decay), inf for a sum: w_n is gain times a normalized average


def squared_norm_average(learning_rate: ArrayLike, weight_decay: ArrayLike) -> MovingAverage:
    r"""Return the moving average of ‖u‖² that, according to Theorem 2, equals ‖W‖².

    .. math::

        w_n = \alpha w_{n-1} + (1-\alpha) \frac{\eta}{2\lambda} \|u_n\|^2, \qquad
        \alpha = \frac{1}{1 + 2\lambda\eta}

    for λ > 0: η/(2λ) times an exponential moving average, whose kernel decays at the rate
    (1-α)/(ηα) = 2λ. As λ goes to 0, the new entry's weight :math:`\eta^2 / (1 + 2\lambda\eta)` goes
    to η² and the decay to 1, so at λ = 0, ‖W‖² = ‖W_0‖² + η² Σ‖u‖² is a sum. Dividing by ‖W‖ is
    then AdaGrad for whole tensors, not RMSprop. The second stage of a 2-Adam with γ₂ = 0 takes this
    α as its β₂. Appendix J swaps α and 1-α: its kernel belongs to w_n = α w_{n-1} + (1-α) x_n, not
    to the average above it.

    Args:
      learning_rate: η, any shape; may be traced, as `weight_decay` may.
      weight_decay: λ >= 0, any shape that broadcasts against it.

    Returns:
      `decay` α, `weight` η²α and `gain` η/(2λ).

    Raises:
      ValueError: a concrete `learning_rate` or `weight_decay` is negative.
      TypeError: one is not real.

    Examples:
      >>> average = squared_norm_average(0.1, weight_decay=0.5)
      >>> [round(float(x), 4) for x in average]
      [0.9091, 0.0091, 0.1]
      >>> [round(float(x), 4) for x in squared_norm_average(0.1, weight_decay=0.0)]
      [1.0, 0.01, inf]

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §4.2, Theorem 2, Appendix J.
    """
    check_real("learning_rate", learning_rate, NOT_NEGATIVE, single=False)
    check_real("weight_decay", weight_decay, NOT_NEGATIVE, single=False)
    rate, decay_rate = jnp.broadcast_arrays(wide(learning_rate), wide(weight_decay))
    decay = 1 / (1 + 2 * decay_rate * rate)
    return MovingAverage(decay, rate**2 * decay, rate / (2 * decay_rate))


def _advance(x, lost, source, learning_rate, weight_decay):
    """Advance Appendix I's sum x by one step, and return the part that rounding loses.

    A small decay is added as a change, e^(-δ) - 1 times x: used as a factor, e^(-δ) itself would be
    rounded, to 1 for δ < 3e-8 in float32.
    """
    rate, decay_rate, source = (
        jnp.asarray(y, x.dtype) for y in (learning_rate, weight_decay, source)
    )
    exponent = -2 * decay_rate * rate
    factor, is_small = jnp.exp(exponent), exponent > -0.5
    change = jnp.where(is_small, jnp.expm1(exponent), 0) * x + factor * rate * source
    total, lost = add_compensated(jnp.where(is_small, 1, factor) * x, factor * lost, change)
    return jnp.where(jnp.isfinite(x), total, x), lost  # 0 times an infinite x would be NaN
