"""Continuous-time Adam: the golden flow, orders of convergence, closed forms, the discrete run."""

from collections import OrderedDict
from functools import partial
from itertools import groupby

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from kadam_jax import flow, kadam, per_stage_decays
from kadam_jax.flow import (
    continuous_update,
    euler,
    exponential,
    flow_vector_field,
    moving_average_kernel,
    solve_flow,
)
from kadam_jax.flow.equation import Part, corrections_at, numbers_of, rounded
from tests.kadam_jax.support import reference_flow as reference
from tests.kadam_jax.support.derivatives import check_derivatives

METHODS = pytest.mark.parametrize("method", list(flow.METHODS))
CORRECTIONS = pytest.mark.parametrize("bias_correction", list(flow.BIAS_CORRECTIONS))
HESSIAN = np.array([[1.0, 0.2, -0.1], [0.2, 1.0, 0.1], [-0.1, 0.1, 1.0]])
START = np.array([1.0, 0.25, -0.5])


def assert_golden(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def quadratic(theta):
    """The gradient of a loss whose minimum is too far for any entry of it to change its sign."""
    return jnp.asarray(HESSIAN, theta.dtype) @ (theta - jnp.array([3.0, -2.25, 2.5], theta.dtype))


@jax.grad
def logistic(theta, batch):
    examples, labels = batch
    logits = examples @ theta
    return jnp.mean(jnp.logaddexp(0, logits) - labels * logits) + 0.01 * jnp.sum(theta**2)


def logistic_batches(num_steps):
    """Minibatches of 16 that change the gradient a lot."""
    rng = np.random.default_rng(0)
    examples = rng.standard_normal((num_steps, 16, 4))
    return jnp.array(examples), jnp.array(examples @ [1.0, -2.0, 0.5, 0.1] > 0.3, float)


@pytest.fixture
def two_nodes(monkeypatch):
    """The exponential method's programs are half as long, for properties of any number of nodes."""
    monkeypatch.setattr(exponential, "NODES", 2)


def order(errors, substeps):
    return -np.polyfit(np.log(substeps), np.log(errors), 1)[0]


def largest(difference):
    return np.abs(difference).max()


# The golden flow


@pytest.fixture
def golden_flow(x64, golden):
    return golden("flow")


def golden_gradient(data):
    hessian, centre = jnp.array(data["hessian"]), jnp.array(data["centre"])
    return lambda theta, centre=centre: hessian @ (theta - centre)


def groups(data):
    """Groups of golden cases that differ only in traced arguments, each with one solver."""

    def static(case):
        return case["k"], case["coupled"]

    for (k, coupled), group in groupby(sorted(data["cases"], key=static), static):
        group = list(group)
        traced = {n: jnp.array([c[n] for c in group]) for n in ("b1", "b2", "weight_decay")}
        options = {"learning_rate": data["learning_rate"], "num_steps": data["num_steps"]}
        solve_one = partial(
            solve_flow,
            golden_gradient(data),
            jnp.array(data["initial_params"]),
            k=k,
            coupled=coupled,
            **options,
        )

        def solve(solve_one=solve_one, traced=traced, **options):
            return jax.vmap(lambda case: solve_one(**case, **options))(traced)

        yield group, solve


@pytest.mark.parametrize("substeps", [10, 100])
def test_euler_matches_golden_values(golden_flow, substeps):
    for group, solve in groups(golden_flow):
        saved, state = solve(substeps=substeps)
        golden = [case["euler"][str(substeps)] for case in group]
        assert_golden(saved, [g["theta"] for g in golden])
        assert_golden(state.params, saved[:, -1])
        assert_golden(state.velocity, [g["final_psi"] for g in golden])
        assert_golden(np.moveaxis(state.mu, 0, 1), [g["final_m"] for g in golden])
        assert_golden(np.moveaxis(state.rms, 0, 1) ** 2, [g["final_v"] for g in golden])
        assert_golden(state.time, golden_flow["num_steps"] * golden_flow["learning_rate"])


def test_the_reference_is_golden_at_the_first_substeps(golden_flow):
    for case in golden_flow["cases"]:
        b1s, b2s = per_stage_decays(case["b1"], case["b2"], case["k"], case["strategy"])
        trajectory = reference.euler(
            lambda theta, n: np.array(golden_flow["hessian"]) @ (theta - golden_flow["centre"]),
            golden_flow["initial_params"],
            eta=golden_flow["learning_rate"],
            gammas=b1s,
            betas=b2s,
            N=1,
            K=10,
            lam=case["weight_decay"],
            coupled=case["coupled"],
        )
        for substep in case["euler"]["10"]["first_substeps"]:
            for name, values in zip(("theta", "psi", "m", "v", "u"), trajectory, strict=True):
                assert_golden(values[substep["j"]], substep[name])


def test_a_substep_of_one_parameter_takes_scalars(x64):
    """`euler.advance` in a Python loop is Appendix I line by line, real or complex."""
    eta, num, b1s, b2s = 0.1, 10, (0.9, 0.5), (0.99, 0.9)
    numbers = numbers_of(eta, 2, b1s, b2s, 1e-30, "naive", 0.3, False)
    p = rounded(numbers, jnp.float64)
    constants = euler.prepare(p, 1 / num)
    for theta in (0.7, 0.7 - 0.2j):
        expected = reference.euler(
            lambda x, n: 2 * x, theta, eta=eta, gammas=b1s, betas=b2s, N=2, K=num, lam=0.3
        )
        zero = jnp.zeros_like(jnp.asarray(theta))
        one = Part(jnp.asarray(theta), zero, zero, (zero, zero), (zero.real, zero.real))
        for j in range(2 * num):
            one = euler.advance(
                one, 2 * one.theta, constants, corrections_at(p, j / num, "discrete"), p
            )
        assert_golden(one.theta, expected.theta[-1])
        assert_golden(one.velocity, expected.psi[-1])
        assert_golden(one.mu, expected.m[-1])
        assert_golden(np.square(one.rms), expected.v[-1])


@METHODS
def test_a_minibatch_is_held_for_its_step(golden_flow, method):
    for case in golden_flow["batches"]:
        names = "b1", "b2", "k", "strategy", "weight_decay", "coupled", "num_steps"
        solve = partial(
            solve_flow,
            golden_gradient(golden_flow),
            jnp.array(golden_flow["initial_params"]),
            learning_rate=golden_flow["learning_rate"],
            batches=jnp.array(case["centres"]),
            **{name: case[name] for name in names},
        )
        euler = solve(substeps=case["substeps"]).saved
        if method == "euler":
            assert_golden(euler, case["theta"])
            continue
        finer = solve(substeps=2 * case["substeps"]).saved
        limit = 2 * finer - euler  # Euler's error is nearly C/K
        exponential = solve(substeps=4, method=method).saved
        assert largest(exponential - limit) < largest(euler - limit) / 10


def test_a_constant_gradient_is_multiplied_by_its_golden_gain(golden_flow):
    """Euler multiplies by x/(e^x - 1), far from 1 at a small b1; the exponential method by 1."""
    rows = golden_flow["moving_average_gain"]
    for substeps in {row["substeps"] for row in rows}:
        b = np.array([row["b"] for row in rows if row["substeps"] == substeps])
        gain = np.array([row["gain"] for row in rows if row["substeps"] == substeps])
        filled = 1 - np.exp(-3 * (1 - b) / b)

        def solve(b, **options):
            options |= {"learning_rate": 0.01, "num_steps": 3, "b1": b, "b2": b}
            return solve_flow(lambda theta: 2 + 0 * theta, 1.0, **options).state

        for options, expected in [
            ({"substeps": substeps}, gain * filled),
            ({"substeps": 2, "method": "exponential"}, filled),
        ]:
            state = jax.vmap(partial(solve, **options))(b)
            assert_golden(state.mu[0], 2 * expected)
            assert_golden(state.rms[0] ** 2, 4 * expected)


# Convergence


def test_euler_has_order_one_and_the_golden_error(golden_flow):
    substeps = [10, 20, 40, 80, 160]
    for group, solve in groups(golden_flow):
        if group[0]["coupled"]:
            continue  # the same loop with another gradient
        converged = np.array([case["converged"] for case in group])
        errors = [np.abs(solve(substeps=n).saved - converged).max((1, 2)) for n in substeps]
        golden = [[case["euler_max_error"][str(n)] for case in group] for n in substeps]
        np.testing.assert_allclose(errors, golden, rtol=1e-6)
        for case_errors in np.transpose(errors):
            assert order(case_errors, substeps) == pytest.approx(1, abs=0.1)


def test_two_gradients_of_exponential_beat_a_hundred_of_euler(golden_flow):
    for group, solve in groups(golden_flow):
        if group[0]["coupled"]:
            continue  # as in the test of five gradients
        converged = np.array([case["converged"] for case in group])
        errors = np.abs(solve(substeps=1, method="exponential").saved - converged).max((1, 2))
        assert (errors < [case["euler_max_error"]["100"] for case in group]).all()


@pytest.mark.parametrize(("k", "least"), [(1, 1.9), (2, 1.6)])
def test_the_exponential_methods_order_on_a_smooth_loss(x64, k, least):
    options = {"learning_rate": 0.05, "num_steps": 10, "method": "exponential", "k": k}
    solve = partial(solve_flow, quadratic, START, weight_decay=0.1, **options)
    reference, *coarse = (solve(substeps=n).saved for n in (64, 2, 8))
    errors = [largest(saved - reference) for saved in coarse]
    assert order(errors, [2, 8]) > least, errors


@pytest.mark.parametrize(
    ("k", "coupled", "bias_correction"), [(1, False, "continuous"), (2, True, "discrete")]
)
def test_five_gradients_do_on_data_what_a_hundred_of_euler_do(x64, k, coupled, bias_correction):
    options = {"learning_rate": 0.03, "num_steps": 12, "batches": logistic_batches(12)}
    options |= {"k": k, "coupled": coupled, "weight_decay": 0.1}
    options |= {"bias_correction": bias_correction, "b2": 0.99}
    solve = partial(solve_flow, logistic, jnp.array([0.3, 0.1, -0.2, 0.0]), **options)
    limit = solve(substeps=32, method="exponential").saved
    euler, finer = (largest(solve(substeps=n).saved - limit) for n in (100, 400))
    assert euler / finer == pytest.approx(4, rel=0.2)  # order 1, toward the same limit
    assert largest(solve(substeps=4, method="exponential").saved - limit) < euler


@partial(jax.jit, static_argnames=("grad_fn", "num_steps", "most", "solver", "options"))
def by_diffrax(
    grad_fn, params, batches, *, learning_rate, num_steps, substeps, most, solver, options
):
    """θ at t = nη from diffrax: step by step, inside each in x with t = (n + x²)η.

    It compiles once for all numbers of substeps up to `most`.
    """
    f, y0 = flow_vector_field(grad_fn, learning_rate=learning_rate, **dict(options))

    def step(y, now):
        n, batch = now

        def slope(x, y, args):
            speed = 2 * x * learning_rate
            return jax.tree.map(lambda dy: speed * dy, f((n + x * x) * learning_rate, y, args))

        y = diffrax.diffeqsolve(
            diffrax.ODETerm(slope),
            solver,
            0.0,
            1.0,
            1 / substeps,
            y,
            args=batch,
            max_steps=most + 1,
        ).ys
        y = jax.tree.map(lambda y: y[-1], y)
        return y, y.params

    start = y0(params)
    _, rest = jax.lax.scan(step, start, (jnp.arange(num_steps, dtype=float), batches))
    return jnp.concatenate([start.params[None], rest])


@pytest.mark.parametrize(
    ("solver", "substeps", "least_order", "largest_error"),
    [(diffrax.Heun(), (8, 16, 32), 1.8, 1e-5), (diffrax.Tsit5(), (4, 8, 16), 2, 1e-6)],
    ids=["heun", "tsit5"],
)
def test_diffrax_converges_to_the_same_limit(x64, solver, substeps, least_order, largest_error):
    params, batches = jnp.array([0.3, 0.1, -0.2, 0.0]), logistic_batches(3)
    options = {"weight_decay": 0.1, "b1": 0.9, "b2": 0.99}
    steps = {"learning_rate": 0.03, "num_steps": 3}
    limit = solve_flow(
        logistic, params, batches=batches, substeps=64, method="exponential", **steps, **options
    ).saved
    options = tuple(options.items())
    errors = [
        largest(
            by_diffrax(
                logistic,
                params,
                batches,
                substeps=float(n),
                most=substeps[-1],
                solver=solver,
                options=options,
                **steps,
            )
            - limit
        )
        for n in substeps
    ]
    assert order(errors, substeps) > least_order, errors
    assert errors[-1] < largest_error, errors


@CORRECTIONS
@pytest.mark.parametrize("coupled", [False, True])
def test_the_vector_field_is_the_limit_of_a_substep(x64, bias_correction, coupled):
    """Every variable's slope at the end of a run, complex parameters and two stages."""

    def grad_fn(theta):
        return {"w": theta["w"] * (2 - 1j) + theta["b"].sum(), "b": theta["b"] - theta["w"][0].real}

    params = {"w": jnp.array([1 + 1j, -0.5j]), "b": jnp.array([0.3, -2.0, 1.0])}
    equation = {"learning_rate": 0.1, "k": 2, "weight_decay": 0.3, "coupled": coupled}
    equation |= {"bias_correction": bias_correction, "b2": 0.95}
    f, y0 = flow_vector_field(grad_fn, **equation)

    def variables(state):
        nu = jax.tree.map(jnp.square, state.rms)
        return flow.FlowVariables(state.params, state.velocity, state.mu, nu)

    solve = partial(solve_flow, grad_fn, params, num_steps=3, substeps=512, **equation)
    saved, state = solve(save=lambda state: state)
    assert jax.tree.structure(y0(params)) == jax.tree.structure(variables(state))
    jax.tree.map(
        np.testing.assert_array_equal, y0(params), variables(jax.tree.map(lambda x: x[0], saved))
    )
    # Euler's method on f from the last step's start gives the last state
    start = variables(jax.tree.map(lambda x: x[2], saved))

    def substep(y, j):
        slope = f((2 + j / 512) * 0.1, y, None)
        return jax.tree.map(lambda y, dy: y + 0.1 / 512 * dy, y, slope), None

    end, _ = jax.lax.scan(substep, start, jnp.arange(512.0))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-4), end, variables(state))


