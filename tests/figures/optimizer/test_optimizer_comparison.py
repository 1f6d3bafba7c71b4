"""Tests of figures/optimizer/optimizer_comparison: its grids and its claims."""

import dataclasses

import jax
import numpy as np
import pytest
import xarray as xr
from scipy import stats

from experiments.core.claims import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, judge
from experiments.core.config import to_json
from experiments.core.stats import mean, paired_mean
from experiments.figures.optimizer.optimizer_comparison import FIGURE
from experiments.figures.optimizer.optimizer_comparison.claims import (
    CLAIMS,
    RECOMMENDED,
    RIVALS,
    USEFUL,
)
from experiments.figures.optimizer.optimizer_comparison.gains import AXES, analyze
from experiments.figures.optimizer.optimizer_comparison.grids import Grid, first_few
from experiments.figures.optimizer.optimizer_comparison.plot import plot
from experiments.training.optimizers import OPTIMIZERS
from experiments.training.trials import optimizer_trial, text_trial
from tests.figures.contract import CORPUS, NETWORK, SMALL_NETWORK, Contract

LAPTOP = FIGURE.presets["laptop"]
pytestmark = pytest.mark.usefixtures("small_network")
SMALL = dataclasses.replace(
    FIGURE.presets["smoke"],
    model=dataclasses.replace(NETWORK, dropout=0.0),
    num_steps=6,
    eval_batches=2,
)


@pytest.mark.parametrize("name", ["schedule_free_adamw", "scaled_2"])
def test_the_tested_setting_has_the_lowest_validation_loss(data, name):
    """Training it again outside the figure gives the same test loss."""
    arm = data.sel(arm=name)
    trial = text_trial(SMALL, CORPUS)
    picked = {key: float(arm[key][arm.picked_setting]) for key in ("b1", "b2", "weight_decay")}
    picked |= {"learning_rate": float(arm.picked_rate)}
    fn = optimizer_trial(
        arm.optimizer.item(), trial, 6, SMALL.warmup_steps, SMALL.final_rate, k=2, **picked
    )

    @jax.jit
    def run(seed):
        return fn({"seed": seed})

    expected = np.mean([run(seed)["validation"] for seed in SMALL.tuning_seeds])
    np.testing.assert_allclose(arm.picked_validation, expected, rtol=1e-5)
    finalists = arm.isel(finalist=arm.finalist_validation.notnull().values)
    at = {"setting": finalists.finalist_setting, "place": finalists.finalist_place}
    lowest = np.sort(arm.validation, axis=None)[: finalists.sizes["finalist"]]
    np.testing.assert_array_equal(
        arm.validation.isel({k: v.astype(int) for k, v in at.items()}), lowest
    )
    for seed in SMALL.seeds:
        expected = run(seed)["test"]
        np.testing.assert_allclose(arm.test.sel(seed=seed), expected, rtol=1e-5)


def test_every_optimizer_gets_the_same_number_of_members(data):
    for losses, number in (("validation", 10), ("finalist_validation", SMALL.num_finalists)):
        trained = data[losses].notnull().groupby("optimizer").sum(...)
        assert set(trained.values.tolist()) == {number}
    assert data.combinations == 10
    for preset in ("laptop", "paper"):
        arms = FIGURE.presets[preset].arms
        sizes = dict.fromkeys((arm.optimizer for arm in arms), 0)
        for arm in arms:
            rates = FIGURE.presets[preset].grid(arm.optimizer).rates
            sizes[arm.optimizer] += len(arm.settings) * len(rates)
        assert set(sizes.values()) == {100}
        assert sizes.keys() == {*RIVALS, "kadam"}
        assert len(arms) == 16
    assert not {*LAPTOP.tuning_seeds} & {*LAPTOP.seeds}


def test_grids_include_the_usual_starting_points():
    for name in RIVALS:
        usual = OPTIMIZERS[name].usual
        settings = LAPTOP.grid(name).settings
        assert len(set(settings)) == len(settings)
        b1 = 0.0 if name == "rmsprop" else usual["b1"]
        assert (b1, usual["b2"]) in {(b1, b2) for b1, b2, _ in settings}


