"""Scale-invariant weights: how their norm and direction move, and the assumptions behind it.

A loss that does not change under W -> αW, α > 0, has ⟨W, g⟩ = 0, and from that the paper concludes
that ‖W‖² is an average of ‖u‖² and that the direction Ŵ = W/‖W‖ obeys an equation of its own (§4.2,
appendix J). Both are here as stated and as they have to be corrected: dividing each entry of g by
its own √v, or averaging gradients of other steps, makes a u that is not orthogonal to W.

⟨a, b⟩ is Re Σ conj(a) b. It and all other sums are taken over slices of the leaves of a tree. Which
slices is said by `axes`, the axes of a leaf that one slice spans: None for all of them (the leaf is
one slice), a tuple for every leaf, or a function of a leaf's path, such as "blocks/0/qkv", and the
leaf, for each leaf its own. A statistic has the leaf's other axes: with `axes=(0, 3)` the heads'
matrices W[:, i, h] of a (width, 3, heads, head_size) leaf give (3, heads) norms. Sums are at least
float32.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jax.typing import ArrayLike

__all__ = [
    "MovingAverage",
    "RadialInnerProducts",
    "RecordSquaredNormState",
    "ScaleByCoarseGrainedNormalizationState",
    "direction_residual",
    "momentum_factor",
    "predicted_squared_norm",
    "radial_inner_products",
    "record_squared_norm",
    "scale_by_coarse_grained_normalization",
    "squared_norm_average",
]

# The axes that a slice spans, for all leaves or for each.
Axes = None | Sequence[int]
AxesOfLeaves = Axes | Callable[[str, Any], Axes]
MaskOfLeaves = ArrayLike | Callable[[str, Any], ArrayLike]


def predicted_squared_norm(
    initial: ArrayLike,
    updates_or_statistics: ArrayLike,
    *,
    learning_rate: ArrayLike,
    weight_decay: ArrayLike,
    radial: ArrayLike | None = None,
) -> jax.Array:
    r"""‖W‖² at every step, predicted from the updates: Theorem 2, or the full form with ⟨W, u⟩.

    .. math::

        \varphi_n = \|W_0\|^2 e^{-2\lambda n \eta}
            + \eta \sum_{m<n} e^{-2\lambda (n-m) \eta} f_m, \qquad
        f_m = \eta \|u_m\|^2 - 2 \langle W_m, u_m \rangle

    (appendix I with Δt = η) with η = `learning_rate` and λ = `weight_decay`; where η changes, λη is
    summed. Theorem 2 drops ⟨W, u⟩, which is of the same order as the term that it keeps: see
    `momentum_factor`, and even for γ = 0 an elementwise √v turns an orthogonal g into a u that is
    not.

    On a discrete run with λ = 0 the full form is the identity
    ‖W - ηu‖² = ‖W‖² + η(η‖u‖² - 2⟨W, u⟩) and proves nothing. On a flow, given the means of ‖u‖² and
    ⟨W, u⟩ over each step, it has ‖u‖² for the ‖dW/dt‖² that appendix J starts from. That is right
    for a u that changes little within a step: with gradients that are noise, held during a step, it
    is 1% off at γ = 0.8, 7% at 0.5 and 70% at 0.01, where ‖dW/dt‖² stays within 1%.

    Args:
      initial: ‖W_0‖², one for each slice, of any shape S.
      updates_or_statistics: ‖u_m‖², (N, \*S); or u_m itself, with the slice's own axes after those,
        (N, \*S, ...). On a flow, dW/dt may stand in for u here.
      learning_rate: η, a scalar or one for each m, (N,); may be traced, as `weight_decay` may.
      weight_decay: λ of decoupled decay; for coupled decay, which is inside u, give 0.
      radial: ⟨W_m, u_m⟩, (N, \*S), for the full form; None for Theorem 2.

    Returns:
      φ_0, ..., φ_N, (N+1, \*S), at least float32.

    Raises:
      ValueError: shapes do not fit, or a concrete `initial`, `learning_rate` or `weight_decay` is
        negative.
      TypeError: `initial` or `radial` is complex.

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
      Theorem 2, appendices I and J.
    """
    for name, value in (("initial", initial), ("radial", radial)):
        if jnp.iscomplexobj(value):
            raise TypeError(f"{name} must be real, got {jnp.result_type(value)}; ⟨a, b⟩ is Re Σ āb")
    _check_not_negative("initial", initial)
    _check_rates(learning_rate, weight_decay)
    initial, statistics = _wide(initial), _wide(updates_or_statistics)
    shape = (*statistics.shape[:1], *initial.shape)
    if statistics.ndim == 0 or statistics.shape[: len(shape)] != shape:
        raise ValueError(
            f"updates_or_statistics must have shape (num_steps, *{initial.shape}, ...), the shape "
            f"of initial in it, got {statistics.shape}"
        )
    if statistics.ndim > len(shape):
        statistics = _inner(statistics, statistics, tuple(range(len(shape), statistics.ndim)))
    rates = jnp.asarray(learning_rate, _real(statistics))
    if rates.shape not in ((), shape[:1]):
        raise ValueError(f"learning_rate must be a scalar or ({shape[0]},), got {rates.shape}")
    inners = jnp.zeros_like(statistics) if radial is None else _wide(radial)
    if inners.shape != shape:
        raise ValueError(f"radial must have shape {shape}, got {inners.shape}")
    dtype = jnp.result_type(initial, statistics, inners)

    def step(squared_norm, now):
        statistic, inner, rate = now
        source = rate * statistic - 2 * inner
        squared_norm = _advance(squared_norm, source, rate, weight_decay)
        return squared_norm, squared_norm

    initial = initial.astype(dtype)
    per_step = (statistics, inners, jnp.broadcast_to(rates, shape[:1]))
    return jnp.concatenate([initial[None], jax.lax.scan(step, initial, per_step)[1]])


class RecordSquaredNormState(NamedTuple):
    """The terms of ‖W‖² after `count` steps, each a tree like the parameters of one for each slice.

    With the correction for momentum ‖W‖² is `decayed + momentum_factor(b1) * growth`.
    """

    count: jax.Array  # shape=(), dtype=int32, saturating: steps done
    decayed: Any  # ‖W_0‖² e^{-2λt}
    growth: Any  # η ∫ e^{-2λ(t-τ)} ‖u‖² dτ, Theorem 2's
    radial: Any  # -2 ∫ e^{-2λ(t-τ)} ⟨W, u⟩ dτ, which Theorem 2 drops

    @property
    def theorem(self):
        """‖W‖² as Theorem 2 has it."""
        return jax.tree.map(jnp.add, self.decayed, self.growth)

    @property
    def full(self):
        """‖W‖² with the radial term."""
        return jax.tree.map(jnp.add, self.theorem, self.radial)


def record_squared_norm(
    learning_rate: optax.ScalarOrSchedule,
    weight_decay: ArrayLike = 0.0,
    *,
    axes: AxesOfLeaves = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Predict ‖W‖² of every slice along a run, in one pass and with three numbers a slice.

    .. math::

        x_{n+1} = e^{-2\lambda\eta_n} (x_n + \eta_n f_n), \qquad
        f_n = \eta_n \|u_n\|^2 \;\text{(growth)}, \quad -2 \langle W_n, u_n \rangle
        \;\text{(radial)}

    which is `predicted_squared_norm`, its terms apart. Put it where u_n passes: behind the
    normalisation, before decoupled weight decay and the learning rate.

    Args:
      learning_rate: η, a scalar (may be traced) or a schedule of the step count.
      weight_decay: λ of decoupled decay, may be traced; 0 for coupled decay, which is inside u.
      axes: the axes a slice spans, see the module's docstring.

    Returns:
      A transformation that leaves updates as they are, with a `RecordSquaredNormState`. Its
      `update` needs `params`; after N updates the state stands beside ‖W_N‖².

    Raises:
      ValueError: a concrete rate is negative; `update` got no `params`; a leaf lacks an axis.

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
      Theorem 2, appendices I and J.
    """
    _check_rates(0.0 if callable(learning_rate) else learning_rate, weight_decay)

    def init_fn(params):
        decayed = _map_slices(lambda w, over: _inner(w, w, over), axes, params)
        zeros = jax.tree.map(jnp.zeros_like, decayed)
        return RecordSquaredNormState(jnp.zeros([], jnp.int32), decayed, zeros, zeros)

    def update_fn(updates, state, params=None, **extra_args):
        del extra_args
        rate: Any = learning_rate(state.count) if callable(learning_rate) else learning_rate
        if params is None:
            raise ValueError(
                "record_squared_norm needs params: call update(updates, state, params)"
            )

        def advance(term, source):
            return jax.tree.map(lambda x, f: _advance(x, f, rate, weight_decay), term, source)

        return updates, RecordSquaredNormState(
            jnp.asarray(optax.safe_increment(state.count)),
            advance(state.decayed, jax.tree.map(jnp.zeros_like, state.decayed)),
            advance(
                state.growth, _map_slices(lambda u, over: rate * _inner(u, u, over), axes, updates)
            ),
            advance(
                state.radial,
                _map_slices(lambda w, over, u: -2 * _inner(w, u, over), axes, params, updates),
            ),
        )

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def momentum_factor(b1: ArrayLike) -> jax.Array:
    r"""True growth of ‖W‖² over Theorem 2's when gradients are noise: (1+γ)/(1-γ).

    Let :math:`u_n = (1-\gamma) \sum_j \gamma^j \hat g_{n-j}` with :math:`\hat g_n`, the gradient
    over a slowly moving √v, of mean square σ², uncorrelated between steps and orthogonal to W_n.
    Then

    .. math::

        \mathbb{E}\|u_n\|^2 &= (1-\gamma)^2 \sum_j \gamma^{2j} \sigma^2
            = \frac{1-\gamma}{1+\gamma} \sigma^2 \\
        -2\,\mathbb{E}\langle W_n, u_n \rangle
            &= 2\eta (1-\gamma) \sum_j \gamma^j \sum_{i<j}
               \mathbb{E}\langle u_{n-j+i}, \hat g_{n-j} \rangle
            = 2\eta (1-\gamma) \sum_j \gamma^j (1-\gamma^j) \sigma^2
            = \frac{2\gamma}{1+\gamma} \eta \sigma^2

    since W has moved by -ηu at each of the j steps since it was orthogonal to :math:`\hat g_{n-j}`.
    ‖W‖² grows by η times :math:`\eta\|u\|^2 - 2\langle W, u\rangle`, which is ησ², a factor of
    (1+γ)/(1-γ) above the η‖u‖² that Theorem 2 keeps. In other words, each gradient goes into W with
    weight one in the end, however γ spreads it. The factor is reached after some 1/(1-γ) steps, is
    a statement about the discrete run, and is larger than the truth where gradients correlate.

    Args:
      b1: decay γ of the first moment, in [0, 1), any shape; may be traced.

    Returns:
      The factor, with the shape of `b1`, to multiply Theorem 2's growth (or its ‖u‖²) with.

    Raises:
      ValueError: a concrete `b1` is outside [0, 1).

    Examples:
      >>> float(momentum_factor(0.5))
      3.0

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Theorem 2, which has 1 here.
    """
    _check_decay("b1", b1)
    b1 = _wide(b1)
    return (1 + b1) / (1 - b1)


