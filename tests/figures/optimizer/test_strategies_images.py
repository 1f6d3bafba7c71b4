"""Tests of figures/optimizer/strategies_images."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.figures.optimizer import strategies_images
from experiments.figures.optimizer.strategies_images import FIGURE
from experiments.figures.optimizer.strategies_images.plot import plot
from experiments.figures.optimizer.strategies_images.run import Config
from experiments.training.tasks import image_task
from experiments.training.train import train_member
from experiments.training.trials import image_trial
from models.cnn import CNNConfig
from tests.figures.contract import Contract
from tests.figures.optimizer.strategies import REFUSED, claims_of
from tests.training.toy import valley

CONFIG = Config(
    model=CNNConfig(width=1 / 64),
    batch=4,
    num_steps=3,
    warmup_steps=1,
    num_seeds=2,
    ks=(1, 2),
    rates=(1.0, 10.0),
    decays=("coupled",),
)


@pytest.mark.usefixtures("small_network")
def test_a_trial_measures_every_image_of_both_splits(few_images):
    optimizer = optax.sgd(1e-2)  # Adam amplifies rounding errors
    trial = image_trial(CONFIG.model, few_images, batch=CONFIG.batch, num_steps=CONFIG.num_steps)
    found = jax.jit(lambda seed: trial(optimizer, seed))(3)

    def sample(key):
        return jax.tree.map(
            lambda leaf: jnp.asarray(leaf)[jax.random.randint(key, (4,), 0, 100)],
            few_images.train[np.arange(100)],
        )

    task = image_task(CONFIG.model)._replace(sample=sample)
    result = jax.jit(lambda: train_member(task, optimizer, seed=3, num_steps=CONFIG.num_steps))()
    metrics = jax.jit(task.metrics)
    for name, split in few_images.heldout.items():
        batch = split[np.arange(100)]
        sums = metrics(result.params, result.state, batch, jnp.full(100, 0.01))
        error = found["test"].mean() if name == "test" else found["validation"]
        np.testing.assert_allclose(error, 100 * (1 - sums["accuracy"]), rtol=1e-5)
        if name == "validation":
            np.testing.assert_allclose(found["validation_loss"], sums["loss"], rtol=2e-3)
    assert set(np.unique(found["test"])) <= {0.0, 100.0}


def test_the_figure_states_how_coarse_its_test_is(data):
    assert data.test.shape == (6, 2, 100)
    assert data.attrs["note"].startswith("100 test images: one of them is 1 percentage points")
    canvas = plot(data)[""]
    assert canvas.get_supxlabel() == data.attrs["note"]


def hundred(optimizer, seed):
    """A trial on a hundred examples."""
    found = valley(optimizer, seed)
    return {**found, "test": jnp.tile(found["test"], 25)}


def test_the_paper_preset_is_the_papers_sweep():
    config = FIGURE.presets["paper"]
    np.testing.assert_allclose(config.learning_rates, [6e-5, 1e-4, 3e-4, 6e-4, 1e-3, 3e-3])
    assert config.weight_decays == (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
    assert config.ks == tuple(range(1, 11))
    assert config.num_steps * config.batch == pytest.approx(100 * 45_000, rel=1e-4)


CONTRACT = Contract(
    FIGURE,
    CONFIG,
    panels={"": 4, "rates": 2},
    comparison=True,
    strict=(),
    refused=[
        *REFUSED,
        {"batch": 0},
        {"num_steps": 0},
        {"warmup_steps": 3},
        {"learning_rate": 0.0},
    ],
    **claims_of("images"),
    patches={f"{strategies_images.run.__name__}.image_trial": lambda *_, **__: hundred},
)
