"""figures/flow/trajectories and its claims."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.core.claims import INCONCLUSIVE, judge
from experiments.core.config import to_json
from experiments.figures.flow.trajectories import FIGURE
from experiments.figures.flow.trajectories.claims import CLAIMS
from experiments.figures.flow.trajectories.distances import (
    GROUPS,
    flow_distances,
    leaf_names,
    places,
)
from experiments.figures.flow.trajectories.plot import plot
from experiments.figures.flow.trajectories.run import Config, analyze
from experiments.training.tasks import Task
from tests.figures.contract import NETWORK, SMALL_NETWORK, Contract
from tests.kadam_jax.support import reference_flow

TINY = Config(
    model=dataclasses.replace(NETWORK, dropout=0.0),
    batch=2,
    num_steps=20,
    num_seeds=2,
    num_drawn=3,
    num_measured=500,
    compared_steps=12,
    early_steps=4,
    substeps=1,
    reference_substeps=2,
    euler_substeps=(2,),
)
LAPTOP = FIGURE.presets["laptop"]
pytestmark = pytest.mark.usefixtures("small_network")
QUADRATIC = Task(  # toward a target that changes at every step
    init=lambda key: (
        {"embedding": jax.random.normal(key, (3, 2)), "weights": jnp.ones(5)},
        jnp.array(2.0),
    ),
    loss=None,
    metrics=lambda params, curvature, target, weights: {
        "loss": curvature * sum(jnp.sum((x - target[0]) ** 2) for x in jax.tree.leaves(params)) / 2
    },
    sample=lambda key: jax.random.normal(key, (1,)),
)


# Recorded values


def adam(theta, targets, rate, b1, b2):
    """Run Algorithm 1 on the quadratic and return every θ_n."""
    m, v, thetas = 0 * theta, 0 * theta, [theta]
    for n, target in enumerate(targets):
        g = 2.0 * (theta - target)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        u = m / (1 - b1 ** (n + 1)) / np.sqrt(v / (1 - b2 ** (n + 1)))
        theta = theta - rate * u
        thetas.append(theta)
    return np.array(thetas)


def test_a_member_equals_the_literal_algorithms():
    rate, num_steps, num_substeps, b1, b2 = 0.05, 15, 3, 0.9, 0.999
    solvers = {"euler": {"method": "euler", "substeps": num_substeps}}
    found = flow_distances(
        QUADRATIC, solvers, "discrete", num_steps=num_steps, num_drawn=2, num_measured=100,
        b1=b1, b2=b2, eps=1e-30,
    )({"learning_rate": jnp.array(rate), "seed": jnp.array(3)})  # fmt: skip
    init_key, sample_key = jax.random.split(jax.random.key(3))
    params, _ = QUADRATIC.init(init_key)
    targets = jax.vmap(QUADRATIC.sample)(jax.random.split(sample_key, num_steps))
    targets = np.array(targets[:, 0], float)
    theta = np.concatenate([np.ravel(params[k]) for k in ("embedding", "weights")]).astype(float)
    discrete = adam(theta, targets, rate, b1, b2)
    flow = reference_flow.euler(
        lambda theta, n: 2.0 * (theta - targets[min(n, num_steps - 1)]), theta,
        eta=rate, gammas=[b1], betas=[b2], N=num_steps, K=num_substeps,
    ).theta[::num_substeps]  # fmt: skip

    def root_mean_squares(x):
        drawn = places(params, 2)
        return np.sqrt([np.mean(x[:, of] ** 2, 1) for of in (slice(None), slice(6, None), drawn)])

    gap, displacement = root_mean_squares(discrete - flow), root_mean_squares(flow - theta)
    np.testing.assert_allclose(found["distance"][1], gap, atol=2e-6)
    np.testing.assert_allclose(found["displacement"][1], displacement, rtol=1e-5, atol=2e-6)
    assert (found["distance"][0] == 0).all()
    moved = np.stack([x - theta for x in (discrete, flow)])[..., places(params, 2)]
    np.testing.assert_allclose(found["moved"], moved, atol=2e-6)


def test_drawn_parameters_spread_over_arrays_by_size():
    params = {"large": np.zeros((30, 20)), "small": np.zeros(200)}
    names = leaf_names(params)[places(params, 16)]
    assert names.tolist() == ["large"] * 12 + ["small"] * 4
    np.testing.assert_array_equal(places(params, 16), places(params, 16))
    np.testing.assert_array_equal(places(params, 10_000), np.arange(800))


# The dataset and its plot


def test_arrays_are_finite_once_something_has_moved(data):
    assert data.error.dims == ("group", "flow", "learning_rate", "seed", "step")
    assert data.error.isel(step=0).isnull().all()
    assert np.isfinite(data.error.isel(step=slice(1, None))).all()
    assert data.euler_over_distance.shape == (1, 2)
    assert all(np.isfinite(x).all() for x in data.data_vars.values() if x.dims == ("end",))
    median, low, high = data["paper_error_all_0.001"]
    assert low <= median <= high


def test_the_drawn_parameters_error_is_their_trajectories(data):
    flow, discrete = data.moved.sel(process="paper"), data.moved.sel(process="discrete")
    expected = np.linalg.norm(flow - discrete, axis=-1)[..., 1:]
    expected /= np.linalg.norm(flow, axis=-1)[..., 1:]
    error = data.error.sel(group="drawn", flow="paper").isel(step=slice(1, None))
    np.testing.assert_allclose(error, expected, rtol=1e-3, atol=1e-4)


def test_both_sweeps_run_the_same_discrete_run_and_flow(data):
    """The distance to the reference equals that to the flow up to the solver's error."""
    flow = data.error.sel(group="all", flow="paper", learning_rate=1e-3, step=12)
    apart = abs(data.euler_error[0, :, -1] / data.euler_over_distance[0] - flow)
    assert (apart <= 2 * data.exponential_error[:, -1] + 1e-4).all()
    assert (data.exponential_error[:, -1] < data.euler_error[0, :, -1]).all()


