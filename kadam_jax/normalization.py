"""Adaptive normalisation: an average of the updates over the root of an average of their squares.

`normalize` runs any number of stages over a tree; one stage is an optax transformation here, k of
them are k-Adam in `kadam_jax.optimizer`. Definition 2 of Gould and Tanaka,
`arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jax.typing import ArrayLike, DTypeLike

from kadam_jax._numerics import accumulator_dtype, average_weight, hypot, quotient


class ScaleByAdaptiveNormalizationState(NamedTuple):
    """State of one stage; neither average is bias-corrected."""

    count: jax.Array  # shape=(), dtype=int32, saturating: steps done
    mu: optax.Updates  # moving average of the incoming updates
    rms: optax.Updates  # root of the moving average of their squared modulus: real, >= float32


class Coefficients(NamedTuple):
    """The scalars of one stage at one step.

    All come from 1-γ and 1-β, each rounded once: a γ or β near 1, rounded itself, would have lost
    the digits that its gain is made of: float32's 0.9998 is 1.3e-4 off in 1-β.
    """

    mu_gain: jax.Array  # 1-γ, what m loses at a step and takes from the gradient
    rms_loss: jax.Array  # 1-√β
    rms_gain: jax.Array  # √(1-β)
    correction: jax.Array  # √(1-β^(n+1)) / (1-γ^(n+1))
    eps: jax.Array  # ε √(1-β^(n+1)), so that ε stands outside the bias-corrected root


def scale_by_adaptive_normalization(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-30,
    *,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Normalise the history of updates: :math:`u_n = \mathcal{A}_{\gamma,\beta}(g_{0:n})`.

    .. math::

        m_n &= \gamma m_{n-1} + (1-\gamma) g_n, \qquad v_n = \beta v_{n-1} + (1-\beta) |g_n|^2 \\
        u_n &= \frac{m_n / (1-\gamma^{n+1})}{\sqrt{v_n / (1-\beta^{n+1})} + \varepsilon}

    with γ = `b1`, β = `b2`, ε = `eps` and 0/0 = 0. The state keeps :math:`\sqrt{v}` as `rms`:
    multiplying every gradient by a power of two then leaves the update the same to the last bit,
    where a float32 :math:`v` underflows below \|g\| = 3.4e-18 and overflows above 1.8e19. ε stands
    outside the bias-corrected root, as in `optax.scale_by_adam`; the paper's Algorithm 1 writes it
    beside the uncorrected root, and at 1e-30 the two cannot be told apart.

    Both averages have at least float32 precision whatever the dtype of the parameters, and the
    update has the dtype of the gradient it was made from.

    Args:
      b1: decay of the average of the updates, in [0, 1); 0 gives RMSprop with bias correction. May
        be traced, like `b2` and `eps`.
      b2: decay of the average of the squared updates, in [0, 1); `b1` = `b2` = 0 gives signSGD.
      eps: added to the bias-corrected root, in units of the gradient.
      mu_dtype: dtype in which `mu` is stored; it wins over the float32 floor.

    Returns:
      A transformation whose updates are in units of the learning rate, not yet negated.

    Raises:
      ValueError: a concrete `b1` or `b2` is outside [0, 1), or a concrete `eps` is negative.
      TypeError: a gradient is not floating point or complex (raised by `update`).

    Examples:
      >>> import jax.numpy as jnp
      >>> normalise = scale_by_adaptive_normalization(b1=0.9, b2=0.999)
      >>> params = {"w": jnp.ones(2)}
      >>> updates, _ = normalise.update({"w": jnp.array([1e-9, -4.0])}, normalise.init(params))
      >>> updates["w"].round(5).tolist()
      [1.0, -1.0]

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §2.1, Definition 1, Definition 2, Algorithm 1, Appendix A, Appendix B.
    """
    check_decays("b1", [b1])
    check_decays("b2", [b2])
    check_not_negative("eps", eps)

    def init_fn(params):
        return init_stage(params, mu_dtype)

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        updates, (state,) = normalize(updates, (state,), (b1,), (b2,), eps)
        return updates, state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def init_stage(params, mu_dtype: DTypeLike | None) -> ScaleByAdaptiveNormalizationState:
    """A stage that has seen nothing; sharded as `params` are."""
    if mu_dtype is not None and not jnp.issubdtype(mu_dtype, jnp.inexact):
        raise TypeError(f"mu_dtype must be floating point or complex, got {mu_dtype!r}")

    def zeros(dtype_of):
        return jax.tree.map(lambda p: jnp.zeros_like(p, dtype=dtype_of(jnp.result_type(p))), params)

    return ScaleByAdaptiveNormalizationState(
        count=jnp.zeros([], jnp.int32),
        mu=zeros(accumulator_dtype if mu_dtype is None else lambda _: mu_dtype),
        rms=zeros(lambda dtype: jnp.finfo(accumulator_dtype(dtype)).dtype),
    )