# The discrete run


def discrete_run(grad_fn, start, learning_rate, num_steps, **options):
    optimizer = kadam(learning_rate, **options)

    def step(carry, _):
        theta, state = carry
        updates, state = optimizer.update(grad_fn(theta), state, theta)
        theta = optax.apply_updates(theta, updates)
        return (theta, state), theta

    _, rest = jax.lax.scan(step, (start, optimizer.init(start)), length=num_steps)
    return jnp.concatenate([start[None], rest])


def lag_in_steps(b1, b2, bias_correction):
    """Return by how many steps the flow can trail the discrete run, which starts with sign(g).

    dθ/dt, 0 at first, approaches u with time constant η/2, and u itself starts from sign(g) only
    with the continuous correction. Before g changes, η(1/2 + ∫(1-|u|)ds) is missing.
    """
    x = jnp.linspace(0, 20, 2001)  # s = x²
    u = jax.vmap(
        lambda s: continuous_update(
            jnp.ones_like, s, learning_rate=1.0, b1=b1, b2=b2, bias_correction=bias_correction
        )
    )(x * x)
    return 0.5 + np.cumsum((1 - u) * 2 * x * x[1]).max(initial=0)


@CORRECTIONS
def test_the_discrete_run_nears_the_flow_at_the_rate_of_theory(x64, bias_correction):
    """max ‖θ_n - θ(nη)‖ = lag·η at a fixed T = Nη, before convergence; γ² for γ in m fails."""
    b1, b2, num_steps = 0.9, 0.95, [128, 512]
    gaps = {b1: [], b1**2: []}
    for n in num_steps:
        run = discrete_run(quadratic, jnp.array(START), 1 / n, n, k=1, b1=b1, b2=b2)
        options = {"learning_rate": 1 / n, "num_steps": n, "substeps": 2, "method": "exponential"}
        flows = jax.vmap(
            lambda b1, options=options: (
                solve_flow(
                    quadratic, START, b1=b1, b2=b2, bias_correction=bias_correction, **options
                ).saved
            )
        )(np.array(list(gaps)))
        for values, saved in zip(gaps.values(), flows, strict=True):
            values.append(largest(run - saved))
    lag = lag_in_steps(b1, b2, bias_correction)

    def holds(values):
        return abs(order(values, num_steps) - 1) < 0.05 and abs(values[-1] * 512 / lag - 1) < 0.05

    assert holds(gaps[b1]), (gaps, lag)
    assert not holds(gaps[b1**2]), (gaps, lag)


