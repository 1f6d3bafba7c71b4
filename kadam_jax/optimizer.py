"""k-Adam: adaptive normalisation applied k times in succession.

Algorithm 1 of Gould and Tanaka, `arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike, DTypeLike

from kadam_jax.normalization import check_decays, check_not_negative, init_stage, normalize
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
    r"""Rescale updates by k adaptive normalisations in succession.

    .. math::

        u_n^{(0)} = g_n, \qquad
        u_n^{(i)} = \mathcal{A}_{\gamma_i, \beta_i}\big(u_{0:n}^{(i-1)}\big), \quad i = 1, \dots, k

    with :math:`\mathcal{A}` as in `scale_by_adaptive_normalization`. k = 1 is
    `optax.scale_by_adam`; 2-Adam with γ₂ = 0 stands for Adam on a scale-invariant weight. Between
    the stages nothing is rounded: updates are cast to at least float32 on the way in and back to
    the gradient's dtype on the way out.

    Args:
      k: number of stages, a Python int; each k is a program of its own.
      b1: γ̃, a scalar in [0, 1) that `strategy` turns into the stages' decays; or the k values
        γ_1, ..., γ_k themselves, as a sequence or a 1-D array. May be traced.
      b2: β̃ or the k values β_1, ..., β_k, in the same way.
      eps: added to every stage's bias-corrected root. May be traced.
      strategy: how scalars become per-stage decays, see `per_stage_decays`.
      mu_dtype: dtype in which every stage's `mu` is stored.

    Returns:
      A transformation whose state is a k-tuple of `ScaleByAdaptiveNormalizationState` and whose
      updates are in units of the learning rate, not yet negated.

    Raises:
      TypeError: `k` is not a Python int, or `strategy` not a string.
      ValueError: `k` is less than 1, `strategy` is unknown, a sequence of decays has not k
        entries, or a concrete value is out of range.

    Examples:
      >>> import jax.numpy as jnp
      >>> two_adam = scale_by_kadam(k=2)
      >>> params = jnp.zeros(3)
      >>> updates, state = two_adam.update(jnp.array([2.0, -3e-12, 0.0]), two_adam.init(params))
      >>> updates.round(5).tolist(), len(state)
      ([1.0, -1.0, 0.0], 2)

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §4.3, Definition 3, Algorithm 1.
    """
    b1s = stage_decays("b1", b1, k, strategy, check_decays)
    b2s = stage_decays("b2", b2, k, strategy, check_decays)
    check_not_negative("eps", eps)

    def init_fn(params):
        return tuple(init_stage(params, mu_dtype) for _ in range(k))

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        if len(state) != k:
            raise ValueError(f"state has {len(state)} stages, but k is {k}: it is of another k")
        return normalize(updates, state, b1s, b2s, eps)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


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
    r"""k-Adam; k = 1 is Adam (coupled decay) or AdamW (decoupled).

    .. math::

        \theta_{n+1} = \theta_n - \eta_n \big(u_n^{(k)} + \lambda \theta_n\big)

    with :math:`u^{(k)}` as in `scale_by_kadam`, η = `learning_rate`, λ = `weight_decay`. With
    `coupled` the decay enters the first stage as :math:`g_n + \lambda \theta_n` instead.

    Args:
      learning_rate: η, a scalar (may be traced) or a schedule of the step count.
      k, b1, b2, eps, strategy, mu_dtype: see `scale_by_kadam`.
      weight_decay: λ, a scalar (may be traced) or a schedule. A static 0 leaves no trace: the
        optimizer then needs no `params` (`optax.inject_hyperparams` makes it traced).
      coupled: whether the decay passes through the normalisation; static.
      mask: which parameters decay: a tree of booleans, a prefix of one, or a function from the
        parameters to one, as in `optax.adamw`.

    Returns:
      A transformation whose updates are added to the parameters by `optax.apply_updates`; they
      have the gradients' dtypes.

    Raises:
      TypeError, ValueError: as `scale_by_kadam`; for a `learning_rate` or `weight_decay` that is
        neither a schedule nor a number of at least 0. `update` raises ValueError where decay needs
        `params` and got none.

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
    _check_rate("learning_rate", learning_rate)
    _check_rate("weight_decay", weight_decay)
    if isinstance(mask, (bool, jax.Array)):  # what a mask returns when called as a schedule
        raise TypeError(
            f"mask must be a tree of bools or a function, got {mask!r}; with "
            "optax.inject_hyperparams pass static_args=('mask', ...)"
        )
    stages = [scale_by_kadam(k, b1, b2, eps, strategy=strategy, mu_dtype=mu_dtype)]
    if not (isinstance(weight_decay, (int, float)) and weight_decay == 0):
        decay = optax.add_decayed_weights(weight_decay, mask)
        stages = [decay, *stages] if coupled else [*stages, decay]
    return _keeping_dtypes(optax.chain(*stages, optax.scale_by_learning_rate(learning_rate)))


def _check_rate(name: str, rate: Any) -> None:
    """Raise TypeError or ValueError for what is no schedule and no number of at least 0."""
    if callable(rate):
        return
    try:
        check_not_negative(name, rate)
    except TypeError as error:
        raise TypeError(f"{name} must be a number or a schedule, got {rate!r}") from error


def _keeping_dtypes(
    inner: optax.GradientTransformationExtraArgs,
) -> optax.GradientTransformationExtraArgs:
    """`inner`, its updates cast to the gradients' dtypes: a traced λ or η is strongly typed."""

    def update_fn(updates, state, params=None, **extra_args):
        new_updates, state = inner.update(updates, state, params, **extra_args)
        return jax.tree.map(lambda u, g: u.astype(jnp.result_type(g)), new_updates, updates), state

    return optax.GradientTransformationExtraArgs(inner.init, update_fn)
