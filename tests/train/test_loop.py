"""Tests of the training loop: members, blocks of steps, stopping and resuming."""

import dataclasses
import functools
import json
import os
import resource
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from experiments.core.config import ConfigError
from experiments.core.errors import Failed, Stopped
from experiments.core.folders import LOCK
from experiments.core.processes import is_first
from experiments.data.loading import Data
from experiments.train import loop, run_folder
from experiments.train.checkpoint_files import read_scores
from experiments.train.checkpoints import Checkpoints
from experiments.train.config import (
    TrainConfig,
    hyperparameters,
    identity,
    optimizer_of,
    sweep_members,
)
from experiments.train.loop import Job, evaluate, train
from experiments.train.metrics_log import LONGEST_LINE, MetricsLog
from experiments.train.programs import programs_of
from experiments.training.meshes import MeshConfig, make_mesh, place_batch
from experiments.training.optimizers import OPTIMIZERS
from experiments.training.train import TrainState, member_programs
from kadam_jax.optimizer import kadam
from tests.training.toy import toy_task

CONFIG = TrainConfig(
    num_steps=10,
    batch_size=4,
    warmup_steps=3,
    learning_rate=1e-2,
    log_every=2,
    eval_every=5,
    steps_per_call=1,
    save_every=5,
    prefetch=2,
)
SWEEP = ("learning_rate=1e-2,3e-3", "seed=0,1")


class Rows:
    """A source of rows of arrays that can act when a certain row is read."""

    def __init__(self, arrays):
        self.arrays = arrays

    def __len__(self):
        return len(self.arrays["y"])

    def __getitem__(self, index):
        return {name: array[index] for name, array in self.arrays.items()}


def toy_data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(37, 3)).astype(np.float32)
    arrays = {"x": x, "y": x.sum(1)}
    parts = np.split(np.arange(37), [23, 30])
    train_rows, *heldout = (Rows({k: v[part] for k, v in arrays.items()}) for part in parts)
    heldout = dict(zip(("validation", "test"), heldout, strict=True))
    return Data("toy", "0" * 64, train_rows, heldout, {})


def job(folder, config=CONFIG, **changes):
    fields = dict(data=toy_data(), task=toy_task(3, 4), unit="rows", units_per_example=1)
    return Job(config=config, folder=folder, **(fields | changes))


def start(folder, *, resume=False, force=False, **changes):
    return train(job(folder, **changes), jax.devices()[:1], resume=resume, force=force)


@functools.cache
def programs_of_runs(config, sweep):
    return programs_of(config, toy_task(3, 4), sweep, jax.devices()[:1])


