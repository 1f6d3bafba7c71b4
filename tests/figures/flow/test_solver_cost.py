"""figures/flow/solver_cost: the solutions and their costs, the figure and its claims."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from experiments.core.errors import ConfigError
from experiments.core.run import Run
from experiments.figures.flow import solver_cost
from experiments.figures.flow.solver_cost.problems import by_diffrax
from experiments.training.tasks import language_task
from kadam_jax.flow import flow_vector_field, solve_flow
from tests.figures.contract import CORPUS, NETWORK, Contract

CONFIG = dataclasses.replace(
    solver_cost.FIGURE.presets["smoke"], model=NETWORK, small_steps=3, goal=4, euler=(2, 4)
)
LAPTOP = solver_cost.FIGURE.presets["laptop"]
DECAYS = {"b1": CONFIG.b1, "b2": CONFIG.b2}


MAKE_PROBLEMS = solver_cost.run.problems
RUN = Run(CORPUS, None, None)  # for problems, which are built without a sweep


def problem_of(name, seed):
    make, _ = solver_cost.run.problems(CONFIG, RUN)[name]
    return make(jax.random.key(seed))


# Problems


def test_every_problem_is_in_float64_and_varies_as_stated(x64):
    for name, (make, _) in solver_cost.run.problems(CONFIG, RUN).items():

        @jax.jit
        def start_and_grads(key, name=name, make=make):
            problem = make(key)
            assert problem.num_steps == (
                CONFIG.num_steps if name == "nanoGPT" else CONFIG.small_steps
            )
            batches = jax.tree.map(lambda x: x[:2], problem.batches)
            return problem.start, jax.lax.map(partial(problem.grad_fn, problem.start), batches)

        (start, grads), (other, _) = (start_and_grads(jax.random.key(seed)) for seed in range(2))
        assert grads.dtype == start.dtype == jnp.float64
        assert np.array_equal(*grads) == (name == "quadratic")
        assert not np.array_equal(start, other)


def test_the_networks_gradient_is_its_tasks_without_dropout(x64):
    make, _ = solver_cost.run.problems(CONFIG, RUN)["nanoGPT"]

    @jax.jit
    def both(key):
        problem = make(key)
        task = language_task(NETWORK, CORPUS, CONFIG.batch)
        params, state = task.init(jax.random.split(key)[0])
        tokens = problem.batches[0]
        grads = jax.grad(lambda params: task.evaluate(params, state, tokens))(params)
        return problem.grad_fn(problem.start, tokens), ravel_pytree(grads)[0]

    in_float64, in_float32 = both(jax.random.key(3))
    np.testing.assert_allclose(in_float64, in_float32, rtol=1e-3, atol=1e-6)


def test_a_run_without_a_corpus_is_refused():
    with pytest.raises(ConfigError, match="corpus must be a corpus"):
        solver_cost.run.compute(CONFIG, Run(None, None, None))


# Methods


@pytest.mark.parametrize("in_x", [False, True])
def test_by_diffrax_runs_the_method_step_by_step(x64, in_x):
    """Heun's method as a loop that evaluates only a step's own minibatch."""
    problem = problem_of("logistic regression", 0)
    f, y0 = flow_vector_field(problem.grad_fn, learning_rate=problem.rate, **DECAYS)
    num, y = 2, y0(problem.start)

    def moved(y, slope, by):
        return jax.tree.map(lambda y, dy: y + by * dy, y, slope)

    def slope(n, x, y):
        batch = jax.tree.map(lambda leaf: leaf[n], problem.batches)
        s, speed = (x**2, 2 * x) if in_x else (x, 1)
        dy = f((n + s) * problem.rate, y, batch)
        return jax.tree.map(lambda dy: dy * speed * problem.rate, dy)

    for n in range(problem.num_steps):
        for j in range(num):
            first = slope(n, j / num, y)
            second = slope(n, (j + 1) / num, moved(y, first, 1 / num))
            y = moved(moved(y, first, 0.5 / num), second, 0.5 / num)
    solver = solver_cost.run.SOLVERS["heun"]
    solution = by_diffrax(problem, solver, in_x, num, **DECAYS)
    np.testing.assert_allclose(solution, y.params, rtol=1e-12)


@pytest.mark.parametrize("name", solver_cost.run.METHODS)
def test_a_method_takes_the_stated_number_of_gradients(x64, name):
    problem = problem_of("quadratic", 0)
    count = []

    def grad_fn(theta, batch):
        jax.debug.callback(lambda: count.append(None))
        return problem.grad_fn(theta, batch)

    counted, method, num = problem._replace(grad_fn=grad_fn), solver_cost.run.METHODS[name], 3
    kind, _, variable = name.partition("_")
    if kind in solver_cost.run.SOLVERS:
        solver = solver_cost.run.SOLVERS[kind]
        end = by_diffrax(counted, solver, variable == "x", num, **DECAYS)
    else:
        end = solve_flow(
            grad_fn, problem.start, batches=problem.batches, learning_rate=0.1, method=name,
            num_steps=problem.num_steps, substeps=num,
        )  # fmt: skip
    jax.block_until_ready(end)
    jax.effects_barrier()
    assert len(count) == problem.num_steps * (method.each * num + method.once)


def test_an_error_is_the_distance_over_the_displacement(data, x64):
    seed = 1
    problem = problem_of("quadratic", seed)
    solve = partial(
        solve_flow, problem.grad_fn, problem.start, batches=problem.batches,
        learning_rate=problem.rate, num_steps=problem.num_steps, **DECAYS,
    )  # fmt: skip
    *_, converged = solve(substeps=CONFIG.small_reference, method="exponential").saved
    displacement = np.linalg.norm(converged - problem.start)

    def error(solution):
        return np.linalg.norm(solution - converged) / displacement

    data = data.sel(problem="quadratic", seed=seed)
    expected = {("euler", num): error(solve(substeps=num).saved[-1]) for num in CONFIG.euler}
    for name, solver in solver_cost.run.SOLVERS.items():
        for in_x, variable in enumerate(solver_cost.run.VARIABLES):
            num = getattr(CONFIG, name)[1]
            end = by_diffrax(problem, solver, in_x, num, **DECAYS)
            expected[f"{name}_{variable}", num] = error(end)
    for (method, num), value in expected.items():
        (found,) = data.error[(data.run_solver == method) & (data.substeps == num)]
        np.testing.assert_allclose(found, value, rtol=1e-6)
    finer = solve(substeps=4 * CONFIG.small_reference, method="exponential").saved[-1]
    assert 0.5 < data.reference_error / error(finer) < 2


# The dataset, the figure and the claims

PROBLEMS = list(MAKE_PROBLEMS(CONFIG, RUN))
# Errors of order p with K substeps are C/K^p; those of Euler's method are 0.1/K.
LAWS = {
    "euler": (0.1, 1.0),
    "exponential": (0.02, 2.0),
    **{
        "heun_t": (0.05, 1.5),
        "heun_x": (0.05, 2.0),
        "tsit5_t": (0.01, 1.5),
        "tsit5_x": (0.01, 2.3),
    },
}


def cost_data(config=LAPTOP, spread=0.0, **laws):
    """Make a dataset of errors that follow `LAWS`; seeds' orders differ by up to `spread`."""
    found = {"reference": np.full(config.num_seeds, 1e-8)}
    for name, (size, order) in (LAWS | laws).items():
        substeps = np.array(getattr(config, solver_cost.run.METHODS[name].substeps), float)
        orders = order + np.linspace(-spread, spread, config.num_seeds)[:, None]
        found[name] = np.broadcast_to(size / substeps**orders, (config.num_seeds, len(substeps)))
    return solver_cost.run.analyze(config, dict.fromkeys(PROBLEMS, found))


