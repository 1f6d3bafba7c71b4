"""Adaptive normalization: an average of the updates over the root of an average of their squares.

`normalize` runs any number of stages over a tree; this module makes one stage an optax
transformation, and `kadam_jax.optimizer` makes k of them k-Adam. Definition 2 of Gould and Tanaka,
`arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import keystr, tree_flatten_with_path, tree_map_with_path
from jax.typing import ArrayLike, DTypeLike

from kadam_jax._checks import (
    DECAY,
    NOT_NEGATIVE,
    check_hyperparameter,
    check_inexact,
    require,
)
from kadam_jax._numerics import (
    accumulator_dtype,
    average_weight,
    modulus,
    promoted,
    quotient_and_modulus,
    root_mean_square,
)
from kadam_jax._slices import AxesOfLeaves, map_slices
from kadam_jax._slices import root_mean_square as root_mean_square_of_slices


class ScaleByAdaptiveNormalizationState(NamedTuple):
    """State of one stage, or of the k > 1 stages of k-Adam; the averages are not bias-corrected."""

    count: jax.Array  # shape=(), dtype=int32, saturating: steps done
    # Trees like the parameters; k-tuples of them, the first stage first, if k > 1.
    mu: optax.Updates  # moving average of the incoming updates
    # Root of the moving average of their squared modulus, real and >= float32; size 1 along `axes`.
    rms: optax.Updates


class Coefficients(NamedTuple):
    """The scalars of one stage at one step.

    All are computed from 1-γ and 1-β, each rounded once. If a γ or β near 1 were itself rounded, it
    would lose the digits that make up its gain: for float32's 0.9998 the relative error of 1-β is
    1.3e-4.
    """

    mu_gain: jax.Array  # 1-γ, the share of m that a step replaces by the gradient
    square_gain: jax.Array  # 1-β
    rms_loss: jax.Array  # 1-√β
    rms_gain: jax.Array  # √(1-β)
    correction: jax.Array  # √(1-β^(n+1)) / (1-γ^(n+1))
    eps: jax.Array  # ε √(1-β^(n+1)), so that ε is added outside the corrected root


def scale_by_adaptive_normalization(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-30,
    *,
    axes: AxesOfLeaves = (),
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Normalize the history of updates: :math:`u_n = \mathcal{A}_{\gamma,\beta}(g_{0:n})`.

    .. math::

        m_n &= \gamma m_{n-1} + (1-\gamma) g_n, \qquad v_n = \beta v_{n-1} + (1-\beta) |g_n|^2 \\
        u_n &= \frac{m_n / (1-\gamma^{n+1})}{\sqrt{v_n / (1-\beta^{n+1})} + \varepsilon}

    with γ = `b1`, β = `b2`, ε = `eps` and 0/0 = 0. The state keeps :math:`\sqrt{v}` as `rms`:
    multiplying every gradient by a power of two then leaves the update the same to the last bit,
    whereas a float32 :math:`v` underflows below \|g\| = 3.4e-18 and overflows above 1.8e19. ε is
    added outside the bias-corrected root, as in `optax.scale_by_adam`; the paper's Algorithm 1 adds
    it to the uncorrected root, and at 1e-30 the two cannot be told apart.

    Both averages have at least float32 precision whatever the dtype of the parameters, and the
    update has the promoted dtype of gradient and parameter if `update` is given the parameters, and
    otherwise the gradient's.

    With `axes`, :math:`|g_n|^2` is replaced by its mean over these axes of a leaf, so that the
    entries of a neuron, a row or a whole tensor share a second moment. In a chain, this stage gives
    other optimizers what it gives Adam, for instance after or before Muon's orthogonalization
    (examples below). Without momentum an update of step n, counted from 0, has at most

    .. math:: |u_n| \le \sqrt{N \, (1-\beta^{n+1}) / (1-\beta)}

    in every entry, whatever the stage gets, where N is the number of entries that share a second
    moment. This is attained where all earlier gradients are 0 and now one of the N entries is not.

    Every argument has derivatives of first and second order. At a gradient of 0 that follows only
    gradients of 0, the derivative of the update is 1/ε; for k stages, where it would be (1/ε)^k, it
    is 0 if the square of that leaves the dtype's range, as for ε = 1e-30 in float32.

    Args:
      b1: decay of the average of the updates, in [0, 1); 0 gives RMSprop with bias correction. May
        be traced, like `b2` and `eps`.
      b2: decay of the average of the squared updates, in [0, 1); `b1` = `b2` = 0 gives signSGD.
      eps: added to the bias-corrected root, in units of the gradient.
      axes: the axes of a leaf that share a second moment: a tuple for every leaf, () for entries,
        None for whole leaves, or a function of a leaf's path, such as "blocks/0/up", and the leaf.
      mu_dtype: dtype in which `mu` is stored, complex where the parameter is; it overrides the
        float32 floor.

    Returns:
      A transformation whose updates are in units of the learning rate, not yet negated.

    Raises:
      ValueError: a concrete `b1` or `b2` is outside [0, 1), a concrete `eps` is negative, or a leaf
        lacks one of the `axes` (raised by `init`).
      TypeError: `axes` is not as described (raised by `init`); a gradient is not floating point or
        complex, or it is complex and its parameter is not (raised by `update`).

    Examples:
      >>> import jax.numpy as jnp
      >>> normalize = scale_by_adaptive_normalization(b1=0.9, b2=0.999)
      >>> params = {"w": jnp.ones(2)}
      >>> updates, _ = normalize.update({"w": jnp.array([1e-9, -4.0])}, normalize.init(params))
      >>> updates["w"].round(5).tolist()
      [1.0, -1.0]

      AdaMuon has an elementwise stage after the orthogonalization of the momentum's signs; NorMuon
      has one for each output, here the last axis of (inputs, outputs), after Muon's own:

      >>> import optax
      >>> from optax.contrib import scale_by_muon
      >>> adamuon = optax.chain(
      ...     optax.trace(0.95), optax.scale_by_sign(), scale_by_muon(beta=0, nesterov=False),
      ...     scale_by_adaptive_normalization(0, 0.95, 1e-8), scale_to_rms(0.2))
      >>> normuon = optax.chain(
      ...     scale_by_muon(beta=0.95, nesterov=False),
      ...     scale_by_adaptive_normalization(0, 0.95, 1e-8, axes=(0,)), scale_to_rms(0.2))
      >>> kernel = jnp.eye(3, 2)
      >>> for optimizer in (adamuon, normuon):
      ...     updates, _ = optimizer.update(kernel, optimizer.init(kernel))
      ...     print(f"{jnp.sqrt(jnp.mean(updates**2)):.3f}")
      0.200
      0.200

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §2.1, Definition 1, Definition 2, Algorithm 1, Appendix A, Appendix B.
      Si, Zhang and Shen, `AdaMuon <https://arxiv.org/abs/2507.11005>`_.
      Li et al., `NorMuon <https://arxiv.org/abs/2510.05491>`_.
    """
    check_decays("b1", [b1])
    check_decays("b2", [b2])
    check_not_negative("eps", eps)
    is_elementwise = isinstance(axes, Sequence) and not axes

    def moduli_of(tree):
        return None if is_elementwise else map_slices(root_mean_square_of_slices, axes, tree)

    def init_fn(params):
        state = init_stage(params, mu_dtype)
        if is_elementwise:
            return state
        return state._replace(rms=jax.tree.map(jnp.zeros_like, moduli_of(params)))

    def update_fn(updates, state, params=None, **extra_args):
        del extra_args
        moduli = moduli_of(updates)
        updates, (state,) = normalize(updates, (state,), (b1,), (b2,), eps, moduli, params)
        return updates, state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def scale_to_rms(target: ArrayLike, axes: AxesOfLeaves = None) -> optax.GradientTransformation:
    r"""Give the updates of every leaf, or slice of one, the same root mean square.

    .. math:: u \mapsto \rho \, u \big/ \sqrt{\textstyle\frac1N \sum_i |u_i|^2}

    with ρ = `target` and 0 where u is 0. In a chain after other stages it lets the learning rate
    alone set their size: Adam's updates have a root mean square of about 0.2 in training,
    and a target of 0.2 lets Muon and its relatives use AdamW's learning rate and weight decay. No
    entry then exceeds ρ√N, whatever comes before.

    Args:
      target: ρ, positive; may be traced.
      axes: the axes that a slice spans, as in `scale_by_adaptive_normalization`; None makes each
        leaf one slice.

    Returns:
      A stateless transformation. Updates keep their dtypes; sums are at least float32.

    Raises:
      ValueError: a concrete `target` is negative, or a leaf lacks one of the `axes` (raised by
        `update`).
      TypeError: an update is not floating point or complex (raised by `update`).

    Examples:
      >>> import jax.numpy as jnp
      >>> updates, _ = scale_to_rms(0.2).update(jnp.array([3e-30, 4e-30]), optax.EmptyState())
      >>> [f"{u:.4f}" for u in updates]
      ['0.1697', '0.2263']

    References:
      Liu et al., `Muon is Scalable for LLM Training <https://arxiv.org/abs/2502.16982>`_,
      Section 2.2.
    """
    check_not_negative("target", target)

    def of_leaf(update, over):
        root = root_mean_square_of_slices(update, over)
        return update / jnp.where(root != 0, root, 1) * jnp.asarray(target, root.dtype)

    def update_fn(updates, state, params=None):
        del params
        return narrowed(map_slices(of_leaf, axes, widened(updates)), updates, None), state

    return optax.GradientTransformation(optax.init_empty_state, update_fn)


