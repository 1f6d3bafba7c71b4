"""experiments/data/loading.py: order, position, processes, workers, the weights of a last batch."""

import itertools
import json
import multiprocessing
import pickle
import tracemalloc

import numpy as np
import pytest

from experiments import bench
from experiments.bench.data import DataBenchConfig
from experiments.core.errors import Failed
from experiments.data.loading import Data, heldout_batches, training_batches
from experiments.data.tokens import Crops, open_tokens, write_tokens


def numbered(length, sha256="0"):
    """Return data whose examples are their own numbers."""
    return Data("numbered", sha256, np.arange(length), {}, {})


def take(number, length=10, **options):
    """Return the first batches, made on request."""
    options = {"batch_size": 3, "seed": 0, "prefetch": 0} | options
    return list(itertools.islice(training_batches(numbered(length), **options), number))


class Endless:
    """As many examples as in a large corpus, each of them its own number."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize(("length", "batch_size"), [(1, 1), (1, 4), (7, 3), (12, 4), (100, 7)])
def test_every_example_comes_once_per_epoch(length, batch_size):
    num_epochs = 3
    number = -(-num_epochs * length // batch_size)
    stream = np.concatenate(take(number, length, batch_size=batch_size))[: num_epochs * length]
    for epoch in stream.reshape(num_epochs, length):
        assert sorted(epoch) == list(range(length))


def test_seeds_and_epochs_have_different_orders():
    """Orders are not shifts of each other, either: epoch 1 of a seed is not epoch 0 of the next."""
    streams = [np.concatenate(take(3, 50, batch_size=50, seed=seed)) for seed in range(3)]
    epochs = np.concatenate([stream.reshape(3, 50) for stream in streams])
    assert len(np.unique(epochs, axis=0)) == 9


def test_an_order_of_a_billion_examples_takes_no_memory():
    length = 1_000_000_000
    batches = training_batches(
        Data("large", "0", Endless(length), {}, {}), batch_size=1000, seed=0, prefetch=0
    )
    next(batches)
    tracemalloc.start()
    stream = np.concatenate([next(batches) for _ in range(4)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20
    assert len(np.unique(stream)) == len(stream)
    # Uniform: the mean of 4000 has a standard deviation of length / sqrt(12 * 4000).
    assert abs(stream.mean() / length - 0.5) < 5 / np.sqrt(12 * 4000)
    assert stream.min() < length / 100
    assert stream.max() > length - length / 100


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("position", [0, 1, 5])
def test_it_continues_exactly_from_a_position_in_json(prefetch, position):
    expected = take(position + 4)
    batches = training_batches(numbered(10), batch_size=3, seed=0, prefetch=prefetch)
    for _ in range(position):
        next(batches)
    written = json.dumps(batches.get_state())
    next(batches)
    for again in (batches, training_batches(numbered(10), batch_size=3, seed=0)):
        again.set_state(json.loads(written))
        for batch in expected[position:]:
            np.testing.assert_array_equal(next(again), batch)
        again.close()


def test_a_closed_iterator_continues_where_it_was():
    batches = training_batches(numbered(10), batch_size=3, seed=0)
    first = next(batches)
    batches.close()
    np.testing.assert_array_equal([first, next(batches)], take(2))
    batches.close()


def test_a_position_in_other_batches_is_refused():
    state = training_batches(numbered(10, "a"), batch_size=3, seed=0).get_state()
    other = training_batches(numbered(10, "b"), batch_size=6, seed=0)
    with pytest.raises(Failed, match="data was 'a' and is 'b'; batch_size was 3 and is 6"):
        other.set_state(state)


@pytest.mark.parametrize("process_count", [1, 2, 3, 6])
def test_the_processes_batches_stack_to_that_of_one_process(process_count):
    shares = [
        take(5, 20, batch_size=6, process_index=index, process_count=process_count)
        for index in range(process_count)
    ]
    together = [np.concatenate(rows) for rows in zip(*shares, strict=True)]
    np.testing.assert_array_equal(together, take(5, 20, batch_size=6))


def augment(example, generator):
    return {"example": example, "noise": generator.integers(2**62)}


def test_augmentation_depends_only_on_seed_and_place():
    whole = take(8, 6, augment=augment)
    examples, noise = (np.concatenate([b[key] for b in whole]) for key in ("example", "noise"))
    np.testing.assert_array_equal(examples, np.concatenate(take(8, 6)))
    assert len(set(noise.tolist())) == len(noise)  # different in an example's second epoch
    halves = [
        take(3, 6, batch_size=4, augment=augment, process_index=i, process_count=2) for i in (0, 1)
    ]
    joined = [batch["noise"] for pair in zip(*halves, strict=True) for batch in pair]
    np.testing.assert_array_equal(np.concatenate(joined), noise[:12])
    other = take(8, 6, augment=augment, seed=1)
    assert not set(np.concatenate([b["noise"] for b in other]).tolist()) & set(noise.tolist())


def test_any_number_of_workers_makes_the_same_batches(tmp_path):
    write_tokens(tmp_path / "tokens", {"train": [np.arange(1000)]}, 1000)
    tokens, sha256 = open_tokens(tmp_path / "tokens")
    data = Data("file", sha256, Crops([tokens["train"]], context=4), {}, {})

    def batches(num_workers):
        return training_batches(data, batch_size=3, seed=0, num_workers=num_workers)

    alone = batches(0)
    expected = [next(alone) for _ in range(7)]
    alone.close()
    workers = batches(2)
    for batch in expected[:5]:
        given = next(workers)
        assert type(given) is np.ndarray
        np.testing.assert_array_equal(given, batch)
    state = workers.get_state()
    workers.close()
    alone.set_state(state)
    np.testing.assert_array_equal(next(alone), expected[5])
    alone.close()


def test_a_killed_worker_gives_a_message_and_batches_continue():
    def batches(num_workers):
        return training_batches(numbered(10), batch_size=3, seed=0, num_workers=num_workers)

    workers = batches(1)
    others = set(multiprocessing.active_children())
    next(workers)
    (worker,) = set(multiprocessing.active_children()) - others
    worker.kill()
    with pytest.raises(Failed, match=r"has ended \(exit code -9\).*fewer workers"):
        list(itertools.islice(workers, 100))
    state = workers.get_state()
    alone = batches(0)
    alone.set_state(state)
    *_, expected = itertools.islice(batches(0), state["batches"] + 1)
    np.testing.assert_array_equal(next(alone), expected)


@pytest.mark.parametrize("process_count", [1, 2])
@pytest.mark.parametrize(("length", "batch_size"), [(1, 2), (4, 2), (5, 4), (8, 4), (9, 4)])
def test_the_weighted_mean_over_held_out_batches_is_the_mean(length, batch_size, process_count):
    source = np.random.default_rng(0).normal(size=(length, 3))
    weight = total = 0
    for process in range(process_count):
        for batch, weights in heldout_batches(
            source, batch_size, process_index=process, process_count=process_count
        ):
            assert batch.shape == (batch_size // process_count, 3)
            assert weights.shape == (batch_size // process_count,)
            assert weights.dtype == np.float32
            total = total + (weights[:, None] * batch).sum(0)
            weight += weights.sum()
    assert weight == length
    np.testing.assert_allclose(total / weight, source.mean(0), rtol=1e-12)


def test_held_out_batches_keep_their_order_and_number():
    shares = [
        list(heldout_batches(np.arange(5), 4, process_index=index, process_count=2))
        for index in range(2)
    ]
    rows = [row for pair in zip(*shares, strict=True) for row in pair]
    assert np.concatenate([batch[weights > 0] for batch, weights in rows]).tolist() == [*range(5)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 must be a positive multiple"),
        ({"batch_size": 3, "process_count": 2}, "multiple of the number of processes, 2"),
        ({"process_index": 1}, "process_index=1 must be at least 0 and below process_count=1"),
        ({"process_index": -1}, "process_index=-1 must be at least 0"),
        ({"process_count": 0}, "process_index=0 must be at least 0 and below process_count=0"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
        ({"seed": 2**32}, r"below 2\*\*32"),
        ({"num_workers": -1}, "num_workers=-1 must not be negative"),
        ({"prefetch": -1}, "prefetch=-1 must not be negative"),
        ({"length": 0}, "numbered has 0 training examples"),
    ],
)
def test_invalid_batch_options_are_refused(options, message):
    with pytest.raises((Failed, ValueError), match=message):
        take(1, **options)


def test_more_examples_than_an_order_can_have_are_refused():
    data = Data("too large", "0", Endless(2**32), {}, {})
    with pytest.raises(Failed, match="too large has 4294967296 training examples"):
        training_batches(data, batch_size=1, seed=0)


def test_crops_are_sent_to_a_worker_as_a_file_name(tmp_path):
    write_tokens(tmp_path / "tokens", {"train": [np.zeros(10**6, np.uint8)]}, 256)
    crops = Crops([open_tokens(tmp_path / "tokens").tokens["train"]], context=8)
    assert crops[5].tolist() == [0] * 9  # opened
    parcel = pickle.dumps(crops)
    assert len(parcel) < 2000
    np.testing.assert_array_equal(pickle.loads(parcel)[np.arange(3)], crops[np.arange(3)])


def test_the_benchmark_measures_what_it_states():
    tables = bench.discover()["data"].run(
        DataBenchConfig(megabytes=1, batch=2, context=8, num_batches=8, step_ms=0.1, num_steps=3)
    )
    memory, steps = tables
    assert [row[0] for row in memory.rows] == [1, 2, 4, 6, 8]
    assert all(row[1] > 0 for row in memory.rows[1:])
    assert [row[0] for row in steps.rows] == ["without data", "with a batch each"]
    assert all(row[1] >= 0.1 for row in steps.rows)
