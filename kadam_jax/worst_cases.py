r"""How large can the update of any optimizer get? The worst case of a black box.

For one coordinate and ε → 0, the update of Adam and its relatives is a weighted sum of past
gradients over the root of a weighted sum of their squares,

.. math::
  u_n = \sum_{j=0}^{n} a_j g_{n-j} \Big/ \sqrt{\sum_{j=0}^{n} b_j g_{n-j}^2}, \qquad b_j \ge 0.

By Cauchy-Schwarz its supremum over all gradients is :math:`\sqrt{\sum_j a_j^2/b_j}`, attained
exactly by gradients :math:`g_{n-j} \propto a_j/b_j`. A single gradient j steps ago, followed by
zeros, gives :math:`r_j = a_j/\sqrt{b_j}`: the supremum is the 2-norm of this impulse response. For
Adam it is `exact_max_update_bound`: the paper's Appendix D with sums for integrals.

Weights are read from derivatives. Only the ratio of both sums matters, so :math:`b_0 = 1`. With
:math:`g_n = G` and all other gradients 0, the update is :math:`a_0` and, for j > 0,

.. math::
  \frac{\partial u_n}{\partial g_{n-j}} = \frac{a_j}{G}, \qquad
  \frac{\partial^2 u_n}{\partial g_{n-j}^2} = -\frac{a_0 b_j}{G^2},

and mixed second derivatives among lags j > 0 vanish, so that one gradient and one product of the
Hessian with a vector give the weights of all lags. Whether an optimizer is of this form is tested:
its update must not depend on other coordinates, on parameters (except through weight decay) or on
the scale of gradients, and must be what the weights predict for random gradients. For others, what
gradient ascent through the optimizer reaches is a lower bound of the supremum.

Everything here runs in float64 whatever the caller's settings are, with gradients so large that
every ε in use disappears, and with parameters at 0, where decoupled weight decay disappears too.
Hyperparameters are what they are after rounding: float32 decays have an exact worst case too, that
of the rounded decays. Updates are in units of the learning rate.

The paper is Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and
Normalization`, `arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from kadam_jax._checks import (
    DECAY,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_DECAY,
    TRACED,
    check_integer,
    check_number,
    check_real,
    check_shape,
    is_known,
    require,
)
from kadam_jax.stability import exact_max_update_bound

__all__ = [
    "ImpulseResponse",
    "WorstCase",
    "dead_gradient_growth",
    "impulse_response",
    "max_travel",
    "steps_until_update",
    "worst_case",
]


class ImpulseResponse(NamedTuple):
    """The effect of past gradients on an update, by lag: index j is the gradient j steps ago."""

    ratio: np.ndarray  # shape=(num_steps,), r_j: the update after a single gradient, then j zeros
    numerator: np.ndarray  # shape=(num_steps,), a_j; NaN if the optimizer is not of the form
    denominator: np.ndarray  # shape=(num_steps,), b_j with b_0 = 1; NaN likewise


class WorstCase(NamedTuple):
    """The largest update that gradients can cause at a given step."""

    supremum: float  # exact, or what a search reached: a lower bound
    gradients: np.ndarray  # shape=(num_steps,), oldest first
    attained: float  # |update| of the optimizer itself at the last of these gradients
    exact: bool  # whether `supremum` is the supremum
    reason: str  # why it is exact or is not


class _Weights(NamedTuple):
    """Signs and logarithms of a_j and b_j, which leave float64's range at long lags."""

    sign: np.ndarray
    log_a: np.ndarray
    log_b: np.ndarray

    @property
    def log_ratio(self):
        return np.where(np.isneginf(self.log_a), -np.inf, self.log_a - self.log_b / 2)

    @property
    def log_supremum(self):
        return np.logaddexp.reduce(2 * self.log_ratio) / 2


_FORM = "a weighted sum of gradients over the root of a weighted sum of their squares"
EXACT = f"the update is {_FORM}"
OTHER = f"the update is not {_FORM}"
COUPLED = "the update of a coordinate depends on the gradients of other coordinates"
TIED = "the update depends on the parameters, beyond weight decay"
SCALED = "the update depends on the scale of the gradients"
UNBOUNDED = "the update grows with the scale of the gradients, so it has no bound"

INSIDE = "instead of optax.MultiSteps, give the optimizer inside it, which sees means of gradients"

_LARGE = 1e60  # the last gradient; its square divided by it four times is still a normal number
_SMALL = 1e-60  # the other gradients: not 0, where roots have no derivative
_SMALLEST = 1e-100  # smaller weights are mixed with terms in _SMALL / _LARGE, or underflow
_IMPULSE = 1e100
_MAX_LANES = 4096


