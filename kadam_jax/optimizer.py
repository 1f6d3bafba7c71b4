"""k-Adam: adaptive normalization applied k times in succession.

Algorithm 1 of Gould and Tanaka, `arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_.
"""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike, DTypeLike

from kadam_jax._checks import NOT_NEGATIVE, check_bool, check_hyperparameter, is_known, require
from kadam_jax._numerics import accumulator_dtype
from kadam_jax.normalization import (
    ScaleByAdaptiveNormalizationState,
    check_decays,
    check_not_negative,
    init_stage,
    narrowed,
    normalize,
    widened,
    with_params,
)
from kadam_jax.strategies import Decays, stage_decays


def scale_by_kadam(
    k: int = 2,
    b1: Decays = 0.9,
    b2: Decays = 0.999,
    eps: ArrayLike = 1e-30,
    *,
    strategy: str = "inverse_exp",
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Rescale updates by k adaptive normalizations in succession.

    .. math::

        u_n^{(0)} = g_n, \qquad
        u_n^{(i)} = \mathcal{A}_{\gamma_i, \beta_i}\big(u_{0:n}^{(i-1)}\big), \quad i = 1, \dots, k

    with :math:`\mathcal{A}` as in `scale_by_adaptive_normalization`. k = 1 is
    `optax.scale_by_adam`; 2-Adam with γ₂ = 0 models Adam on a scale-invariant weight. Nothing is
    rounded between the stages: updates are cast to at least float32 on the way in, and on
    the way out to the promoted dtype of gradient and parameter, if parameters are given.

    Args:
      k: number of stages, a Python int; each k needs its own compiled program.
      b1: γ̃, a scalar in [0, 1) that `strategy` turns into the stages' decays; or the k values
        γ_1, ..., γ_k themselves, as a sequence or a 1-D array. May be traced.
      b2: β̃ or the k values β_1, ..., β_k, in the same way.
      eps: added to every stage's bias-corrected root. May be traced.
      strategy: how scalars become per-stage decays, see `per_stage_decays`.
      mu_dtype: dtype in which every stage's `mu` is stored, complex where the parameter is.

    Returns:
      A transformation whose updates are in units of the learning rate, not yet negated. Its state
      is one `ScaleByAdaptiveNormalizationState` with the k trees of `mu` and of `rms` in k-tuples
      if k > 1, so `optax.tree.get(state, "mu")` finds them. In place of Adam's `nu` it has the
      root, so square it: `jax.tree.map(jnp.square, optax.tree.get(state, "rms"))`. `update`
      also accepts the k states of a chain of single stages.

    Raises:
      TypeError: `k` is not a Python int, `strategy` not a string, or a decay is a JAX array of less
        than float32's precision, in which 1 minus the decay is inaccurate. `update` raises
        it for a state of `optax.adam`; see `convert_adam_state`.
      ValueError: `k` is less than 1, `strategy` is unknown, a sequence of decays does not have k
        entries, or a concrete value is out of range. `update` raises it if the gradients do not
        have the parameters' structure.

    Examples:
      >>> import jax.numpy as jnp
      >>> two_adam = scale_by_kadam(k=2)
      >>> params = jnp.zeros(3)
      >>> updates, state = two_adam.update(jnp.array([2.0, -3e-12, 0.0]), two_adam.init(params))
      >>> updates.round(5).tolist(), len(state.mu)
      ([1.0, -1.0, 0.0], 2)

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §4.3, Definition 3, Algorithm 1.
    """
    b1s = stage_decays("b1", b1, k, strategy, check_decays)
    b2s = stage_decays("b2", b2, k, strategy, check_decays)
    check_not_negative("eps", eps)

    def init_fn(params):
        return _joined([init_stage(params, mu_dtype) for _ in range(k)])

    def update_fn(updates, state, params=None, **extra_args):
        del extra_args
        stages = _stages(state, updates, k)
        updates, stages = normalize(updates, stages, b1s, b2s, eps, params=params)
        return updates, stages if type(state) is tuple else _joined(stages)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _joined(stages) -> ScaleByAdaptiveNormalizationState:
    """Join the states of the stages, all of which have the same count, into k-Adam's."""
    if len(stages) == 1:
        return stages[0]
    counts, mu, rms = zip(*stages, strict=True)
    return ScaleByAdaptiveNormalizationState(counts[0], mu, rms)


def _stages(state, updates, k) -> tuple[ScaleByAdaptiveNormalizationState, ...]:
    """Return the k stages' states from k-Adam's state or that of a chain."""
    stages = state if type(state) is tuple else (state,)
    for stage in stages:
        is_ours = isinstance(stage, ScaleByAdaptiveNormalizationState)
        _require_state(is_ours, type(stage).__name__)
    if len(stages) == 1 and _holds_stages(stages[0], jax.tree.structure(updates), k):
        count, *trees = stages[0]
        stages = tuple(
            ScaleByAdaptiveNormalizationState(count, *pair) for pair in zip(*trees, strict=True)
        )
    require(len(stages) == k, "state", f"have k={k} stages", len(stages))
    return stages


def _require_state(is_ours, got):
    hint = (
        "`init` returns one, and a checkpoint is restored as one if that is its target; "
        "`convert_adam_state` turns optax.adam's state into that of k = 1"
    )
    require(is_ours, "state", "be a state of k-Adam", got, hint=hint, error=TypeError)


def _holds_stages(state, structure, k) -> bool:
    """Return whether `mu` and `rms` are tuples of stages' trees, not a tree that is a tuple."""
    if type(state.rms) is not tuple or jax.tree.structure(state.rms) == structure:
        return False
    return k > 1 or all(jax.tree.structure(tree) == structure for tree in state.rms)


def kadam(
    learning_rate: optax.ScalarOrSchedule,
    k: int = 2,
    b1: Decays = 0.9,
    b2: Decays = 0.999,
    eps: ArrayLike = 1e-30,
    *,
    strategy: str = "inverse_exp",
    weight_decay: optax.ScalarOrSchedule = 0.0,
    coupled: bool = False,
    mask: Any | Callable[[optax.Params], Any] | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""The k-Adam optimizer; k = 1 is Adam (coupled decay) or AdamW (decoupled).

    .. math::

        \theta_{n+1} = \theta_n - \eta_n \big(u_n^{(k)} + \lambda \theta_n\big)

    with :math:`u^{(k)}` as in `scale_by_kadam`, η = `learning_rate`, λ = `weight_decay`. With
    `coupled` the decay enters the first stage as :math:`g_n + \lambda \theta_n` instead.

    Args:
      learning_rate: η, a scalar (may be traced) or a schedule of the step count.
      k, b1, b2, eps, strategy, mu_dtype: see `scale_by_kadam`.
      weight_decay: λ, a scalar (may be traced) or a schedule. If it is 0 and not traced, `update`
        does not need `params`.
      coupled: whether the decay passes through the normalization; static.
      mask: which parameters decay: a tree of booleans, a prefix of one, or a function from the
        parameters to one, as in `optax.adamw`.

    Returns:
      A transformation whose updates are added to the parameters by `optax.apply_updates`. Decay
      and learning rate are applied in at least float32, and the result is rounded once, to the
      promoted dtype of gradient and parameter, if parameters are given. The state is a tuple like
      that of `optax.adamw`, whatever the hyperparameters: the state of `scale_by_kadam`, then those
      of the decay and of the learning rate.

    Raises:
      TypeError, ValueError: as in `scale_by_kadam`; also if `learning_rate` or `weight_decay` is
        neither a schedule nor a number of at least 0, or `coupled` not a Python bool. `update`
        raises ValueError if the decay needs `params` and gets none.

    Examples:
      >>> import jax, jax.numpy as jnp, optax
      >>> loss = lambda w: jnp.sum((w - 3.0) ** 2)
      >>> optimizer = kadam(0.1, k=2, weight_decay=1e-4)
      >>> w = jnp.zeros(2)
      >>> state = optimizer.init(w)
      >>> for _ in range(200):
      ...     updates, state = optimizer.update(jax.grad(loss)(w), state, w)
      ...     w = optax.apply_updates(w, updates)
      >>> bool(loss(w) < 0.1)
      True

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §4.3, Definition 3, Algorithm 1, Appendix A, Appendix P.
    """
    for name, rate in (("learning_rate", learning_rate), ("weight_decay", weight_decay)):
        if not callable(rate):
            hint = "or a schedule, a function of the step count"
            check_hyperparameter(name, rate, NOT_NEGATIVE, hint=hint)
    check_bool("coupled", coupled, hint="in a sweep make it a static axis")
    if isinstance(mask, (bool, jax.Array)):  # a mask that was called as a schedule
        raise TypeError(
            f"mask must be a tree of bools or a function, got {mask!r}; with "
            "optax.inject_hyperparams pass static_args=('mask', ...)"
        )
    stages = scale_by_kadam(k, b1, b2, eps, strategy=strategy, mu_dtype=mu_dtype)
    is_function = callable(mask) and jax.tree_util.all_leaves([mask])  # not a callable tree
    decay = optax.add_decayed_weights(weight_decay, mask)
    rate = optax.scale_by_learning_rate(learning_rate)
    is_idle = not callable(weight_decay) and is_known(weight_decay) and weight_decay == 0

    def init_fn(params):
        return stages.init(params), decay.init(params), rate.init(params)

    def decayed(updates, state, params):
        if is_idle:
            return updates, state
        if params is None:
            raise ValueError(
                "update must get the parameters (params) if weight_decay is not 0 or is traced"
                "; optax.inject_hyperparams traces all but its static_args"
            )
        leaves = [param for _, param in with_params(updates, params)]
        params = jax.tree.structure(updates).unflatten(leaves)
        # optax would pass `updates`, which have other dtypes, to the mask.
        chosen = mask(params) if callable(mask) and is_function else mask
        of_params = (lambda updates: chosen) if is_function else chosen
        decay = optax.add_decayed_weights(weight_decay, of_params)
        with jax.numpy_dtype_promotion("standard"):
            return decay.update(updates, state, jax.tree.map(_wide, params))

    def update_fn(updates, state, params=None, **extra_args):
        del extra_args
        _require_state(type(state) is tuple and len(state) == 3, f"one of {type(state).__name__}")
        of_stages, of_decay, of_rate = cast(Any, state)
        wide = widened(updates)
        if coupled:
            wide, of_decay = decayed(wide, of_decay, params)
        wide, of_stages = stages.update(wide, of_stages)
        if not coupled:
            wide, of_decay = decayed(wide, of_decay, params)
        with jax.numpy_dtype_promotion("standard"):
            wide, of_rate = rate.update(wide, of_rate)
        return narrowed(wide, updates, params), (of_stages, of_decay, of_rate)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _wide(param):
    """Cast a floating-point or complex parameter to at least float32; leave all else alone."""
    dtype = getattr(param, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.inexact):
        return param
    return param.astype(accumulator_dtype(dtype))
