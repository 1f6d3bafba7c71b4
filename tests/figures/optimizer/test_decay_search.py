"""Tests of figures/optimizer/decay_search: its box, stages, analysis and claims."""

import dataclasses
from functools import partial

import jax
import numpy as np
import optax
import pytest
from scipy import stats

from experiments.core.claims import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, judge
from experiments.core.config import to_json
from experiments.core.run import Run
from experiments.core.stats import paired_mean
from experiments.core.store import ChunkStore
from experiments.data.images import load_images
from experiments.figures.optimizer import decay_search
from experiments.figures.optimizer.decay_search import FIGURE
from experiments.figures.optimizer.decay_search.analysis import analyze
from experiments.figures.optimizer.decay_search.box import (
    ADAMW,
    AXES,
    COORDINATES,
    KADAM,
    OUTER,
    around,
    at_edge,
    sobol,
)
from experiments.figures.optimizer.decay_search.claims import CLAIMS
from experiments.figures.optimizer.decay_search.plot import plot
from experiments.figures.optimizer.decay_search.stages import ARMS, SEARCHED, stages
from experiments.training import trials
from experiments.training.train import TrainResult
from kadam_jax import kadam
from kadam_jax.strategies import STRATEGIES
from models.cnn import CNNConfig
from tests.figures.contract import CORPUS, Contract
from tests.training.toy import valley

CONFIG = dataclasses.replace(
    FIGURE.presets["smoke"],
    num_steps=8,
    num_seeds=3,
    num_finalists=3,
    num_tuning_seeds=3,
    learning_rate=0.1,
    strategy_rates=(0.3, 1.0, 3.0),
    confirmed=True,
    second_model=CNNConfig(width=1 / 64),
    second_steps=4,
    second_warmup=1,
    second_rates=(0.1, 0.3, 1.0),
    chunk_size=3,
)
LAPTOP = FIGURE.presets["laptop"]


# The box


def test_the_box_is_uniform_in_logarithms_and_reaches_zero():
    box = LAPTOP.box
    x = np.linspace(0, 1, 101)
    values = box.settings(np.tile(x[:, None], (1, 5)), COORDINATES).T
    for name, line in zip(COORDINATES, values, strict=True):
        assert (np.diff(line) >= 0).all()
        steps = np.diff(np.log(line if name == "rate" else 1 - line))
        if name.startswith("b1"):
            assert (line[x <= box.zero_share] == 0).all()
            steps = steps[10:]
        np.testing.assert_allclose(steps, steps[0], rtol=1e-6)
    ends = {"b1": (0, 0.97), "b2": (0.4, 0.9999), "ra": (1e-4, 3e-2)}
    for name, line in zip(COORDINATES, values, strict=True):
        np.testing.assert_allclose(line[[0, -1]], ends[name[:2]], rtol=1e-9)


def test_every_strategy_lies_inside_the_laptops_box():
    box = LAPTOP.box
    for strategy in STRATEGIES.values():
        b1, b2 = strategy(0.9, 2), strategy(0.999, 2)
        assert 0 <= b1 <= box.highest_b1
        assert box.b2[0] <= b2 <= box.b2[1]
    assert box.rates[0] < 1e-3 * min(LAPTOP.strategy_rates)
    assert box.rates[1] > 1e-3 * max(LAPTOP.strategy_rates)


def test_sobol_points_are_reproducible_and_differ_by_seed():
    np.testing.assert_array_equal(sobol(16, 5, 3), sobol(16, 5, 3))
    assert (sobol(16, 5, 3) != sobol(16, 5, 4)).any()
    counts = np.histogram(sobol(64, 3, 0)[:, 1], bins=8, range=(0, 1))[0]
    assert (counts == 8).all()


def test_refined_points_stay_near_their_center_and_inside():
    centers, points = sobol(4, 3, 0), sobol(16, 3, 1)
    moved = around(centers, points, 0.2)
    assert (moved >= 0).all()
    assert (moved <= 1).all()
    assert (abs(moved - centers[np.arange(16) % 4]) <= 0.1 + 1e-12).all()