@pytest.mark.parametrize("p", [1.0, 1.5])
def test_only_the_timescale_one_gives_the_second_order_equation(x64, p):
    """An update that moves θ(t) = sin t exactly over t_n = nη^p, in Proposition 2's equation."""
    rates = np.array([1e-2, 1e-3])
    update = -(np.sin(1 + rates**p) - np.sin(1)) / rates  # θ_{n+1} = θ_n - ηu_n
    residual = np.abs(np.cos(1) - rates / 2 * np.sin(1) + update)
    assert (order(residual, 1 / rates) > 1.9) == (p == 1)


# Closed forms


def test_the_golden_flow_without_updates(golden_flow):
    for row in golden_flow["zero_gradient"]:
        options = {name: row[name] for name in ("learning_rate", "weight_decay")}
        plus, minus = flow.unforced_rates(**options)
        assert_golden((plus, minus), (row["k_plus"], row["k_minus"]))
        start = jnp.array(golden_flow["initial_params"])
        num_steps = len(row["theta_over_theta0"]) - 1
        times = jnp.arange(num_steps + 1)[:, None] * row["learning_rate"]
        exact = flow.unforced_solution(times, start[None], **options)
        ratio = np.array(row["theta_over_theta0"])[:, None]
        assert_golden(exact / start[None], np.broadcast_to(ratio, exact.shape))
        solve = partial(solve_flow, jnp.zeros_like, start, num_steps=num_steps, **options)
        for substeps, expected in row["euler"].items():
            assert_golden(solve(substeps=int(substeps)).saved, expected)
        exponential = solve(substeps=4, method="exponential").saved
        assert largest(exponential - exact) <= largest(np.array(row["euler"]["100"]) - exact)