class MovingAverage(NamedTuple):
    """The average w_n = decay · w_{n-1} + weight · x_n."""

    decay: jax.Array  # of the average, 1 for a sum
    weight: jax.Array  # of a new entry
    gain: jax.Array  # weight / (1 - decay), inf for a sum: w_n is gain times a normalised average


def squared_norm_average(learning_rate: ArrayLike, weight_decay: ArrayLike) -> MovingAverage:
    r"""The moving average of ‖u‖² that ‖W‖² is according to Theorem 2.

    .. math::

        w_n = \alpha w_{n-1} + (1-\alpha) \frac{\eta}{2\lambda} \|u_n\|^2, \qquad
        \alpha = \frac{1}{1 + 2\lambda\eta}

    for λ > 0: η/(2λ) times an exponential moving average, whose kernel decays at the rate
    (1-α)/(ηα) = 2λ. As λ goes to 0 the new entry's weight :math:`\eta^2 / (1 + 2\lambda\eta)` goes
    to η² and the decay to 1, so at λ = 0 ‖W‖² = ‖W_0‖² + η² Σ‖u‖² is a sum: dividing by ‖W‖ is then
    AdaGrad for whole tensors, not RMSprop. The second stage of a 2-Adam with γ₂ = 0 takes this α as
    its β₂. Appendix J has α and 1-α the wrong way round: its kernel belongs to
    w_n = α w_{n-1} + (1-α) x_n, not to the average above it.

    Args:
      learning_rate: η, any shape; may be traced, as `weight_decay` may.
      weight_decay: λ >= 0, any shape that broadcasts against it.

    Returns:
      `decay` α, `weight` η²α and `gain` η/(2λ).

    Raises:
      ValueError: a concrete `learning_rate` or `weight_decay` is negative.

    Examples:
      >>> average = squared_norm_average(0.1, weight_decay=0.5)
      >>> [round(float(x), 4) for x in average]
      [0.9091, 0.0091, 0.1]
      >>> [round(float(x), 4) for x in squared_norm_average(0.1, weight_decay=0.0)]
      [1.0, 0.01, inf]

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Section 4.2 and appendix J.
    """
    _check_rates(learning_rate, weight_decay)
    rate, decay_rate = jnp.broadcast_arrays(_wide(learning_rate), _wide(weight_decay))
    decay = 1 / (1 + 2 * decay_rate * rate)
    return MovingAverage(decay, rate**2 * decay, rate / (2 * decay_rate))


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
    r"""By how much Proposition 3's equation for the direction Ŵ = W/‖W‖ fails.

    .. math::

        \tfrac12 \eta \ddot{\hat W} + \dot{\hat W} + \Lambda \hat W + u / r, \qquad r = \|W\|

    with Λ as `form` says:

    - "paper": :math:`\tfrac12 \eta r \|\dot{\hat W}\|^2`. The r is a slip: the equation was divided
      by r, this term was not.
    - "without_r": :math:`\tfrac12 \eta \|\dot{\hat W}\|^2`, which still drops ⟨Ŵ, u⟩.
    - "radial": :math:`\tfrac12 \eta \|\dot{\hat W}\|^2 - \langle \hat W, u \rangle / r`, what
      appendix J's derivation gives when nothing is dropped but ηṙ. Where W obeys
      :math:`\lambda W + \dot W + \tfrac12\eta\ddot W = -u` its residual is exactly
      :math:`-\eta (\dot r / r) \dot{\hat W}`.

    As η falls at fixed t the last form's residual vanishes, the others' do not (γ = 0.9, √v of each
    entry its own). λ is in none of them: it moves r alone.

    Args:
      weights: W, a tree; nowhere may a slice be 0, which has no direction and gives NaN.
      velocity: dW/dt, a tree like `weights`, with t in units where a step is η.
      acceleration: d²W/dt²; on a solution of the equation above, -(2/η)(λW + dW/dt + u).
      updates: u, in units of the learning rate.
      learning_rate: η; may be traced.
      form: "paper", "without_r" or "radial".
      axes: the axes a slice spans, see the module's docstring.

    Returns:
      A tree like `weights`, in units of 1/t, to be compared with u/r.

    Raises:
      ValueError: `form` is unknown, a concrete `learning_rate` is negative, a leaf lacks an axis,
        or the trees differ.

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
      Proposition 3 and appendix J.
    """
    if form not in _LAMBDAS:
        raise ValueError(f"form must be one of {sorted(_LAMBDAS)}, got {form!r}")
    _check_rates(learning_rate, 0.0)

    def residual(w, over, w_dot, w_ddot, u):
        w, w_dot, w_ddot, u = (_wide(x) for x in (w, w_dot, w_ddot, u))
        rate = jnp.asarray(learning_rate, _real(w))

        def dot(a, b):
            return _inner(a, b, over, keepdims=True)

        r = jnp.sqrt(dot(w, w))
        hat = w / r
        r_dot = dot(hat, w_dot)
        hat_dot = (w_dot - r_dot * hat) / r
        r_ddot = dot(hat_dot, w_dot) + dot(hat, w_ddot)
        hat_ddot = (w_ddot - r_ddot * hat - 2 * r_dot * hat_dot) / r
        decay = _LAMBDAS[form](rate, r, dot(hat_dot, hat_dot), dot(hat, u))
        return rate * hat_ddot / 2 + hat_dot + decay * hat + u / r

    return _map_slices(residual, axes, weights, velocity, acceleration, updates)