def test_orders_and_fewest_gradients_come_from_the_errors():
    data = cost_data()
    for name, (_, order) in LAWS.items():
        np.testing.assert_allclose(data.order.sel(solver=name), order)
    # 0.1/100 is the goal: 0.02/K² needs K = 8 of (1, 2, 3, 4, 8, 16), and one gradient more.
    assert (data.fewest.sel(solver="exponential") == 9).all()
    assert (data.fewest.sel(solver="euler") == 100).all()
    with np.errstate(invalid="ignore"):  # of the mean over seeds
        never = cost_data(exponential=(1e3, 2.0)).fewest.sel(solver="exponential")
    assert np.isposinf(never).all()


CONTRACT = Contract(
    solver_cost.FIGURE,
    CONFIG,
    panels={"": 4},
    strict=(),
    refused=[
        {"euler": (100,)},
        {"heun": (4, 2)},
        {"tsit5": (0, 2)},
        {"goal": 17},
        {"reference": 3},
        {"small_reference": 3},
        {"small_steps": 0},
        {"b2": 1.0},
    ],
    made_up=cost_data,
    cases={
        "euler-has-order-one": (
            {"spread": 0.02},
            {"euler": (0.1, 1.3), "spread": 0.02},
            {"spread": 0.2},
        ),
        "exponential-integrator-has-order-two": (
            {"spread": 0.1},
            {"exponential": (0.02, 1.5), "spread": 0.1},
            {"spread": 0.4},
        ),
        "root-limits-classical-methods": (
            {"spread": 0.1},
            {"heun_t": (0.1, 2.0), "tsit5_t": (0.1, 2.0)},
            {"heun_t": (0.1, 2.0)},
        ),
        "substitution-restores-order": ({"spread": 0.1}, {"tsit5_x": (0.01, 3.0)}, {"spread": 0.5}),
        "five-gradients-do-what-eulers-hundred-do": (
            {"exponential": (0.01, 2.0)},
            {},
            {"exponential": (0.016, 2.0), "spread": 0.2},
        ),
    },
    patches={
        "experiments.figures.flow.solver_cost.run.problems": lambda config, run: dict.fromkeys(
            PROBLEMS, MAKE_PROBLEMS(config, run)["quadratic"]
        )
    },
)
