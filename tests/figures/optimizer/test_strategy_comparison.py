"""Tests of figures/optimizer/strategy_comparison.py: tuning, intervals, plots and claims."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr

from experiments.core.claims import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, judge
from experiments.core.config import to_json
from experiments.core.run import Run
from experiments.core.store import ChunkStore
from experiments.figures.optimizer import strategies_text
from experiments.figures.optimizer.strategy_comparison import (
    ADAM,
    analyze,
    compare,
    crossed_interval,
    either_decay,
)
from kadam_jax.optimizer import kadam
from kadam_jax.strategies import STRATEGIES
from tests.figures.optimizer.strategies import FIGURES, WORSE, made_up

CONFIG = dataclasses.replace(
    strategies_text.FIGURE.presets["smoke"],
    ks=(1, 3),
    rates=(0.1, 1.0, 10.0),
    weight_decays=(0.0, 0.5),
    decays=("decoupled", "coupled"),
    num_seeds=3,
    learning_rate=1e-2,
)
NUM_STEPS = 6


# The optimizer


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("coupled", [False, True])
def test_the_optimizer_is_kadam(strategy, coupled):
    config = dataclasses.replace(CONFIG, ks=(1, 3))
    b1, b2 = (STRATEGIES[strategy](b, 3) for b in (config.b1, config.b2))
    member = {"k": 3, "b1": b1, "b2": b2, "learning_rate": 1e-2, "weight_decay": 0.1}
    schedule = optax.linear_schedule(0.0, 1.0, 4)
    ours = either_decay({**member, "coupled": float(coupled)}, schedule)
    theirs = kadam(
        lambda count: 1e-2 * schedule(count),
        3,
        config.b1,
        config.b2,
        strategy=strategy,
        weight_decay=0.1,
        coupled=coupled,
    )
    params = jnp.array([1.0, -2.0])
    grads = jnp.asarray(np.random.default_rng(0).normal(size=(9, 2)), jnp.float32)

    def run(optimizer):
        def step(carry, grad):
            params, state = carry
            updates, state = optimizer.update(grad, state, params)
            params = optax.apply_updates(params, updates)
            return (params, state), params

        return jax.lax.scan(step, (params, optimizer.init(params)), grads)[1]

    np.testing.assert_allclose(run(ours), run(theirs), rtol=2e-6)


# Sweeps


def quadratic(optimizer, seed):
    """Train toward a point that the seed moves."""
    goal = 1 + 0.1 * jax.random.normal(jax.random.key(seed), (4,))

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(params - goal, state, params)
        return (optax.apply_updates(params, updates), state), None

    params = jnp.zeros(4)
    (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), length=NUM_STEPS)
    test = (params - goal) ** 2
    return {"validation": test.mean(), "validation_loss": test.mean(), "test": test}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    store = ChunkStore(tmp_path_factory.mktemp("chunks"))
    return compare(CONFIG, Run(None, None, store), quadratic, optax.constant_schedule(1.0))


@pytest.fixture(scope="module")
def data(compared):
    dataset = analyze(CONFIG, *compared, "test error", "%")
    dataset.attrs["config"] = to_json(CONFIG)
    return dataset


def test_members_are_trained_as_labeled(compared):
    swept, fresh = compared
    assert swept.arm.values.tolist() == [ADAM, *[f"{name}_3" for name in STRATEGIES]]
    for arm, decay, weight_decay, rate in [
        (ADAM, "coupled", 0.5, 1e-3),
        ("exp_3", "decoupled", 0.5, 1e-1),
        ("root_3", "coupled", 0.5, 1e-2),
    ]:
        strategy, k = ("exp", 1) if arm == ADAM else (arm.removesuffix("_3"), 3)
        optimizer = kadam(
            rate, k, strategy=strategy, weight_decay=weight_decay, coupled=decay == "coupled"
        )
        at = swept.sel(arm=arm, decay=decay, weight_decay=weight_decay).sel(
            rate=rate, method="nearest"
        )
        np.testing.assert_allclose(at.test, quadratic(optimizer, 0)["test"], rtol=1e-5)
    best = swept.sel(arm="scaled_3")
    optimizer = kadam(
        best.chosen_rate.item(),
        3,
        strategy="scaled",
        weight_decay=best.chosen_weight_decay.item(),
        coupled=best.chosen_decay.item() == "coupled",
    )
    assert fresh.seed.values.tolist() == [1, 2, 3]
    for seed in (1, 3):
        expected = quadratic(optimizer, seed)["test"]
        np.testing.assert_allclose(fresh.test.sel(arm="scaled_3", seed=seed), expected, rtol=1e-5)


def test_every_arm_has_its_sweeps_lowest_validation(compared):
    swept, _ = compared
    for arm in swept.arm.values:
        one = swept.sel(arm=arm)
        place = one.validation.argmin(...)
        for name in ("decay", "weight_decay", "rate"):
            assert one[f"chosen_{name}"] == one[name][place[name]]
        assert one.rate_at_edge == (place["rate"].item() in (0, 2))


def test_the_papers_statistic_is_the_sweeps_best_test(compared, data):
    swept, fresh = compared
    tests = swept.test.mean("example").min(["rate", "weight_decay"])
    np.testing.assert_allclose(data.best_swept, tests)
    gain = fresh.test.sel(arm=ADAM) - fresh.test.sel(arm="exp_3")
    assert data.gain_exp_3[0] == pytest.approx(gain.mean().item())
    np.testing.assert_allclose(
        data.optimism, fresh.test.mean(["seed", "example"]) - tests.min("decay"), atol=1e-6
    )


# Intervals


@pytest.mark.parametrize("scales", [(1.0, 0.1, 0.1), (0.1, 3.0, 1.0), (0.3, 1.0, 5.0)])
def test_intervals_cover_other_seeds_and_other_examples(scales):
    """They cover 19 of 20 or more: noise of a seed and example together is counted twice."""
    random = np.random.default_rng(0)
    of_seed, of_example, of_both = scales
    covered = []
    for _ in range(400):
        values = (
            of_seed * random.normal(size=(5, 1))
            + of_example * random.normal(size=(1, 40))
            + of_both * random.normal(size=(5, 40))
        )
        _, low, high = crossed_interval(xr.DataArray(values, dims=("seed", "example"))).ends
        covered.append(low <= 0 <= high)
    assert np.mean(covered) > 0.92


def test_values_that_are_not_finite_have_no_interval():
    values = xr.DataArray(np.ones((3, 4)), dims=("seed", "example"))
    values[0, 0] = np.nan
    assert np.isnan(crossed_interval(values).ends).all()


# Claims


CLAIMS = {claim.id: claim for figure in FIGURES.values() for claim in figure.claims}


def judged(name, **given):
    task = name.rpartition("-")[2]
    return judge(CLAIMS[name], made_up(task, **given), FIGURES[task].minimum)


@pytest.mark.parametrize(
    ("name", "given", "edge", "verdict"),
    [
        ("two-adam-is-best", {}, "exp_2", INCONCLUSIVE),
        ("two-adam-is-best", {}, "inverse_exp_2", SUPPORTED),
        ("two-adam-is-best", {"levels": {"exp": 4.0}}, "exp_2", NOT_SUPPORTED),
        ("two-adam-is-best", {"levels": {"exp": 4.0}}, "inverse_exp_2", INCONCLUSIVE),
        ("two-adam-beats-adam", {}, ADAM, INCONCLUSIVE),
        ("two-adam-beats-adam", {"levels": WORSE}, "inverse_exp_2", INCONCLUSIVE),
        ("naive-is-bad", {}, "naive_4", INCONCLUSIVE),
        ("naive-is-bad", {}, "exp_4", SUPPORTED),
        ("root-is-bad", {}, "root_4", INCONCLUSIVE),
    ],
)
def test_an_optimum_at_an_edge_opens_the_interval(name, given, edge, verdict):
    for task in FIGURES:
        assert judged(f"{name}-on-{task}", edges=[edge], **given).verdict == verdict


def test_rivals_are_chosen_on_the_other_seeds():
    """If arms differ only by luck that changes with the seed, the best is no better than one."""
    random = np.random.default_rng(0)
    values = []
    for _ in range(60):
        data = made_up("images", dict.fromkeys(WORSE | {"naive": 0, "root": 0}, 0.0))
        data["test"] = data.test + xr.DataArray(
            random.normal(size=data.test.shape), dims=data.test.dims
        )
        values.append(CLAIMS["k-adam-beats-adam-on-images"].statistic(data).value)
    assert abs(np.mean(values)) < 3 * np.std(values) / np.sqrt(60)


def test_a_narrow_network_decides_nothing_about_cifar10():
    narrow = judged("root-is-bad-on-images", dataset="cifar-10-batches-bin")
    assert narrow.verdict == INCONCLUSIVE
    model = dataclasses.replace(FIGURES["images"].presets["laptop"].model, width=1 / 8)
    wide = judged("root-is-bad-on-images", dataset="cifar-10-batches-bin", model=model)
    assert wide.verdict == SUPPORTED


def test_without_k_above_2_naive_is_not_judged():
    assert judged("naive-is-bad-on-text", ks=(1, 2)).verdict == INCONCLUSIVE