def test_gains_are_paired_differences_to_adamw(data):
    gains = data.test.sel(arm="adamw") - data.test
    for arm in data.arm.values:
        np.testing.assert_allclose(data.gain.sel(arm=arm), paired_mean(gains.sel(arm=arm)).ends)
    np.testing.assert_allclose(data.mean_test[0], mean(data.test[0]).ends)
    assert np.isnan(data.p_value.sel(arm="adamw"))
    assert (data.gain_inverse_exp_2 == data.gain.sel(arm="inverse_exp_2")).all()


def test_each_optimizer_picks_its_lowest_validation_loss(data):
    for name, arms in data.groupby("optimizer"):
        picked = arms.isel(arm=arms.picked.values)
        assert picked.sizes["arm"] == 1
        assert picked.picked_validation == arms.finalist_validation.min(), name
    assert data.at_edge.sel(axis="rate").all()  # of two rates


# Claims


def made_up(gains=None, picks="scaled_2", spread=0.0, edges=(), diverged=(), seed=0, config=LAPTOP):
    """Make a dataset where an arm's test loss is 2 minus its gain over AdamW, plus noise.

    Args:
      gains: By arm, or by optimizer; 0 for the others.
      picks: The arm of k-Adam with the lowest validation loss; other losses fall with gains.
      spread: Standard deviation of the noise added to every seed of every arm.
      edges: Arms whose learning rate is at an end.
      diverged: Arms with a diverged seed.
      seed: Seed of the noise.
      config: The configuration, which has the arms.
    """
    gains, arms = gains or {}, config.arms
    rows = max(len(arm.settings) for arm in arms)
    validation = np.full((len(arms), rows, 8), np.nan)
    test = spread * np.random.default_rng(seed).normal(size=(len(arms), config.num_seeds))
    for place, arm in enumerate(arms):
        gain = gains.get(arm.name, gains.get(arm.optimizer, 0.0))
        validation[place, : len(arm.settings)] = 2.0 - gain - 2.0 * (arm.name == picks)
        test[place] += 2 - gain
        test[place, 0] = np.inf if arm.name in diverged else test[place, 0]
    settings = np.where(np.isnan(validation[..., 0]), np.nan, 0.5)
    names = [arm.name for arm in arms]
    rates = ("arm", "setting", "place")
    data = xr.Dataset(
        {
            "validation": (rates, validation),
            "rate": (("arm", "place"), np.tile(2.0 ** np.arange(8), (len(arms), 1))),
            **{name: (rates[:2], settings.copy()) for name in ("b1", "b2", "weight_decay")},
            "finalist_validation": (("arm", "finalist"), validation[:, 0, :2]),
            "picked_setting": ("arm", np.zeros(len(arms), int)),
            "picked_place": ("arm", np.where(np.isin(names, edges), 0, 3)),
            "test": (("arm", "seed"), test),
        },
        {
            "arm": names,
            "optimizer": ("arm", [arm.optimizer for arm in arms]),
            "setting": np.arange(rows),
            "seed": np.array(config.seeds),
        },
    )
    for name in data.variables:
        data[name].attrs = {"long_name": name, "units": "1"}
    return analyze(data).assign_attrs(config=to_json(config))


# Data that support a claim, refute it, or do neither.
CASES = {
    "tuned-kadam-beats-tuned-adamw": (
        {"gains": {"scaled_2": 2 * USEFUL}},
        {"gains": {"scaled_2": USEFUL / 2, RECOMMENDED: 1.0}},
        {"spread": 1.0},
    ),
    "two-adam-beats-tuned-adamw": (
        {"gains": {RECOMMENDED: 2 * USEFUL}},
        {"gains": {RECOMMENDED: USEFUL / 2, "scaled_2": 1.0}},
        {"spread": 1.0},
    ),
    "two-adam-is-the-best-kadam": (
        {"gains": {RECOMMENDED: 0.001, "muon": 1.0}},
        {"gains": {"root_3": 0.001}, "picks": "root_3"},
        {"gains": {RECOMMENDED: 0.1}, "spread": 1.0},
    ),
    "tuned-kadam-beats-the-best-rival": (
        {"gains": {"scaled_2": 0.4, "muon": 0.3}},
        {"gains": {"scaled_2": 0.3, "muon": 0.4}},
        {"gains": {"scaled_2": 0.3, "muon": 0.3}, "spread": 1.0},
    ),
    "some-kadam-beats-tuned-adamw": (
        {"gains": {"naive_3": 0.1}, "spread": 0.01},
        {"gains": {"kadam": -0.1, "muon": 1.0}, "spread": 0.01},
        {"spread": 1.0},
    ),
}
ROWS = {claim.id: claim for claim in CLAIMS}