def _in_float64(function: Callable) -> Callable:
    """Run `function` in float64 under any settings, while JAX traces too; 0/0 is expected."""

    @wraps(function)
    def runs(*args, **kwargs):
        is_traced = not is_known(jnp.zeros(()))  # evaluated eagerly, programs round differently
        with (
            jax.enable_x64(True),
            jax.debug_nans(False),
            jax.debug_infs(False),
            jax.disable_jit(False),
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
            jax.ensure_compile_time_eval() if is_traced else nullcontext(),
            np.errstate(all="ignore"),
        ):
            return function(*args, **kwargs)

    return runs


@_in_float64
def impulse_response(
    optimizer: optax.GradientTransformation,
    num_steps: int,
    *,
    learning_rate: float | optax.Schedule = 1.0,
) -> ImpulseResponse:
    r"""Read off how a single past gradient moves an optimizer's update.

    .. math:: r_j = a_j / \sqrt{b_j}, \qquad j = 0, \ldots, N-1

    is the update at step N-1 if the only gradient that is not 0 came j steps before. Its sign is
    positive if the update has the direction of :math:`r_0`. If the optimizer is not of the form
    above, `ratio` is measured, at every lag up to 4,096 steps and interpolated geometrically where
    that is right to 1e-9 at the middle of an interval between lags; the weights are NaN.

    Weights below 1e-100 are continued geometrically if those before them are geometric, and are 0
    otherwise.

    Args:
      optimizer: any optax transformation that needs no more than gradients and parameters.
      num_steps: the number of steps N >= 1, a Python int.
      learning_rate: what to divide updates by, a positive number or a schedule, which is evaluated
        at step N-1.

    Returns:
      `ratio`, `numerator` and `denominator`, each (num_steps,), float64, by lag.

    Raises:
      TypeError: `optimizer` is not a `GradientTransformation`, or `num_steps` not an int.
      ValueError: `num_steps` is below 1, `learning_rate` is not positive, or `optimizer` cannot
        update from gradients and parameters alone, or cannot do so in float64.

    Example:
      >>> import optax
      >>> from kadam_jax import impulse_response
      >>> print(impulse_response(optax.adam(1.0, b1=0.5, b2=0.25), 4).denominator)
      [1.       0.25     0.0625   0.015625]
    """
    num_steps = _check(optimizer, num_steps)
    weights, reason = _read(optimizer, num_steps)
    rate = _rate(learning_rate, num_steps)
    if reason == EXACT:
        sign, log_a, log_b = weights
        return ImpulseResponse(
            sign * np.exp(weights.log_ratio) / rate, sign * np.exp(log_a) / rate, np.exp(log_b)
        )
    ratio, unknown = _measured_impulses(optimizer, num_steps), np.full(num_steps, np.nan)
    return ImpulseResponse(ratio / rate, unknown, unknown)


@_in_float64
def worst_case(
    optimizer: optax.GradientTransformation,
    num_steps: int,
    *,
    learning_rate: float | optax.Schedule = 1.0,
    search_steps: int = 200,
) -> WorstCase:
    r"""Find the largest update that any gradients can cause at step N-1, and such gradients.

    .. math:: \sup_g |u_{N-1}| = \sqrt{\sum_{j=0}^{N-1} a_j^2 / b_j}
        \quad \text{at} \quad g_{N-1-j} \propto a_j / b_j

    if the optimizer is of the form above, where `exact` is True. Otherwise `supremum` is a lower
    bound: what gradient ascent through the optimizer reached from the best of some sixty sequences,
    for parameters with a single entry. For k-Adam the true supremum is at most that of the last
    stage (Theorem 3), which the search approaches where N is large compared with 1/(1-β).

    Args:
      optimizer: any optax transformation that needs no more than gradients and parameters.
      num_steps: the number of steps N >= 1, a Python int.
      learning_rate: what to divide updates by, a positive number or a schedule, which is evaluated
        at step N-1.
      search_steps: how many ascents in each of two parametrizations, an int >= 1. A search takes as
        long as some 50 · `search_steps` · `num_steps` updates.

    Returns:
      The supremum, the gradients (num_steps,), the update that the optimizer itself reaches on
      them, whether the supremum is exact, and why. Gradients span at most 260 decades, so that
      squares fit, and others are 0; where that costs something, `attained` is smaller than the
      supremum. A supremum beyond float64 is inf. So is that of Adam with b2 = 0, whose last
      gradient can be arbitrarily small compared with those before; no gradients reach inf, and
      those that are returned span 110 decades.

    Raises:
      TypeError: `optimizer` is not a `GradientTransformation` or has traced hyperparameters, or an
        integer is not an int.
      ValueError: `num_steps` or `search_steps` is below 1, `learning_rate` is not positive, or
        `optimizer` cannot update from gradients and parameters alone.

    Example:
      >>> import optax
      >>> from kadam_jax import worst_case
      >>> result = worst_case(optax.adam(1.0), 300)
      >>> f"{result.supremum:.4f} {result.attained:.4f} {result.exact}"
      '3.7021 3.7021 True'
    """
    num_steps = _check(optimizer, num_steps)
    search_steps = check_integer("search_steps", search_steps)
    rate = _rate(learning_rate, num_steps)
    reach = _evaluator(optimizer)
    weights, reason = _read(optimizer, num_steps, reach)
    if reason == EXACT:
        sequences = _attaining(weights)
        updates = np.abs(reach(sequences))
        best = np.nanargmax(updates)
        supremum = np.exp(weights.log_supremum)
        return _result(supremum / rate, sequences[best], updates[best] / rate, True, reason)
    if reason == UNBOUNDED:
        gradients = np.full(num_steps, _LARGE)
        return _result(np.inf, gradients, abs(reach(gradients[None])[0]) / rate, False, reason)
    gradients, attained = _search(optimizer, num_steps, search_steps, reach)
    return _result(
        attained / rate,
        gradients,
        attained / rate,
        False,
        f"{reason}; a search with parameters at 0, where some optimizers move least, found this",
    )