def test_the_unforced_solution_solves_its_equation(x64):
    def theta(t):
        return flow.unforced_solution(t, 2.0, -0.7, learning_rate=0.2, weight_decay=1.5)

    first, second = jax.grad(theta), jax.grad(jax.grad(theta))
    assert_golden((theta(0.0), first(0.0)), (2, -0.7))
    for t in (0.0, 0.3, 2.0):
        assert_golden(1.5 * theta(t) + first(t) + 0.1 * second(t), 0)


def test_the_kernel_has_weight_one_and_the_rate_of_lemma_1(x64):
    ages = jnp.linspace(0, 40 * 0.05 * 9, 200_001)
    kernel = partial(moving_average_kernel, t=0.0, decay=0.9, learning_rate=0.05)
    weight = jax.scipy.integrate.trapezoid(kernel(-ages), ages)
    assert weight == pytest.approx(1, abs=1e-6)
    slope = jax.grad(lambda t: moving_average_kernel(0.0, t, 0.9, learning_rate=0.05))(0.1)
    assert slope == pytest.approx(-0.1 / 0.9 / 0.05 * kernel(-0.1))


@CORRECTIONS
@pytest.mark.parametrize("b1", [0.01, 0.5, 0.9])
def test_proposition_1_is_the_update_of_the_flow(x64, bias_correction, b1):
    """The gradient's history is given by minibatches that are constant in between: a staircase."""
    history = jnp.array(np.random.default_rng(1).standard_normal((8, 3)))
    numbers = {"learning_rate": 0.1, "b1": b1, "b2": 0.99, "bias_correction": bias_correction}
    solution = solve_flow(
        lambda theta, g: g,
        jnp.zeros(3),
        num_steps=8,
        substeps=2,
        method="exponential",
        batches=history,
        save=lambda state: state.updates[0],
        **numbers,
    )

    def gradient(t):
        return history[jnp.clip(jnp.floor(t / 0.1).astype(int), 0, 7)]

    closed = continuous_update(gradient, 0.8, panels=4000, **numbers)
    np.testing.assert_allclose(solution.saved[-1], closed, rtol=2e-3)
    smooth = partial(continuous_update, lambda t: jnp.cos(3 * t) + 0.2, 0.8, **numbers)
    np.testing.assert_allclose(smooth(), smooth(panels=640), rtol=1e-12)