class RadialInnerProducts(NamedTuple):
    """Trees like the weights, of one for each slice."""

    inner: Any  # ⟨W, g⟩
    cosine: Any  # ⟨W, g⟩ / (‖W‖ ‖g‖), 0 where either is 0
    chance: Any  # root mean square of the cosine of random directions, 1/√N


def radial_inner_products(weights, gradients, *, axes: AxesOfLeaves = None) -> RadialInnerProducts:
    r"""⟨W, g⟩ and the cosine between a weight and a gradient, or update, of this or another step.

    A loss with L(Φ_s(W)) = L(W), Φ_s(W) = e^s W (scale invariance for factors α = e^s > 0; the
    paper's sW is not the identity at s = 0), has

    .. math:: 0 = \frac{d}{ds} L(e^s W) \Big|_{s=0} = \langle W, \nabla_W L(W) \rangle

    (Lemma 2, appendix K). Assumption 1 neglects ⟨W, g⟩ for gradients of earlier steps too. The
    inner product falls with ‖g‖ and the cosine does not, so compare that with chance: independent
    random directions in N dimensions have a root mean square cosine of 1/√N.

    Args:
      weights: W, a tree.
      gradients: g, or u, a tree like `weights`. For gradients of many steps vmap over them.
      axes: the axes a slice spans, see the module's docstring.

    Returns:
      `inner`, `cosine` and `chance`, trees like `weights` of one for each slice. The cosine is
      right for gradients whose squares underflow or overflow.

    Raises:
      ValueError: a leaf lacks an axis, or the trees or their shapes differ.

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
      Lemma 2, Assumption 1, appendices G and K.
    """

    def unit(x, over):  # of mean square 1 over a slice
        root = _root_mean_square(jnp.abs(x), over)
        return x / jnp.where(root != 0, root, jnp.inf)

    def cosine(w, over, g):
        w, g = _wide(w), _wide(g)
        return _inner(unit(w, over), unit(g, over), over) / _size(w, over)

    def chance(w, over):
        w = _wide(w)
        dimensions = _size(w, over) * (2 if jnp.iscomplexobj(w) else 1)
        kept = [n for axis, n in enumerate(w.shape) if axis not in over]
        return jnp.full(kept, 1 / math.sqrt(dimensions), _real(w))

    return RadialInnerProducts(
        _map_slices(lambda w, over, g: _inner(w, g, over), axes, weights, gradients),
        _map_slices(cosine, axes, weights, gradients),
        _map_slices(chance, axes, weights),
    )