@pytest.fixture(scope="module", autouse=True)
def _runs_share_programs():
    """Runs of one configuration trace and compile once, which takes most of a run's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            loop, "programs_of", lambda config, _, sweep, __: programs_of_runs(config, tuple(sweep))
        )
        yield


def programs(config=CONFIG, sweep=(), **options):
    members, _ = sweep_members(config, sweep)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1], len(members["seed"]), config.batch_size)
    return member_programs(
        toy_task(3, 4), lambda member: optimizer_of(config, member), members, mesh, **options
    ), mesh


def run_steps(made, batches, cuts):
    """Return the state and the losses of all steps, with `cuts` as the steps per call."""
    ours, mesh = made
    state, losses, done = ours.start(), [], 0
    for count in cuts:
        block = jax.tree.map(lambda leaf, i=done, n=count: leaf[i : i + n], batches)
        state, records = ours.steps(state, place_batch(mesh, block, 1), np.int32(done))
        losses.append(records["loss"])
        done += count
    return state, np.concatenate(losses, axis=1)


def toy_batches(num_steps):
    rng = np.random.default_rng(1)
    shape = (num_steps, CONFIG.batch_size)
    return {
        "x": rng.normal(size=(*shape, 3)).astype(np.float32),
        "y": rng.normal(size=shape).astype(np.float32),
    }


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def last_checkpoint(folder, config=CONFIG, sweep=()):
    facts = identity(config) | {"data.sha256": "0" * 64, "sweep": list(sweep)}
    checkpoints = Checkpoints(folder / loop.CHECKPOINTS, config=facts, keep=config.keep)
    try:
        step, state, position = checkpoints.restore(programs_of_runs(config, sweep)[0].template)
        return step, jax.tree.map(np.asarray, state), position
    finally:
        checkpoints.close()


def assert_same(ours, theirs, tolerance=0.0):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


class Kill(BaseException):
    """Simulates the end of the process in the middle of a step."""


@pytest.fixture
def at_batch(monkeypatch):
    """`at_batch(n, action)` runs the action when batch n is requested."""

    def install(number, action):
        original = loop.training_batches

        class Watched:
            def __init__(self, inner):
                self.inner, self.count = inner, inner.get_state()["batches"]

            def __next__(self):
                self.count += 1
                if self.count == number:
                    action()
                return next(self.inner)

            def __iter__(self):
                return self

            def __getattr__(self, name):
                return getattr(self.inner, name)

        monkeypatch.setattr(loop, "training_batches", lambda *a, **k: Watched(original(*a, **k)))

    return install


@pytest.fixture(scope="module", params=[(), SWEEP], ids=["one run", "sweep"])
def uninterrupted(request, tmp_path_factory):
    """(sweep, folder) of a run of ten steps."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    start(folder, sweep=request.param)
    return request.param, folder


def test_five_steps_a_kill_and_five_more_equal_ten(uninterrupted, tmp_path, at_batch, monkeypatch):
    def kill():
        raise Kill

    sweep, whole = uninterrupted
    folder = tmp_path / "run"
    with monkeypatch.context():
        at_batch(9, kill)  # step 5 is saved, but the metrics go further
        with pytest.raises(Kill):
            start(folder, sweep=sweep)
    monkeypatch.undo()
    start(folder, sweep=sweep, resume=True)
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    ours, theirs = (last_checkpoint(place, sweep=sweep) for place in (folder, whole))
    assert ours[0] == theirs[0] == 10
    assert_same(ours[1], theirs[1])
    assert ours[2] == theirs[2]


@pytest.mark.parametrize(
    ("call", "saved", "error"), [(1, 5, Kill), (2, 10, OSError("gone")), (3, 10, MemoryError())]
)
def test_a_failed_evaluation_loses_no_step(
    call, saved, error, uninterrupted, tmp_path, monkeypatch
):
    def fail(*arguments):
        calls.append(None)
        if len(calls) == call:
            raise error
        return evaluate(*arguments)

    (sweep, whole), folder, calls = uninterrupted, tmp_path / "run", []
    monkeypatch.setattr(loop, "evaluate", fail)
    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        start(folder, sweep=sweep)
    monkeypatch.undo()
    assert last_checkpoint(folder, sweep=sweep)[0] == saved
    start(folder, sweep=sweep, resume=True)
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    ours, theirs = (last_checkpoint(place, sweep=sweep) for place in (folder, whole))
    assert_same(ours[1], theirs[1])
    assert read_scores(folder / "checkpoints") == read_scores(whole / "checkpoints")


