# Copyright 2026 DeepMind Technologies Limited. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
# ==============================================================================
"""k-Adam.

Algorithm 1 of "Continuous-Time Analysis of Adaptive Optimization and
Normalization" (https://arxiv.org/abs/2411.05746) by Rhys Gould and
Hidenori Tanaka.
"""

from typing import Any, Callable, NamedTuple, Optional, Union

import jax
import jax.numpy as jnp
from optax._src import base
from optax._src import combine
from optax._src import numerics
from optax._src import transform
from optax._src import utils
import optax.tree

# The decay of each of the k stages, from a decay that suits Adam.
_STRATEGIES = {
    'inverse_exp': lambda b, k: 1 - (1 - b) ** (1 / k),
    'exp': lambda b, k: b**k,
    'scaled': lambda b, k: b / k,
    'naive': lambda b, k: b,
    'root': lambda b, k: b ** (1 / k),
}


class ScaleByKadamState(NamedTuple):
  """State for the k-Adam algorithm.

  Attributes:
    count: number of updates so far.
    mu: for each stage, the average of what enters it.
    rms: for each stage, the root of the average of the squares of what enters
      it. The square of a small gradient would underflow in float32, and ``eps``
      is too small to make up for that.
  """

  count: jax.typing.ArrayLike  # shape=(), dtype=jnp.int32.
  mu: tuple[base.Updates, ...]
  rms: tuple[base.Updates, ...]


def _wide_dtype(x):
  """At least float32: in bfloat16, a decay of 0.999 is 1."""
  return jnp.promote_types(x.dtype, jnp.float32)


def _normalize(x, mu, rms, count, b1, b2, eps):
  """Runs one stage on one array, and returns its output, mu and rms."""
  # 1 - b has more digits than b if it is rounded to float32.
  b1_gain, b2_gain, eps = (
      jnp.asarray(scalar, rms.dtype) for scalar in (1 - b1, 1 - b2, eps)
  )
  mu = mu.astype(x.dtype)
  mu = mu - b1_gain * mu + b1_gain * x
  # The square root of b2 * rms**2 + b2_gain * abs(x)**2, without the squares.
  kept = rms - b2_gain / (1 + jnp.sqrt(1 - b2_gain)) * rms
  new = jnp.sqrt(b2_gain) * jnp.abs(x)
  tiny = jnp.finfo(rms.dtype).tiny
  largest = jnp.maximum(kept, new)
  ratio = jnp.minimum(kept, new) / jnp.maximum(largest, tiny)
  rms = largest * jnp.sqrt(1 + jnp.square(ratio))
  # The total weights of the averages, 1 - b**count, for the bias correction.
  b1_weight, b2_weight = (
      -jnp.expm1(count.astype(rms.dtype) * jnp.log1p(-gain))
      for gain in (b1_gain, b2_gain)
  )
  root = jnp.sqrt(b2_weight)
  divisor = jnp.maximum(rms + root * eps, tiny)  # 0 / 0 = 0
  return (root / b1_weight) * mu / divisor, mu, rms


def scale_by_kadam(
    k: int = 2,
    b1: jax.typing.ArrayLike = 0.9,
    b2: jax.typing.ArrayLike = 0.999,
    eps: jax.typing.ArrayLike = 1e-30,
    mu_dtype: Optional[jax.typing.DTypeLike] = None,
    *,
    strategy: str = 'inverse_exp',
) -> base.GradientTransformation:
  r"""Rescale updates according to the k-Adam algorithm.

  See :func:`optax.contrib.kadam` for a description of the algorithm.

  Args:
    k: Number of times that the updates are normalized. It sets the structure of
      the state, so it cannot be traced.
    b1: Decay rate for the averages of the updates, as one would choose it for
      Adam.
    b2: Decay rate for the averages of the squared updates, chosen in the same
      way.
    eps: A constant added to the root of each average of squares.
    mu_dtype: Optional `dtype` in which ``mu`` is stored; if `None`, it has that
      of the parameters, but at least float32.
    strategy: How ``b1`` and ``b2`` become the decay rates of each stage, where
      ``b`` is either of the two: 'inverse_exp' for ``1 - (1 - b) ** (1 / k)``,
      'exp' for ``b ** k``, 'scaled' for ``b / k``, 'naive' for ``b`` and 'root'
      for ``b ** (1 / k)``.

  Returns:
    The corresponding :class:`optax.GradientTransformation`.

  .. seealso:: :func:`optax.contrib.kadam`
  """
  mu_dtype = utils.canonicalize_dtype(mu_dtype)
  b1, b2 = (_STRATEGIES[strategy](b, k) for b in (b1, b2))

  def init_fn(params):
    def zeros_mu(p):
      return jnp.zeros_like(p, dtype=mu_dtype or _wide_dtype(p))

    def zeros_rms(p):
      return jnp.zeros_like(p, dtype=jnp.finfo(_wide_dtype(p)).dtype)

    return ScaleByKadamState(
        count=jnp.zeros([], jnp.int32),
        mu=tuple(jax.tree.map(zeros_mu, params) for _ in range(k)),
        rms=tuple(jax.tree.map(zeros_rms, params) for _ in range(k)),
    )

  def update_fn(updates, state, params=None):
    del params
    count = numerics.safe_increment(state.count)
    outputs = jax.tree.map(lambda g: g.astype(_wide_dtype(g)), updates)
    mus, rmss = [], []
    for mu, rms in zip(state.mu, state.rms):
      outputs, mu, rms = jax.tree.transpose(
          jax.tree.structure(updates),
          jax.tree.structure((0, 0, 0)),
          jax.tree.map(
              lambda x, m, r: _normalize(x, m, r, count, b1, b2, eps),
              outputs,
              mu,
              rms,
          ),
      )
      mus.append(optax.tree.cast(mu, mu_dtype))
      rmss.append(rms)
    outputs = optax.tree.cast_like(outputs, updates)
    return outputs, ScaleByKadamState(count, mu=tuple(mus), rms=tuple(rmss))

  return base.GradientTransformation(init_fn, update_fn)