class ScaleByCoarseGrainedNormalizationState(NamedTuple):
    """State of the coarse-grained stage; neither average is bias-corrected."""

    count: jax.Array  # shape=(), dtype=int32, saturating: steps done
    mu: optax.Updates  # moving average of the incoming updates
    rms: optax.Updates  # √ṽ, of size 1 along the axes a slice spans; of full size with `where`


def scale_by_coarse_grained_normalization(
    axes: AxesOfLeaves = None,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-30,
    *,
    where: MaskOfLeaves = True,
) -> optax.GradientTransformationExtraArgs:
    r"""Adaptive normalisation with one second moment for a whole slice: Assumption 2, made true.

    .. math::

        m_n &= \gamma m_{n-1} + (1-\gamma) g_n, \qquad
        \tilde v_n = \beta \tilde v_{n-1} + (1-\beta) \frac{\|g_n\|^2}{N} \\
        u_n &= \frac{m_n / (1-\gamma^{n+1})}{\sqrt{\tilde v_n / (1-\beta^{n+1})} + \varepsilon}

    with N the number of entries of a slice and 0/0 = 0. Unlike the elementwise √v it does not turn
    a vector, so at γ = 0 an update is orthogonal to whatever its gradient is orthogonal to. Where
    slices are single entries (`axes` = ()) it is `scale_by_adaptive_normalization`, and like that
    keeps √ṽ: multiplying all gradients by a power of two leaves every bit of the update as it is.

    Args:
      axes: the axes a slice spans, see the module's docstring; None makes each leaf one slice.
      b1: decay γ of the average of the updates, in [0, 1). May be traced, like `b2` and `eps`.
      b2: decay β of the average of the mean squares, in [0, 1).
      eps: ε, added to the bias-corrected root, in units of the gradient.
      where: bools that broadcast to a leaf, or a function of path and leaf that returns them:
        entries where it is False keep a second moment of their own, and count in no mean.

    Returns:
      A transformation whose updates are in units of the learning rate, not yet negated, with the
      gradients' dtypes. Averages are at least float32.

    Raises:
      ValueError: a concrete `b1` or `b2` is outside [0, 1), a concrete `eps` is negative, a leaf
        lacks an axis, `where` does not broadcast.
      TypeError: a gradient is not floating point or complex (raised by `init` and `update`).

    Examples:
      >>> import jax.numpy as jnp, numpy as np
      >>> stage = scale_by_coarse_grained_normalization()
      >>> gradient = jnp.array([3e-12, -4e-12])
      >>> updates, _ = stage.update(gradient, stage.init(gradient))
      >>> [f"{u:.4f}" for u in updates]  # the gradient over √((9 + 16) / 2) · 1e-12
      ['0.8485', '-1.1314']

      The queries and keys of every head, but not the values, of a (width, 3, heads, head_size)
      leaf; other leaves as usual:

      >>> stage = scale_by_coarse_grained_normalization(
      ...     lambda path, leaf: (0, 3) if path.endswith("qkv") else (),
      ...     where=lambda path, leaf: (
      ...         np.array([True, True, False]).reshape(3, 1, 1) if path.endswith("qkv") else True
      ...     ),
      ... )
      >>> state = stage.init({"qkv": jnp.ones((8, 3, 2, 4)), "out": jnp.ones((8, 8))})

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Assumption 2 and appendix G.
    """
    _check_decay("b1", b1)
    _check_decay("b2", b2)
    _check_not_negative("eps", eps)

    def root_mean_squares(tree):
        def of_leaf(path, g):
            _check_inexact(path, g)
            own = jnp.abs(_wide(g))
            mask = _mask(where, path, g)
            shared = _root_mean_square(own, _slice_axes(axes, path, g), mask)
            return shared if mask is None else jnp.where(mask, shared, own)

        return jax.tree_util.tree_map_with_path(of_leaf, tree)

    def init_fn(params):
        return ScaleByCoarseGrainedNormalizationState(
            count=jnp.zeros([], jnp.int32),
            mu=jax.tree.map(lambda p: jnp.zeros_like(_wide(p)), params),
            rms=jax.tree.map(jnp.zeros_like, root_mean_squares(params)),
        )

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        count = jnp.asarray(optax.safe_increment(state.count))

        def average(mu, g):
            gain = jnp.asarray(1 - b1, _real(mu))
            return mu - gain * mu + gain * g.astype(mu.dtype)

        def average_root(rms, root):
            gain = jnp.asarray(1 - b2, rms.dtype)
            kept = rms - gain / (1 + jnp.sqrt(1 - gain)) * rms  # √β √v
            return jnp.hypot(kept, jnp.sqrt(gain) * root)

        def divide(g, mu, rms):
            gains = (jnp.asarray(1 - b, rms.dtype) for b in (b1, b2))
            weight, square_weight = (_weight(gain, count) for gain in gains)
            root = rms + jnp.sqrt(square_weight) * jnp.asarray(eps, rms.dtype)
            # 0/0 = 0 with a zero derivative; `== 0`, so that the NaN of a gradient shows.
            idle = (rms == 0) & ((mu == 0) | (root == 0))
            u = jnp.sqrt(square_weight) / weight * mu / jnp.where(idle, jnp.inf, root)
            return u.astype(g.dtype)

        updates = jax.tree.map(jnp.asarray, updates)
        mu = jax.tree.map(average, state.mu, updates)
        rms = jax.tree.map(average_root, state.rms, root_mean_squares(updates))
        return jax.tree.map(divide, updates, mu, rms), ScaleByCoarseGrainedNormalizationState(
            count, mu, rms
        )

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _advance(x, source, learning_rate, weight_decay):
    """Appendix I's sum, one step further, in the dtype of what it sums."""
    rate, decay_rate, source = (
        jnp.asarray(y, x.dtype) for y in (learning_rate, weight_decay, source)
    )
    return jnp.exp(-2 * decay_rate * rate) * (x + rate * source)