def test_only_a_gamma_of_zero_is_not_an_edge_at_the_low_end():
    low, high = np.full((1, 5), OUTER / 2), np.full((1, 5), 1 - OUTER / 2)
    assert at_edge(low, COORDINATES).tolist() == [[False, True, False, True, True]]
    assert at_edge(high, COORDINATES).all()
    assert not at_edge(np.full((1, 5), 0.5), COORDINATES).any()


# The stages, on a problem that trains instantly


@partial(jax.jit, static_argnames=("name", "steps", "warmup"))
def trained(name, setting, seed, steps=CONFIG.num_steps, warmup=CONFIG.warmup_steps):
    """Train a member with the library's and optax's own optimizers."""
    values = dict(zip(COORDINATES, setting, strict=True))
    shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, warmup, steps, CONFIG.final_rate)

    def rate(count):
        return values["rate"] * shape(count)

    b1, b2 = ((values[f"{name}_1"], values[f"{name}_2"]) for name in ("b1", "b2"))
    if name == ADAMW:
        optimizer = optax.adamw(rate, b1[0], b2[0], weight_decay=CONFIG.weight_decay)
    else:
        optimizer = kadam(rate, 2, b1, b2, weight_decay=CONFIG.weight_decay)
    return valley(optimizer, seed)


def chosen_rate(name, setting, rates, losses, *steps):
    """Of three rates, take the two that are best with one seed; choose with all tuning seeds."""
    setting, means = np.array(setting, float), {}
    for place in np.flatnonzero(losses < losses.max()):
        setting[4] = rates[place]
        found = [trained(name, setting, seed, *steps)["validation"] for seed in CONFIG.tuning_seeds]
        means[place] = np.mean(found)
    best = min(means, key=means.get)
    return best, means[best]


@pytest.mark.parametrize("name", AXES)
def test_members_are_trained_as_labeled(data, name):
    one = data.sel(optimizer=name)
    for member in (2, 9):
        expected = trained(name, one.setting[member].values, 0)["validation"]
        np.testing.assert_allclose(one.validation[member], expected, rtol=1e-4)
    arm = {ADAMW: ADAMW, KADAM: SEARCHED}[name]
    expected = trained(name, data.arm_setting.sel(arm=arm).values, 4)["test"].mean()
    np.testing.assert_allclose(data.test.sel(arm=arm, seed=4), expected, rtol=1e-4)


def test_both_optimizers_get_the_same_number_of_members(data):
    assert data.validation.notnull().all()
    assert data.finalist_validation.notnull().all()
    assert data.sizes["member"] == CONFIG.num_searched + CONFIG.num_refined
    assert data.setting.sel(optimizer=KADAM).notnull().all()
    assert data.setting.sel(optimizer=ADAMW, coordinate=list(AXES[ADAMW])).notnull().all()
    assert data.setting.sel(optimizer=ADAMW, coordinate=["b1_2", "b2_2"]).isnull().all()
    assert not set(data.seed.values) & set(data.tuning_seed.values)


@pytest.mark.parametrize("name", AXES)
def test_the_best_become_finalists_and_the_lowest_mean_wins(data, name):
    one = data.sel(optimizer=name)
    order = np.argsort(one.validation.values)
    assert one.finalist_member.values.tolist() == order[:3].tolist()
    np.testing.assert_array_equal(one.finalist_validation[:, 0], one.validation[order[:3]])
    means = one.finalist_validation.mean("tuning_seed")
    assert one.chosen == one.finalist_member[means.values.argmin()]
    arm = {ADAMW: ADAMW, KADAM: SEARCHED}[name]
    np.testing.assert_array_equal(data.arm_setting.sel(arm=arm), one.setting[one.chosen.item()])
    assert data.mean_validation.sel(arm=arm) == pytest.approx(means.min().item())


