"""Derivatives of first and second order against central differences."""

import contextlib
import os

import jax
import jax.numpy as jnp
import numpy as np

EMITTERS = "xla_cpu_use_fusion_emitters"
UNFUSED = {"xla_disable_hlo_passes": "fusion"} | (
    {EMITTERS: True} if EMITTERS in os.environ["XLA_FLAGS"] else {}
)
"""Fusion writes factors that derivatives share out many times over, and compiles for minutes.

Without fusion, an XLA that has the flag for emitters needs them, or its code is wrong;
tests/conftest.py turns them off.
"""


def check_derivatives(f, points, *, step=1e-4, rtol=1e-5, low=2e-3, twice=(64, 32), compiled=True):
    """Check a scalar function of a vector in float64 in several modes, and in float32 within `low`.

    `twice` has the precisions in which second derivatives are taken, which compile slowly. Long
    programs with few distinct operations take half of the time if they are not `compiled`.

    Values are taken under jit, so that arguments may pass a closed end of their range by a step.
    """
    assert jnp.result_type(float) == jnp.float64
    points = np.array(points, float)
    num = points.shape[-1]
    values = jax.jit(jax.vmap(jax.vmap(f)))

    def differences(step):
        moves = step * np.eye(num)
        pairs = [[s * a + t * b for s in (1, -1) for t in (1, -1)] for a in moves for b in moves]
        shifts = np.concatenate([moves, -moves, np.array(pairs).reshape(-1, num)])
        up, down, both = np.split(values(points[:, None] + shifts), [num, 2 * num], axis=1)
        hessian = both.reshape(-1, num, num, 4) @ np.array([1, -1, -1, 1]) / (4 * step**2)
        return (up - down) / (2 * step), hessian

    # Richardson's extrapolation: both have an error of order step², which this cancels.
    coarse, fine = differences(step), differences(step / 2)
    gradient, hessian = ((4 * b - a) / 3 for a, b in zip(coarse, fine, strict=True))

    def first(x):
        return {"forward": jax.jacfwd(f)(x), "reverse": jax.grad(f)(x)}

    def second(x):
        """As `first`, for a gradient, whose derivatives are the second ones."""
        along = jax.vmap(lambda move: jax.jvp(jax.grad(f), (x,), (move,)), out_axes=(None, 0))
        slope, curvature = along(jnp.eye(num, dtype=x.dtype))
        return {"forward": jax.jacfwd(f)(x), "reverse": slope, "second order": curvature}

    expected = {"forward": gradient, "reverse": gradient, "second order": hessian}
    for bits, tolerance in ((64, rtol), (32, low)):
        taken = jax.vmap(second if bits in twice else first)
        with contextlib.nullcontext() if compiled else jax.disable_jit():
            derivatives = jax.jit(taken, compiler_options=UNFUSED)(
                jnp.array(points, f"f{bits // 8}")
            )
        for name, found in derivatives.items():
            assert found.dtype == f"float{bits}"
            atol = tolerance * np.abs(expected[name]).max() + 1e-6
            np.testing.assert_allclose(found, expected[name], tolerance, atol, err_msg=name)
