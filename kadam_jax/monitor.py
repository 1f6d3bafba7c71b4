"""Transformations that leave updates unchanged and record quantities in their state.

Put them where the quantity is: `record_dead_gradients` before the optimizer's stages, where
gradients pass, and `record_max_update` after them, where u_n passes. The measured quantities are
defined in Section 3 of Gould and Tanaka, `arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_.

Inside `jax.shard_map` each shard records its own part: `jax.lax.pmax` of the maxima over the mesh's
axes, or `jax.lax.pmean` of the shares if shards have equal sizes, gives the value for the whole.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from kadam_jax._checks import DECAY, NOT_NEGATIVE, check_hyperparameter, check_integer
from kadam_jax._numerics import (
    accumulator_dtype,
    average_weight,
    modulus,
    promoted,
    root_mean_square,
)


class RecordMaxUpdateState(NamedTuple):
    """State of `record_max_update`."""

    count: jax.Array  # shape=(), dtype=int32, saturating: steps done
    max_update: jax.Array  # shape=(), ‖u_n‖∞ of the latest step
    maxima: jax.Array  # shape=(num_steps,), ‖u_n‖∞ of steps 0..num_steps-1; 0 for future steps

    @property
    def history(self) -> jax.Array:
        """Return `maxima` with NaN for future steps; the state has no NaN, for `jax_debug_nans`."""
        with jax.debug_nans(False):
            steps = jax.lax.broadcasted_iota(
                jnp.int32, jnp.shape(self.maxima), self.maxima.ndim - 1
            )
            is_done = steps < jnp.expand_dims(self.count, -1)
            return jnp.where(is_done, self.maxima, jnp.nan)


def record_max_update(num_steps: int = 0) -> optax.GradientTransformationExtraArgs:
    r"""Record the max-update :math:`\|u_n\|_\infty`, the largest modulus over all entries.

    Args:
      num_steps: how many steps to keep in `history`, for a loop that does not read `max_update`
        after each step; later steps are not kept.

    Returns:
      A transformation that leaves updates unchanged. Between `scale_by_kadam` and the learning
      rate, the max-update is in units of the learning rate.

    Raises:
      ValueError: `num_steps` is negative.
      TypeError: `num_steps` is not a Python int.

    Examples:
      >>> import jax.numpy as jnp, optax
      >>> optimizer = optax.chain(optax.scale_by_adam(), record_max_update(2), optax.scale(-1e-3))
      >>> state = optimizer.init(jnp.zeros(3))
      >>> _, state = optimizer.update(jnp.array([1.0, 0.0, -2.0]), state)
      >>> round(float(state[1].max_update), 3), state[1].history.round(3).tolist()
      (1.0, [1.0, nan])

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §3.1.
    """
    num_steps = check_integer("num_steps", num_steps, 0)

    def init_fn(params):
        zero = jnp.zeros_like(_largest(_moduli(params)))
        maxima = jnp.zeros_like(zero, shape=(num_steps,))
        return RecordMaxUpdateState(jnp.zeros([], jnp.int32), zero, maxima)

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        max_update = _largest(_moduli(updates)).astype(state.max_update.dtype)
        is_now = jnp.arange(num_steps, dtype=jnp.int32) == state.count
        return updates, RecordMaxUpdateState(
            count=jnp.asarray(optax.safe_increment(state.count)),
            max_update=max_update,
            maxima=jnp.where(is_now, max_update, state.maxima),
        )

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


class RecordDeadGradientsState(NamedTuple):
    """State of `record_dead_gradients`."""

    count: jax.Array  # shape=(), dtype=int32, saturating: steps done
    rms: optax.Updates  # root of the average of the squared moduli, not bias-corrected
    zero_share: jax.Array  # shape=(), share of entries that are exactly 0 at the latest step
    dead_share: jax.Array  # shape=(), share of entries that are 0 or below threshold * rms_hat


def record_dead_gradients(
    b2: ArrayLike = 0.999, threshold: ArrayLike = 1e-3
) -> optax.GradientTransformationExtraArgs:
    r"""Record the share of the gradient's entries that are exactly zero or nearly zero.

    An entry is dead if it is 0 or if :math:`|g| < \tau \sqrt{\hat v}`, where τ = `threshold` and
    :math:`\hat v` is the bias-corrected average of :math:`|g|^2` with decay `b2`, this step
    included. Only entries whose gradient all but vanishes let the update grow as the bound of
    Section 3 for C(β,γ) < 0 allows: there m decays as γⁿ and √v as β^(n/2).

    Args:
      b2: decay of the average of squared gradients, in [0, 1); may be traced.
      threshold: τ, relative to the entry's own root mean square; may be traced.

    Returns:
      A transformation that leaves updates unchanged; it keeps one float32 for each entry.

    Raises:
      ValueError: a concrete `b2` is outside [0, 1), or a concrete `threshold` is negative.
      TypeError: one is not a single real number.

    Examples:
      >>> import jax.numpy as jnp, optax
      >>> optimizer = optax.chain(record_dead_gradients(), optax.scale_by_adam())
      >>> state = optimizer.init(jnp.zeros(4))
      >>> for gradient in ([1.0, 1.0, 0.0, 1.0], [1.0, 1e-4, 0.0, 0.0]):
      ...     _, state = optimizer.update(jnp.array(gradient), state)
      >>> float(state[0].zero_share), float(state[0].dead_share)
      (0.5, 0.75)

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §3.2.
    """
    check_hyperparameter("b2", b2, DECAY)
    check_hyperparameter("threshold", threshold, NOT_NEGATIVE)

    def init_fn(params):
        share = jnp.zeros_like(_largest(_moduli(params)), jnp.float32)
        rms = jax.tree.map(lambda x: jnp.zeros_like(x, dtype=_wide_real(x)), params)
        return RecordDeadGradientsState(jnp.zeros([], jnp.int32), rms, share, jnp.zeros_like(share))

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        count = jnp.asarray(optax.safe_increment(state.count))
        moduli = _moduli(updates)
        treedef = jax.tree.structure(updates)
        rms = []
        for x, r in zip(moduli, treedef.flatten_up_to(state.rms), strict=True):
            gain = _scalar(1 - b2, r)  # exact where b2 itself would round to 1
            loss = gain / (1 + jnp.sqrt(1 - gain))
            rms.append(root_mean_square(r, x, gain, loss, jnp.sqrt(gain)))

        def share(is_counted):
            size = float(max(sum(x.size for x in moduli), 1))
            entries = zip(moduli, rms, strict=True)
            # Integers are exact up to 2^32; a sum of float32 ones stops growing at 2^24.
            counts = (jnp.sum(is_counted(x, r), dtype=jnp.uint32) for x, r in entries)
            return sum((n.astype(jnp.float32) for n in counts), jnp.zeros([], jnp.float32)) / size

        def is_dead(x, r):
            rms_hat = r / jnp.sqrt(average_weight(_scalar(1 - b2, r), count))
            return (x == 0) | (x < _scalar(threshold, r) * rms_hat)

        return updates, RecordDeadGradientsState(
            count, treedef.unflatten(rms), share(lambda x, _: x == 0), share(is_dead)
        )

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _moduli(tree) -> list[jax.Array]:
    """Return |x| of each leaf, real and at least float32."""
    return [modulus(x).astype(_wide_real(x)) for x in map(jnp.asarray, jax.tree.leaves(tree))]


def _largest(moduli: list[jax.Array]) -> jax.Array:
    """Return the maximum over all leaves, in their widest dtype; on a mesh it varies as they do."""
    dtype = promoted(jnp.float32, *moduli)
    maxima = [jnp.max(x, initial=0).astype(dtype) for x in moduli]
    return jnp.max(jnp.stack(maxima)) if maxima else jnp.zeros([], dtype)


def _wide_real(x):
    return jnp.finfo(accumulator_dtype(jnp.result_type(x))).dtype


def _scalar(x, like):
    return jnp.asarray(x, like.dtype)