def test_strategies_have_the_rate_that_validation_chose(data):
    for strategy, rule in STRATEGIES.items():
        losses = data.strategy_validation.sel(strategy=strategy)
        setting = data.arm_setting.sel(arm=strategy)
        decays = [rule(0.9, 2), rule(0.999, 2)]
        np.testing.assert_allclose(setting[:4], decays * 2, rtol=1e-6)
        best, mean = chosen_rate(KADAM, setting, data.strategy_rate, losses)
        assert setting[4] == data.strategy_rate[best]
        np.testing.assert_allclose(data.mean_validation.sel(arm=strategy), mean, rtol=1e-4)
        assert data.rate_at_edge.sel(arm=strategy) == (best in (0, 2))
    (best,) = data.arm.values[data.is_best_strategy.values]
    assert best == data.arm.values[2 + data.mean_validation[2:].values.argmin()]
    tested = data.arm.values[data.test.notnull().all("seed").values]
    assert set(tested) == {ADAMW, SEARCHED, "inverse_exp", best}


@pytest.mark.parametrize("name", AXES)
def test_only_the_rate_is_tuned_again_on_the_second_task(data, name):
    one = data.sel(optimizer=name)
    setting = data.arm_setting.sel(arm={ADAMW: ADAMW, KADAM: SEARCHED}[name]).values.copy()
    steps = CONFIG.second_steps, CONFIG.second_warmup
    place, _ = chosen_rate(name, setting, one.second_rate, one.second_validation, *steps)
    assert one.second_chosen_rate == one.second_rate[place]
    assert one.second_rate_at_edge == (place in (0, 2))
    setting[4] = one.second_chosen_rate
    expected = trained(name, setting, 3, *steps)
    np.testing.assert_allclose(one.second_test.sel(seed=3), expected["test"].mean(), rtol=1e-4)


# The analysis


def test_differences_are_paired_by_seed(data):
    difference = data.test.sel(arm=ADAMW) - data.test.sel(arm=SEARCHED)
    np.testing.assert_array_equal(data.gain_searched, paired_mean(difference).ends)
    assert (data.gain.sel(arm=ADAMW) == 0).all()
    (best,) = data.arm.values[data.is_best_strategy.values]
    difference = data.test.sel(arm=best) - data.test.sel(arm=SEARCHED)
    np.testing.assert_array_equal(data.gain_over_strategies, paired_mean(difference).ends)


def test_rank_correlations_equal_scipys_without_diverged_runs(data):
    some = data.copy(deep=True)
    some.validation[1, :2] = np.nan
    inside = slice(2, CONFIG.num_searched)
    found = analyze(CONFIG, some).rank_correlation.sel(optimizer=KADAM)
    for place, name in enumerate(COORDINATES):
        x = some.setting.sel(optimizer=KADAM, coordinate=name)[inside]
        expected = stats.spearmanr(x, some.validation[1, inside]).statistic
        assert found[place] == pytest.approx(expected)
    assert data.rank_correlation.sel(optimizer=ADAMW, coordinate="b1_2").isnull()


def test_edges_are_those_of_the_box(data):
    box = data.box.sel(boundary=["inner_low", "inner_high"])
    for arm, name in ((ADAMW, ADAMW), (SEARCHED, KADAM)):
        for axis in AXES[name]:
            value, (low, high) = (
                data.arm_setting.sel(arm=arm, coordinate=axis),
                box.sel(coordinate=axis),
            )
            outside = value > high or (value < low and not axis.startswith("b1"))
            assert data.coordinate_at_edge.sel(optimizer=name, coordinate=axis) == outside


def test_the_page_ends_with_the_note(data):
    assert plot(data)[""].get_supxlabel() == data.attrs["note"]


def train(stage, candidates, seeds):
    """Higher learning rates are better, until members diverge."""
    rates = candidates["learning_rate"]
    losses = np.where(rates < 0.2, 1 - rates, np.nan)
    return {"validation": (x := np.stack([losses] * len(seeds), -1)), "test": x}


SOME = stages(CONFIG, dict.fromkeys(AXES, train), dict.fromkeys(AXES, train))