@_in_float64
def dead_gradient_growth(
    optimizer: optax.GradientTransformation, *, num_steps: int = 2048
) -> float:
    r"""Compute the rate at which updates grow once gradients stop, in nats per step.

    .. math:: \lim_{j \to \infty} \ln \frac{|r_{j+1}|}{|r_j|}

    For Adam it is ln(γ/√β): positive beyond the boundary γ² = β, where a parameter whose gradient
    vanishes moves faster and faster until ε or an underflow ends it, and negative inside the
    boundary. It is `exact_growth_rate` where that is positive.

    Args:
      optimizer: any optax transformation that needs no more than gradients and parameters.
      num_steps: the horizon, a Python int >= 2, long enough for the slowest average to dominate its
        end.

    Returns:
      The slope of ln\|r_j\| over the last lags that float64 can represent; -inf if updates stop
      with the gradients, inf if the first of them without a gradient is infinite (Adam with b2 =
      0), and NaN if what they do depends on the gradients' size.

    Raises:
      TypeError: `optimizer` is not a `GradientTransformation`, or `num_steps` not an int.
      ValueError: `num_steps` is below 2, or `optimizer` cannot update from gradients and parameters
        alone.

    Example:
      >>> import optax
      >>> from kadam_jax import dead_gradient_growth
      >>> f"{dead_gradient_growth(optax.contrib.simplified_ademamix(1.0)):.4f}"
      '0.0156'
    """
    num_steps = _check(optimizer, num_steps, 2)
    log_ratio = _log_impulses(optimizer, num_steps)
    return float(np.inf if log_ratio[1] == np.inf else _slope(log_ratio))


@_in_float64
def steps_until_update(
    optimizer: optax.GradientTransformation, size: float, *, num_steps: int = 2048
) -> float:
    r"""Count the zero gradients that it takes, after a single gradient, until \|r_j\| >= `size`.

    Lags beyond `num_steps` continue at `dead_gradient_growth`.

    Args:
      optimizer: any optax transformation that needs no more than gradients and parameters.
      size: the update's modulus, a positive number; in units of the learning rate if the
        optimizer's learning rate is 1.
      num_steps: the horizon, a Python int >= 2.

    Returns:
      The smallest such j, or inf if there is none; NaN if that depends on the gradient's size.

    Raises:
      TypeError: `optimizer` is not a `GradientTransformation`, or `num_steps` not an int.
      ValueError: `size` is not positive, `num_steps` is below 2, or `optimizer` cannot update from
        gradients and parameters alone.

    Example:
      >>> import optax
      >>> from kadam_jax import steps_until_update
      >>> steps_until_update(optax.adam(1.0, b1=0.95, b2=0.85), 1000.0)
      299.0
    """
    num_steps = _check(optimizer, num_steps, 2)
    log_size = np.log(check_number("size", size, POSITIVE))
    log_ratio = _log_impulses(optimizer, num_steps)
    reached = np.flatnonzero(log_ratio >= log_size)
    if reached.size:
        return float(reached[0])
    growth = _slope(log_ratio)
    if np.isnan(growth) and not np.isneginf(log_ratio).all():
        return np.nan
    if not growth > 0:
        return np.inf
    last = np.flatnonzero(np.isfinite(log_ratio))[-1]
    return float(last + np.ceil((log_size - log_ratio[last]) / growth))