def test_missing_metrics_of_a_split_are_written_on_resuming(uninterrupted, tmp_path, capsys):
    sweep, whole = uninterrupted
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    written = (whole / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in written if '"test"' not in line]
    (folder / "metrics.jsonl").write_text("".join(kept))
    capsys.readouterr()
    start(folder, sweep=sweep, resume=True)
    assert (folder / "metrics.jsonl").read_text() == "".join(written)
    assert "test, step 10: loss" in capsys.readouterr().err
    start(folder, sweep=sweep, resume=True)
    assert (folder / "metrics.jsonl").read_text() == "".join(written)
    assert "has all of its 10 steps already" in capsys.readouterr().err


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_run_resumes_there(
    signum, uninterrupted, tmp_path, at_batch, monkeypatch
):
    sweep, whole = uninterrupted
    at_batch(2, lambda: os.kill(os.getpid(), signum))
    handler = signal.getsignal(signum)
    with pytest.raises(Stopped, match=f"{signum.name} and saved at step 1 of 10") as stopped:
        start(tmp_path / "run", sweep=sweep)
    assert stopped.value.signum == signum
    assert signal.getsignal(signum) is handler
    monkeypatch.undo()
    start(tmp_path / "run", sweep=sweep, resume=True)
    ours, theirs = (last_checkpoint(folder, sweep=sweep) for folder in (tmp_path / "run", whole))
    assert_same(ours[1], theirs[1])
    assert lines(tmp_path / "run/metrics.jsonl") == lines(whole / "metrics.jsonl")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_the_parent_ignores_stops_nothing(signum, tmp_path, at_batch):
    config = dataclasses.replace(CONFIG, optimizer="sgd")
    at_batch(2, lambda: os.kill(os.getpid(), signum))
    handler = signal.signal(signum, signal.SIG_IGN)
    try:
        start(tmp_path / "run", config=config)
        assert signal.getsignal(signum) is signal.SIG_IGN
    finally:
        signal.signal(signum, handler)
    assert lines(tmp_path / "run/metrics.jsonl")[-1]["step"] == 10


def test_a_signal_does_not_interrupt_the_last_save(tmp_path, monkeypatch):
    close, outside = Checkpoints.close, []

    def signalled(checkpoints):
        os.kill(os.getpid(), signal.SIGTERM)
        close(checkpoints)

    monkeypatch.setattr(Checkpoints, "close", signalled)
    handler = signal.signal(signal.SIGTERM, lambda *_: outside.append("signal"))
    try:
        start(tmp_path / "run")
    finally:
        signal.signal(signal.SIGTERM, handler)
    monkeypatch.undo()
    assert outside == []
    assert last_checkpoint(tmp_path / "run")[0] == 10


@pytest.mark.parametrize("option", ["resume", "force"])
def test_a_second_run_in_a_folder_raises_and_changes_nothing(
    option, uninterrupted, tmp_path, at_batch
):
    def start_another():
        before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
        with pytest.raises(Failed, match=f"{folder} is in use by process {os.getpid()} on"):
            start(folder, sweep=sweep, **{option: True})
        assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
        tried.append(before)

    (sweep, whole), folder, tried = uninterrupted, tmp_path / "run", []
    at_batch(3, start_another)  # before a checkpoint is written in the background
    start(folder, sweep=sweep)
    assert tried
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert {path.name for path in folder.iterdir()} == {path.name for path in whole.iterdir()}


def test_only_the_first_of_several_processes_holds_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "from_first", lambda act: act() if is_first() else None)
    for index in (1, 0):
        monkeypatch.setattr(jax, "process_index", lambda index=index: index)
        with run_folder.owned_folder(tmp_path / "run", resume=False, force=False):
            assert (tmp_path / "run" / LOCK).exists() == (index == 0)


def test_a_batch_larger_than_the_training_split_raises(tmp_path):
    config = dataclasses.replace(CONFIG, batch_size=24)
    with pytest.raises(ConfigError, match="batch_size=24 is above the 23 training examples"):
        start(tmp_path / "run", config=config)
    assert not (tmp_path / "run").exists()


