"""Tests of figures/optimizer/rare_tokens: its bins, its protocol and its claims."""

import dataclasses

import numpy as np
import pytest
import xarray as xr

from experiments.core.claims import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, judge
from experiments.core.config import to_json
from experiments.core.errors import ConfigError
from experiments.core.run import Run
from experiments.core.stats import paired_mean
from experiments.data import load_corpus
from experiments.figures.optimizer.rare_tokens import FIGURE
from experiments.figures.optimizer.rare_tokens.claims import CLAIMS
from experiments.figures.optimizer.rare_tokens.run import ROWS, Bins, Config, analyze, compute
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


def test_bins_divide_the_tokens_from_rare_to_frequent(bins):
    assert set(bins.of_token) == set(range(5))
    order = np.argsort(bins.counts, kind="stable")
    assert (np.diff(bins.of_token[order]) >= 0).all()
    equal = np.diff(bins.counts[order]) == 0
    assert (np.diff(bins.of_token[order])[equal] == 0).all()
    most = bins.labels()["bin_count"].values
    assert (np.diff(most) > 0).all()


def test_bins_have_about_equally_many_targets(bins):
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


def test_empty_bins_are_refused_before_training():
    with pytest.raises(ConfigError, match=r"num_bins must be small .* got 500"):
        compute(dataclasses.replace(SMALL, num_bins=500), Run(CORPUS, None, None))


# Claims


def made_up(gains=None, slopes=None, spread=0.0, edges=(), diverged=()):
    """Make a dataset of the laptop preset with all contenders.

    Args:
      gains: By arm, nats per token by which its loss is below AdamW's.
      slopes: By arm, how much more it gains in the rarest bin than in the most frequent one.
      spread: Half the range of the noise of seeds, in the whole and in each bin.
      edges: Arms whose learning rates are at an edge.
      diverged: Arms with a diverged seed.
    """
    arms, num_bins = list(ROWS), LAPTOP.num_bins
    rng = np.random.default_rng(1)
    rates = [2.0**power for power in range(-2, 2)] * 3

    def by_arm(values):
        return np.array([(values or {}).get(arm, 0.0) for arm in arms])

    def noise(*more):
        sizes = np.linspace(-spread, spread, LAPTOP.num_seeds)
        return rng.permuted(np.broadcast_to(sizes, (len(arms), *more, len(sizes))), axis=-1)

    loss = 4 - by_arm(gains)[:, None] + noise()
    tilt = by_arm(slopes)[:, None, None] * np.linspace(0.5, -0.5, num_bins)[:, None]
    level = np.linspace(3, -3, num_bins)[:, None] - tilt
    in_bins = np.swapaxes(loss[:, None] + level + noise(num_bins), 1, 2)
    for values in (loss, in_bins):
        values[np.isin(arms, diverged), 0] = np.nan
    centers = np.array([ROWS[arm].rate for arm in arms])
    valley = (np.log2(rates) + 0.5) ** 2
    data = xr.Dataset(
        {
            "validation": (("arm", "candidate"), 4 - by_arm(gains)[:, None] + 0.1 * valley),
            "learning_rate": (("arm", "candidate"), np.outer(centers, rates)),
            "b1": (("arm", "candidate"), np.full((len(arms), len(rates)), 0.9)),
            "b2": (("arm", "candidate"), np.repeat([0.9, 0.8, 0.6], 4)[None].repeat(len(arms), 0)),
            "picked": ("arm", np.ones(len(arms), int)),
            "picked_validation": ("arm", 4 - by_arm(gains)),
            "at_edge": (("arm", "axis"), np.isin(arms, edges)[:, None] & np.ones(2, bool)),
            "loss": (("arm", "seed"), loss),
            "bin_loss": (("arm", "seed", "bin"), in_bins),
        },
        {
            "arm": arms,
            "candidate": np.arange(len(rates)),
            "axis": ["rate", "memory"],
            "seed": np.array(LAPTOP.seeds),
            "bin": np.arange(num_bins),
            "bin_count": ("bin", 19 * 4 ** np.arange(num_bins)),
        },
    )
    for name in data.variables:
        data[name].attrs = {"long_name": name, "units": "1"}
    return analyze(data, bytes_per_token=4.0).assign_attrs(config=to_json(LAPTOP))


NOISE = {"spread": 10.0}
CASES = {
    "searched-kadam-beats-adamw-on-byte-pairs": (
        {"gains": {"kadam_2": 0.02}},
        {"gains": {"kadam_2": 0.005, "muon": 1.0}},
        NOISE,
    ),
    "a-stage-before-muon-helps-on-byte-pairs": (
        {"gains": {"muon_before": 0.001}},
        {"gains": {"muon": 0.001}},
        NOISE,
    ),
    "kadams-gain-is-larger-on-rare-tokens": (
        {"gains": {"kadam_2": 0.02}, "slopes": {"kadam_2": 0.02}},
        {"gains": {"kadam_2": 0.02}, "slopes": {"kadam_2": 0.005}},
        NOISE,
    ),
    "rare-tokens-suffer-most-without-normalization": (
        {"gains": {"sgd": -1.0}, "slopes": {"sgd": -0.2}},
        {"gains": {"sgd": -1.0}, "slopes": {"sgd": -0.05}},
        NOISE,
    ),
}
RULES = {claim.id: claim for claim in CLAIMS}


def judged(name, **given):
    return judge(RULES[name], made_up(**given), FIGURE.minimum).verdict


def test_an_edge_opens_one_side_of_a_gain_and_both_of_a_difference():
    better, worse, _ = CASES[(name := "searched-kadam-beats-adamw-on-byte-pairs")]
    assert judged(name, **better, edges=["kadam_2", "muon"]) == SUPPORTED
    assert judged(name, **better, edges=["adamw"]) == INCONCLUSIVE
    assert judged(name, **worse, edges=["adamw"]) == NOT_SUPPORTED
    assert judged(name, **worse, edges=["kadam_2"]) == INCONCLUSIVE
    name = "rare-tokens-suffer-most-without-normalization"
    for given in CASES[name][:2]:
        for arm in ("adamw", "sgd"):
            assert judged(name, **given, edges=[arm]) == INCONCLUSIVE


def test_diverged_seeds_are_not_evidence():
    for name, (better, *_) in CASES.items():
        arm = next(iter(better["gains"]))
        assert judged(name, **better, diverged=[arm]) == INCONCLUSIVE, name


def test_what_was_not_trained_is_not_judged():
    few = made_up().sel(arm=["adamw", "muon_before"])
    for claim in CLAIMS:
        assert judge(claim, few, FIGURE.minimum).verdict == INCONCLUSIVE


CONTRACT = Contract(
    FIGURE,
    SMALL,
    panels={"": 3, "search": 1},
    comparison=True,
    strict=(),
    made_up=made_up,
    cases=CASES,
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