@pytest.mark.parametrize("dtype", [int, jnp.float16, jnp.bfloat16, complex])
def test_proposition_1_is_as_precise_for_every_dtype(dtype):
    def update(dtype):
        return continuous_update(lambda t: jnp.full(2, 3, dtype), 0.5, learning_rate=0.01)

    np.testing.assert_allclose(update(dtype), update(float), rtol=1e-6)


# What callers may do with a flow.


@CORRECTIONS
def test_decays_near_both_ends_are_solved(bias_correction):
    """Near 0 a stage keeps nothing: u is the sign of a constant gradient."""
    b1, b2 = np.meshgrid(*[[1e-7, 1e-3, 0.9, 1 - 1e-7]] * 2)

    def solve(b1, b2):
        return solve_flow(
            jnp.ones_like, START, learning_rate=0.1, num_steps=3, substeps=2, method="exponential",
            b1=b1, b2=b2, bias_correction=bias_correction, save=lambda state: state.updates[0],
        ).saved[1:]  # fmt: skip

    updates = jax.vmap(solve)(b1.ravel(), b2.ravel())
    assert jnp.isfinite(updates).all()
    np.testing.assert_allclose(updates[(np.maximum(b1, b2) < 0.5).ravel()], 1, rtol=1e-3)


@METHODS
def test_a_vmapped_solve_is_a_loop_and_compiles_once(x64, two_nodes, method):
    traces = []

    def grad_fn(theta):
        traces.append(None)
        return quadratic(theta)

    def solve(learning_rate, b1, weight_decay):
        numbers = {"learning_rate": learning_rate, "b1": b1, "weight_decay": weight_decay}
        return solve_flow(grad_fn, START, num_steps=5, substeps=3, method=method, **numbers).saved

    members = np.array([0.1, 0.01, 0.03]), np.array([0.9, 0.5, 0.99]), np.array([0.0, 0.1, 1.0])
    looped = [solve(*member) for member in zip(*members, strict=True)]
    once = len(traces)
    solve(0.2, 0.3, 0.4)
    assert len(traces) == once
    np.testing.assert_allclose(jax.vmap(solve)(*members), looped, rtol=1e-13)
    per_start = jax.vmap(
        lambda theta: (
            solve_flow(
                jnp.sin, theta, learning_rate=0.1, num_steps=5, substeps=3, method=method
            ).saved
        )
    )(jnp.array(START))
    together = solve_flow(jnp.sin, START, learning_rate=0.1, num_steps=5, substeps=3, method=method)
    np.testing.assert_allclose(per_start.T, together.saved, rtol=1e-13)


@pytest.mark.parametrize(
    ("method", "dtype", "bias_correction"),
    [("euler", float, "continuous"), ("exponential", complex, "discrete")],
)
def test_dead_parameters_stay_and_derivatives_are_finite(two_nodes, method, bias_correction, dtype):
    """There is no 0/0 at t = 0, not even to first order."""

    def end(learning_rate, b2, params):
        solution = solve_flow(
            lambda x: x * jnp.array([0, 1]),
            params,
            learning_rate=learning_rate,
            num_steps=2,
            substeps=2,
            b2=b2,
            method=method,
            bias_correction=bias_correction,
            save=lambda state: (state.params, state.updates),
        )
        return jnp.sum(jnp.abs(solution.saved[0]) ** 2), solution

    params = jnp.ones(2, dtype)
    slopes, solution = jax.jit(jax.grad(end, (0, 1, 2), has_aux=True))(0.1, 0.9, params)
    for tree in (slopes, solution):
        assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(tree))
    assert solution.state.params[0] == 1
    assert abs(solution.state.params[1]) < 1


@METHODS
def test_the_scale_of_the_gradient_does_not_matter(method):
    """Not even where a float32 v underflows."""

    def solve(scale):
        options = {"learning_rate": 0.1, "num_steps": 4, "substeps": 3, "eps": 0.0, "k": 2}
        return solve_flow(lambda x, c: c * quadratic(x), jnp.array(START, jnp.float32), **options,
                          batches=jnp.full(4, scale), method=method).saved  # fmt: skip

    np.testing.assert_array_equal(solve(2.0**-80), solve(1.0))


@METHODS
def test_complex_parameters_turn_with_their_gradient(x64, method):
    """A rotation of the complex plane commutes with the flow: only |g| is squared."""
    options = {"learning_rate": 0.1, "num_steps": 4, "substeps": 4, "method": method, "k": 2}
    turn = np.exp(0.7j)

    def grad_fn(z):
        return z * jnp.abs(z) ** 2 - z

    z = jnp.array([0.3 + 0.1j, -2 + 1j])
    saved = solve_flow(grad_fn, z, **options).saved
    np.testing.assert_allclose(
        solve_flow(grad_fn, turn * z, **options).saved, turn * saved, rtol=1e-12
    )
    if method == "euler":
        expected = reference.euler(
            lambda z, n: np.array(grad_fn(z)), np.array(z), eta=0.1, N=4, K=4,
            **dict(zip(("gammas", "betas"), per_stage_decays(0.9, 0.999, 2), strict=True)),
        )  # fmt: skip
        np.testing.assert_allclose(saved, expected.theta[::4], rtol=1e-12)