def test_both_processes_of_every_drawn_parameter_have_lines(data):
    assert len(plot(data)[""].axes[0].get_lines()) == 2 * TINY.num_drawn + 2


# Analysis


def dataset(*, at=0.03, power=1.0, spread=0.05, early=0.4, euler=0.05, drift=0.0):
    """Make the laptop's dataset with the values that claims read.

    Args:
      at: Relative error at η = 1e-3 after 100 steps.
      power: Exponent of η in the relative error at a given number of steps.
      spread: Seeds multiply everything by 1 - spread ... 1 + spread, the power too.
      early: The self-consistent flow's distance over the paper's.
      euler: Error of Euler's method with K = 100 over the discrete run's distance.
      drift: Power of n in the relative error.
    """
    rates = np.array(LAPTOP.learning_rates)[:, None, None, None, None]
    seeds = 1 + spread * np.linspace(-1, 1, LAPTOP.num_seeds)
    n, s = np.arange(LAPTOP.num_steps + 1.0), seeds[:, None, None, None]

    def processes(*factors):
        """Return one factor for each process, shared by all seeds or one for each."""
        return np.stack(np.broadcast_arrays(*factors, seeds)[:-1], -1)[..., None, None]

    displacement = np.ones((1, 1, 1, len(GROUPS), 1)) * rates * n
    error = at * s * (rates / 1e-3) ** (power * s) * (np.maximum(n, 1) / 100) ** drift
    by_rate = {
        "moved": np.zeros((len(rates), len(seeds), 3, len(n), LAPTOP.num_drawn)),
        "distance": displacement * error * processes(0, 1, early * seeds),
        "displacement": displacement * processes(1, 1, 1),
    }
    of_euler = [euler * seeds * 100 / k for k in LAPTOP.euler_substeps]
    short = displacement[-1:, ..., : LAPTOP.compared_steps + 1]
    by_solver = {
        "distance": at * short * processes(1, 0, 1e-3, *of_euler),
        "displacement": short * processes(1, 1, 1, *[1] * len(of_euler)),
    }
    return analyze(LAPTOP, np.array(["embedding"] * LAPTOP.num_drawn), by_rate, by_solver)


