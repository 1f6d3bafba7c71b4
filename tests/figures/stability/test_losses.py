"""figures/stability/losses.py, the figures of test losses along curves and their claims."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr
from scipy import stats

from experiments.core.claims import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, judge
from experiments.core.config import to_json
from experiments.core.errors import ConfigError
from experiments.core.run import Run
from experiments.core.store import ChunkStore, named
from experiments.data import byte_corpus
from experiments.figures.stability import level_curve, normal_curves
from experiments.figures.stability.level_curve import claims as level_claims
from experiments.figures.stability.losses import (
    GeneralizationConfig,
    losses,
    losses_member,
    record_loss,
    train,
)
from experiments.figures.stability.normal_curves import claims as normal_claims
from experiments.figures.stability.point_statistics import (
    excess_over_best_other,
    optimum,
    rank_correlation,
    stated,
)
from experiments.training.tasks import language_task
from experiments.training.train import train_member
from kadam_jax.optimizer import scale_by_kadam
from models.nanogpt import GPTConfig
from tests.figures.claim_cases import assert_follows

TINY = GPTConfig(vocab_size=256, context=8, num_layers=1, num_heads=1, width=8, dropout=0.1)
SMALL = {
    "model": TINY,
    "batch": 2,
    "num_steps": 12,
    "num_seeds": 2,
    "num_points": 4,
    "warmup_steps": 2,
    "eval_every": 2,
    "eval_batches": 3,
}
CONFIG = GeneralizationConfig(**SMALL)
CORPUS = byte_corpus("text", b"the quick brown fox jumps over the lazy dog. " * 40)
FIGURES = {"normal_curves": normal_curves, "level_curve": level_curve}


@pytest.fixture(scope="module")
def new_run(tmp_path_factory):
    return lambda: Run(CORPUS, None, ChunkStore(tmp_path_factory.mktemp("chunks")))


@pytest.fixture(scope="module")
def datasets(new_run):
    """Each figure's dataset from real, tiny runs, with the attributes that plotting needs."""
    found = {}
    for name, module in FIGURES.items():
        config = module.Config(**SMALL)
        found[name] = module.compute(config, new_run())
        found[name].attrs["config"] = to_json(config)
    return found


# Training


def test_the_learning_rate_rises_and_falls_as_the_paper_says():
    config = GeneralizationConfig(num_steps=3000)
    rate = jax.vmap(config.warmup_cosine)(jnp.array([0, 50, 100, 1550, 3000]))
    np.testing.assert_allclose(rate, [0, 5e-4, 1e-3, 5.5e-4, 1e-4], rtol=1e-4)


def test_test_losses_equal_those_of_runs_that_end_there(new_run):
    b1, b2 = np.array([[0.9], [0.5]], np.float32), np.array([[0.999], [0.3]], np.float32)
    found = train(new_run(), "curve", CONFIG, b1, b2)
    assert found.shape == (2, 1, 2, 7)
    task = language_task(TINY, CORPUS, CONFIG.batch)
    batches = [task.sample_heldout(key) for key in jax.random.split(jax.random.key(0), 3)]
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 2, 12, 1e-4)
    optimizer = optax.chain(
        scale_by_kadam(1, (0.5,), (0.3,), CONFIG.eps), optax.scale_by_learning_rate(schedule)
    )

    @jax.jit
    def shorter(stop):
        return train_member(task, optimizer, seed=1, num_steps=CONFIG.num_steps, stop=stop)

    for place, num_steps in enumerate(CONFIG.evaluations):
        end = shorter(num_steps)
        expected = np.mean([task.evaluate(end.params, end.state, batch) for batch in batches])
        np.testing.assert_allclose(found[1, 0, 1, place], expected, rtol=1e-5)


def test_a_schedule_may_read_the_member(new_run):
    b1, b2 = np.array([0.9, 0.8], np.float32), np.array([0.99, 0.98], np.float32)

    def schedule(member):
        return lambda count: 0.01 * (member["b1"] > 0.85)

    moved, stays = train(new_run(), "curve", CONFIG, b1, b2, schedule)
    np.testing.assert_array_equal(stays, stays[:, :1] * np.ones(7, np.float32))
    assert (moved[:, 1:] != moved[:, :1]).all()


def test_a_corpus_is_needed():
    with pytest.raises(ConfigError, match="corpus must be a corpus"):
        train(Run(None, None, None), "curve", CONFIG, np.ones(1), np.ones(1))


def test_parallel_members_skip_the_evaluation_together():
    optimizer = record_loss(jnp.sum, 3)

    def run(w):
        def step(state, _):
            return optimizer.update(w, state, w)[1], ()

        return jax.lax.scan(step, optimizer.init(w), length=4)[0].loss

    members = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(jax.vmap(run)(members), [3, 12])
    assert " cond[" in str(jax.make_jaxpr(jax.vmap(run))(members))


def test_members_of_a_task_skip_it_too():
    fn = losses_member(
        CONFIG, language_task(TINY, CORPUS, 2), lambda member: optax.constant_schedule(0.1)
    )
    member = {"b1": jnp.array([0.9, 0.8]), "b2": jnp.array([0.9, 0.8]), "seed": jnp.arange(2)}
    assert " cond[" in str(jax.make_jaxpr(jax.vmap(fn))(member))