def test_a_diverged_member_is_never_chosen():
    some = SOME
    finite = np.isfinite(some.validation)
    assert finite.any("member").all()
    assert not finite.all("member").any()
    for name in AXES:
        assert finite.sel(optimizer=name)[some.chosen.sel(optimizer=name).item()]
    assert np.isfinite(some.test).all("seed").sum() >= 3  # among the compared arms


def test_both_tasks_follow_the_configuration(monkeypatch, tmp_path):
    given = {}
    for name in ("text_trial", "image_trial"):

        def record(*arguments, name=name, **settings):
            given[name] = (*arguments, settings)

        monkeypatch.setattr(decay_search.run, name, record)
    for name in ("stages", "analyze"):
        monkeypatch.setattr(decay_search.run, name, lambda *_: None)
    digits = load_images("digits", cache=tmp_path)
    decay_search.run.compute(CONFIG, Run(CORPUS, None, ChunkStore(tmp_path), images=digits))
    text, images = given["text_trial"], given["image_trial"]
    assert text == (CONFIG, CORPUS, {})
    model, digits, settings = images
    assert (model, digits.name) == (CONFIG.second_model, "digits")
    assert settings == {"batch": 4, "num_steps": 4, "measure": "loss"}


def test_images_may_be_judged_by_their_loss(monkeypatch, small_network, few_images):
    def untrained(task, optimizer, *, seed, num_steps):
        return TrainResult((), (), *task.init(jax.random.key(seed)), ())

    monkeypatch.setattr(trials, "train_member", untrained)
    sizes = {"batch": 2, "num_steps": 1}
    trial = trials.image_trial(CNNConfig(width=1 / 64), few_images, **sizes, measure="loss")
    found = jax.jit(lambda seed: trial(optax.sgd(1e-3), seed))(0)
    assert found["validation"] == found["validation_loss"]
    assert found["test"].shape == (100,)
    assert abs(float(found["test"].mean()) - np.log(10)) < 1


# Claims


def made_up(found=2.0, images=0.5, strategies=None, spread=0.0, edges=(), second_edges=()):
    """Make the figure's dataset with AdamW's test losses 3 and 1, and others as given.

    Args:
      found: Loss of what was found, on text.
      images: The loss of what was found, on images.
      strategies: Losses of strategies, where they differ from 2.5.
      spread: Standard deviation of the noise that every seed of every arm adds.
      edges: Arms whose learning rate is at an edge.
      second_edges: Optimizers whose learning rate on images is at an edge.
    """
    random = np.random.default_rng(0)
    losses = {ADAMW: 3.0, SEARCHED: found} | dict.fromkeys(STRATEGIES, 2.5) | (strategies or {})
    levels = np.array([losses[arm] for arm in ARMS])

    def noisy(levels):
        return np.array(levels)[:, None] + spread * random.normal(size=(len(levels), 10))

    changed = {
        "test": noisy(levels),
        "mean_validation": levels,
        "second_test": noisy([1.0, images]),
        "rate_at_edge": np.isin(ARMS, list(edges)),
        "second_rate_at_edge": np.isin([ADAMW, KADAM], list(second_edges)),
    }
    changed = {name: (SOME[name].dims, x, SOME[name].attrs) for name, x in changed.items()}
    kept = SOME.drop_dims("seed").assign(changed)
    return analyze(LAPTOP, kept.assign_coords(seed=np.array(LAPTOP.seeds)))


ON_TEXT, ON_IMAGES, STRATEGY, NEAR = CLAIMS


