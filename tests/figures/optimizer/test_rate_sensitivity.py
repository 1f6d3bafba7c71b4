"""Tests of figures/optimizer/rate_sensitivity: its optima, noise, dataset and claims."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.core.claims import judge
from experiments.core.config import to_json
from experiments.core.stats import geometric_mean
from experiments.figures.optimizer.rate_basins import basin, loss_at, optimum
from experiments.figures.optimizer.rate_sensitivity import FIGURE
from experiments.figures.optimizer.rate_sensitivity.claims import CLAIMS, TWO_ADAM
from experiments.figures.optimizer.rate_sensitivity.noise_response import noise_response
from experiments.figures.optimizer.rate_sensitivity.optima import analyze
from experiments.figures.optimizer.rate_sensitivity.plot import plot
from experiments.figures.optimizer.rate_sensitivity.run import Config
from experiments.training.optimizers import ADAMW, strategy_decays
from experiments.training.trials import text_trial
from kadam_jax import kadam
from tests.figures.contract import CORPUS, NETWORK, SMALL_NETWORK, Contract

CONFIG = Config(
    model=dataclasses.replace(NETWORK, dropout=0.0),
    batch=2,
    num_steps=8,
    num_seeds=2,
    optimizers=(ADAMW,),
    strategies=("inverse_exp",),
    first_power=1,
    num_rates=3,
    warmup_steps=2,
    eval_batches=2,
    noise_steps=30,
    noise_entries=5,
)
LAPTOP = FIGURE.presets["laptop"]
pytestmark = pytest.mark.usefixtures("small_network")
LADDER = 1e-3 * 2.0 ** np.arange(9)
LOSSES = st.lists(st.integers(0, 1000).map(lambda x: x / 100), min_size=9, max_size=9)


def bowl(rates, best, curvature=1.0):
    return curvature * np.log10(rates / best) ** 2


# Optima and basins


@given(st.floats(0.0025, 0.1), st.floats(0.1, 10), st.floats(-5, 5))
def test_the_optimum_of_a_bowl_is_its_bottom(best, curvature, floor):
    found = optimum(LADDER, bowl(LADDER, best, curvature) + floor)
    assert found == pytest.approx(best, rel=1e-6)


@given(LOSSES)
def test_an_optimum_is_within_half_a_step_of_the_lowest_loss(losses):
    ratio = optimum(LADDER, losses) / LADDER[np.argmin(losses)]
    assert 2**-0.501 < ratio < 2**0.501


def test_next_to_a_diverged_run_the_optimum_is_on_the_grid():
    losses = bowl(LADDER, 0.011)
    losses[4] = np.nan
    assert optimum(LADDER, losses) == LADDER[3]
    assert np.isnan(optimum(LADDER, np.full(9, np.inf)))


@pytest.mark.parametrize("curvature", [0.25, 1.0])
def test_the_basin_of_a_bowl_has_its_width(curvature):
    ladder = np.geomspace(1e-4, 1, 40)
    found = basin(ladder, bowl(ladder, 0.01, curvature), 0.05)
    assert found.decades == pytest.approx(2 * math.sqrt(0.05 / curvature), rel=0.05)
    assert not found.open


@given(LOSSES, st.floats(0.1, 10))
def test_a_basin_scales_with_units_and_tolerance(losses, factor):
    narrow, scaled = basin(LADDER, losses, 0.5), basin(factor * LADDER, losses, 0.5)
    np.testing.assert_allclose(scaled[:2], factor * np.array(narrow[:2]), rtol=1e-6)
    wide = basin(LADDER, losses, 1.0)
    assert wide.low <= narrow.low * (1 + 1e-9)
    assert wide.high >= narrow.high * (1 - 1e-9)
    assert narrow.low <= LADDER[np.argmin(losses)] <= narrow.high


def test_a_basin_ends_before_a_diverged_run():
    losses = bowl(LADDER, LADDER[3], 0.1)
    cut = np.where(np.arange(9) == 5, np.nan, losses)
    assert basin(LADDER, losses, 0.05).high > LADDER[5]
    assert basin(LADDER, cut, 0.05)[1:] == (LADDER[4], False)
    assert basin(LADDER, bowl(LADDER, 1.0), 0.05)[1:] == (LADDER[-1], True)
    lonely = np.where(np.arange(9) == 3, 1.0, np.nan)
    assert basin(LADDER, lonely, 0.05) == (LADDER[3], LADDER[3], False)
    assert np.isnan(basin(LADDER, np.full(9, np.nan), 0.05).decades)


def test_a_loss_between_rates_is_between_their_losses():
    losses = bowl(LADDER, 0.01)
    assert loss_at(LADDER, losses, LADDER[2]) == losses[2]
    assert losses[1] > loss_at(LADDER, losses, 1.2 * LADDER[1]) > losses[2]
    for outside in (1e-4, 1.0, np.nan):
        assert np.isnan(loss_at(LADDER, losses, outside))
    losses[6] = np.inf
    assert np.isnan(loss_at(LADDER, losses, LADDER[7] * 1.1))
    assert np.isnan(loss_at(LADDER, np.full(9, np.nan), 0.01))


def test_ratios_and_their_inverses_have_the_same_interval():
    ratios = np.array([0.2, 0.5, 0.4])
    value, low, high = geometric_mean(ratios).ends
    np.testing.assert_allclose(geometric_mean(1 / ratios).ends, [1 / value, 1 / high, 1 / low])


# Noise


@pytest.mark.parametrize("k", [1, 2])
def test_the_response_to_noise_is_that_of_k_adam(k):
    found = noise_response(k, 0.6, 0.9, num_steps=12, num_entries=4)
    key, kept = jax.random.key(0), []
    m, v = np.zeros((2, k, 4))
    for n in range(12):
        x = np.asarray(jax.random.normal(jax.random.fold_in(key, n), (4,)), float)
        for i in range(k):
            m[i], v[i] = 0.6 * m[i] + 0.4 * x, 0.9 * v[i] + 0.1 * x**2
            x = m[i] / np.sqrt(v[i]) * np.sqrt(1 - 0.9 ** (n + 1)) / (1 - 0.6 ** (n + 1))
        kept.append(x)
    kept = np.array(kept[6:])
    assert float(found["size"]) == pytest.approx(np.sqrt((kept**2).mean()), rel=1e-4)
    displacement = np.sqrt((kept.sum(0) ** 2).mean() / 6)
    assert float(found["displacement"]) == pytest.approx(displacement, rel=1e-4)


@pytest.mark.parametrize("k", [1, 2])
def test_the_response_follows_the_formulas_for_large_b2(k):
    def respond(b1):
        return noise_response(k, b1, 0.9999, num_steps=1200, num_entries=1000)

    b1 = np.array([0.45, 0.81])
    found = jax.jit(jax.vmap(respond))(b1)
    size, displacement = {
        1: (np.sqrt((1 - b1) / (1 + b1)), 1),
        2: (np.sqrt(1 + b1**2) / (1 + b1), np.sqrt((1 + b1) / (1 - b1))),
    }[k]
    np.testing.assert_allclose(found["size"], size, rtol=0.08)
    np.testing.assert_allclose(found["displacement"], displacement, rtol=0.08)


# The dataset of a tiny, real run


def test_members_are_ordered_by_arm_rate_and_seed(data):
    assert data.validation.dims == ("arm", "place", "seed")
    assert np.isfinite(data.validation).all()


def test_an_arm_is_its_optimizer_at_its_learning_rate_and_seed(data):
    decays = strategy_decays(2, "inverse_exp")
    rate = data.rate.sel(arm=TWO_ADAM)[2].item()
    assert rate == pytest.approx(1e-3 * 2.5**2)
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, 2, 8, 0.1 * rate)
    optimizer = kadam(
        schedule, 2, (decays["b1"],) * 2, (decays["b2"],) * 2, weight_decay=1e-2, eps=1e-30
    )
    trial = text_trial(CONFIG, CORPUS)
    expected = jax.jit(lambda seed: trial(optimizer, seed))(1)
    member = data.sel(arm=TWO_ADAM, seed=1).isel(place=2)
    np.testing.assert_allclose(member.validation, expected["validation"], rtol=1e-5)
    np.testing.assert_allclose(member.test, jnp.mean(expected["test"]), rtol=1e-5)


@pytest.mark.filterwarnings("error")
def test_a_diverged_rate_is_not_chosen_and_breaks_nothing():
    data = synthetic(diverged=True).assign_attrs(config=to_json(LAPTOP))
    assert np.isnan(data.validation.isel(place=-1)).all()
    assert (data.chosen_place < LAPTOP.num_rates - 1).all()
    assert np.isfinite(data.width).all()
    assert np.isfinite(data.price_at_adamws).all()
    for canvas in plot(data).values():
        canvas.canvas.draw()
    verdicts = [judge(claim, data, FIGURE.minimum).verdict for claim in CLAIMS]
    without = synthetic().assign_attrs(config=to_json(LAPTOP))
    assert verdicts == [judge(claim, without, FIGURE.minimum).verdict for claim in CLAIMS]


def test_arms_share_their_ladder_to_the_bit():
    for preset in ("laptop", "paper"):
        config = FIGURE.presets[preset]
        rates = dict(zip(config.arms, config.rates, strict=True))
        ratios = config.rates[:, 1:] / config.rates[:, :-1]
        np.testing.assert_allclose(ratios, config.factor)
        for switch in config.switches:
            assert np.isin(rates[ADAMW], rates[switch]).sum() >= config.num_rates - 3


# Claims

BEST = 0.005
SPREAD = np.linspace(-1, 1, LAPTOP.num_seeds)


def analyzed(losses, predicted):
    """Make the dataset of losses (num_arms, num_rates, num_seeds) and a predicted ratio."""
    response = np.array([1.0] + [1 / predicted] * len(LAPTOP.switches))
    splits = {"validation": losses, "test": losses}
    return analyze(LAPTOP, splits, {"size": response, "displacement": response})


def synthetic(
    ratio=0.4,
    curvature=0.4,
    curvatures=0.0,
    floor=-0.1,
    floors=0.0,
    optima=0.0,
    predicted=None,
    diverged=False,
):
    """Make bowls: AdamW's with its bottom at `BEST`, 2-Adam's at `ratio` times that.

    Arguments with plural names are half the range over seeds of 2-Adam's curvature, floor and
    log10 of the best rate; if `diverged`, the highest rates diverge.
    """
    losses = np.empty((len(LAPTOP.arms), LAPTOP.num_rates, LAPTOP.num_seeds))
    for row, (arm, rates) in enumerate(zip(LAPTOP.arms, LAPTOP.rates, strict=True)):
        ours = arm in LAPTOP.switches
        best = BEST * (ratio * 10 ** (optima * SPREAD) if ours else 1 + 0 * SPREAD)
        curved = curvature + curvatures * SPREAD if ours else 0.4
        bottom = floor + floors * SPREAD if ours else 0
        losses[row] = 2.0 + bottom + bowl(rates[:, None], best, curved)
    if diverged:
        losses[:, -1] = np.inf
    return analyzed(losses, predicted or ratio)


def test_ratio_and_prices_are_those_of_the_bowls():
    data = synthetic(ratio=0.4)
    np.testing.assert_allclose(data.ratio.sel(arm=list(LAPTOP.switches)), 0.4, rtol=1e-6)
    assert not data.rate_at_lowest.sel(arm=[ADAMW, *LAPTOP.switches]).any()
    ladder = data.rate.sel(arm=ADAMW).values
    nearest = ladder[np.argmin(bowl(ladder, BEST))]
    own = bowl(data.rate.sel(arm=TWO_ADAM).values, 0.4 * BEST, 0.4).min()
    price = bowl(nearest, 0.4 * BEST, 0.4) - own
    np.testing.assert_allclose(data.price_at_adamws, price, rtol=1e-6)
    np.testing.assert_allclose(data.price_at_ratio, 0, atol=0.03)
    np.testing.assert_allclose(data.beyond_adamw, -0.1, atol=0.03)


@pytest.mark.parametrize("far", [1e-4, 1e4])
def test_an_optimum_beyond_its_grid_opens_the_intervals(far):
    data = synthetic(ratio=far)
    data.attrs["config"] = to_json(LAPTOP)
    assert data.rate_at_lowest.sel(arm=TWO_ADAM) == (far < 1)
    assert data.rate_at_highest.sel(arm=TWO_ADAM) == (far > 1)
    assert data.basin_open.sel(arm=TWO_ADAM)
    estimates = {claim.id: judge(claim, data, FIGURE.minimum).estimate for claim in CLAIMS}
    price = estimates["two-adam-takes-adamws-learning-rate"]
    assert math.isfinite(price.low)
    assert price.high == math.inf
    assert estimates["two-adam-is-no-more-sensitive"].high == math.inf
    predicted = estimates["update-size-predicts-the-rate"]
    assert (predicted.low == -math.inf) == (far < 1)
    assert (predicted.high == math.inf) == (far > 1)


PREDICTED = ({}, {"predicted": 0.1}, {"predicted": 0.2, "optima": 0.2})
CONTRACT = Contract(
    FIGURE,
    CONFIG,
    panels={"": 4},
    comparison=True,
    strict=(),
    refused=[
        {"optimizers": ("lion", "adamw")},
        {"optimizers": ("adamw", "kadam_2")},
        {"strategies": ()},
        {"strategies": ("exp", "exp")},
        {"num_rates": 2},
        {"num_seeds": 1},
        {"factor": 1.0},
        {"tolerance": 0.0},
        {"warmup_steps": 8},
        {"final_rate": 2.0},
        {"eval_batches": 0},
        {"noise_steps": 1},
        {"eps": 1e-8},
    ],
    made_up=synthetic,
    cases={
        "two-adam-takes-adamws-learning-rate": (
            {"ratio": 0.9},
            {"ratio": 0.2},
            {"ratio": 0.4, "curvatures": 0.3},
        ),
        "two-adam-is-no-more-sensitive": (
            {"curvature": 0.2},
            {"curvature": 0.8},
            {"curvatures": 0.2},
        ),
        "update-size-predicts-the-rate": PREDICTED,
        "displacement-predicts-the-rate": PREDICTED,
        "switching-to-two-adam-gains": ({}, {"floor": 0.1}, {"floor": 0.0, "floors": 0.1}),
    },
    patches=SMALL_NETWORK,
)