@pytest.mark.parametrize(("power", "drift"), [(1.0, 0.0), (0.5, -1.0), (1.0, 0.7)])
def test_the_order_is_that_of_a_power_law_in_steps_and_in_time(power, drift):
    """At Nη = T an error of η^p N^q scales like η^(p-q)."""
    order = dataset(power=power, drift=drift, spread=0.0).order.sel(group="all", flow="paper")
    np.testing.assert_allclose(order.sel(at="steps"), power, atol=1e-9)
    np.testing.assert_allclose(order.sel(at="time"), power - drift, atol=0.01)  # 66.7 is 67 steps


def test_comparisons_recover_the_given_values():
    found = dataset(at=0.2, early=0.3, euler=0.07, spread=0.0)
    at_end = found.compared.sel(at="steps", learning_rate=1e-3)
    np.testing.assert_allclose(at_end.sel(flow="paper"), 0.2)
    np.testing.assert_allclose(at_end.sel(flow="self-consistent"), 0.06)
    np.testing.assert_allclose(found.early_ratio, 0.3)
    np.testing.assert_allclose(found.euler_over_distance.sel(substeps=100), 0.07)
    np.testing.assert_allclose(found.solver_error, 0.2e-3)
    ten = found.distance.sel(flow="paper", learning_rate=1e-3, step=10)
    np.testing.assert_allclose(ten, 0.2 * 10)  # in learning rates


def test_without_its_learning_rate_no_claim_is_decided():
    elsewhere = dataset().assign_coords(learning_rate=[1e-5, 2e-5, 2e-4], substeps=[2, 4, 8])
    elsewhere.attrs["config"] = to_json(LAPTOP)
    for claim in CLAIMS:
        if claim.id in ("flow-tracks-adam-at-1e-3", "euler-with-100-substeps-suffices"):
            assert judge(claim, elsewhere, FIGURE.minimum).verdict == INCONCLUSIVE


CONTRACT = Contract(
    FIGURE,
    TINY,
    panels={"": 6, "parameters": 3},
    strict=(32,),
    diverged=((np.nan, 64), (np.nan, 32)),
    refused=[
        ({"learning_rate": 2e-3}, "learning_rate must be one of"),
        ({"learning_rates": (1e-3,)}, "two or more"),
        ({"learning_rates": (1e-3, 1e-4)}, "increase"),
        (
            {"num_steps": 2, "compared_steps": 1, "early_steps": 1},
            "num_steps at the smallest .*, got 2",
        ),
        ({"compared_steps": 0}, "compared_steps must be from 1"),
        ({"early_steps": 21}, "early_steps must be from 1 to .*20"),
        ({"num_drawn": 0}, "num_drawn must be at least 1"),
    ],
    made_up=dataset,
    cases={
        **{
            f"flow-tracks-adam-at-{rate}": (
                {"at": 0.05, "power": 0.0},
                {"at": 0.2, "power": 0.0},
                {"at": 0.1, "power": 0.0, "spread": 0.3},
            )
            for rate in ("1e-4", "3e-4", "1e-3")
        },
        "flow-error-is-first-order-in-time": (
            {},
            {"power": 1.0, "drift": -1.0},
            {"power": 1.2, "spread": 0.3},
        ),
        "flow-error-is-first-order-in-steps": ({}, {"power": 2.0}, {"power": 1.2, "spread": 0.3}),
        "self-consistent-correction-halves-the-early-distance": (
            {"early": 0.4},
            {"early": 0.7},
            {"early": 0.5, "spread": 0.3},
        ),
        "euler-with-100-substeps-suffices": (
            {"euler": 0.05},
            {"euler": 0.3},
            {"euler": 0.1, "spread": 0.3},
        ),
    },
    patches=SMALL_NETWORK,
)