def test_metrics_are_those_of_a_literal_loop(uninterrupted):
    sweep, folder = uninterrupted
    members, labels = sweep_members(CONFIG, sweep)
    data, task = toy_data(), toy_task(3, 4)
    stream = loop.training_batches(data, batch_size=4, seed=0, prefetch=0)
    batches = [next(stream) for _ in range(10)]
    written = {
        (line["step"], line["split"], line["member"]): line
        for line in lines(folder / "metrics.jsonl")
    }
    assert {key[:2] for key in written} == {
        *((step, "train") for step in (2, 4, 6, 8, 10)),
        *((step, "validation") for step in (5, 10)),
        (10, "test"),
    }
    gradient = jax.jit(jax.value_and_grad(task.loss, has_aux=True))
    for number, label in enumerate(labels):
        member = {name: column[number] for name, column in members.items()}
        optimizer = optimizer_of(CONFIG, member)
        update = jax.jit(optimizer.update)
        init_key, run_key = jax.random.split(jax.random.key(int(member["seed"])))
        params, state = jax.jit(task.init)(init_key)
        opt_state = optimizer.init(params)
        for step, batch in enumerate(batches):
            key = jax.random.split(jax.random.fold_in(run_key, step))[1]
            (loss, state), grads = gradient(params, state, batch, key)
            updates, opt_state = update(grads, opt_state, params)
            params = optax.apply_updates(params, updates)
            if (line := written.get((step + 1, "train", number))) is not None:
                np.testing.assert_allclose(line["loss"], loss, rtol=1e-5)
                np.testing.assert_allclose(line["grad_norm"], optax.tree.norm(grads), rtol=1e-5)
        for split, source in data.heldout.items():
            rows = source[np.arange(len(source))]
            sums = task.metrics(params, state, rows, np.ones(len(source), np.float32))
            line = written[10, split, number]
            np.testing.assert_allclose(line["loss"], sums["loss"] / len(source), rtol=1e-5)
            assert label.items() <= line.items()


@pytest.mark.parametrize(
    ("name", "clip_norm"), [("kadam", None), *((name, 1.0) for name in OPTIMIZERS)]
)
def test_with_x64_every_optimizer_trains_in_32_bit_dtypes(name, clip_norm, x64):
    settings = dict(optimizer=name, clip_norm=clip_norm, weight_decay=0.1, schedule="constant")
    config = dataclasses.replace(CONFIG, **settings)
    made = programs(config, SWEEP)
    state, losses = run_steps(made, toy_batches(3), [3])
    assert jax.tree.map(lambda leaf: leaf.dtype, state) == jax.tree.map(
        lambda leaf: leaf.dtype, made[0].template
    )
    floats = {leaf.dtype for leaf in jax.tree.leaves(state) if leaf.dtype.kind == "f"}
    if name == "muon":  # optax chooses the dtype of coefficients in its state
        floats.remove(np.dtype(np.float64))
    assert floats == {losses.dtype} == {np.dtype(np.float32)}
    assert np.isfinite(losses).all()


def test_other_blocks_and_chunks_give_the_same_numbers():
    batches, config = toy_batches(6), dataclasses.replace(CONFIG, optimizer="sgd")
    reference = run_steps(programs(config, SWEEP), batches, [6])
    made = programs(config, SWEEP, members_at_once=3)
    assert_same(run_steps(made, batches, [2, 2, 2]), reference, 1e-5)


@pytest.mark.parametrize(("at_once", "tolerance"), [(1, 0), (4, 1e-5)])
def test_members_of_one_program_equal_separate_runs(at_once, tolerance):
    batches, config = toy_batches(3), dataclasses.replace(CONFIG, optimizer="adamw")
    together = run_steps(programs(config, SWEEP, members_at_once=at_once), batches, [3])
    _, labels = sweep_members(config, SWEEP)
    for place in (0, 3):
        alone = run_steps(programs(dataclasses.replace(config, **labels[place])), batches, [3])
        ours = jax.tree.map(lambda leaf, i=place: leaf[i : i + 1], together)
        assert_same(ours, alone, tolerance)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_schedule_free_uses_its_averages_when_resumed_too(tmp_path, clip_norm):
    settings = dict(optimizer="schedule_free_adamw", schedule="constant", clip_norm=clip_norm)
    config = dataclasses.replace(CONFIG, **settings)
    start(tmp_path / "run", config=dataclasses.replace(config, num_steps=5))
    written = lines(start(tmp_path / "run", config=config, resume=True))
    _, state, _ = last_checkpoint(tmp_path / "run", config)
    params, model_state, opt_state = jax.tree.map(lambda leaf: leaf[0], tuple(state))
    averages = contrib.schedule_free_eval_params(
        opt_state if clip_norm is None else opt_state[1], params
    )
    rows = (source := toy_data().heldout["test"])[np.arange(len(source))]
    metrics = toy_task(3, 4).metrics
    last, average = (
        float(metrics(x, model_state, rows, np.ones(len(source), np.float32))["loss"]) / len(source)
        for x in (params, averages)
    )
    found = {line["split"]: line["loss"] for line in written if line["step"] == 10}["test"]
    assert found == pytest.approx(average, rel=1e-5)
    assert found != pytest.approx(last, rel=1e-3)


