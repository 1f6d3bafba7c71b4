"""The size of k-Adam's updates on gradients that are noise, which predicts its learning rate.

Every entry of the gradient is independent normal noise. With a long second average (β -> 1, so √v
is the root mean square of a stage's input) a stage is linear: an exponential average divided by the
size of its own input. For Adam, u has

    ⟨u²⟩ = (1-γ)/(1+γ),   and N of its updates add up to   ⟨(Σu)²⟩ = N:

momentum spreads a gradient over time and loses none of it. 2-Adam's second stage gets Adam's u,
divides it by its size √((1-γ)/(1+γ)), and averages what is already correlated:

    ⟨u²⟩ = (1+γ²)/(1+γ)²,   ⟨(Σu)²⟩ = N (1+γ)/(1-γ),   γ₁ = γ₂ = γ.

If the two differed only in the size of a step, or only in how far steps carry, 2-Adam would need
Adam's learning rate times the inverse ratio of ⟨u²⟩^(1/2), or of ⟨(Σu)²⟩^(1/2): 0.32 or 0.43 for
inverse exp (γ = 0.684), and 0.32 or 0.32 for exp (γ = 0.81). If β is as small as in the scaled
strategy, a stage is not linear, so both are computed from the optimizer itself.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from kadam_jax import scale_by_kadam


def noise_response(
    k: int, b1: ArrayLike, b2: ArrayLike, *, num_steps: int, num_entries: int
) -> dict[str, jax.Array]:
    """Compute `size` ⟨u²⟩^(1/2) and `displacement` (⟨(Σu)²⟩/N)^(1/2) of k-Adam on normal noise.

    Args:
      k: Number of stages.
      b1: γ of every stage; may be traced.
      b2: β of every stage; may be traced.
      num_steps: Optimizer steps; the second half, N steps, is measured.
      num_entries: Entries of the gradient; ⟨⟩ is the mean over them.

    Returns:
      Two scalars, in units of the learning rate.

    >>> found = noise_response(1, 0.9, 0.999, num_steps=2000, num_entries=500)
    >>> round(float(found["size"]), 2), round(float(found["displacement"]), 1)
    (0.23, 1.0)
    """
    optimizer = scale_by_kadam(k, (b1,) * k, (b2,) * k)
    measured = num_steps - num_steps // 2
    key = jax.random.key(0)

    def step(carry, n):
        state, total, squares = carry
        noise = jax.random.normal(jax.random.fold_in(key, n), (num_entries,))
        updates, state = optimizer.update(noise, state)
        updates = jnp.where(n >= num_steps - measured, updates, 0.0)
        return (state, total + updates, squares + updates**2), None

    zeros = jnp.zeros(num_entries)
    start = (optimizer.init(zeros), zeros, zeros)
    (_, total, squares), _ = jax.lax.scan(step, start, jnp.arange(num_steps))
    return {
        "size": jnp.sqrt(squares.mean() / measured),
        "displacement": jnp.sqrt((total**2).mean() / measured),
    }
