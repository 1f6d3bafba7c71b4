"""Derivatives of first and second order against central differences."""

import jax
import jax.numpy as jnp
import numpy as np


def check_derivatives(f, points, *, step=1e-4, rtol=1e-5, low=2e-3, twice=(64, 32)):
    """Check a scalar function of a vector in float64, in several modes, in float32 within `low`.

    `twice` has the precisions in which second derivatives are taken, which compile slowly.

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

    modes = {"forward": (jax.jacfwd(f), gradient), "reverse": (jax.grad(f), gradient)}
    second = {"second order": (jax.jacfwd(jax.grad(f)), hessian)}
    for bits, tolerance in ((64, rtol), (32, low)):
        taken = modes | (second if bits in twice else {})
        run = jax.jit(jax.vmap(lambda x, taken=taken: {name: taken[name][0](x) for name in taken}))
        for name, found in run(points.astype(f"float{bits}")).items():
            assert found.dtype == f"float{bits}"
            expected = taken[name][1]
            atol = tolerance * np.abs(expected).max() + 1e-6
            np.testing.assert_allclose(found, expected, tolerance, atol, err_msg=name)
