"""Tests of training/tuning.py: many candidates with one seed, few with more, lowest mean."""

import numpy as np
import pytest

from experiments.core.run import Run
from experiments.core.store import ChunkStore
from experiments.training.tuning import trainer, tune

SHAPE = (40, 12)


def tables(kind):
    """Return validation (rows, candidates, seeds), with ties or with values that are not finite."""
    random = np.random.default_rng(0)
    validation = random.integers(0, 3, (*SHAPE, 3)) / 10
    loss = random.normal(size=(*SHAPE, 3))
    if kind == "diverged":
        validation = random.normal(size=(*SHAPE, 3))
        validation[0] = np.nan
        validation[1:, :5, 1] = np.inf
    return {"validation": validation} | ({"validation_loss": loss} if kind == "ties" else {})


def train_from(table, stages):
    """Look up every candidate's results; its index in its row is one of its values."""

    def train(stage, candidates, seeds):
        stages.append((stage, candidates["place"].shape, list(seeds)))
        rows = np.arange(SHAPE[0])[:, None]
        return {key: x[rows, candidates["place"]][..., list(seeds)] for key, x in table.items()}

    return train


CANDIDATES = {"place": np.tile(np.arange(SHAPE[1]), (SHAPE[0], 1))}


@pytest.mark.parametrize("kind", ["ties", "diverged"])
@pytest.mark.parametrize("few", [None, 1, 4])
def test_the_chosen_have_the_lowest_mean_then_lowest_loss(kind, few):
    table, stages = tables(kind), []
    found = tune(train_from(table, stages), CANDIDATES, [0, 1, 2], few)
    keys = [np.nan_to_num(table[k], nan=np.inf) for k in ("validation", *[*table][1:])]
    for row in range(SHAPE[0]):
        tried = range(SHAPE[1])
        if few is not None:  # Python's sort keeps the order of equals
            tried = sorted(tried, key=lambda i: [x[row, i, 0] for x in keys])[:few]
            assert found.places[row].tolist() == tried
        best = min(tried, key=lambda i: [x[row, i].mean() for x in keys])
        assert found.chosen[row] == found.picked["place"][row] == best
    np.testing.assert_array_equal(
        found.losses, table["validation"][np.arange(SHAPE[0])[:, None], found.places]
    )
    expected = [("tuning", SHAPE, [0, 1, 2])]
    if few is not None:
        expected = [("tuning", SHAPE, [0]), ("finalists", (SHAPE[0], few), [1, 2])]
    assert stages == expected


def test_known_results_of_the_first_seed_are_reused():
    table, stages = tables("diverged"), []
    first = {"validation": table["validation"][..., :1]}
    found = tune(train_from(table, stages), CANDIDATES, [0, 1, 2], 4, first)
    again = tune(train_from(table, []), CANDIDATES, [0, 1, 2], 4)
    np.testing.assert_array_equal(found.losses, again.losses)
    assert [stage for stage, *_ in stages] == ["finalists"]


def test_a_trainer_gives_every_candidate_every_seed(tmp_path):
    def fn(member):
        return {"validation": 10 * member["a"] + member["b"] + 100 * member["seed"]}

    train = trainer(Run(None, None, ChunkStore(tmp_path)), "sums", fn, chunk_size=4)
    candidates = {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(6.0)[::-1].reshape(2, 3)}
    found = train("all", candidates, [3, 5])["validation"]
    expected = 10 * candidates["a"] + candidates["b"]
    np.testing.assert_array_equal(found, expected[..., None] + 100 * np.array([3, 5]))
