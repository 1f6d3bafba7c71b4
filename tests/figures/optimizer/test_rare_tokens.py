"""Tests of figures/optimizer/rare_tokens: its bins, its protocol and its claims."""

import dataclasses

import numpy as np
import pytest

from experiments.core.errors import ConfigError
from experiments.core.run import Run
from experiments.core.stats import paired_mean
from experiments.data import load_corpus
from experiments.figures.optimizer.rare_tokens import FIGURE
from experiments.figures.optimizer.rare_tokens.run import Bins, Config, compute
from tests.figures.contract import CORPUS, SMALL_NETWORK, Contract
from tests.figures.optimizer import test_contenders as contenders

LAPTOP = FIGURE.presets["laptop"]
SHARED = {field.name for field in dataclasses.fields(Config)} - {"contenders", "num_bins"}
SMALL = Config(
    **{name: getattr(contenders.SMALL, name) for name in SHARED},
    contenders=("adamw", "sgd"),
    num_bins=3,
)


# Bins


@pytest.fixture(scope="module")
def bins():
    """Bins of the text in byte pairs."""
    corpus = load_corpus("embedded_pairs")
    return Bins(corpus, corpus.tokens_heldout[:8000].reshape(10, 8, 100), num_bins=5)


def test_counts_are_those_of_the_training_text(bins):
    tokens, counts = np.unique(load_corpus("embedded_pairs").tokens_train, return_counts=True)
    np.testing.assert_array_equal(bins.counts[tokens], counts)
    assert bins.counts.sum() == counts.sum()
    assert bins.counts.shape == (4096,)


def test_bins_part_the_tokens_from_rare_to_frequent(bins):
    assert set(bins.of_token) == set(range(5))
    order = np.argsort(bins.counts, kind="stable")
    assert (np.diff(bins.of_token[order]) >= 0).all()
    equal = np.diff(bins.counts[order]) == 0
    assert (np.diff(bins.of_token[order])[equal] == 0).all()
    most = bins.labels()["bin_count"].values
    assert (np.diff(most) > 0).all()


def test_bins_have_about_as_many_targets_each(bins):
    targets = bins.crops[..., 1:]
    assert bins.of_target.shape == targets.shape
    assert bins.sizes.sum() == targets.size
    np.testing.assert_allclose(bins.sizes / targets.size, 1 / 5, atol=0.05)


# The protocol


def test_the_losses_of_bins_make_up_the_test_loss(data):
    whole = (data.bin_loss * data.bin_share).sum("bin")
    np.testing.assert_allclose(whole, data.loss, rtol=1e-5)


def test_members_are_those_of_contenders(data, computed):
    theirs = computed(contenders.CONTRACT).sel(task="text", arm="adamw")
    ours = data.sel(arm="adamw")
    for name in ("validation", "loss", "course", "picked"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, err_msg=name)


def test_gains_are_paired_differences_to_adamw(data):
    gains = data.loss.sel(arm="adamw") - data.loss.sel(arm="sgd")
    np.testing.assert_allclose(data.gain.sel(arm="sgd"), paired_mean(gains).ends)
    in_bins = data.bin_loss.sel(arm="adamw") - data.bin_loss.sel(arm="sgd")
    for place in data.bin.values:
        ends = paired_mean(in_bins.sel(bin=place)).ends
        np.testing.assert_allclose(data.bin_gain.sel(arm="sgd", bin=place), ends)


def test_another_vocabulary_is_refused_before_training():
    for size in (255, 257):
        config = dataclasses.replace(SMALL, model=dataclasses.replace(SMALL.model, vocab_size=size))
        with pytest.raises(ConfigError, match=r"model\.vocab_size"):
            compute(config, Run(CORPUS, None, None))


CONTRACT = Contract(
    FIGURE,
    SMALL,
    panels={"": 3, "search": 1},
    comparison=True,
    strict=(),
    refused=[
        {"contenders": ("sgd",)},
        {"contenders": ("adamw", "lion")},
        {"contenders": ("adamw", "adamw")},
        {"num_bins": 1},
        {"learning_rate": 0.1},
        {"num_rates": 1},
    ],
    patches=SMALL_NETWORK,
)
