"""figures/stability/losses.py: what is trained, and what is made of test losses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr
from scipy import stats

from experiments.core.errors import ConfigError
from experiments.core.run import Run
from experiments.core.store import ChunkStore, named
from experiments.figures.stability import losses
from experiments.figures.stability.point_statistics import (
    excess_over_best_other,
    optimum,
    rank_correlation,
    stated,
)
from experiments.training.tasks import language_task
from experiments.training.train import train_member
from kadam_jax.members import grid, points
from kadam_jax.optimizer import scale_by_kadam
from tests.figures.contract import CORPUS, NETWORK
from tests.figures.stability.runs import SMALL

CONFIG = losses.Config(**SMALL)
pytestmark = pytest.mark.usefixtures("small_network")


@pytest.fixture(scope="module")
def new_run(tmp_path_factory):
    return lambda: Run(CORPUS, None, ChunkStore(tmp_path_factory.mktemp("chunks")))


# Training


def test_the_learning_rate_rises_and_falls_as_the_paper_says():
    config = losses.Config(num_steps=3000)
    rate = jax.vmap(config.warmup_cosine)(jnp.array([0, 50, 100, 1550, 3000]))
    np.testing.assert_allclose(rate, [0, 5e-4, 1e-3, 5.5e-4, 1e-4], rtol=1e-4)


def test_test_losses_equal_those_of_runs_that_end_there(new_run):
    pairs = points(b1=np.array([0.9, 0.5]), b2=np.array([0.999, 0.3]))
    found = losses.train(new_run(), "curve", CONFIG, grid(point=pairs, seed=CONFIG.seeds))
    assert found.shape == (2, 2, 7)
    task = language_task(NETWORK, CORPUS, CONFIG.batch)
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
        np.testing.assert_allclose(found[1, 1, place], expected, rtol=1e-5)


def test_a_schedule_may_read_the_member(new_run):
    pairs = points(b1=np.array([0.9, 0.8]), b2=np.array([0.99, 0.98]))

    def schedule(member):
        return lambda count: 0.01 * (member["b1"] > 0.85)

    members = grid(point=pairs, seed=CONFIG.seeds)
    moved, stays = losses.train(new_run(), "curve", CONFIG, members, schedule)
    np.testing.assert_array_equal(stays, stays[:, :1] * np.ones(7, np.float32))
    assert (moved[:, 1:] != moved[:, :1]).all()


def test_a_corpus_is_needed():
    with pytest.raises(ConfigError, match="corpus must be a corpus"):
        losses.train(Run(None, None, None), "curve", CONFIG, grid(b1=[0.5], b2=[0.5], seed=[0]))


def test_parallel_members_skip_the_evaluation_together():
    optimizer = losses.record_loss(jnp.sum, 3)

    def run(w):
        def step(state, _):
            return optimizer.update(w, state, w)[1], ()

        return jax.lax.scan(step, optimizer.init(w), length=4)[0].loss

    members = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(jax.vmap(run)(members), [3, 12])
    assert " cond[" in str(jax.make_jaxpr(jax.vmap(run))(members))


def test_members_of_a_task_skip_it_too():
    fn = losses.member_function(
        CONFIG, language_task(NETWORK, CORPUS, 2), lambda member: optax.constant_schedule(0.1)
    )
    member = {"b1": jnp.array([0.9, 0.8]), "b2": jnp.array([0.9, 0.8]), "seed": jnp.arange(2)}
    assert " cond[" in str(jax.make_jaxpr(jax.vmap(fn))(member))


# Analysis


def test_the_best_loss_skips_nan_and_divergence_is_recorded():
    rows = [
        [5.5, 4, 3, 2.9, 2.8, 2.7, 2.6],
        [5.5, 4, 3, np.nan, np.nan, np.nan, np.nan],
        [5.5, 4, 4.5, 5, np.inf, 7, 6],
        [5.5, np.nan, np.nan, np.nan, np.nan, np.nan, np.nan],
    ]
    b = np.linspace(0.5, 0.8, 4)
    data = losses.dataset(CONFIG, ("point",), b, b, np.array(rows)[:, None] * np.ones((2, 1)))
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