def _map_slices(fn: Callable[..., jax.Array], axes: AxesOfLeaves, tree, *rest):
    """fn(leaf, the axes its slices span, *leaves of the other trees) for each leaf."""

    def of_leaf(path, leaf, *others):
        shapes = {jnp.shape(x) for x in (leaf, *others)}
        if len(shapes) > 1:
            raise ValueError(f"trees must have the same shapes, got {shapes} for {_label(path)!r}")
        return fn(leaf, _slice_axes(axes, path, leaf), *others)

    return jax.tree_util.tree_map_with_path(of_leaf, tree, *rest)


def _slice_axes(axes: AxesOfLeaves, path, leaf) -> tuple[int, ...]:
    """The axes of `leaf`, none negative, that a slice spans."""
    ndim = jnp.ndim(leaf)
    chosen = axes(_label(path), leaf) if callable(axes) else axes
    if chosen is None:
        return tuple(range(ndim))
    over = tuple(axis + ndim if axis < 0 else axis for axis in chosen)
    if len(set(over)) < len(over) or not set(over) <= set(range(ndim)):
        raise ValueError(
            f"axes must be distinct axes of a leaf, got {tuple(chosen)} for leaf {_label(path)!r} "
            f"of shape {jnp.shape(leaf)}; give None for whole leaves, or a function of path and "
            "leaf for a choice of each"
        )
    return over