def test_small_increments_are_not_rounded_away_in_float32(x64):
    """A substep moves θ = 1.3 by 1e-6, which is 8.4 units in its last place."""
    options = {"learning_rate": 1e-4, "num_steps": 20}

    def moved(dtype):
        theta = jnp.full(1, 1.3, dtype)
        return solve_flow(jnp.ones_like, theta, **options).saved[-1] - theta

    np.testing.assert_allclose(moved(jnp.float32), moved(jnp.float64), rtol=2e-3)


@jax.tree_util.register_pytree_node_class
class Network:
    """Parameters of a class without __eq__: no two of them are equal."""

    def __init__(self, theta):
        self.theta = theta

    def tree_flatten(self):
        return (self.theta,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def test_parameters_may_be_a_tree_of_any_class():
    def of_network(network):
        return Network(quadratic(network.theta))

    options = {"learning_rate": 0.1, "num_steps": 1, "substeps": 2}
    saved = solve_flow(of_network, Network(START), **options).saved
    np.testing.assert_array_equal(saved.theta, solve_flow(quadratic, START, **options).saved)
    f, y0 = flow_vector_field(of_network, learning_rate=0.1)
    assert f(0.0, y0(Network(START)), None).params.theta.shape == START.shape


@METHODS
def test_a_tree_of_any_dtypes_is_solved_array_by_array(x64, method):
    """Arrays, scalars, float32 alongside float64; low precision is raised to float32."""
    params = {"a": jnp.float32(1.0), "b": [jnp.ones((2, 3)), jnp.full(2, 2.0, jnp.bfloat16)]}
    options = {"learning_rate": 0.1, "num_steps": 3, "substeps": 3, "method": method}
    saved, state = solve_flow(partial(jax.tree.map, jnp.sin), params, **options)
    dtypes = {"a": jnp.float32, "b": [jnp.float64, jnp.float32]}
    for tree in (saved, state.params, state.velocity, state.mu[0], state.rms[0], state.updates[0]):
        assert jax.tree.map(lambda x: x.dtype.type, tree) == jax.tree.map(
            lambda t: np.dtype(t).type, dtypes
        )
    alone = solve_flow(jnp.sin, params["b"][0], **options).saved
    np.testing.assert_allclose(saved["b"][0], alone, rtol=1e-6)  # whose numbers are float64


def test_an_integrand_is_summed_over_the_substeps(x64):
    options = {"learning_rate": 0.1, "num_steps": 5, "substeps": 200}
    _, state = solve_flow(
        quadratic, START, integrand=lambda s: (s.velocity, s.time * s.updates[-1]), **options
    )
    np.testing.assert_allclose(state.integral[0], state.params - START, rtol=1e-3)
    assert np.isfinite(state.integral[1]).all()
    one = solve_flow(quadratic, START, integrand=lambda s: 1.0, **options).state.integral
    np.testing.assert_allclose(one, 0.5, rtol=1e-12)


def test_float32_integrates_many_substeps():
    """300,000 substeps: a plain sum would lose 1e-3 of a constant."""

    def solve(value):
        return solve_flow(
            jnp.zeros_like, 1.0, learning_rate=1e-3, num_steps=3000, integrand=lambda s: value,
            save=lambda state: state.integral,
        )  # fmt: skip

    for value in (1.1, 1.1 + 0.3j):
        saved, state = solve(jnp.asarray(value))
        np.testing.assert_allclose(saved, value * 1e-3 * np.arange(3001), rtol=1e-6)
        assert state.integral == saved[-1]


class Spring:
    """A gradient without a hash, such as an Equinox module with arrays or a dataclass."""

    __hash__ = None

    def __init__(self, stiffness):
        self.stiffness = stiffness

    def __call__(self, theta):
        return self.stiffness * theta


def test_a_function_without_a_hash_is_never_stale():
    """It may have changed since the last call, so nothing that was compiled for it is kept."""
    spring = Spring(jnp.array([1.0, -1.0]))
    solve = partial(solve_flow, params=jnp.ones(2), learning_rate=0.1, num_steps=2, substeps=2)
    for stiffness in ([1.0, -1.0], [0.0, 2.0]):
        spring.stiffness = jnp.array(stiffness)
        expected = solve(lambda x, stiffness=spring.stiffness: stiffness * x).saved
        np.testing.assert_array_equal(solve(spring).saved, expected)

    def end(stiffness):
        return jnp.sum(solve(Spring(stiffness)).saved[-1])

    assert jax.grad(end)(jnp.array([1.0, 2.0])).shape == (2,)  # a traced one


@METHODS
def test_shards_are_solved_like_the_whole(method):
    """Inside shard_map, whose types say over which axes of the mesh an array varies."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def solve(theta):
        return solve_flow(
            jnp.sin, theta, learning_rate=0.1, num_steps=3, substeps=2, method=method,
            integrand=lambda state: state.velocity,
            save=lambda state: (state.params, state.integral),
        ).saved  # fmt: skip

    theta, spec = jnp.linspace(-1, 1, 8), jax.P(None, "x")
    shards = jax.jit(jax.shard_map(solve, mesh=mesh, in_specs=jax.P("x"), out_specs=spec))(theta)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), shards, solve(theta))


@METHODS
def test_jax_settings_change_nothing(two_nodes, method):
    """Strict promotion, no jit, and checks for NaN, at low precision and with complex numbers."""
    params = {"a": jnp.full(2, 0.5, jnp.bfloat16), "b": jnp.array([0.3 + 1j, 0])}

    def solve():
        return solve_flow(
            partial(jax.tree.map, lambda x: 2 * x), params, learning_rate=0.1, num_steps=2,
            substeps=1, method=method, k=2, weight_decay=0.1, bias_correction="continuous",
            integrand=lambda state: state.velocity["b"],
        )  # fmt: skip

    expected = solve()
    for switch in (jax.debug_nans(True), jax.disable_jit(), jax.numpy_dtype_promotion("strict")):
        with switch:
            close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
            jax.tree.map(close, solve(), expected)


def test_memory_grows_only_with_saved_values():
    def temporaries(num_steps, substeps):
        solve = jax.jit(
            lambda theta: solve_flow(
                jnp.sin, theta, learning_rate=0.1, num_steps=num_steps, substeps=substeps,
                save=lambda state: state.params[:1],
            )
        )  # fmt: skip
        return solve.lower(jnp.ones(10_000)).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(1000, 100) < temporaries(10, 10) + 20_000


# Bad arguments


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"substeps": 0}, ValueError, "substeps must be at least 1, got 0"),
        ({"num_steps": 0}, ValueError, "num_steps must be at least 1, got 0"),
        ({"num_steps": 3.0}, TypeError, "num_steps must be a Python int, got 3.0"),
        ({"batches": jnp.ones((2, 5))}, ValueError, r"num_steps=3, .*, got .* \(2, 5\)"),
        ({"b2": 1.0}, ValueError, r"b2 must be in \(0, 1\), got 1.0"),
        ({"b1": 0.0}, ValueError, r"b1 must be in \(0, 1\), got 0.0"),
        ({"b1": [0.9, 0.9]}, ValueError, "b1 must be a scalar or hold k=1 values, got 2"),
        ({"k": 0}, ValueError, "k must be at least 1"),
        ({"strategy": "linear"}, ValueError, "strategy must be one of"),
        ({"method": "rk4"}, ValueError, "method must be one of euler, exponential, got 'rk4'"),
        ({"bias_correction": None}, TypeError, "must be one of discrete, continuous, got None"),
        ({"save": lambda state: None}, ValueError, "save must return what is to be kept"),
        ({"learning_rate": 0.0}, ValueError, "learning_rate must be finite and above 0, got 0.0"),
        ({"learning_rate": np.inf}, ValueError, "learning_rate must be finite and above 0, got"),
        ({"weight_decay": np.nan}, ValueError, "weight_decay must be finite and at least 0, got"),
        *(
            ({name: value}, TypeError, f"{name} must be a (single|real) number")
            for name in ("learning_rate", "weight_decay", "eps")
            for value in (None, "0.1", 1j, True, jnp.full(3, 0.1))
        ),
        (
            {"learning_rate": optax.constant_schedule(0.1)},
            TypeError,
            "learning_rate must be a real number .*, got <function .*; .* cannot be a schedule",
        ),
        ({"coupled": "no"}, TypeError, "coupled must be a Python bool, got 'no'"),
        ({"b1": 1e-30}, ValueError, "b1 must be at least 1.17.*e-38 at every stage, got 0.0"),
        ({"b2": [1e-40]}, ValueError, "b2 must be at least 1.17.*e-38 at every stage, got 1e-40"),
        ({"eps": -1.0}, ValueError, "eps must be finite and at least 0, got -1.0"),
        ({"params": jnp.arange(3)}, TypeError, "params must be floating point or complex"),
        (
            {"params": {"a": None}},
            ValueError,
            "params must hold at least one array, got {'a': None}",
        ),
        ({"grad_fn": jnp.sum}, ValueError, "grad_fn must return the loss's gradient"),
        (
            {"params": {"a": jnp.ones(3)}, "grad_fn": lambda params: OrderedDict(params)},
            ValueError,
            r"grad_fn must return the loss's gradient, shaped like params, .*got OrderedDict",
        ),
        ({"grad_fn": lambda x: 1j * x}, TypeError, "real gradients for real params, got complex64"),
        ({"grad_fn": jnp.ones(3)}, TypeError, "grad_fn must be a function, got Array"),
        ({"grad_fn": lambda x, y: x}, TypeError, r"must take \(params\), got .* 'y'; batches="),
        (
            {"batches": jnp.ones((3, 5))},
            TypeError,
            r"must take \(params, batch\), got .*: too many positional",
        ),
        ({"save": None}, TypeError, "save must be a function, got None"),
        ({"method": ["euler"]}, TypeError, r"method must be one of .*, got \['euler'\]"),
        ({"integrand": 1}, TypeError, "integrand must be a function, got 1"),
        ({"substeps": 2**31}, ValueError, r"substeps must be below 2\*\*31"),
    ],
)
def test_a_bad_argument_is_named(change, error, message):
    arguments = {"grad_fn": jnp.sin, "params": jnp.ones(3), "learning_rate": 0.1, "num_steps": 3}
    with pytest.raises(error, match=message):
        solve_flow(**(arguments | change))


def test_bad_arguments_of_the_closed_forms_are_named():
    with pytest.raises(ValueError, match=r"learning_rate must be below 1, got 1.2"):
        flow.unforced_rates(0.6, 1.0)
    with pytest.raises(ValueError, match=r"decay must be in \(0, 1\), got 1"):
        moving_average_kernel(0.0, 1.0, 1, learning_rate=0.1)
    with pytest.raises(ValueError, match="t must be finite and at least 0, got -1"):
        continuous_update(jnp.cos, -1.0, learning_rate=0.1)
    with pytest.raises(TypeError, match="t must be a single number, got an array"):
        continuous_update(jnp.cos, jnp.ones(2), learning_rate=0.1)
    with pytest.raises(TypeError, match="gradient must be a function, got 1"):
        continuous_update(1.0, 1.0, learning_rate=0.1)
    with pytest.raises(ValueError, match="bias_correction must be one of"):
        flow_vector_field(jnp.sin, learning_rate=0.1, bias_correction="none")


# Derivatives


def ends_of_flow(method, k, **options):
    """Return the ends, given η, γ, β, ε, λ, θ(0) and two gradients: three parameters, three steps.

    The gradient of the first depends on it, that of the second is 0 in the second step, and that of
    the third is 0 before the third step: 0/0, and the kink of √v where v = |g|² is 0.
    """

    def f(x):
        start, zero = jnp.stack([x[5], x[5], x[5]]), jnp.zeros_like(x[5])
        given = [[zero, x[6], zero], [zero, zero, zero], [zero, x[7], x[7]]]  # (steps, parameters)
        solution = solve_flow(
            lambda theta, g: g + theta * jnp.array([2, 0, 0], theta.dtype),
            start,
            learning_rate=x[0],
            b1=x[1],
            b2=x[2],
            eps=x[3],
            weight_decay=x[4],
            num_steps=3,
            substeps=2 if method == "euler" else 1,
            batches=jnp.stack([jnp.stack(row) for row in given]),
            method=method,
            k=k,
            **options,
        )
        state = solution.state
        return jnp.sum(jnp.sin(jnp.stack([state.params, state.velocity, state.updates[-1]])))

    return f


@pytest.mark.parametrize(
    ("method", "k", "options", "twice", "compiled"),
    [
        ("euler", 2, {}, [64], True),
        ("euler", 1, {"coupled": True, "bias_correction": "continuous"}, [64, 32], True),
        ("exponential", 1, {}, [64], False),
    ],
)
def test_derivatives_are_those_of_finite_differences(
    x64, two_nodes, method, k, options, twice, compiled
):
    """At λ = 0, with and without ε, for entries that are dead for some steps.

    Coupled decay has λ > 0: it is all of a first gradient that is 0, so u(0+) jumps at λ = 0.
    """
    decay = 0.2 if options.get("coupled") else 0.0
    points = [[0.3, 0.9, 0.95, eps, decay, 0.7, 0.5, -0.3] for eps in (0.1, 0.0)]
    f = ends_of_flow(method, k, **options)
    check_derivatives(f, points, twice=twice, compiled=compiled)


def closed(x):
    """Return a kernel, rates, solutions and an update from η, γ, β, λ, t and a gradient's size."""
    rate, b1, b2, decay, t, size = x
    kernel = moving_average_kernel(t / 2, t, b1, learning_rate=rate)
    rates = flow.unforced_rates(rate, decay)
    solution = flow.unforced_solution(t, size, -0.7, learning_rate=rate, weight_decay=decay)
    updates = [
        continuous_update(
            lambda s: size * jnp.cos(s), t, learning_rate=rate, b1=b1, b2=b2, panels=2,
            bias_correction=bias_correction,
        )
        for bias_correction in flow.BIAS_CORRECTIONS
    ]  # fmt: skip
    return jnp.sum(jnp.sin(jnp.stack([kernel, *rates, solution, *updates])))


def test_derivatives_of_closed_forms(x64):
    """At λ = 0, and where both unforced rates nearly meet."""
    points = [[0.4, 0.9, 0.95, 0.0, 0.5, 0.7], [0.4, 0.5, 0.95, 1.0, 0.5, 0.7]]
    check_derivatives(closed, points, twice=[64])

    @jax.jit
    def near(decay):
        return flow.unforced_solution(0.5, 0.7, -0.7, learning_rate=0.5, weight_decay=decay)

    slope_near = jax.jit(jax.grad(near))
    for gap in (1e-3, 1e-6, 1e-9):  # 1 - 2λη: the solution is smooth in it, but its rates are not
        decay = 1 - gap
        slope = (near(decay - 2e-4) - near(decay - 4e-4)) / 2e-4
        np.testing.assert_allclose(slope_near(decay), slope, rtol=1e-3)


def test_the_update_starts_flat_where_its_slope_is_infinite(x64):
    """u grows like √t from t = 0 with the paper's correction; the derivative there is set to 0."""
    for bias_correction, start in (("discrete", 0.0), ("continuous", 1.0)):
        update = partial(
            continuous_update, jnp.cos, learning_rate=0.1, bias_correction=bias_correction, panels=2
        )
        assert jax.jit(jax.value_and_grad(update))(0.0) == (start, 0)