def kadam(
    learning_rate: base.ScalarOrSchedule,
    k: int = 2,
    b1: jax.typing.ArrayLike = 0.9,
    b2: jax.typing.ArrayLike = 0.999,
    eps: jax.typing.ArrayLike = 1e-30,
    mu_dtype: Optional[jax.typing.DTypeLike] = None,
    *,
    strategy: str = 'inverse_exp',
    weight_decay: jax.typing.ArrayLike = 0.0,
    mask: Optional[Union[Any, Callable[[base.Params], Any]]] = None,
) -> base.GradientTransformationExtraArgs:
  r"""The k-Adam optimizer.

  Adam divides an average of the gradients by the root of an average of their
  squares. k-Adam does so k times in succession, each time to the output of the
  previous time. It is Adam for :math:`k = 1` without weight decay, and AdamW
  with it.

  Let :math:`\alpha_t` represent the learning rate, :math:`\lambda` the weight
  decay, :math:`\beta_1, \beta_2` the decay rates that ``strategy`` gives each
  stage, and :math:`\varepsilon` the argument ``eps``. The ``init`` function of
  this optimizer sets the averages :math:`m^{(i)}_0, v^{(i)}_0` of each stage
  :math:`i = 1, \dots, k` to 0. At step :math:`t`, the ``update`` function gets
  the gradients :math:`g_t` and the parameters :math:`\theta_t`, sets
  :math:`u^{(0)}_t = g_t` and computes, for each stage in turn,

  .. math::

    \begin{align*}
      m^{(i)}_t &\leftarrow
        \beta_1 \cdot m^{(i)}_{t-1} + (1-\beta_1) \cdot u^{(i-1)}_t \\
      v^{(i)}_t &\leftarrow
        \beta_2 \cdot v^{(i)}_{t-1} + (1-\beta_2) \cdot (u^{(i-1)}_t)^2 \\
      u^{(i)}_t &\leftarrow \frac{m^{(i)}_t / (1-\beta_1^t)}
        {\sqrt{v^{(i)}_t / (1-\beta_2^t)} + \varepsilon}.
    \end{align*}

  The update is
  :math:`-\alpha_t \cdot (u^{(k)}_t + \lambda \cdot \theta_t)`.

  Args:
    learning_rate: A global scaling factor, either fixed or evolving along
      iterations with a scheduler, see :func:`optax.scale_by_learning_rate`.
    k: Number of times that the updates are normalized. It sets the structure of
      the state, so it cannot be traced.
    b1: Decay rate for the averages of the updates, as one would choose it for
      Adam.
    b2: Decay rate for the averages of the squared updates, chosen in the same
      way.
    eps: A constant added to the root of each average of squares.
    mu_dtype: Optional `dtype` in which ``mu`` is stored; if `None`, it has that
      of the parameters, but at least float32.
    strategy: How ``b1`` and ``b2`` become the decay rates of each stage, see
      :func:`optax.contrib.scale_by_kadam`.
    weight_decay: Strength of the weight decay, which is multiplied by the
      learning rate as in :func:`optax.adamw`.
    mask: A tree with the same structure as the parameters or a prefix of it, or
      a function from the parameters to one. Its leaves are booleans, `True`
      where weight decay applies.

  Returns:
    The corresponding :class:`optax.GradientTransformationExtraArgs`.

  Examples:
    >>> import optax
    >>> import jax
    >>> import jax.numpy as jnp
    >>> def f(x): return jnp.sum(x ** 2)  # simple quadratic function
    >>> solver = optax.contrib.kadam(learning_rate=0.1)
    >>> params = jnp.array([1., 2., 3.])
    >>> print('Objective function: {:.2f}'.format(f(params)))
    Objective function: 14.00
    >>> opt_state = solver.init(params)
    >>> for _ in range(3):
    ...  grad = jax.grad(f)(params)
    ...  updates, opt_state = solver.update(grad, opt_state, params)
    ...  params = optax.apply_updates(params, updates)
    ...  print('Objective function: {:.2f}'.format(f(params)))
    Objective function: 12.83
    Objective function: 11.72
    Objective function: 10.67

  References:
    Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and
    Normalization <https://arxiv.org/abs/2411.05746>`_, 2024
  """
  return combine.chain(
      scale_by_kadam(
          k=k, b1=b1, b2=b2, eps=eps, mu_dtype=mu_dtype, strategy=strategy
      ),
      transform.add_decayed_weights(weight_decay, mask),
      transform.scale_by_learning_rate(learning_rate),
  )