@_in_float64
def max_travel(
    optimizer_or_decays: optax.GradientTransformation | tuple[ArrayLike, ArrayLike],
    schedule: float | optax.Schedule,
    num_steps: int,
) -> float:
    r"""Bound how far a parameter can travel, whatever its gradients are.

    .. math:: \sum_{n=0}^{N-1} \eta_n \sup_g |u_n|

    where η_n is the learning rate at step n. If a weight is farther from its initial value than
    this, no gradients have carried it there (weight decay is not counted).

    Args:
      optimizer_or_decays: (b1, b2) of Adam, or an optimizer with learning rate 1 whose
        `worst_case` is exact. For k-Adam, give the decays of the last stage, whose supremum bounds
        it (Theorem 3). For an optimizer, this takes N² updates of one entry.
      schedule: the learning rate, a positive number or an optax schedule.
      num_steps: the number of steps N >= 1, a Python int.

    Returns:
      The distance, in units of the parameter.

    Raises:
      TypeError: `optimizer_or_decays` is neither, or `num_steps` is not an int.
      ValueError: `num_steps` is below 1, a decay is out of range, `schedule` is a number that is
        not positive or has rates that are negative, not finite or not single, the optimizer's
        worst case is not known exactly at every step (the first updates of RAdam are not
        normalized), or float64 cannot hold it.

    Example:
      >>> import optax
      >>> from kadam_jax import max_travel
      >>> f"{max_travel((0.9, 0.999), optax.linear_schedule(1e-3, 0.0, 1000), 1000):.3f}"
      '1.766'
    """
    num_steps = check_integer("num_steps", num_steps)
    steps = jnp.arange(num_steps)
    if isinstance(optimizer_or_decays, optax.GradientTransformation):
        suprema = _suprema(optimizer_or_decays, num_steps)
    else:
        is_pair = isinstance(optimizer_or_decays, tuple | list) and len(optimizer_or_decays) == 2
        words = "be (b1, b2) or an optax.GradientTransformation"
        require(is_pair, "optimizer_or_decays", words, repr(optimizer_or_decays), error=TypeError)
        b1, b2 = optimizer_or_decays
        b1, b2 = check_number("b1", b1, DECAY), check_number("b2", b2, POSITIVE_DECAY)
        suprema = exact_max_update_bound(steps, b1, b2)
    if callable(schedule):
        name, rates = "schedule's rates", jax.vmap(schedule)(steps)
        check_shape(name, rates, (num_steps,), hint="give one number for each step")
        rates = check_real(name, rates, NOT_NEGATIVE, single=False)
        require(
            is_known(rates), name, "be known numbers", "traced ones", hint=TRACED, error=TypeError
        )
    else:
        rates = check_number("schedule", schedule, POSITIVE)
    return float(np.sum(np.asarray(rates, np.float64) * np.asarray(suprema)))


def _check(optimizer: optax.GradientTransformation, num_steps: int, least: int = 1) -> int:
    """Check both arguments that all functions have."""
    is_optimizer = isinstance(optimizer, optax.GradientTransformation)
    words = "be an optax.GradientTransformation"
    hint = INSIDE if isinstance(optimizer, optax.MultiSteps) else ""
    require(is_optimizer, "optimizer", words, repr(optimizer), hint=hint, error=TypeError)
    num_steps = check_integer("num_steps", num_steps, least)
    try:
        constants = jax.make_jaxpr(_single(optimizer))(jnp.zeros(2)).consts
    except Exception as error:  # an optimizer that needs more, such as a loss, may raise anything
        got = f"{type(error).__name__}: {error}".splitlines()[0]
        words = "update from gradients and parameters alone"
        hint = "pass one that needs no loss, random key, gradients of examples or other arguments"
        raise ValueError(f"optimizer must {words}, got {got}; {hint}") from error
    words = "have hyperparameters that are known numbers"
    known = all(map(is_known, constants))
    require(known, "optimizer", words, "traced ones", hint=TRACED, error=TypeError)
    return num_steps


def _rate(learning_rate: float | optax.Schedule, num_steps: int) -> float:
    value = learning_rate(num_steps - 1) if callable(learning_rate) else learning_rate
    return check_number("learning_rate", value, POSITIVE)


def _result(supremum, gradients, attained, exact, reason) -> WorstCase:
    return WorstCase(float(supremum), np.array(gradients), float(attained), exact, reason)


