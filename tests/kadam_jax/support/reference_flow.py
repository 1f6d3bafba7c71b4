"""Appendix I line by line, v itself stored, a Python loop over substeps; names are the paper's."""

from typing import NamedTuple

import numpy as np


class Trajectory(NamedTuple):
    """At t_j = jη/K for j = 0, ..., NK."""

    theta: np.ndarray  # (NK+1, *shape)
    psi: np.ndarray  # (NK+1, *shape): dθ/dt
    m: np.ndarray  # (NK+1, k, *shape)
    v: np.ndarray  # (NK+1, k, *shape)
    u: np.ndarray  # (NK+1, k, *shape)


def euler(gradient, theta, *, eta, gammas, betas, N, K, lam=0.0, coupled=False, epsilon=1e-30):
    """`gradient(theta, n)` is that of minibatch n; Δt = η/K."""
    theta = np.asarray(theta)
    psi = np.zeros_like(theta)
    m = [np.zeros_like(theta) for _ in gammas]
    v = [np.zeros_like(theta.real) for _ in betas]
    history = Trajectory([], [], [], [], [])
    for j in range(N * K + 1):
        s = j / K
        u = [
            np.sqrt(1 - beta ** (1 + s)) / (1 - gamma ** (1 + s)) * m_i / (np.sqrt(v_i) + epsilon)
            for gamma, beta, m_i, v_i in zip(gammas, betas, m, v, strict=True)
        ]
        for values, now in zip(history, (theta, psi, m, v, u), strict=True):
            values.append(np.array(now))
        if j == N * K:
            return Trajectory(*map(np.array, history))
        decay = lam * theta
        inputs = [gradient(theta, j // K) + coupled * decay, *u[:-1]]
        psi_dot = -2 / eta * (psi + u[-1] + (not coupled) * decay)
        theta, psi = theta + eta / K * psi, psi + eta / K * psi_dot
        for i, (gamma, beta, x) in enumerate(zip(gammas, betas, inputs, strict=True)):
            rate, square_rate = (1 - gamma) / (gamma * K), (1 - beta) / (beta * K)
            m[i] = np.exp(-rate) * (m[i] + rate * x)
            v[i] = np.exp(-square_rate) * (v[i] + square_rate * abs(x) ** 2)