def judged(name, **given):
    return judge(ROWS[name], made_up(**given), FIGURE.minimum)


@pytest.mark.parametrize(
    ("name", "rival", "arm", "neither"),
    [
        ("tuned-kadam-beats-tuned-adamw", "adamw", "scaled_2", "nadamw"),
        ("two-adam-beats-tuned-adamw", "adamw", RECOMMENDED, "scaled_2"),
        ("two-adam-is-the-best-kadam", "root_3", RECOMMENDED, "adamw"),
        ("tuned-kadam-beats-the-best-rival", "lion", "root_3", None),
        ("some-kadam-beats-tuned-adamw", "adamw", "root_3", "muon"),
    ],
)
def test_a_rate_at_an_end_opens_the_gains_interval(name, rival, arm, neither):
    better, worse, _ = CASES[name]
    assert judged(name, **better, edges=[rival]).verdict == INCONCLUSIVE
    assert judged(name, **better, edges=[arm, neither]).verdict == SUPPORTED
    assert judged(name, **worse, edges=[arm]).verdict == INCONCLUSIVE
    assert judged(name, **worse, edges=[rival, neither]).verdict == NOT_SUPPORTED


def test_a_diverged_arm_is_not_the_best():
    given = {"gains": {"naive_3": 0.1, "scaled_3": 9.0}, "spread": 0.01}
    name = "some-kadam-beats-tuned-adamw"
    assert judged(name, **given, diverged=["scaled_3"]).estimate.value < 1
    assert judged(name, **given, diverged=["adamw"]).verdict == INCONCLUSIVE
    data = made_up(**given, diverged=["scaled_3"])
    assert data.p_value.sel(arm="scaled_3") == 1
    canvas = plot(data)[""]
    canvas.draw_without_rendering()


def test_the_best_rival_is_unknown_unless_all_are_there():
    config = dataclasses.replace(LAPTOP, optimizers=("adamw", "muon", "kadam"))
    given = CASES["tuned-kadam-beats-the-best-rival"][0]
    judgment = judged("tuned-kadam-beats-the-best-rival", **given, config=config)
    assert judgment.verdict == INCONCLUSIVE
    given = CASES["tuned-kadam-beats-tuned-adamw"][0]
    assert judged("tuned-kadam-beats-tuned-adamw", **given, config=config).verdict == SUPPORTED


def test_the_best_k_is_unknown_unless_all_are_there():
    config = dataclasses.replace(LAPTOP, ks=(2,), grids=first_few(LAPTOP.grids, 10, 5))
    given = CASES["two-adam-is-the-best-kadam"][0]
    judgment = judged("two-adam-is-the-best-kadam", **given, config=config)
    assert judgment.verdict == INCONCLUSIVE


def test_the_arm_with_the_lowest_validation_loss_counts():
    data = made_up({"lion": 0.2, "muon": 0.3})
    data.picked_validation.loc[{"arm": "lion"}] = 0.0
    value = ROWS["tuned-kadam-beats-the-best-rival"].statistic(data).value
    assert value == pytest.approx(-0.2)  # Lion's, though Muon's test loss is lower