@pytest.mark.parametrize(
    "bad",
    [
        {"num_seeds": 1},
        {"num_points": 2},
        {"eval_batches": 0},
        {"eval_every": 3},
        {"eval_every": 0},
        {"warmup_steps": 12},
        {"final_rate": 1.5},
    ],
)
def test_an_invalid_configuration_is_refused(bad):
    (name,) = bad
    with pytest.raises(ConfigError, match=name):
        dataclasses.replace(CONFIG, **bad)


# Points


@pytest.mark.parametrize("preset", ["laptop", "paper"])
def test_points_lie_on_their_curves_and_cover_both_regions(preset):
    b1, b2 = normal_curves.FIGURE.presets[preset].points
    for place, (given_b2, constant) in enumerate(((0.999, 2.723), (0.95, 2.44375))):
        np.testing.assert_allclose(2 * b2[place] ** 3 + b1[place] ** 3, constant, atol=1e-4)
        assert b2[place].min() < given_b2 < b2[place].max() + 1e-6
        C = 2 / b1[place] - 1 / b2[place] - 1
        assert (np.diff(C) < 0).all()
        assert (C > 0).mean() > 0.7
        assert (C < 0).sum() >= 2
    assert (b1[0, 0], b2[0, 0]) == (np.float32(0.9), np.float32(0.999))


@pytest.mark.parametrize("preset", ["laptop", "paper"])
def test_points_of_the_level_curve_have_one_c_and_end_at_the_usual(preset):
    b1, b2 = level_curve.FIGURE.presets[preset].points
    np.testing.assert_allclose(2 / b1 - 1 / b2 - 1, 0.2212, atol=2e-4)
    assert (np.diff(np.hypot(b1, b2)) > 0).all()
    assert (b1[-1], b2[-1]) == (np.float32(0.9), np.float32(0.999))


# Analysis


def test_the_best_loss_skips_nan_and_divergence_is_recorded():
    rows = [
        [5.5, 4, 3, 2.9, 2.8, 2.7, 2.6],
        [5.5, 4, 3, np.nan, np.nan, np.nan, np.nan],
        [5.5, 4, 4.5, 5, np.inf, 7, 6],
        [5.5, np.nan, np.nan, np.nan, np.nan, np.nan, np.nan],
    ]
    b = np.linspace(0.5, 0.8, 4)
    data = losses(CONFIG, ("point",), b, b, np.array(rows)[:, None] * np.ones((2, 1)))
    best = data.best_loss.isel(seed=0)
    assert best.sel(horizon="early").values.tolist() == [3, 3, 4, 5.5]
    assert best.sel(horizon="whole").values.tolist() == [2.6, 3, 4, 5.5]
    assert data.diverged.isel(seed=0).values.tolist() == [False, True, True, True]
    assert data.horizon_steps.values.tolist() == [4, 12]


def test_rank_correlations_are_scipys_at_every_seed():
    random = np.random.default_rng(0)
    loss = xr.DataArray(random.normal(size=(3, 7, 2)), dims=("seed", "point", "horizon"))
    loss = loss.where(xr.DataArray(np.arange(7) != 4, dims="point"))
    x = xr.DataArray(random.normal(size=7), dims="point")
    found = rank_correlation(x, loss)
    kept = np.arange(7) != 4
    for seed in range(3):
        for horizon in range(2):
            expected = stats.spearmanr(x[kept], loss.values[seed, kept, horizon]).statistic
            assert found.sel(seed=seed, horizon=horizon).item() == pytest.approx(expected)


def test_the_other_point_is_chosen_on_the_other_seeds():
    random = np.random.default_rng(1)
    loss = random.normal(size=(5, 4, 2))
    loss[3, :, 0] = np.nan
    found = excess_over_best_other(xr.DataArray(loss, dims=("point", "seed", "horizon")), 1)
    for seed in range(4):
        for horizon in range(2):
            elsewhere = np.delete(loss[:, :, horizon], seed, axis=1).mean(axis=1)
            elsewhere[1] = np.nan
            best = np.nanargmin(elsewhere)
            expected = loss[1, seed, horizon] - loss[best, seed, horizon]
            assert found.isel(seed=seed, horizon=horizon).item() == pytest.approx(expected)


def test_a_stated_correlation_stays_within_one():
    seeds = np.array([[-1.0, -1.0, -0.9, -1.0, -1.0]])
    dims = ("horizon", "seed")
    data = xr.Dataset(
        {name: named((dims, seeds), name) for name in ("rank_correlation", "loss")},
        {"horizon": [1]},
    )
    numbers = stated(data, {1: "part"}, " there", "_x")
    (mean, low, high), (_, unclipped, _) = (
        numbers[f"{name}_1_x"].values for name in ("rank_correlation", "loss")
    )
    assert (mean, low) == (pytest.approx(-0.98), -1)
    assert unclipped < -1 < high < -0.9
    assert numbers["loss_1_x"].long_name == "loss, part there, mean over seeds, 95% interval"