def _last_update(optimizer: optax.GradientTransformation) -> Callable:
    """Return a function from gradients, whose leaves have a leading axis of steps, to an update.

    The optimizer starts at `start` times the parameters, which do not move.
    """

    def last(gradients, params, start=0.0):
        def advance(state, gradient):
            return optimizer.update(gradient, state, params)[1], None

        state = optimizer.init(jax.tree.map(lambda x: start * x, params))
        state, _ = jax.lax.scan(advance, state, jax.tree.map(lambda x: x[:-1], gradients))
        return optimizer.update(jax.tree.map(lambda x: x[-1], gradients), state, params)[0]

    return last


def _single(optimizer: optax.GradientTransformation) -> Callable:
    """Return a function from a parameter's gradients (num_steps,) to its last update."""
    last = _last_update(optimizer)
    # One row and one column: optimizers that treat matrices specially do so here.
    return lambda gradients: last(gradients[:, None, None], jnp.zeros((1, 1)))[0, 0]


def _evaluator(optimizer: optax.GradientTransformation) -> Callable:
    """Return a function from sequences (count, num_steps) to updates (count,)."""
    evaluate = jax.jit(jax.vmap(_single(optimizer)))
    return lambda sequences: np.asarray(evaluate(jnp.asarray(sequences)))


def _read(
    optimizer: optax.GradientTransformation, num_steps: int, reach: Callable | None = None
) -> tuple[_Weights, str]:
    """Return the weights that derivatives give, and whether they hold: EXACT or another reason.

    `reach` is the optimizer's `_evaluator`, from a caller that needs the same compiled programs.
    """
    a, b = map(np.asarray, jax.jit(_derivatives(optimizer, num_steps))())
    sign, log_a = _continued(a)
    _, log_b = _continued(b)
    weights = _Weights(sign, log_a, log_b)
    return weights, _reason(optimizer, num_steps, weights, reach or _evaluator(optimizer))


def _derivatives(optimizer: optax.GradientTransformation, num_steps: int) -> Callable:
    """Return a function that computes a_j and b_j, each (num_steps,) by lag."""

    def derivatives():
        gradients = jnp.full(num_steps, _SMALL, float).at[-1].set(_LARGE)
        older = jnp.ones(num_steps).at[-1].set(0.0)
        slope = jax.value_and_grad(_single(optimizer))
        (update, first), (_, second) = jax.jvp(slope, (gradients,), (older,))
        direction = jnp.where(update < 0, -1, 1)
        a = (direction * _LARGE * first[::-1]).at[0].set(jnp.abs(update))
        b = (-second[::-1] * _LARGE / update * _LARGE).at[0].set(1.0)
        return a, b

    return derivatives