@pytest.mark.parametrize(
    ("claim", "given", "verdict"),
    [
        (ON_TEXT, {"edges": [SEARCHED]}, SUPPORTED),
        (ON_TEXT, {"edges": [ADAMW]}, INCONCLUSIVE),
        (ON_TEXT, {"found": 3.5, "edges": [SEARCHED]}, INCONCLUSIVE),
        (ON_TEXT, {"found": 3.5, "edges": [ADAMW]}, NOT_SUPPORTED),
        (ON_IMAGES, {"second_edges": [ADAMW]}, INCONCLUSIVE),
        (ON_IMAGES, {"edges": [ADAMW], "second_edges": [KADAM]}, SUPPORTED),
        (STRATEGY, {"strategies": {"exp": 2.2}, "edges": ["exp"]}, INCONCLUSIVE),
        (STRATEGY, {"strategies": {"exp": 2.2}, "edges": ["root"]}, INCONCLUSIVE),
        (STRATEGY, {"strategies": {"exp": 2.2}, "edges": [SEARCHED, ADAMW]}, SUPPORTED),
        (NEAR, {"found": 3.0, "strategies": {"scaled": 2.0}}, NOT_SUPPORTED),  # the best known
        (NEAR, {"found": 3.0, "strategies": {"exp": 2.6, "root": 2.6}}, SUPPORTED),
        (NEAR, {"strategies": {"inverse_exp": 2.04}, "edges": [SEARCHED]}, INCONCLUSIVE),
        (NEAR, {"strategies": {"inverse_exp": 2.04}, "edges": ["inverse_exp"]}, SUPPORTED),
    ],
)
def test_an_optimum_at_an_edge_opens_the_interval(claim, given, verdict):
    config = to_json(LAPTOP)
    changed = made_up(**given).assign_attrs(config=config)
    assert judge(claim, changed, FIGURE.minimum).verdict == verdict


def test_a_narrow_network_decides_nothing_about_cifar10():
    for width, verdict in ((1 / 16, INCONCLUSIVE), (1 / 8, SUPPORTED)):
        config = dataclasses.replace(LAPTOP, dataset="cifar10", second_model=CNNConfig(width=width))
        changed = made_up().assign_attrs(config=to_json(config))
        assert judge(ON_IMAGES, changed, FIGURE.minimum).verdict == verdict


@pytest.mark.parametrize(
    ("given", "confirmed"),
    [
        ({}, 1),
        ({"found": 3.5}, 0),
        ({"images": 1.5}, 0),
        ({"found": 3.0, "spread": 0.5}, 0),
        ({"edges": [ADAMW]}, 0),
        ({"second_edges": [ADAMW]}, 0),
        ({"edges": [SEARCHED]}, 1),
    ],
)
def test_a_recommendation_is_better_on_both_tasks(given, confirmed):
    changed = made_up(**given)
    assert changed.num_confirmed == confirmed
    start = "Recommended" if confirmed else "No decays were found"
    assert changed.attrs["note"].startswith(start)
    assert f"γ₁ = {changed.found_b1_1.item():.4g}" in changed.attrs["note"]


CONTRACT = Contract(
    FIGURE,
    CONFIG,
    panels={"": 4},
    comparison=True,
    strict=(),
    refused=[
        {"eps": 1e-8},
        {"learning_rate": 0.0},
        {"sobol_seed": -1},
        {"num_seeds": 1},
        {"num_tuning_seeds": 1},
        {"eval_batches": 0},
        {"num_searched": 12},
        {"num_refined": 1},
        {"num_finalists": 9},
        {"rates": (1.0,)},
        {"strategy_rates": (2.0, 1.0)},
        {"second_rates": (0.0, 1.0)},
        {"b2": (0.9, 1.0)},
        {"highest_b1": 1.0},
        {"refined_width": 0.0},
        {"zero_share": 1.0},
        {"warmup_steps": 8},
        {"second_warmup": 4},
    ],
    made_up=made_up,
    cases={
        "searched-decays-beat-adamw-on-text": ({}, {"found": 3.5}, {"found": 3.0, "spread": 0.5}),
        "searched-decays-beat-adamw-on-images": (
            {},
            {"images": 1.5},
            {"images": 1.0, "spread": 0.5},
        ),
        "more-natural-strategy-exists": (
            {},
            {"strategies": {"root": 1.0}},
            {"found": 2.5, "spread": 0.5},
        ),
        "inverse-exp-is-near-the-optimum": (
            {"strategies": {"inverse_exp": 2.04}},
            {},
            {"strategies": {"inverse_exp": 2.05}, "spread": 0.2},
        ),
    },
    patches={
        f"experiments.figures.optimizer.decay_search.run.{name}": lambda *_, **__: valley
        for name in ("text_trial", "image_trial")
    },
)