def init_stage(params, mu_dtype: DTypeLike | None) -> ScaleByAdaptiveNormalizationState:
    """Return the state of a stage that has seen no updates, sharded as `params` are."""
    if mu_dtype is not None:
        check_inexact("mu_dtype", mu_dtype)

    def zeros(dtype_of):
        return jax.tree.map(lambda p: jnp.zeros_like(p, dtype=dtype_of(jnp.result_type(p))), params)

    def mu_dtype_of(dtype):
        if mu_dtype is None:
            return accumulator_dtype(dtype)
        real = jnp.finfo(mu_dtype).dtype
        return promoted(real, jnp.complex64) if jnp.issubdtype(dtype, jnp.complexfloating) else real

    return ScaleByAdaptiveNormalizationState(
        count=jnp.zeros([], jnp.int32),
        mu=zeros(mu_dtype_of),
        rms=zeros(lambda dtype: jnp.finfo(accumulator_dtype(dtype)).dtype),
    )


def normalize(
    updates: optax.Updates,
    states: Sequence[ScaleByAdaptiveNormalizationState],
    b1s: Sequence[ArrayLike],
    b2s: Sequence[ArrayLike],
    eps: ArrayLike,
    moduli: Any = None,
    params: optax.Params | None = None,
) -> tuple[optax.Updates, tuple[ScaleByAdaptiveNormalizationState, ...]]:
    """Pass `updates` through the stages in turn, with one cast in and one cast out.

    `moduli`, a tree like `updates` with the shapes of the first stage's `rms`, replaces their
    moduli in its second moment.
    """
    for state in states:
        if jax.tree.structure(updates) != jax.tree.structure(state.rms):
            raise ValueError(_difference(updates, state.rms, "the averages in the state"))
    paths_and_leaves, treedef = tree_flatten_with_path(widened(updates))
    first_mus, roots = (treedef.flatten_up_to(tree) for tree in (states[0].mu, states[0].rms))
    inputs = [
        _input(*leaf, mu, root)
        for leaf, mu, root in zip(paths_and_leaves, first_mus, roots, strict=True)
    ]
    if moduli is None:
        inputs = [(x, modulus(x)) for x in inputs]
    else:
        given = zip(inputs, treedef.flatten_up_to(moduli), roots, strict=True)
        inputs = [(x, size.astype(root.dtype)) for x, size, root in given]
    new_states = []
    for state, b1, b2 in zip(states, b1s, b2s, strict=True):
        count = jnp.asarray(optax.safe_increment(state.count))
        real_dtypes = {size.dtype for _, size in inputs}
        coefficients = {d: _coefficients(b1, b2, eps, count, d) for d in real_dtypes}
        mus, rmss = treedef.flatten_up_to(state.mu), treedef.flatten_up_to(state.rms)
        outputs = [
            _advance(*x, mu, rms, coefficients[rms.dtype], len(states))
            for x, mu, rms in zip(inputs, mus, rmss, strict=True)
        ]
        inputs = [(u, size) for u, size, _, _ in outputs]
        new_states.append(
            ScaleByAdaptiveNormalizationState(
                count,
                mu=treedef.unflatten(mu for _, _, mu, _ in outputs),
                rms=treedef.unflatten(rms for _, _, _, rms in outputs),
            )
        )
    outputs = treedef.unflatten(u for u, _ in inputs)
    return narrowed(outputs, updates, params), tuple(new_states)


