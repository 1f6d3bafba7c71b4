"""Transformations that record quantities in their state, and measures for optax's recorders.

`record_...` are transformations that leave updates unchanged; `measure_...` are what
`optax.monitor` and `optax.snapshot` take, and measure each tensor too. Put them where the quantity
is: those of dead gradients and of the r.m.s. ratio before the optimizer's stages, where gradients
pass, and those of the max-update after them, where u_n passes. The quantities are defined in
Section 3 of Gould and Tanaka, `arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_, except for
the r.m.s. ratio.

The state of `optax.monitor` changes its structure at the first update, so a `jax.lax.scan` can
only start after one; that of `optax.snapshot`, for `measure_max_update`, and those of
`record_...` do not.

Inside `jax.shard_map` each shard records its own part: `jax.lax.pmax` of the maxima over the mesh's
axes, or `jax.lax.pmean` of the shares (and of the ratios' squares) if shards have equal sizes,
gives the value for the whole.
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
    included. Only where the gradient all but vanishes can the update grow as the bound of
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
        return RecordDeadGradientsState(*_start_average(params), share, jnp.zeros_like(share))

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        moduli, rms_hat, average = _advance_average(updates, state[:2], b2)
        zeros = _overall_share(_counts([x == 0 for x in moduli]), moduli)
        dead = _overall_share(_counts(_dead(moduli, rms_hat, threshold)), moduli)
        return updates, RecordDeadGradientsState(*average, zeros, dead)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


class Measurement(NamedTuple):
    """A quantity of all tensors together, and of each."""

    overall: jax.Array  # shape=()
    per_tensor: optax.Updates  # a scalar for each tensor


class AverageState(NamedTuple):
    """State of measures that average squared gradients."""

    count: jax.Array  # shape=(), dtype=int32, saturating: steps done
    rms: optax.Updates  # root of the average of the squared moduli, not bias-corrected


def measure_max_update(updates: optax.Updates) -> Measurement:
    r"""Measure the max-update :math:`\|u_n\|_\infty`, for `optax.monitor` and `optax.snapshot`.

    Args:
      updates: a tree of arrays of any shape.

    Returns:
      The largest modulus over all entries, and that of each tensor. Tensors without entries have 0.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from kadam_jax import measure_max_update
      >>> optimizer = optax.chain(
      ...     optax.scale_by_adam(), optax.snapshot("max_update", measure_max_update)
      ... )
      >>> state = optimizer.init({"w": jnp.zeros(2), "b": jnp.zeros(1)})
      >>> gradients = {"w": jnp.array([3.0, -1.0]), "b": jnp.zeros(1)}
      >>> _, state = optimizer.update(gradients, state)
      >>> measurement = optax.tree.get(state, "max_update")
      >>> round(float(measurement.overall), 3), float(measurement.per_tensor["b"])
      (1.0, 0.0)

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §3.1.
    """
    moduli = _moduli(updates)
    return _measurement(_largest(moduli), [jnp.max(x, initial=0) for x in moduli], updates)


def measure_dead_gradients(
    b2: ArrayLike = 0.999, threshold: ArrayLike = 1e-3
) -> optax.GradientTransformationExtraArgs:
    r"""Measure the share of dead entries, as `record_dead_gradients` does, for `optax.monitor`.

    Definitions, arguments, errors and source are those of `record_dead_gradients`.

    Returns:
      A measure: its `update` returns a `Measurement` of shares, and its state keeps one float32 for
      each entry. Tensors without entries have 0.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from kadam_jax import measure_dead_gradients
      >>> monitor = optax.monitor({"dead_share": measure_dead_gradients()})
      >>> state = monitor.init({"w": jnp.zeros(2), "b": jnp.zeros(2)})
      >>> gradients = {"w": jnp.array([3.0, 0.0]), "b": jnp.ones(2)}
      >>> _, state = monitor.update(gradients, state)
      >>> measurement = optax.tree.get(state, "dead_share")
      >>> float(measurement.overall), float(measurement.per_tensor["w"])
      (0.25, 0.5)

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`, §3.2.
    """
    check_hyperparameter("b2", b2, DECAY)
    check_hyperparameter("threshold", threshold, NOT_NEGATIVE)

    def measure(updates, moduli, rms_hat):
        counts = _counts(_dead(moduli, rms_hat, threshold))
        shares = [
            n.astype(jnp.float32) / max(x.size, 1) for n, x in zip(counts, moduli, strict=True)
        ]
        return _measurement(_overall_share(counts, moduli), shares, updates)

    return _measure_with_average(b2, measure)


def measure_rms_ratio(
    b2: ArrayLike = 0.999, eps: ArrayLike = 1e-8
) -> optax.GradientTransformationExtraArgs:
    r"""Measure how far gradients exceed their second moment, for `optax.monitor`.

    .. math:: \sqrt{\operatorname{mean} \frac{|g|^2}{\max(\hat v, \varepsilon^2)}}

    where :math:`\hat v` is the average with decay `b2` that `record_dead_gradients` keeps. Values
    above 1 mean that the average lags behind growing gradients, which often precedes spikes of the
    loss; StableAdamW divides the learning rate by them. It is at most 1/√(1-β).

    Args:
      b2: decay β of the average.
      eps: ε, in the gradients' unit; not negative, may be traced.

    Returns:
      A measure like `measure_dead_gradients`, whose `Measurement` holds ratios.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from kadam_jax import measure_rms_ratio
      >>> monitor = optax.monitor({"rms_ratio": measure_rms_ratio(b2=0.9)})
      >>> state = monitor.init(jnp.zeros(2))
      >>> for size in (1.0, 1.0, 10.0):
      ...     _, state = monitor.update(jnp.full(2, size), state)
      >>> round(float(optax.tree.get(state, "rms_ratio").overall), 3)
      1.632

    References:
      Wortsman et al., `Stable and low-precision training for large-scale vision-language models
      <https://arxiv.org/abs/2304.13013>`_, introduce StableAdamW.
    """
    check_hyperparameter("b2", b2, DECAY)
    check_hyperparameter("eps", eps, NOT_NEGATIVE)

    def measure(updates, moduli, rms_hat):
        ratios = []
        for x, r in zip(moduli, rms_hat, strict=True):
            floor = jnp.maximum(r, _scalar(eps, r))
            ratios.append(jnp.where(x == 0, 0, x / jnp.where(floor == 0, 1, floor)))
        dtype = promoted(jnp.float32, *ratios)
        sums = [jnp.sum(jnp.square(x)).astype(dtype) for x in ratios]
        sizes = [max(x.size, 1) for x in ratios]
        overall = sum(sums, jnp.zeros([], dtype)) / float(max(sum(x.size for x in ratios), 1))
        each = [jnp.sqrt(total / size) for total, size in zip(sums, sizes, strict=True)]
        return _measurement(jnp.sqrt(overall), each, updates)

    return _measure_with_average(b2, measure)


def _measure_with_average(b2: ArrayLike, measure) -> optax.GradientTransformationExtraArgs:
    """Return what `optax.monitor` takes: a transformation from gradients to a measurement."""

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        moduli, rms_hat, average = _advance_average(updates, state, b2)
        return measure(updates, moduli, rms_hat), AverageState(*average)

    return optax.GradientTransformationExtraArgs(
        lambda params: AverageState(*_start_average(params)), update_fn
    )


def _measurement(overall: jax.Array, each: list[jax.Array], updates: optax.Updates) -> Measurement:
    return Measurement(overall, jax.tree.structure(updates).unflatten(each))


def _start_average(params: optax.Params) -> tuple[jax.Array, optax.Updates]:
    rms = jax.tree.map(lambda x: jnp.zeros_like(x, dtype=_wide_real(x)), params)
    return jnp.zeros([], jnp.int32), rms


def _advance_average(updates: optax.Updates, average: tuple, b2: ArrayLike):
    """Return the moduli of all leaves, the corrected roots of their averages, and (count, rms)."""
    count, rms = average
    count = jnp.asarray(optax.safe_increment(count))
    moduli, treedef, roots, rms_hat = _moduli(updates), jax.tree.structure(updates), [], []
    for x, r in zip(moduli, treedef.flatten_up_to(rms), strict=True):
        gain = _scalar(1 - b2, r)  # exact where b2 itself would round to 1
        loss = gain / (1 + jnp.sqrt(1 - gain))
        roots.append(root_mean_square(r, x, gain, loss, jnp.sqrt(gain)))
        rms_hat.append(roots[-1] / jnp.sqrt(average_weight(gain, count)))
    return moduli, rms_hat, (count, treedef.unflatten(roots))


def _dead(moduli: list[jax.Array], rms_hat: list[jax.Array], threshold: ArrayLike):
    pairs = zip(moduli, rms_hat, strict=True)
    return [(x == 0) | (x < _scalar(threshold, r) * r) for x, r in pairs]


def _counts(counted: list[jax.Array]) -> list[jax.Array]:
    """Count entries in integers, exact up to 2^32; a float32 sum of ones stops growing at 2^24."""
    return [jnp.sum(x, dtype=jnp.uint32) for x in counted]


def _overall_share(counts: list[jax.Array], moduli: list[jax.Array]) -> jax.Array:
    size = float(max(sum(x.size for x in moduli), 1))
    return sum((n.astype(jnp.float32) for n in counts), jnp.zeros([], jnp.float32)) / size


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