def _label(path) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _inner(a, b, over: tuple[int, ...], *, keepdims: bool = False) -> jax.Array:
    """⟨a, b⟩ over the axes `over`."""
    return jnp.sum(jnp.real(jnp.conj(_wide(a)) * _wide(b)), axis=over, keepdims=keepdims)


def _root_mean_square(modulus, over: tuple[int, ...], mask=None) -> jax.Array:
    """√(mean of squares) over `over`, kept as axes of size 1; no square leaves the dtype's range.

    Exact under scaling by powers of two, and `modulus` itself where a slice is one entry.
    """
    if mask is None:
        size = _size(modulus, over)
    else:
        modulus = jnp.where(mask, modulus, 0)
        size = jnp.maximum(jnp.sum(mask, axis=over, keepdims=True), 1).astype(modulus.dtype)
    largest = jax.lax.stop_gradient(jnp.max(modulus, axis=over, keepdims=True, initial=0))
    ratios = modulus / jnp.where(largest != 0, largest, jnp.inf)
    mean = jnp.sum(jnp.square(ratios), axis=over, keepdims=True) / size
    return largest * jnp.sqrt(jnp.where(mean != 0, mean, 1))  # finite derivatives at 0


def _weight(gain, count):
    """1 - (1-gain)^count, all the weight in a moving average after `count` steps."""
    below_one = jnp.where(gain < 1, gain, 0)
    return jnp.where(gain < 1, -jnp.expm1(count.astype(gain.dtype) * jnp.log1p(-below_one)), 1)