def _input(path, leaf, mu, root) -> jax.Array:
    """Return a leaf of the updates as the first stage takes it, in the state's precision."""
    is_complex = jnp.iscomplexobj(mu)
    holds = is_complex or not jnp.iscomplexobj(leaf)
    words, hint = "be real as its parameter is", "take the real part, or use a complex parameter"
    require(holds, f"updates{keystr(path)}", words, leaf.dtype, hint=hint, error=TypeError)
    return leaf.astype(promoted(root.dtype, jnp.complex64) if is_complex else root.dtype)


def widened(updates: optax.Updates) -> optax.Updates:
    """Return `updates` in at least float32, every leaf floating point or complex."""

    def of_leaf(path, leaf):
        dtype = getattr(leaf, "dtype", None) or jnp.result_type(leaf)
        hint = "mask it out (optax.masked) or differentiate only with respect to the other leaves"
        check_inexact(f"updates{keystr(path)}", dtype, hint=hint)
        return jnp.asarray(leaf).astype(accumulator_dtype(dtype))

    return tree_map_with_path(of_leaf, updates)


def narrowed(
    outputs: optax.Updates, updates: optax.Updates, params: optax.Params | None
) -> optax.Updates:
    """Return `outputs` in the promoted dtype of `updates` and, if given, `params`."""

    def of_leaf(output, leaf, param):
        least = (jnp.complex64,) if jnp.iscomplexobj(output) else ()
        return output.astype(promoted(leaf, param, *least))

    pairs = with_params(updates, updates if params is None else params)
    outputs, treedef = jax.tree.flatten(outputs)
    return treedef.unflatten(of_leaf(u, *pair) for u, pair in zip(outputs, pairs, strict=True))


