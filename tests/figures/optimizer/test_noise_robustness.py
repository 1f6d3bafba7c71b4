"""Tests of figures/optimizer/noise_robustness: its noise, its statistics and its claims."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from experiments.core.config import to_json
from experiments.core.stats import NOTHING
from experiments.data import sample_batch
from experiments.figures.optimizer.noise_robustness import FIGURE
from experiments.figures.optimizer.noise_robustness.claims import CLAIMS
from experiments.figures.optimizer.noise_robustness.contrasts import along, gain, trend
from experiments.figures.optimizer.noise_robustness.noisy_training import (
    add_relative_noise,
    ngram_task,
    noisy_trial,
)
from experiments.figures.optimizer.noise_robustness.plot import plot
from experiments.figures.optimizer.noise_robustness.run import Config, analyze
from experiments.training.train import train_member
from models.ngram import NGramConfig
from tests.figures.contract import CORPUS, Contract

MODEL = NGramConfig(context=3, embedding_size=2, width=4)
TINY = Config(
    model=MODEL,
    batch=8,
    num_steps=6,
    num_seeds=3,
    chunk_size=3,
    learning_rate=1e-2,
    ks=(1, 3),
    batch_sizes=(4, 8),
    gradient_noises=(1.0,),
    label_noises=(0.3,),
    warmup_steps=2,
    num_rates=3,
    num_tuning_seeds=1,
    eval_examples=32,
)
LAPTOP = FIGURE.presets["laptop"]
GRADS = {"a": jnp.full((40, 50), 1e-3), "b": jnp.full(3000, 2e-3)}


def test_noise_is_as_large_as_the_gradient_times_its_level():
    noise = add_relative_noise(3.0, jax.random.key(0))
    state = noise.init(GRADS)
    rms = np.sqrt((2000 * 1e-6 + 3000 * 4e-6) / 5000)
    steps = []
    for _ in range(2):
        noisy, state = noise.update(GRADS, state)
        added = np.concatenate([(noisy[name] - GRADS[name]).ravel() for name in GRADS])
        assert stats.kstest(added / (3 * rms), "norm").pvalue > 0.01
        steps.append(added)
    assert abs(np.corrcoef(steps)[0, 1]) < 0.05


def test_noise_depends_only_on_gradient_scale_and_key():
    def first(level, key, grads=GRADS):
        noise = add_relative_noise(level, jax.random.key(key))
        return noise.update(grads, noise.init(grads))[0]["a"]

    np.testing.assert_array_equal(first(0.0, 0), GRADS["a"])
    scaled = first(1.0, 0, jax.tree.map(lambda leaf: 1024 * leaf, GRADS))
    np.testing.assert_allclose(scaled, 1024 * first(1.0, 0), rtol=1e-5)
    assert not np.allclose(first(1.0, 0), first(1.0, 1))


def test_label_noise_changes_only_training_labels():
    noisy = ngram_task(MODEL, CORPUS, 4096, 0.25)
    key = jax.random.key(3)
    given, clean = noisy.sample(key), ngram_task(MODEL, CORPUS, 4096).sample(key)
    np.testing.assert_array_equal(given[:, :-1], clean[:, :-1])
    labels = np.asarray(given[:, -1])[given[:, -1] != clean[:, -1]]
    assert abs(len(labels) / 4096 - 0.25) < 0.03
    assert stats.kstest(labels / 256, "uniform").pvalue > 0.01


def test_a_member_trains_with_noise_and_is_measured_without():
    member = {"seed": 4, "learning_rate": 0.1, "gradient_noise": 2.0, "label_noise": 0.3}
    trial = noisy_trial(MODEL, CORPUS, optax.sgd, batch=8, num_steps=5, eval_examples=32)
    found = jax.jit(trial)(member)
    task = ngram_task(MODEL, CORPUS, 8, 0.3)
    noise = add_relative_noise(2.0, jax.random.fold_in(jax.random.key(4), 2))
    end = train_member(task, optax.chain(noise, optax.sgd(0.1)), seed=4, num_steps=5)
    middle = len(CORPUS.tokens_heldout) // 2
    for name, half in zip(
        ("validation", "test"), np.split(CORPUS.tokens_heldout, [middle]), strict=True
    ):
        tokens = sample_batch(jnp.asarray(half), jax.random.key(0), 32, 3)
        np.testing.assert_allclose(
            found[name], task.loss(end.params, end.state, tokens, None)[0], rtol=1e-5
        )


def test_members_are_ordered_by_condition_k_and_seed(data):
    assert data.validation.shape == (4, 2, 3)
    assert data.test.shape == (4, 2, 3)
    assert (abs(data.test - np.log(256)) < 2).all()
    assert data.seed.values.tolist() == [1, 2, 3]


def test_the_chosen_rate_is_next_to_the_best_of_the_grid(data):
    best = data.rate.values[data.validation.values.argmin(-1)]
    assert (abs(np.log(data.chosen_rate / best)) <= np.log(2) / 2 + 1e-9).all()
    np.testing.assert_array_equal(
        data.rate_at_edge, np.isin(data.validation.values.argmin(-1), [0, 2])
    )


def noise_of(at):
    """Return a number that grows with each kind of noise, by 1 from end to end."""
    return -np.log2(at.batch) / 6 + at.gradient_noise / 3 + at.label_noise / 0.3


def made_up(constant=0.0, slope=0.0, two=0.0, spread=0.01, at_edge=None, config=LAPTOP):
    """Make the figure's dataset with losses of 2, plus what is given.

    Args:
      constant: Added for k >= 3.
      slope: Added for k >= 3, in proportion to the noise.
      two: Added for k = 2.
      spread: Standard deviation of every member's noise.
      at_edge: A k whose best learning rates are the lowest of the grid.
      config: The configuration.
    """
    more = [
        [0.0 if k == 1 else two if k == 2 else constant + slope * noise_of(at) for k in config.ks]
        for at in config.conditions
    ]
    losses = 2 + np.array(more)[..., None]
    rates = np.arange(config.num_rates)
    valleys = np.array([(rates - 2 * (k != at_edge)) ** 2 for k in config.ks])
    shape = (*losses.shape[:2], config.num_seeds)
    test = losses + spread * np.random.default_rng(0).normal(size=shape)
    return analyze(config, losses + valleys, test)


def test_a_gain_is_over_the_better_of_the_smaller_ks():
    for axis in ("batch", "gradient_noise", "label_noise"):
        run = made_up(constant=-0.1, two=-0.3, spread=1e-6)
        assert gain(run, axis).value == pytest.approx(-0.2, abs=1e-4)


def test_a_trend_is_the_slope_of_each_seeds_differences():
    run = made_up(constant=0.1, slope=-0.2)
    places = along(run, "batch")
    assert run.batch.values[places].tolist() == [512, 128, 32, 8]
    test = run.test.isel(condition=places)
    slopes = [
        stats.linregress(range(0, 8, 2), (test.sel(k=1) - test.sel(k=[3, 5]).mean("k"))[:, i]).slope
        for i in range(LAPTOP.num_seeds)
    ]
    found = trend(run, "batch", [3, 5])
    assert found.value == pytest.approx(np.mean(slopes))
    interval = stats.ttest_1samp(slopes, 0.0).confidence_interval()
    assert (found.low, found.high) == pytest.approx(tuple(interval))


@pytest.mark.parametrize("axis", ["batch", "gradient_noise", "label_noise"])
def test_a_rate_at_an_edge_opens_the_interval_on_its_side(axis):
    assert gain(made_up(constant=-0.1, at_edge=1), axis).low == -np.inf
    lower = gain(made_up(constant=-0.1, at_edge=3), axis)  # 5 is as good on validation, but second
    assert lower.low > 0
    assert lower.high == np.inf
    unchosen = made_up(constant=-0.1, two=-0.05, at_edge=1)  # 2 is better than Adam on validation
    assert gain(unchosen, axis).low == -np.inf
    found = trend(made_up(slope=-0.1, at_edge=3), axis, [3, 5])
    assert (found.low, found.high) == (-np.inf, np.inf)


def test_a_diverged_seed_makes_its_contrast_inconclusive():
    test = made_up().test.transpose("condition", "k", "seed").values.copy()
    test[1, 0, 0] = np.inf  # Adam's at batch 8
    run = analyze(LAPTOP, made_up().validation.values, test)
    assert np.isnan(trend(run, "batch", [3]).value)
    assert np.isfinite(trend(run, "label_noise", [3]).value)


def test_too_little_noise_decides_nothing():
    config = dataclasses.replace(
        LAPTOP, batch_sizes=(32, 512), gradient_noises=(1.0,), label_noises=(0.1,)
    )
    run = made_up(constant=-0.1, slope=-0.1, config=config)
    for claim in CLAIMS:
        assert claim.statistic(run) == NOTHING


def test_without_two_adam_a_gain_is_unknown():
    run = made_up(constant=-0.1, config=dataclasses.replace(LAPTOP, ks=(1, 3)))
    for claim in CLAIMS:
        assert (claim.statistic(run) == NOTHING) == ("better" in claim.id)


def test_without_a_larger_k_nothing_is_judged():
    run = made_up(config=dataclasses.replace(LAPTOP, ks=(1, 2)))
    for claim in CLAIMS:
        assert claim.statistic(run) == NOTHING
    assert plot(run.assign_attrs(config=to_json(LAPTOP))).keys() == {"", "rates"}


BETTER = ({"constant": -0.1}, {"constant": 0.1}, {"constant": -0.1, "at_edge": 1})
GAINS = ({"slope": -0.1}, {"slope": 0.1}, {"constant": -0.1})
CONTRACT = Contract(
    FIGURE,
    TINY,
    panels={"": 6, "rates": 4},
    comparison=True,
    strict=(32,),
    diverged=((np.nan, 64), (np.nan, 32)),
    refused=[
        {"ks": (2, 3)},
        {"ks": (1,)},
        {"batch": 16},
        {"batch_sizes": (512, 32)},
        {"gradient_noises": (0.0, 1.0)},
        {"label_noises": (0.1, 1.0)},
        {"num_rates": 2},
        {"num_seeds": 1},
        {"num_tuning_seeds": 0},
        {"warmup_steps": 400},
        {"rate_step": 1.0},
        {"final_rate": -0.1},
        {"learning_rate": 0.0},
    ],
    made_up=made_up,
    cases={claim.id: BETTER if "better" in claim.id else GAINS for claim in CLAIMS},
)