def _size(x, over: tuple[int, ...]) -> int:
    """Number of entries of a slice, 1 for an empty one, which all means here divide by."""
    return max(math.prod(x.shape[axis] for axis in over), 1)


def _wide(x) -> jax.Array:
    """As an array of at least float32."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _real(x):
    return jnp.finfo(x.dtype).dtype


def _mask(where: MaskOfLeaves, path, leaf) -> jax.Array | None:
    """The entries of `leaf` that share second moments, None for all."""
    mask = where(_label(path), leaf) if callable(where) else where
    if mask is True:
        return None
    shape = jnp.shape(leaf)
    try:
        return jnp.broadcast_to(jnp.asarray(mask, bool), shape)
    except ValueError as error:
        raise ValueError(
            f"where must broadcast to leaf {_label(path)!r} of shape {shape}, got {jnp.shape(mask)}"
        ) from error


def _check_inexact(path, x) -> None:
    if not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
        raise TypeError(
            f"updates must be floating point or complex, got {jnp.result_type(x)} for leaf "
            f"{_label(path)!r}; mask it out (optax.masked)"
        )


def _check_rates(learning_rate, weight_decay) -> None:
    _check_not_negative("learning_rate", learning_rate)
    _check_not_negative("weight_decay", weight_decay)


def _check_not_negative(name: str, value) -> None:
    """Raise ValueError for a concrete value that is negative or NaN anywhere."""
    if not isinstance(value, Tracer) and not np.all(np.asarray(value) >= 0):
        raise ValueError(f"{name} must be at least 0, got {value}")


def _check_decay(name: str, value) -> None:
    """Raise ValueError for a concrete value that is anywhere outside [0, 1)."""
    if isinstance(value, Tracer):
        return
    concrete = np.asarray(value)
    if not np.all((concrete >= 0) & (concrete < 1)):
        raise ValueError(f"{name} must be in [0, 1), got {value}")
