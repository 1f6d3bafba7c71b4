"""k-Adam by the book: Algorithm 1 line by line, v itself stored, one Python loop over the steps.

Slow, in NumPy, in whatever dtype is asked for: the oracle for the fast version. Names are the
paper's. One thing differs by default from the printed algorithm: epsilon stands
outside the bias-corrected root, as it does in optax.
"""

from typing import NamedTuple

import numpy as np


class Trajectory(NamedTuple):
    """The values in N steps of k stages."""

    theta: np.ndarray  # (N+1, *shape): parameters before the first step and after each one
    u: np.ndarray  # (N, k, *shape): every stage's output
    m: np.ndarray  # (N, k, *shape)
    root_v: np.ndarray  # (N, k, *shape): √v


def kadam(
    gradients,
    theta_0=0.0,
    *,
    gammas,
    betas,
    epsilon=1e-30,
    eta=lambda n: 0.0,
    lam=0.0,
    coupled=False,
    epsilon_beside="corrected",
    dtype=np.float64,
):
    """Algorithm 1 for gradients given in advance, one row for each step."""
    gradients = np.asarray(gradients, dtype)
    real = gradients.real.dtype.type
    gammas, betas = [real(b) for b in gammas], [real(b) for b in betas]
    epsilon, lam, one = real(epsilon), real(lam), real(1)

    theta = np.full_like(gradients[0], theta_0)
    m = [np.zeros_like(theta) for _ in gammas]
    v = [np.zeros_like(theta.real) for _ in betas]
    trajectory = Trajectory([theta], [], [], [])
    for n, gradient in enumerate(gradients):
        g = gradient + lam * theta if coupled else gradient
        outputs = []
        for i, (gamma, beta) in enumerate(zip(gammas, betas, strict=True)):
            m[i] = gamma * m[i] + (one - gamma) * g
            v[i] = beta * v[i] + (one - beta) * (g * g.conj()).real
            root, mean = np.sqrt(one - beta ** (n + 1)), one - gamma ** (n + 1)
            if epsilon_beside == "corrected":
                g = (m[i] / mean) / (np.sqrt(v[i]) / root + epsilon + no_division(v[i]))
            else:
                g = (root / mean) * m[i] / (np.sqrt(v[i]) + epsilon + no_division(v[i]))
            outputs.append(g)
        u = outputs[-1] if coupled else outputs[-1] + lam * theta
        theta = theta - real(eta(n)) * u
        for history, now in zip(trajectory, (theta, outputs, m, np.sqrt(v)), strict=True):
            history.append(np.array(now))
    return Trajectory(*map(np.array, trajectory))


def no_division(v):
    """1 where v is 0, so that 0/0 becomes 0/1."""
    return (v == 0).astype(v.dtype)


def per_stage_decay(b, k, strategy):
    """Section 4.3's list, and the fifth strategy that appendix O mentions."""
    if strategy == "inverse_exp":
        return 1 - (1 - b) ** (1 / k)
    if strategy == "exp":
        return b**k
    if strategy == "scaled":
        return b / k
    if strategy == "naive":
        return b
    if strategy == "root":
        return b ** (1 / k)
    raise ValueError(strategy)
