"""k-Adam step by step: the literal reference, and the golden trajectories."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kadam_jax import kadam, per_stage_decays, scale_by_adaptive_normalization
from tests.kadam_jax.support import reference
from tests.kadam_jax.support.scanning import feed, jit_feed, stages_of


def inverse(n):
    return 0.1 / (1 + n)


SCHEDULES = {"constant": lambda n: 0.1, "inverse": inverse}


@pytest.mark.parametrize("k", [1, 3, 10])
@pytest.mark.parametrize("coupled", [False, True])
def test_float64_agrees_with_the_literal_algorithm(x64, k, coupled):
    rng = np.random.default_rng(k)
    gradients = rng.standard_normal((60, 8)) * rng.lognormal(0, 2, 8)
    gradients[:, 0] *= rng.random(60) < 0.3
    theta_0 = rng.standard_normal(8)
    b1s, b2s = per_stage_decays(0.9, 0.999, k)
    expected = reference.kadam(
        gradients, theta_0, gammas=b1s, betas=b2s, eta=inverse, lam=0.02, coupled=coupled
    )
    optimizer = kadam(inverse, k, weight_decay=0.02, coupled=coupled)
    params, _, state = jit_feed(optimizer, gradients, jnp.asarray(theta_0))
    close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
    close(params, expected.theta[1:])
    for i, stage in enumerate(stages_of(state)):
        close(stage.mu, expected.m[:, i])
        close(stage.rms, expected.root_v[:, i])
        np.testing.assert_array_equal(stage.count, 1 + np.arange(len(gradients)))


# Golden


@partial(jax.jit, static_argnums=(0, 1))
def golden_run(k, coupled, b1s, b2s, eps, weight_decay, slowing, gradients, theta_0):
    """Parameters, every stage's output and every stage's state, after each step."""
    optimizer = kadam(
        lambda n: 0.1 / (1 + slowing * n),
        k,
        b1s,
        b2s,
        eps,
        weight_decay=weight_decay,
        coupled=coupled,
    )
    params, _, state = feed(optimizer, gradients, theta_0)
    before = jnp.concatenate([theta_0[None], params[:-1]])
    inputs = gradients + weight_decay * before if coupled else gradients
    singles = [scale_by_adaptive_normalization(*b, eps) for b in zip(b1s, b2s, strict=True)]

    def step(states, u):
        outputs, after = [], []
        for single, state in zip(singles, states, strict=True):
            u, state = single.update(u, state)
            outputs.append(u)
            after.append(state)
        return after, jnp.stack(outputs)

    outputs = jax.lax.scan(step, [single.init(theta_0) for single in singles], inputs)[1]
    stages = stages_of(state)
    return params, outputs, [s.mu for s in stages], [s.rms for s in stages]


def golden_cases(golden):
    data = golden("kadam_trajectories")
    for case in data["cases"]:
        yield case, np.array(data["gradient_sequences"][case["gradients"]]), data["initial_params"]


def assert_golden(case, params, outputs, mus, rmss, **tolerance):
    close = partial(np.testing.assert_allclose, err_msg=case["name"], **tolerance)
    for s, expected in case["params"].items():
        close(params[int(s) - 1], expected)
    for s, expected in case["stage_updates"].items():
        close(outputs[int(s) - 1], expected)
    close([mu[24] for mu in mus], case["mu_25"])
    close([rms[24] for rms in rmss], case["rms_25"])


@pytest.mark.parametrize("x64_enabled", [False, True], ids=["float32", "float64"])
def test_golden_trajectories(golden, x64_enabled):
    tolerance = dict(rtol=1e-12, atol=1e-12) if x64_enabled else dict(rtol=1e-4, atol=1e-6)
    with jax.enable_x64(x64_enabled):
        for case, gradients, theta_0 in golden_cases(golden):
            if not x64_enabled and case["k"] in (2, 3):
                continue  # between 1 and 5, which are compared
            slowing = float(case["learning_rate"] == "inverse")
            decays = map(jnp.array, (case["per_stage_b1"], case["per_stage_b2"]))
            arrays = jnp.asarray(gradients), jnp.asarray(theta_0)
            run = golden_run(
                case["k"],
                case["coupled"],
                *decays,
                case["eps"],
                case["weight_decay"],
                slowing,
                *arrays,
            )
            assert_golden(case, *run, **tolerance)


def test_golden_is_what_the_reference_says_too(golden):
    for case, gradients, theta_0 in golden_cases(golden):
        run = reference.kadam(
            gradients,
            theta_0,
            gammas=case["per_stage_b1"],
            betas=case["per_stage_b2"],
            epsilon=case["eps"],
            eta=SCHEDULES[case["learning_rate"]],
            lam=case["weight_decay"],
            coupled=case["coupled"],
        )
        m, root_v = (np.swapaxes(x, 0, 1) for x in (run.m, run.root_v))
        assert_golden(case, run.theta[1:], run.u, m, root_v, rtol=1e-12, atol=1e-12)