def test_a_diverging_member_is_recorded_and_others_continue(tmp_path):
    config = dataclasses.replace(CONFIG, optimizer="sgd", b1=0.0, warmup_steps=0, log_every=1)
    rates = "learning_rate=1e-2,1e18"
    written = lines(start(tmp_path / "sweep", config=config, sweep=[rates]))
    events = [line for line in written if "event" in line]
    losses = [line["loss"] for line in written if line.get("split") == "train" and line["member"]]
    first = losses.index(None) + 1
    assert events == [{"step": first, "event": "diverged", "member": 1, "learning_rate": 1e18}]
    assert set(losses[first:]) == {None}
    others = [line for line in written if line["member"] == 0]
    alone = lines(start(tmp_path / "alone", config=config))
    assert [line["loss"] for line in others] == pytest.approx([line["loss"] for line in alone])


@pytest.mark.parametrize("eval_every", [1, 5])
@pytest.mark.filterwarnings("error")
def test_a_run_whose_members_have_all_diverged_fails(tmp_path, eval_every):
    rhythm = dict(eval_every=eval_every, save_every=eval_every)  # the held-out loss diverges first
    changes = dict(optimizer="sgd", warmup_steps=0, learning_rate=1e18)
    config = dataclasses.replace(CONFIG, **rhythm, **changes)
    with pytest.raises(Failed, match=r"no loss has been finite since step \d+; try a smaller"):
        start(tmp_path / "run", config=config)
    assert lines(tmp_path / "run/metrics.jsonl")[-1]["event"] == "diverged"


def test_force_removes_only_our_files_from_a_used_folder(tmp_path):
    folder = tmp_path / "run"
    short = dataclasses.replace(CONFIG, num_steps=4, optimizer="sgd")
    start(folder, config=short)
    (folder / "notes").write_text("mine")
    before = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="is not empty: --resume continues"):
        start(folder, config=short)
    assert (folder / "metrics.jsonl").read_bytes() == before
    start(folder, config=dataclasses.replace(short, seed=1), force=True)
    assert (folder / "metrics.jsonl").read_bytes() != before
    assert (folder / "notes").read_text() == "mine"


def test_only_fields_that_keep_the_numbers_may_change(tmp_path):
    folder = tmp_path / "run"
    constant = dataclasses.replace(CONFIG, schedule="constant", optimizer="sgd")
    start(folder, config=constant)
    more = dict(num_steps=12, steps_per_call=2, save_every=6, keep=1)
    longer = dataclasses.replace(constant, **more)
    start(folder, config=longer, resume=True)
    assert lines(folder / "metrics.jsonl")[-1]["step"] == 12
    before = (folder / "config.json").read_bytes()
    for field, value in {"b1": 0.5, "batch_size": 2, "data_seed": 1}.items():
        other = dataclasses.replace(longer, **{field: value})
        with pytest.raises(ConfigError, match=rf"\b{field}: .* in the checkpoint, {value} in"):
            start(folder, config=other, resume=True)
    with pytest.raises(ConfigError, match="sweep"):
        start(folder, config=longer, sweep=["seed=0,1"], resume=True)
    assert (folder / "config.json").read_bytes() == before