def _continued(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return signs and logarithms, continued after the last value that is known.

    Later values are too small. They continue a geometric sequence if the values before them, up to
    64, are one; otherwise they are 0.
    """
    known = np.abs(values) > _SMALLEST
    log = np.where(known, np.log(np.where(known, np.abs(values), 1.0)), -np.inf)
    sign = np.sign(values)
    last = np.flatnonzero(known)
    if not last.size or last[-1] == len(values) - 1:
        return sign, log
    end = last[-1]
    before = log[max(end - 64, end // 2) : end + 1]
    line = before[-1] + np.arange(1 - len(before), 1) * _slope(before)
    if len(before) > 2 and np.allclose(before, line, rtol=1e-12, atol=1e-10):
        log[end + 1 :] = log[end] + np.arange(1, len(values) - end) * _slope(before)
        sign[end + 1 :] = sign[end]
    return sign, log


def _slope(log_values: np.ndarray) -> float:
    """Return the slope of the last finite values, up to 65 of them; -inf if zeros follow them.

    Zeros after values below 1e-250 are underflow. NaN if no value is finite.
    """
    finite = np.flatnonzero(np.isfinite(log_values))
    if not finite.size:
        return np.nan
    first, last = finite[-65:][0], finite[-1]
    stopped = np.isneginf(log_values[last + 1 :]).any() and log_values[last] > np.log(1e-250)
    if stopped or first == last:
        return -np.inf
    return (log_values[last] - log_values[first]) / (last - first)


def _reason(
    optimizer: optax.GradientTransformation, num_steps: int, weights: _Weights, reach: Callable
) -> str:
    """Test whether updates are what `weights` say; return EXACT or what contradicts it."""
    rng = np.random.default_rng(0)
    coupled, tied = _dependence(optimizer, rng, min(num_steps, 16))
    sequences = _heavy_tailed(rng, 16, num_steps)
    updates, scaled = reach(np.concatenate([sequences, 1e10 * sequences])).reshape(2, -1)
    is_finite = np.isfinite(updates)
    words = "have finite updates at gradients around 1e50"
    hint = (
        "let it compute in its parameters' dtype, float64, as with mu_dtype=None; see that no "
        f"decay is 1, which 0.999 is in bfloat16; {INSIDE}"
    )
    require(is_finite.all(), "optimizer", words, next(iter(updates[~is_finite]), None), hint=hint)
    if coupled:
        return COUPLED
    if tied:
        return TIED
    a, b = weights.sign * np.exp(weights.log_a), np.exp(weights.log_b)
    predicted = sequences[:, ::-1] @ a / np.sqrt(sequences**2 @ b[::-1])
    up_to_sign = min(updates, -updates, key=lambda x: np.abs(x - predicted).sum())
    reason = _form(updates, scaled, np.sign(up_to_sign * updates) * predicted)
    return OTHER if reason == EXACT and not _reaches(reach, weights) else reason


def _form(updates: np.ndarray, scaled: np.ndarray, predicted: np.ndarray) -> str:
    """Judge the updates of random gradients, and of the same ones on another scale."""
    if np.median(np.abs(scaled / updates)) > 1e5:
        return UNBOUNDED
    if not _close(updates, scaled):
        return SCALED
    return EXACT if _close(updates, predicted) else OTHER


def _reaches(reach: Callable, weights: _Weights) -> bool:
    """Test the worst gradients too: clipped updates differ there from those of random gradients."""
    sequences = _attaining(weights)
    log_sizes = np.log(np.abs(sequences[:, ::-1]))
    log_squares = np.logaddexp.reduce(weights.log_b + 2 * log_sizes, axis=1)
    predicted = np.exp(np.logaddexp.reduce(weights.log_a + log_sizes, axis=1) - log_squares / 2)
    updates = np.abs(reach(sequences))
    # Except where a lag has no weight in the denominator, or one too small for float64.
    known = np.isfinite(predicted) & (log_squares > 2 * np.log(1e20))
    return not known.any() or bool(np.isclose(updates, predicted, rtol=1e-9, atol=0)[known].any())


def _dependence(optimizer, rng, num_steps) -> tuple[bool, bool]:
    """Return whether an entry's update changes with others' gradients, and with parameters.

    Weight decay is not counted: its part is the same for all gradients, and wherever the optimizer
    started. (Up to half the parameter, an optimizer that averages parameters may move, too.)
    """
    shapes = {"matrix": (2, 2), "vector": (2,)}
    first, second = (
        {name: _heavy_tailed(rng, num_steps, *shape) for name, shape in shapes.items()}
        for _ in range(2)
    )
    changed = {name: x.copy() for name, x in second.items()}
    changed["matrix"][:, 0, 0] = first["matrix"][:, 0, 0]
    runs = first, changed, first, second, second, first
    values, starts = np.array([0.0, 0.0, 1.0, 0.0, 1.0, 1.0]), np.array([0.0] * 5 + [1.0])
    gradients = jax.tree.map(lambda *x: np.stack(x), *runs)
    params = {name: np.multiply.outer(values, np.ones(shape)) for name, shape in shapes.items()}
    updates = jax.jit(jax.vmap(_last_update(optimizer)))(gradients, params, starts)
    plain, other, shifted, *seconds, started = np.asarray(updates["matrix"])[:, 0, 0]
    drift, second_drift, started_drift = shifted - plain, seconds[1] - seconds[0], started - plain
    is_decay = abs(drift) <= 0.5 or _close(drift, started_drift)
    return not _close(plain, other), not (_close(drift, second_drift) and is_decay)


def _heavy_tailed(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw gradients of both signs whose sizes span a dozen decades."""
    return 1e50 * rng.choice([-1.0, 1.0], shape) * np.exp(3 * rng.normal(size=shape))


def _close(x: np.ndarray, y: np.ndarray) -> bool:
    """Return whether two sets of updates agree to 1e-6 of their size."""
    size = np.sqrt(np.mean(np.square(y)))
    return bool(np.all(np.abs(x - y) <= 1e-6 * np.maximum(np.abs(y), np.maximum(size, 1e-30))))


def _impulses(optimizer: optax.GradientTransformation, num_steps: int) -> Callable:
    """Return a function from lags to r_j, NaN where ε or an underflow affects the update."""

    def update(lag, size):
        return _single(optimizer)(jnp.where(jnp.arange(num_steps) == num_steps - 1 - lag, size, 0))

    sizes = jnp.array([_IMPULSE, _IMPULSE * 1e-10])
    evaluate = jax.jit(jax.vmap(jax.vmap(update, (None, 0)), (0, None)))

    def impulses(lags):
        ratio, smaller = np.asarray(evaluate(jnp.asarray(lags), sizes)).T
        return np.where(np.isclose(ratio, smaller, rtol=1e-9, atol=0), ratio, np.nan)

    return impulses


def _measured_impulses(optimizer: optax.GradientTransformation, num_steps: int) -> np.ndarray:
    """Measure r_j at all lags, or at enough of them to interpolate the others."""
    impulses = _impulses(optimizer, num_steps)
    if num_steps <= _MAX_LANES:
        ratio = impulses(np.arange(num_steps))
        return ratio * (-1 if ratio[0] < 0 else 1)
    lags = np.unique(np.geomspace(1, num_steps, 512).astype(int)) - 1
    known = dict(zip(lags.tolist(), impulses(lags), strict=True))
    pairs = list(zip(lags[:-1].tolist(), lags[1:].tolist(), strict=True))
    while pairs := [(low, high) for low, high in pairs if high - low > 1]:
        middles = [(low + high) // 2 for low, high in pairs]
        padded = np.resize(middles, -(-len(middles) // 512) * 512)  # few shapes, few compilations
        measured = impulses(padded)[: len(middles)]
        finer = []
        for (low, high), middle, value in zip(pairs, middles, measured, strict=True):
            share = (middle - low) / (high - low)
            between = _geometric(known[low], known[high], share)
            known[middle] = value
            if not (np.isclose(between, value, rtol=1e-9, atol=0) or len(known) > 4 * _MAX_LANES):
                finer += [(low, middle), (middle, high)]
        pairs = finer
    lags = np.array(sorted(known))
    values = np.array([known[lag] for lag in lags])
    place = np.clip(np.searchsorted(lags, np.arange(num_steps), "right") - 1, 0, len(lags) - 2)
    share = (np.arange(num_steps) - lags[place]) / (lags[place + 1] - lags[place])
    ratio = _geometric(values[place], values[place + 1], share)
    return ratio * (-1 if ratio[0] < 0 else 1)


def _geometric(low: np.ndarray, high: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Interpolate geometrically between two numbers of the same sign, linearly between others."""
    same = low * high > 0
    size = np.exp((1 - share) * np.log(np.abs(low)) + share * np.log(np.abs(high)))
    return np.where(same, np.sign(low) * size, (1 - share) * low + share * high)


def _log_impulses(optimizer: optax.GradientTransformation, num_steps: int) -> np.ndarray:
    """Return ln|r_j|; -inf where updates stop, NaN where float64 has no value."""
    weights, reason = _read(optimizer, num_steps)
    if reason == EXACT:
        return weights.log_ratio
    return np.log(np.abs(_measured_impulses(optimizer, num_steps)))


def _suprema(optimizer: optax.GradientTransformation, num_steps: int) -> np.ndarray:
    """Return the suprema at all steps, each of which must be exact; each impulse has its own lane.

    The impulse G of step i makes the update r_j at step n = i+j, whose derivative with respect to
    g_n is a_0 / (√b_j G). So each step's weights are known, and predict random sequences.
    """
    num_steps = _check(optimizer, num_steps)
    weights, reason = _read(optimizer, num_steps)
    params, lanes = jnp.zeros((1, 1)), jnp.arange(num_steps)
    random = _heavy_tailed(np.random.default_rng(0), 8, num_steps)
    sequences = jnp.concatenate([random, 1e10 * random])

    def move(state, gradient):
        def update(gradient):
            updates, after = optimizer.update(gradient[None, None], state, params)
            return jnp.asarray(updates)[0, 0], after

        return jax.jvp(update, (gradient,), (jnp.ones_like(gradient),), has_aux=True)

    def advance(state, n):
        impulses = jnp.where(lanes == n, jnp.array(_IMPULSE), 0)
        gradients = jnp.concatenate([impulses, sequences[:, n]])
        updates, slopes, state = jax.vmap(move)(state, gradients)
        ratio = jnp.where(lanes <= n, updates[:num_steps], 0)  # 0/0 before an impulse if ε = 0
        slope = slopes[:num_steps] * _IMPULSE
        root = jnp.where(slope == 0, 1, jnp.abs(ratio[n] / slope))
        root = jnp.where(lanes < n, root, lanes == n)
        square = jnp.square(sequences) @ jnp.square(root)
        predicted = sequences @ (ratio * root) / jnp.sqrt(square)
        return state, (jnp.linalg.norm(ratio), updates[num_steps:], predicted)

    start = jax.vmap(lambda _: optimizer.init(params))(jnp.arange(num_steps + len(sequences)))
    every = jax.jit(lambda: jax.lax.scan(advance, start, lanes)[1])()
    suprema, updates, predicted = map(np.asarray, every)
    words = "have exact worst cases at all steps"
    hint = "give the decays (b1, b2) of an Adam whose supremum bounds it, if there is one"
    reasons = [_form(x[:8], x[8:], y[:8]) for x, y in zip(updates, predicted, strict=True)]
    for n, at_step in enumerate([*reasons[:-1], reason]):
        got = f"at step {n}: {at_step}"
        require(at_step == EXACT, "optimizer", words, got, hint=hint)
    last = np.exp(weights.log_supremum)
    words = "have impulse responses that float64 holds for num_steps steps"
    hint = "give its decays, or fewer steps"
    require(np.isclose(suprema[-1], last, rtol=1e-6), "optimizer", words, suprema[-1], hint=hint)
    return suprema


def _attaining(weights: _Weights) -> np.ndarray:
    """Return gradients proportional to a_j/b_j at scales that float64 may hold, oldest first.

    If lags without weight in the denominator make the supremum infinite, they get 1e110 and the
    others 1.
    """
    log_sizes = np.where(weights.sign == 0, -np.inf, weights.log_a - weights.log_b)
    free = np.isposinf(log_sizes)
    if free.any():
        log_sizes = np.where(free, np.log(1e110), 0.0)
    elif np.isfinite(weights.log_supremum):
        log_sizes -= weights.log_supremum
    largest = np.log(1e150)
    shifts = np.log(1e40), largest - log_sizes.max()  # large compared with any ε; all of them
    sequences = [np.where(x > largest + 1, 0, np.exp(x)) for x in (log_sizes + c for c in shifts)]
    return (np.where(free, 1, weights.sign) * np.nan_to_num(sequences))[:, ::-1]


def _candidates(num_steps: int) -> np.ndarray:
    """Return sequences from which ascents may start, each with largest modulus 1."""
    lag = np.arange(num_steps - 1, -1, -1.0)
    rng = np.random.default_rng(0)
    rates = np.log([0.3, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999, 1.001, 1.01, 1.05, 1.1, 1.25, 2, 4])
    sizes = np.outer(rates, lag)
    geometric = np.exp(np.maximum(sizes - sizes.max(axis=1, keepdims=True), -300))
    after_one = geometric.copy()
    after_one[:, 0] *= 1e30  # a first gradient after which all others are small
    recent = np.where(lag < np.array([[3], [10], [30], [100]]), 1, 1e-20)
    noise = rng.choice([-1.0, 1.0], (3, num_steps)) * np.exp(
        np.array([[0.5], [2], [5]]) * rng.normal(size=(3, num_steps))
    )
    plain = np.concatenate([np.ones((1, num_steps)), geometric, recent, 1e-20 / recent])
    every = np.concatenate([plain, plain * (-1) ** lag, after_one, noise])
    return every / np.abs(every).max(axis=1, keepdims=True)


def _search(
    optimizer: optax.GradientTransformation, num_steps: int, search_steps: int, reach: Callable
) -> tuple[np.ndarray, float]:
    """Ascend from the best candidates, first in the sizes of gradients and then in gradients."""
    single = _single(optimizer)
    sequences = _LARGE * _candidates(num_steps)
    reached = np.nan_to_num(np.abs(reach(sequences)))
    starts = sequences[np.argsort(-reached, kind="stable")[:8]]
    ascent = optax.chain(
        optax.scale_by_adam(0.9, 0.95),
        optax.scale_by_schedule(optax.cosine_decay_schedule(0.3, search_steps)),
    )

    def climb(gradients, point, place):
        def height(point):
            return jnp.log(jnp.abs(single(place(gradients, point))) + 1e-300)

        def advance(carry, _):
            point, state, highest, best = carry
            value, slope = jax.value_and_grad(height)(point)
            best = jnp.where(value > highest, point, best)
            step, state = ascent.update(jnp.nan_to_num(slope, posinf=0.0, neginf=0.0), state)
            return (point + step, state, jnp.fmax(value, highest), best), None

        start = point, ascent.init(point), -jnp.inf, point
        (_, _, _, best), _ = jax.lax.scan(advance, start, None, search_steps)
        return place(gradients, best)

    @jax.jit
    @jax.vmap
    def ascend(gradients):
        gradients = climb(gradients, jnp.zeros(num_steps), lambda g, x: g * jnp.exp(x))
        floor = 1e-60 * jnp.max(jnp.abs(gradients))  # 0 could not move
        sizes = jnp.maximum(jnp.abs(gradients), floor)
        return climb(sizes, jnp.sign(gradients), lambda g, x: g * x)

    sequences = np.concatenate([starts, ascend(jnp.asarray(starts))])
    reached = np.nan_to_num(np.abs(reach(sequences)))
    best = np.argmax(reached)
    return sequences[best], reached[best]