@pytest.mark.parametrize(("place", "at_edge"), [(0, True), (2, False), (4, True)])
def test_an_optimum_at_an_end_is_flagged(place, at_edge):
    loss = xr.DataArray(np.ones((5, 3)), dims=("point", "seed"))
    loss[place] = 0.5
    found = optimum(loss)
    assert found["best_point"] == place
    assert found["best_at_edge"] == at_edge


@pytest.mark.parametrize("name", FIGURES)
def test_everything_is_labeled_and_sound(datasets, name):
    data = datasets[name]
    for variable in data.variables.values():
        assert variable.attrs["long_name"]
        assert variable.attrs["units"]
    assert not data.diverged.any()
    first, last = data.test_loss.isel(evaluation=0), data.test_loss.isel(evaluation=-1)
    np.testing.assert_allclose(first, first.isel(point=[0] * 4), rtol=1e-6)
    assert (last != last.isel(point=[1, 2, 3, 0]).values).all()
    assert (data.best_loss.sel(horizon="whole") <= data.best_loss.sel(horizon="early")).all()


@pytest.mark.parametrize("diverged", [False, True])
@pytest.mark.parametrize("name", FIGURES)
def test_plots_need_only_the_dataset_and_label_their_axes(datasets, name, diverged):
    module, data = FIGURES[name], datasets[name]
    if diverged:
        everywhere = np.where(np.arange(7) > 0, np.nan, data.test_loss)
        data = module.run.analyze(module.Config(**SMALL), everywhere)
        assert data.diverged.all()
    pages = module.FIGURE.plot(data)
    assert len(pages) == (2 if name == "normal_curves" else 1)
    for canvas in pages.values():
        canvas.draw_without_rendering()
        for panel in canvas.axes[:4]:
            assert panel.get_title(loc="left")
            assert panel.get_xlabel()
            assert panel.get_ylabel()
            assert panel.lines


# Claims


def normal_data(early=1.0, late=0.1, rise=1.0, spread=0.0):
    """Make normal curves where the loss falls by `early`, `late` nats per unit of C in B₊ up to the
    horizons, and is higher by `rise` in B₋; `spread` is added to all three by seed."""
    config = normal_curves.FIGURE.presets["laptop"]
    b1, b2 = config.points
    C = (2 / b1 - 1 / b2 - 1)[..., None]
    noise = np.linspace(-spread, spread, config.num_seeds)
    steps = config.evaluations
    by_horizon = [
        base - (slope + noise) * C.clip(0) + (rise + noise) * (C < 0)
        for base, slope in ((3.5, early), (2.0, late))
    ]
    loss = np.where(steps <= config.num_steps // 3, *(x[..., None] for x in by_horizon))
    return normal_curves.run.analyze(config, np.where(steps == 0, 5.5, loss))


def level_data(fall=0.5, spread=0.0):
    """Make a level curve where the loss falls by `fall` + `spread` by seed as β rises from 0."""
    config = level_curve.FIGURE.presets["laptop"]
    _, b2 = config.points
    slopes = fall + np.linspace(-spread, spread, config.num_seeds)
    loss = 3 - b2[:, None, None] * slopes[:, None] * np.ones(len(config.evaluations))
    return level_curve.run.analyze(config, np.where(config.evaluations == 0, 5.5, loss))


# Data that support a claim, refute it and do neither.
CASES = {
    f"{name}-{b2}": cases
    for b2 in normal_curves.run.CURVES
    for name, cases in {
        "larger-c-generalises-faster": ({}, {"early": -1.0}, {"early": 0.1, "spread": 1.0}),
        "largest-c-generalises-fastest": ({}, {"early": -1.0}, {"early": 0.1, "spread": 1.0}),
        "equal-after-long-training": ({}, {"late": 2.0}, {"late": 0.3, "spread": 0.25}),
        "loss-rises-in-b-minus": ({}, {"rise": 0.0}, {"rise": 0.1, "spread": 0.05}),
    }.items()
} | {"slower-near-the-origin": ({}, {"fall": -0.5}, {"fall": 0.1, "spread": 0.5})}
CLAIMS = {claim.id: claim for claim in (*normal_claims.CLAIMS, *level_claims.CLAIMS)}


def test_every_claim_has_cases():
    assert CASES.keys() == CLAIMS.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_claim_follows_the_data_but_not_at_smoke_scale(name):
    claim = CLAIMS[name]
    figure = FIGURES[claim.figure].FIGURE
    make = {"normal_curves": normal_data, "level_curve": level_data}[claim.figure]
    enough = dataclasses.replace(figure.presets["laptop"], **claim.minimum)
    for given, verdict in zip(CASES[name], (SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE), strict=True):
        assert_follows(claim, figure, enough, make(**given), verdict)


def test_claims_can_be_read_from_the_smallest_run(datasets):
    for claim in CLAIMS.values():
        data = datasets[claim.figure]
        minimum = FIGURES[claim.figure].FIGURE.minimum
        assert judge(claim, data, minimum).verdict == INCONCLUSIVE
