"""Tests of `python -m experiments train`: fields, folders, exit codes, kills and bad input."""

import json
import os
import signal
import subprocess
import sys
import time

import jax
import pytest

from experiments import __main__ as cli
from experiments.train import command as train_command
from experiments.train.config import sweep_members
from experiments.train.presets import TRAININGS
from models.nanogpt import GPTConfig

TINY = (
    *("--preset", "smoke", "--set", "model.width=8", "--set", "model.context=8"),
    *("--set", "batch_size=4", "--set", "eval_batches=1", "--set", "num_steps=6"),
    *("--set", "steps_per_call=1", "--set", "eval_every=3", "--set", "save_every=3"),
    *("--set", "warmup_steps=2", "--set", "log_every=1"),
)


@pytest.fixture
def train(tmp_path, capsys):
    """`train(*arguments)` is (exit code, stdout, stderr) of one command with its own folder."""

    def call(*arguments):
        output = ("--output", str(tmp_path / "run"), "--devices", "1")
        return cli.main(["train", *arguments, *output]), *capsys.readouterr()

    return call


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def program(folder, *arguments):
    """Start a separate process, so that SIGKILL and SIGTERM reach only it."""
    command = [sys.executable, "-m", "experiments", "train", *TINY, *arguments]
    environment = {**os.environ, "GLIBC_TUNABLES": ""}  # the same flags compile the same program
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return subprocess.Popen(
        [*command, "--output", str(folder), "--devices", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def wait_for_step(process, folder, step):
    deadline = time.monotonic() + 120
    while True:
        if (folder / "metrics.jsonl").exists():
            text = (folder / "metrics.jsonl").read_text()
            if f'"step": {step},' in text:
                return
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no such step within two minutes"
        time.sleep(0.01)


@pytest.mark.parametrize("task", ["text", "images"])
def test_help_shows_every_field_with_its_meaning(task, capsys):
    assert cli.main(["train", task, "--preset", "paper", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    own = {"text": "--model.qk_norm", "images": "--model.num_classes"}
    for words in ("--learning_rate FLOAT", "Decoupled decay, mul", "--mesh.shard_above", own[task]):
        assert words in shown


def test_help_without_a_task_shows_both_tasks_fields(capsys):
    assert cli.main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--model.context INT" in shown
    assert "--model.num_classes INT" in shown


def test_a_run_writes_metrics_checkpoints_and_configuration(train, tmp_path):
    folder = tmp_path / "run"
    code, printed, messages = train("text", *TINY)
    assert (code, printed) == (0, f"{folder}/metrics.jsonl\n")
    assert "test, step 6: loss" in messages
    names = {path.name for path in folder.iterdir()}
    assert names == {"metrics.jsonl", "config.json", "checkpoints"}
    assert json.loads((folder / "config.json").read_text())["model.width"] == 8

    code, _, messages = train("text", *TINY)
    assert (code, "is not empty" in messages) == (2, True)
    before = lines(folder)
    code, _, messages = train("text", *TINY, "--resume")
    assert (code, "has all of its 6 steps already" in messages) == (0, True)
    assert lines(folder) == before
    code, _, messages = train("text", *TINY, "--resume", "--set", "k=3")
    assert (code, "k: 2 in the checkpoint, 3 in this run" in messages) == (2, True)
    code, _, messages = train("text", *TINY, "--resume", "--force")
    assert (code, "give one of them" in messages) == (2, True)


def test_a_run_resumes_when_its_data_have_moved(train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    text = "The quick brown fox jumps. " * 400
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "c.txt").write_text(text if folder != "c" else text.upper())
    common = ("text", *TINY, "--set", "optimizer=sgd", "--set", f"cache={tmp_path}/cache")
    for place, corpus in enumerate(["a/c.txt", "~/b/c.txt", str(tmp_path / "b/*.txt")]):
        code, _, messages = train(*common, "--set", f"corpus={corpus}", *["--resume"][:place])
        assert code == 0, messages
        assert json.loads((tmp_path / "run/config.json").read_text())["data.name"] == corpus
    code, _, messages = train(*common, "--set", "corpus=c/c.txt", "--resume")
    assert (code, "data.sha256: " in messages) == (2, True), messages


def test_a_sweep_of_images_measures_accuracy(train, tmp_path):
    tiny = ("--preset", "smoke", "--set", "model.width=0.015625", "--set", "num_steps=2")
    few = ("--set", "batch_size=4", "--set", "eval_batches=1", "--set", "warmup_steps=0")
    rates = ("--set", "optimizer=sgd", "--sweep", "learning_rate=1e-3,3e-3")
    code, _, messages = train("images", *tiny, *few, *rates)
    assert (code, "the best there" in messages) == (0, True), messages
    last = [line for line in lines(tmp_path / "run") if line["split"] == "test"]
    assert [line["learning_rate"] for line in last] == [1e-3, 3e-3]
    assert all(0 <= line["accuracy"] <= 1 for line in last)


def test_runs_resumed_after_kills_equal_uninterrupted_ones(tmp_path):
    long = ("--set", "num_steps=400", "--set", "save_every=40", "--set", "eval_every=80")
    sweep = (*long, "--set", "optimizer=sgd", "--sweep", "seed=0,1")  # sgd compiles fastest
    common = (*sweep, "--compilation-cache", str(tmp_path / "programs"))
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"

    killed = program(stopped, *common)
    wait_for_step(killed, stopped, 90)  # step 80 has waited for the checkpoint of 40
    killed.kill()
    killed.communicate()
    assert any((tmp_path / "programs").iterdir())

    terminated = program(stopped, *common, "--resume")
    wait_for_step(terminated, stopped, 180)
    terminated.send_signal(signal.SIGTERM)
    messages = terminated.communicate(timeout=60)[1]
    assert terminated.returncode == 128 + signal.SIGTERM, messages
    assert "resuming from step" in messages
    assert "stopped by SIGTERM and saved at step" in messages

    for folder, options in ((stopped, ["--resume"]), (whole, [])):
        arguments = ("train", *TINY, *sweep, "--output", str(folder), "--devices", "1", *options)
        assert cli.main(arguments) == 0
    assert (stopped / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["text", "--set", "corpus=none.txt"], 1, "there is no file none.txt"),
        (["text", "--set", "corpus=empty.txt"], 1, "empty.txt is empty"),
        (["text", "--set", "corpus=short.txt"], 1, "too short"),
        (["text", "--set", "model.vocab_size=100"], 2, "model.vocab_size=100 is below the 256"),
        (  # before the text is read, let alone encoded
            ["text", "--set", "corpus=none.txt", "--set", "tokenizer=gpt2"],
            *(2, "model.vocab_size=256 is below the 50257"),
        ),
        (
            [*("text", "--set", "model.attention=cudnn"), *("--set", "model.dtype=bfloat16")],
            *(2, "model.attention=cudnn needs an NVIDIA GPU, and JAX runs on cpu"),
        ),
        (["text", "--set", "batch_size=1000000000"], 2, "batch_size=1000000000 is above the"),
        (["images", "--set", "model.num_classes=9"], 2, "model.num_classes=9 is below the 10"),
        (["text", "--set", "batch_size=0"], 2, "batch_size must be an integer in [1, 2^31)"),
        (["text", "--set", "prefetch=2147483647"], 2, "prefetch must be an integer in [1, 1000]"),
        (["text", "--set", "k=2147483647"], 2, "k must be an integer in [1, 1000]"),
        (["text", "--set", "num_shards=1025"], 2, "num_shards must be an integer in [1, 1024]"),
        (["text", "--set", "mesh.shard_above=2147483648"], 2, "must be an integer in [0, 2^31)"),
        (["text", "--set", "model.vocab_size=2147483648"], 2, "vocab_size and width must be"),
        (["images", "--set", "model.width=1e300"], 2, "width must be smaller"),
        (["text", "--set", "b1=0.99999999"], 2, "b1 must be in [0, 1) in float32"),
        (["text", "--set", "mesh=--help"], 2, "--help"),
        (["text", "--set", "seed=--help"], 2, "seed"),
        (["text", "--set", "help="], 2, "help"),
        (["text", "--set", "-h=1"], 2, "-h"),
        (["text", "--set", "mesh.data=2"], 2, "needs 2 devices; there are 1"),
        (
            ["text", "--set", "microbatches=2", "--set", "loss_parts=3"],
            2,
            "must be a multiple of microbatches=2 x loss_parts=3, 6",
        ),
        (["text", "--set", "mesh.members=2"], 2, "needs 2 devices"),
        (["text", "--sweep", "k=1,2"], 2, "one program sweeps over"),
        (["text", "--sweep", "k"], 2, "--sweep"),
        (["audio"], 2, "images"),
    ],
)
def test_an_impossible_training_gets_one_sentence(
    arguments, code, message, train, tmp_path, monkeypatch
):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("short")
    monkeypatch.chdir(tmp_path)
    cache = ["--set", f"cache={tmp_path / 'cache'}"] if arguments[0] != "audio" else []
    given, _, messages = train(*arguments, "--preset", "smoke", *cache)
    assert (given, message in " ".join(messages.split())) == (code, True), messages
    assert "Traceback" not in messages
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "said",
    [
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 byte",
        "INTERNAL: Error dispatching computation: Out of memory allocating 1 bytes.",
    ],
)
def test_too_little_memory_gets_one_sentence(said, train, monkeypatch):
    def refuse(*_, **__):
        raise jax.errors.JaxRuntimeError(said)

    monkeypatch.setattr(train_command, "train", refuse)
    code, _, messages = train("text", *TINY)
    assert (code, "out of memory" in messages, "lower batch_size" in messages) == (
        1,
        True,
        True,
    )


def test_float64_without_x64_gets_one_sentence(train):
    code, _, messages = train("text", *TINY, "--set", "model.dtype=float64")
    assert (code, "model.dtype='float64' needs JAX_ENABLE_X64=1" in messages) == (2, True)


@pytest.mark.parametrize("option", ["--output", "--profile", "--compilation-cache"])
@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
def test_a_folder_that_cannot_be_written_to_is_named(option, force, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file/run", "/proc/run"):
        output = ["--output", str(tmp_path / "run")]
        arguments = [*TINY, *output, *force, option, str(folder), "--devices", "1"]
        assert cli.main(["train", *arguments]) == 1
        message = capsys.readouterr().err
        assert f"{folder} cannot be written to" in message
        assert message.count("\n") == 1
        assert not (tmp_path / "run").exists()


def test_the_paper_presets_have_the_papers_values():
    sizes = {"text": 30_018_816, "images": 6_575_370}
    for task, training in TRAININGS.items():
        config = training.presets["paper"]
        params, _ = jax.eval_shape(training.task(config).init, jax.random.key(0))
        assert sum(leaf.size for leaf in jax.tree.leaves(params)) == sizes[task]
        sweep_members(config, [])
    text, images = (training.presets["paper"] for training in TRAININGS.values())
    assert (text.model, text.corpus, text.tokenizer) == (GPTConfig(), "c4", "gpt2")
    assert (images.dataset, images.batch_size, images.optimizer, images.k) == (
        *("cifar10", 512, "kadam"),
        2,
    )
    epochs = images.num_steps * images.batch_size / 45_000  # the other 5,000 validate
    assert (round(epochs), round(100 * images.warmup_steps / images.num_steps)) == (100, 2)
