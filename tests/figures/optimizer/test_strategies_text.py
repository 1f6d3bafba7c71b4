"""Tests of figures/optimizer/strategies_text."""

import jax
import numpy as np
import optax
import pytest

from experiments.core.errors import ConfigError
from experiments.core.run import Run
from experiments.core.store import ChunkStore
from experiments.data import sample_batch
from experiments.figures.optimizer.strategies_text import FIGURE
from experiments.figures.optimizer.strategies_text.run import Config, compute
from experiments.training.tasks import language_task
from experiments.training.train import train_member
from experiments.training.trials import text_trial
from tests.figures.contract import CORPUS, NETWORK, Contract
from tests.figures.optimizer.strategies import REFUSED, claims_of
from tests.training.toy import valley

CONFIG = Config(
    model=NETWORK,
    batch=2,
    num_steps=6,
    num_seeds=2,
    ks=(1, 2),
    rates=(1.0, 10.0),
    eval_batches=3,
)


@pytest.mark.usefixtures("small_network")
def test_a_trial_measures_both_halves_of_the_heldout_text():
    optimizer = optax.adamw(1e-2, weight_decay=0.1)
    trial = text_trial(CONFIG, CORPUS)
    found = jax.jit(lambda seed: trial(optimizer, seed))(3)
    task = language_task(CONFIG.model, CORPUS, CONFIG.batch)
    result = train_member(task, optimizer, seed=3, num_steps=CONFIG.num_steps)
    evaluate = jax.jit(task.evaluate)
    middle = len(CORPUS.tokens_heldout) // 2
    halves = CORPUS.tokens_heldout[:middle], CORPUS.tokens_heldout[middle:]
    keys = jax.random.split(jax.random.key(0), CONFIG.eval_batches)
    validation, test = (
        [evaluate(result.params, result.state, sample_batch(half, key, 2, 8)) for key in keys]
        for half in map(jax.numpy.asarray, halves)
    )
    np.testing.assert_allclose(found["test"], test, rtol=1e-5)
    np.testing.assert_allclose(found["validation"], np.mean(validation), rtol=1e-5)


def test_every_arm_is_tested_on_every_example(data):
    assert data.test.shape == (6, 2, 4)
    assert data.arm.values.tolist()[0] == "adam"
    assert np.isfinite(data.test).all()


def test_a_corpus_is_needed(tmp_path):
    with pytest.raises(ConfigError, match="corpus"):
        compute(CONFIG, Run(None, None, ChunkStore(tmp_path)))


def test_the_paper_preset_is_the_papers_sweep():
    config = FIGURE.presets["paper"]
    np.testing.assert_allclose(config.learning_rates, [1e-5, 5e-5, 1e-4, 5e-4, 1e-3])
    assert config.ks == (1, 2, 3, 4, 5)
    assert (config.b2, config.b1) == (0.999, 0.9)


CONTRACT = Contract(
    FIGURE,
    CONFIG,
    panels={"": 4, "rates": 2},
    comparison=True,
    strict=(),
    diverged=((np.nan, 64), (np.inf, 32)),
    refused=[*REFUSED, {"eval_batches": 1}],
    **claims_of("text"),
    patches={
        "experiments.figures.optimizer.strategies_text.run.text_trial": lambda *_, **__: valley
    },
)