def with_params(updates: optax.Updates, params: optax.Params) -> list[tuple[Any, Any]]:
    """Return each leaf of `updates` with its parameter; there may be further parameters."""
    leaves, treedef = jax.tree.flatten(updates, is_leaf=lambda x: x is None)
    try:
        of_params = treedef.flatten_up_to(params)
    except ValueError as error:
        raise ValueError(_difference(updates, params, "the parameters")) from error
    pairs = zip(leaves, of_params, strict=True)
    return [(leaf, param) for leaf, param in pairs if leaf is not None]


def _difference(updates, other, name):
    """Describe how `updates` differ from another tree, with a path."""
    here, there = (
        [keystr(path) for path, _ in tree_flatten_with_path(tree)[0]] for tree in (updates, other)
    )
    words = f"updates must have the structure of {name}"
    for path in there:
        if path not in here:
            return f"{words}, but updates{path} is missing; give zeros or mask it (optax.masked)"
    for path in here:
        if path not in there:
            return f"{words}, which have nothing for updates{path}"
    return f"{words}, {jax.tree.structure(other)}, got {jax.tree.structure(updates)}"


@partial(jax.jit, static_argnums=5)  # one trace for each shape
def _advance(x, size, mu, rms, c: Coefficients, num_stages):
    """Run one of `num_stages` stages on a leaf: (x, |x|, mu, rms) -> (u, |u|, mu, rms).

    |u| is computed with u, not from it. The next stage averages both. If both were made from one
    u, XLA's CPU backend would write u out in full between the stages, a fresh page for every 4 KB
    of it; this way each average does its own division and only the state touches memory.
    """
    gain, correction = (scalar.astype(x.dtype) for scalar in (c.mu_gain, c.correction))
    old_mu = mu.astype(x.dtype)
    new_mu = old_mu - gain * old_mu + gain * x  # exactly x where the gain is 1
    new_rms = root_mean_square(rms, size, c.square_gain, c.rms_loss, c.rms_gain)
    u, new_size = quotient_and_modulus(correction * new_mu, new_rms, c.eps, num_stages)
    return u, new_size, new_mu.astype(mu.dtype), new_rms


def _coefficients(b1, b2, eps, count, dtype) -> Coefficients:
    """Return a stage's scalars, in a leaf's real `dtype`, at the step that brings it to `count`."""
    mu_gain, square_gain = (jnp.asarray(1 - b, dtype) for b in (b1, b2))
    root = jnp.sqrt(average_weight(square_gain, count))
    undifferentiated = jax.lax.stop_gradient(square_gain)  # `root_mean_square` does it
    return Coefficients(
        mu_gain=mu_gain,
        square_gain=square_gain,
        rms_loss=undifferentiated / (1 + jnp.sqrt(1 - undifferentiated)),
        rms_gain=jnp.sqrt(undifferentiated),
        correction=root / average_weight(mu_gain, count),
        eps=root * jnp.asarray(eps, dtype),
    )


def check_decays(name: str, decays: Iterable[Any]) -> None:
    """Check decays, each a number in [0, 1)."""
    for decay in decays:
        check_hyperparameter(name, decay, DECAY)


def check_not_negative(name: str, value: ArrayLike) -> None:
    """Check a finite number of at least 0."""
    check_hyperparameter(name, value, NOT_NEGATIVE)