def test_evaluation_takes_only_the_first_batches(tmp_path):
    config = dataclasses.replace(CONFIG, eval_batches=1)
    made, mesh = programs(config)
    data, state = toy_data(), made.start()
    first = evaluate(made, state, data.heldout["validation"], config, mesh)
    rows = data.heldout["validation"][np.arange(4)]
    member = jax.tree.map(lambda leaf: leaf[0], TrainState(*state))
    sums = toy_task(3, 4).metrics(member.params, member.model_state, rows, np.ones(4, np.float32))
    np.testing.assert_allclose(first["loss"], [sums["loss"] / 4], rtol=1e-6)


def metrics_line(step):
    return f'{{"step": {step}, "split": "train", "member": 0, "loss": 1.5}}\n'.encode()


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (b"\n", "blank"),
        (b" \t\r\n", "blank"),
        (b'{"step": 10 "split"}\n', "Expecting"),
        (b'{"step": 3, "split": "tra\n', "Invalid control character"),
        (b'{"step": "3"}\n', "without a step"),
        (b'{"step": 3.0}\n', "without a step"),
        (b'{"step": true}\n', "without a step"),
        (b'{"step": -1}\n', "without a step"),
        (b'{"step": null}\n', "without a step"),
        (b'{"split": "train", "member": 0}\n', "without a step"),
        (b"[3]\n", "without a step"),
        (b"3\n", "without a step"),
        (b'{"step": NaN}\n', "NaN is not JSON"),
        (b'{"step": 3, "loss": -Infinity}\n', "-Infinity is not JSON"),
        (b'{"step": 3, "name": "\xff"}\n', "utf-8"),
        (metrics_line(3).decode().encode("utf-16-be"), "Expecting"),
        (b"\x00" * 4096 + b"\n", "Expecting value"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
        (b'{"step": ' + b"9" * 5000 + b"}\n", "digits"),
        (b"x" * (2 * LONGEST_LINE) + metrics_line(3), "Expecting value"),
    ],
    ids=range(20),
)
@pytest.mark.parametrize("place", [0, 4, 9])
def test_a_damaged_line_affects_no_other_line(damage, fault, place, tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    good = [metrics_line(step) for step in range(1, 10)]
    path.write_bytes(b"".join([*good[:place], damage, *good[place:]]))
    MetricsLog(tmp_path, [{"member": 0}], done=9).close()
    assert path.read_bytes() == b"".join(good)
    assert (tmp_path / "metrics.damaged").read_bytes() == damage
    said = capsys.readouterr().err
    assert f"{path}: what cannot be read was moved to metrics.damaged: line {place + 1} (" in said
    assert fault in said


def test_only_some_of_many_damaged_lines_are_described(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_bytes((b"bad\n" + metrics_line(1)) * 15)
    MetricsLog(tmp_path, [{"member": 0}], done=1).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == metrics_line(1) * 15
    assert (tmp_path / "metrics.damaged").read_bytes() == b"bad\n" * 15
    said = capsys.readouterr().err
    assert "line 19 (" in said
    assert "line 21 (" not in said
    assert "and 5 more" in said


def test_lines_of_later_steps_are_removed_with_a_message(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(map(metrics_line, (1, 4, 2, 10**30, 3, 0))))
    MetricsLog(tmp_path, [{"member": 0}], done=3).close()
    assert path.read_bytes() == b"".join(map(metrics_line, (1, 2, 3, 0)))
    assert f"{path}: 2 lines of steps after 3 are removed" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("done", [2, 3])
def test_a_last_line_without_its_end_is_kept_if_complete(done, tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    for length in range(1, len(metrics_line(3))):
        path.write_bytes(metrics_line(1) + metrics_line(3)[:length])
        log = MetricsLog(tmp_path, [{"member": 0}], done=done)
        log.write(4, "train", {"loss": np.array([1.5])})
        log.close()
        is_whole = length == len(metrics_line(3)) - 1
        kept = (1, 3, 4) if is_whole and done == 3 else (1, 4)
        assert path.read_bytes() == b"".join(map(metrics_line, kept))
        said = capsys.readouterr().err
        assert ("line 2 (" in said) == (not is_whole)
        assert ("1 lines of steps after 2" in said) == (is_whole and done == 2)


def test_an_undamaged_file_is_left_alone_silently(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    MetricsLog(tmp_path, [{"member": 0}], done=9).close()
    assert path.read_bytes() == b""
    for end in (b"", b'{"step": 9, "event": "diverged", "member": 0}\r\n'):
        content = metrics_line(1) + metrics_line(9) + end
        path.write_bytes(content)
        MetricsLog(tmp_path, [{"member": 0}], done=9).close()
        assert path.read_bytes() == content
    assert capsys.readouterr().err == ""


def test_a_line_that_does_not_fit_on_the_disk_is_removed(tmp_path):
    log = MetricsLog(tmp_path, [{"member": 0}])
    log.write(1, "train", {"loss": np.ones(1)})
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 9, limits[1]))
    try:
        with pytest.raises(OSError, match=r"metrics\.jsonl"):
            log.write(2, "train", {"loss": np.ones(1)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole


def test_tensorboard_has_the_finite_scalars_of_each_member(tmp_path):
    pytest.importorskip("tensorboardX")
    log = MetricsLog(tmp_path, [{"member": 0}, {"member": 1}], tensorboard=True)
    log.write(1, "train", {"loss": np.array([1.5, np.nan])})
    log.close()
    finite, other = ((tmp_path / "tensorboard" / f"{i:03d}").glob("*") for i in range(2))
    assert b"train/loss" in next(finite).read_bytes()
    assert b"train/loss" not in next(other).read_bytes()


def test_the_profiler_sees_the_second_call(tmp_path):
    config = dataclasses.replace(CONFIG, optimizer="sgd", num_steps=4)
    start(tmp_path / "run", config=config, profile=tmp_path / "profile")
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


DIRECT = {
    "kadam": lambda at: kadam(at.rate, 2, at.b1, at.b2, 1e-30, weight_decay=at.decay),
    "adamw": lambda at: optax.adamw(at.rate, at.b1, at.b2, weight_decay=at.decay),
    "nadamw": lambda at: optax.nadamw(at.rate, at.b1, at.b2, weight_decay=at.decay),
    "rmsprop": lambda at: optax.chain(
        optax.scale_by_rms(at.b2, eps_in_sqrt=False, bias_correction=True),
        optax.add_decayed_weights(at.decay),
        optax.scale_by_learning_rate(at.rate),
    ),
    "lion": lambda at: optax.lion(at.rate, at.b1, at.b2, weight_decay=at.decay),
    "muon": lambda at: optax.nadamw(at.rate, at.b1, at.b2, weight_decay=at.decay),  # for a vector
    "schedule_free_adamw": lambda at: contrib.schedule_free_adamw(
        at.rate, b1=at.b1, b2=at.b2, weight_decay=at.decay
    ),
    "sgd": lambda at: optax.chain(
        optax.trace(at.b1),
        optax.add_decayed_weights(at.decay),
        optax.scale_by_learning_rate(at.rate),
    ),
}


@dataclasses.dataclass(frozen=True)
class At:
    rate: float = 0.1
    b1: float = 0.8
    b2: float = 0.95
    decay: float = 0.01


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_row_of_the_table_is_the_optimizer_of_its_name(name):
    config = TrainConfig(
        optimizer=name, learning_rate=0.1, b1=0.8, b2=0.95, weight_decay=0.01,
        schedule="constant", warmup_steps=0, num_steps=5,
    )  # fmt: skip
    traced = {key: jnp.asarray(value) for key, value in hyperparameters(config).items()}

    def final(make):
        optimizer = make()
        params = jnp.array([1.0, -2.0])
        state = optimizer.init(params)
        for step in range(3):
            updates, state = optimizer.update(params * (step + 1), state, params)
            params = optax.apply_updates(params, updates)
        return params

    ours = jax.jit(lambda traced: final(lambda: optimizer_of(config, traced)))(traced)
    np.testing.assert_allclose(ours, final(lambda: DIRECT[name](At())), rtol=1e-4)


def test_epsilon_is_the_optimizers_own_unless_given():
    assert hyperparameters(TrainConfig())["eps"] == 1e-30
    assert hyperparameters(TrainConfig(optimizer="adamw"))["eps"] == 1e-8
    assert hyperparameters(TrainConfig(eps=1e-3))["eps"] == 1e-3


def test_the_schedule_rises_linearly_and_falls_as_a_cosine():
    config = TrainConfig(
        optimizer="sgd", b1=0.0, learning_rate=2.0, warmup_steps=2, num_steps=6, final_rate=0.1
    )
    optimizer = optimizer_of(config, hyperparameters(config))
    state, steps = optimizer.init(jnp.ones(())), []
    for _ in range(7):
        updates, state = optimizer.update(jnp.ones(()), state, jnp.ones(()))
        steps.append(-float(updates))
    falling = 0.1 + 0.9 * (1 + np.cos(np.pi * np.arange(5) / 4)) / 2
    np.testing.assert_allclose(steps, 2 * np.r_[0, 0.5, falling], atol=1e-6)


def test_a_gradient_is_clipped_by_its_global_norm():
    config = TrainConfig(optimizer="sgd", b1=0.0, learning_rate=1.0, warmup_steps=0, clip_norm=1.0)
    optimizer = optimizer_of(config, hyperparameters(config))
    grads = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    updates, _ = optimizer.update(grads, optimizer.init(grads), grads)
    np.testing.assert_allclose([updates["a"][0], updates["b"][0]], [-0.6, -0.8], rtol=1e-6)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("k=1,2", "one program sweeps over seed, learning_rate"),
        ("b1=0.9,1.5", r"b1 must be in \[0, 1\) in float32, got 1.5"),
        ("seed=0,x", "invalid literal"),
        ("eps=", "could not convert"),
    ],
)
def test_an_invalid_sweep_raises(assignment, message):
    with pytest.raises(ConfigError, match=message):
        sweep_members(TrainConfig(), [assignment])
    with pytest.raises(ConfigError, match="twice"):
        sweep_members(TrainConfig(), ["seed=0", "seed=1"])


@pytest.mark.parametrize(
    "field",
    [
        *("num_steps=0", "num_steps=1e9", "num_steps=2147483648", "k=1.5", 'batch_size="4"'),
        *("warmup_steps=1000", "warmup_steps=-1", "seed=-1", "seed=2147483648", "workers=-1"),
        *("k=1001", "prefetch=2147483647", "workers=1001", "steps_per_call=2147483647"),
        *("learning_rate=1e39", "eps=-1e-9", "weight_decay=1e300", "b1=0.99999999", "b1=-0.1"),
        *("b1=1.0", "b2=NaN", "eps=Infinity", "clip_norm=0.0", "final_rate=1.5"),
        *('optimizer="adan"', 'schedule="linear"'),
    ],
)
def test_a_field_out_of_range_is_named(field):
    name, _, value = field.partition("=")
    with pytest.raises(ConfigError, match=f"{name} must be"):
        dataclasses.replace(TrainConfig(), **{name: json.loads(value)})


def test_only_kadam_has_coupled_decay():
    with pytest.raises(ConfigError, match="coupled=True is for optimizer=kadam, got lion"):
        TrainConfig(coupled=True, optimizer="lion")


@pytest.mark.parametrize("bad", [{"schedule": "cosine"}, {"b1": 0.0}])
def test_settings_unfit_for_schedule_free_raise(bad):
    good = {"optimizer": "schedule_free_adamw", "schedule": "constant"}
    (name,) = bad
    with pytest.raises(ValueError, match=f"{name} must be .* for optimizer=schedule_free_adamw"):
        TrainConfig(**good | bad)