@pytest.mark.parametrize(
    ("axis", "tried", "place", "at_edge"),
    [
        ("b1", [0.0, 0.5, 0.9], 0, False),  # 0 means no average; nothing lies beyond
        ("b1", [0.3, 0.5, 0.9], 0, True),
        ("b2", [0.9, 0.99, 0.999], 1, False),
        ("b2", [0.9, 0.99, 0.999], 2, True),
        ("b2", [0.9, 0.99, np.nan], 1, True),
        ("weight_decay", [0.0, 0.1, 1.0], 0, False),
        ("weight_decay", [0.01, 0.1, 1.0], 0, True),
        ("weight_decay", [0.1, 0.1, 0.1], 0, False),  # never varied
    ],
)
def test_an_optimum_at_an_end_of_an_axis_is_flagged(axis, tried, place, at_edge):
    data = made_up()
    data[axis][0, :3] = tried
    data[axis][0, 3:] = np.nan
    data["picked_setting"][0] = place
    data = analyze(data)
    assert data.at_edge.sel(axis=axis)[0] == at_edge
    assert data.at_edge.sum() == at_edge
    assert (f"adamw ({AXES[axis]})" in data.note) == at_edge


def test_neighbors_along_an_axis_share_the_other_decay():
    """A lower γ was tried only at another β."""
    data = made_up()
    data["b1"][0, :4] = [0.5, 0.8, 0.9, 0.9]
    data["b2"][0, :4] = [0.9, 0.95, 0.95, 0.99]
    data["b1"][0, 4:] = data["b2"][0, 4:] = np.nan
    data["picked_setting"][0] = 1
    assert analyze(data).at_edge[0].to_series().to_dict() == {
        "rate": False,
        "b1": True,
        "b2": True,
        "weight_decay": False,
    }


def test_the_largest_gains_interval_agrees_with_bonferroni():
    """The interval excludes 0 if and only if Bonferroni's p-value over all gains is below 0.05."""
    claim, seen = ROWS["some-kadam-beats-tuned-adamw"], set()
    for seed in range(12):
        data = made_up({"kadam": 0.8}, spread=1.0, seed=seed)
        gains = data.test.sel(arm="adamw") - data.test.sel(arm=data.optimizer == "kadam")
        tests = stats.ttest_1samp(gains.transpose("arm", "seed"), 0, axis=1)
        best = (tests.pvalue[tests.statistic > 0] * 15).min(initial=1)
        seen.add(best < 0.05)
        assert (claim.statistic(data).low > 0) == (best < 0.05)
    assert seen == {True, False}


ADAM_ROWS = SMALL.grids.adamw.settings


def grid(name, rates, settings):
    return {"grids": dataclasses.replace(SMALL.grids, **{name: Grid(rates, settings)})}


CONTRACT = Contract(
    FIGURE,
    SMALL,
    panels={"": 2, "rates": 2},
    comparison=True,
    strict=(),
    refused=[
        {"optimizers": ("adamw", "muon")},
        {"optimizers": ("adamw", "kadam", "kadam")},
        {"optimizers": ("adamw", "kadam", "adam")},
        {"ks": ()},
        {"ks": (1, 2)},
        ({"ks": (2, 3)}, "same number of tuning members.*adamw 2 x 5.*kadam 2 x 10"),
        (grid("adamw", (1.0, 2.0, 4.0), ADAM_ROWS), "same number of tuning members.*adamw 3 x 5"),
        (grid("adamw", (1.0, 2.0), ADAM_ROWS[1:]), "same number of tuning members.*adamw 2 x 4"),
        (grid("adamw", (1.0, 0.5), ADAM_ROWS), "grids.adamw.rates"),
        (grid("adamw", (1.0, 2.0), (*ADAM_ROWS[1:], (0.9, 1.0, 0.0))), "grids.adamw.settings"),
        (grid("kadam", (0.5, 1.0), ADAM_ROWS), "grids.kadam.settings"),
        {"warmup_steps": 6},
        {"final_rate": 1.5},
        {"learning_rate": 0.0},
        {"num_seeds": 1},
        {"eval_batches": 0},
        {"num_tuning_seeds": 1},
        ({"num_finalists": 6}, "num_finalists must be a multiple of 5"),
        ({"num_finalists": 0}, "num_finalists must be a multiple of 5"),
        ({"num_finalists": 15}, "num_finalists must be .* at most 10"),
        {"eps": 1e-8},
    ],
    made_up=made_up,
    cases=CASES,
    patches=SMALL_NETWORK,
)