def normalize(
    updates: optax.Updates,
    states: Sequence[ScaleByAdaptiveNormalizationState],
    b1s: Sequence[ArrayLike],
    b2s: Sequence[ArrayLike],
    eps: ArrayLike,
    moduli: Any = None,
) -> tuple[optax.Updates, tuple[ScaleByAdaptiveNormalizationState, ...]]:
    """Pass `updates` through the stages in turn, cast once going in and once coming out.

    `moduli`, a tree like `updates` with the shapes of the first stage's `rms`, stands for their
    moduli in its second moment.
    """
    leaves, treedef = jax.tree.flatten(updates)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise TypeError(
                f"updates must be floating point or complex, got a leaf of {leaf.dtype}; mask it "
                "out (optax.masked) or differentiate with respect to the other leaves alone"
            )
    # The state decides about precision, whatever the gradients' own.
    roots = treedef.flatten_up_to(states[0].rms)
    inputs = [
        leaf.astype(
            jnp.promote_types(root.dtype, jnp.complex64) if jnp.iscomplexobj(leaf) else root.dtype
        )
        for leaf, root in zip(leaves, roots, strict=True)
    ]
    if moduli is None:
        inputs = [(x, jnp.abs(x)) for x in inputs]
    else:
        given = zip(inputs, treedef.flatten_up_to(moduli), roots, strict=True)
        inputs = [(x, modulus.astype(root.dtype)) for x, modulus, root in given]
    new_states = []
    for state, b1, b2 in zip(states, b1s, b2s, strict=True):
        count = jnp.asarray(optax.safe_increment(state.count))
        real_dtypes = {modulus.dtype for _, modulus in inputs}
        coefficients = {d: _coefficients(b1, b2, eps, count, d) for d in real_dtypes}
        mus, rmss = treedef.flatten_up_to(state.mu), treedef.flatten_up_to(state.rms)
        outputs = [
            _advance(*x, mu, rms, coefficients[rms.dtype])
            for x, mu, rms in zip(inputs, mus, rmss, strict=True)
        ]
        inputs = [(u, modulus) for u, modulus, _, _ in outputs]
        new_states.append(
            ScaleByAdaptiveNormalizationState(
                count,
                mu=treedef.unflatten(mu for _, _, mu, _ in outputs),
                rms=treedef.unflatten(rms for _, _, _, rms in outputs),
            )
        )
    updates = treedef.unflatten(
        u.astype(leaf.dtype) for (u, _), leaf in zip(inputs, leaves, strict=True)
    )
    return updates, tuple(new_states)


@jax.jit  # one trace for each shape, however many leaves and stages share it
def _advance(x, modulus, mu, rms, c: Coefficients):
    """One stage on one leaf: (x, |x|, mu, rms) -> (u, |u|, mu, rms).

    |u| is made beside u, not from it. The next stage averages both, and were both made from one u,
    XLA's CPU backend would write u out in full between the stages, a fresh page for every 4 KB of
    it; this way each average divides for itself and nothing but the state touches memory.
    """
    old_mu = mu.astype(x.dtype)
    new_mu = old_mu - c.mu_gain * old_mu + c.mu_gain * x  # exactly x where the gain is 1
    new_rms = hypot(rms - c.rms_loss * rms, c.rms_gain * modulus)
    numerator = c.correction * new_mu
    u, new_modulus = (quotient(x, new_rms, c.eps) for x in (numerator, jnp.abs(numerator)))
    return u, new_modulus, new_mu.astype(mu.dtype), new_rms


def _coefficients(b1, b2, eps, count, dtype) -> Coefficients:
    """A stage's scalars, in the real `dtype` of a leaf, at the step that brings it to `count`."""
    mu_gain, square_gain = (jnp.asarray(1 - b, dtype) for b in (b1, b2))
    root = jnp.sqrt(average_weight(square_gain, count))
    return Coefficients(
        mu_gain=mu_gain,
        rms_loss=square_gain / (1 + jnp.sqrt(1 - square_gain)),
        rms_gain=jnp.sqrt(square_gain),
        correction=root / average_weight(mu_gain, count),
        eps=root * jnp.asarray(eps, dtype),
    )


def check_decays(name: str, decays: Iterable[Any], *, open_at_zero: bool = False) -> None:
    """Raise TypeError or ValueError for a concrete decay that is no number in [0, 1) or (0, 1)."""
    for decay in decays:
        if isinstance(decay, Tracer):
            continue
        number = _number(name, decay)
        if not 0 <= number < 1 or (open_at_zero and number == 0):
            interval = "(0, 1)" if open_at_zero else "[0, 1)"
            raise ValueError(f"{name} must be in {interval}, got {decay}")


def check_not_negative(name: str, value: ArrayLike) -> None:
    """Raise TypeError or ValueError for a concrete `value` that is no finite number from 0 on."""
    if not isinstance(value, Tracer) and not 0 <= _number(name, value) < np.inf:
        raise ValueError(f"{name} must be finite and at least 0, got {value}")


def _number(name: str, value: ArrayLike) -> np.ndarray:
    array = np.asarray(value)
    if array.ndim or array.dtype.kind == "c" or not jnp.issubdtype(array.dtype, np.number):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return array
