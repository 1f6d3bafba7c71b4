"""Tests of `python -m experiments`: commands, exit codes, reuse, Ctrl-C and continuing."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import matplotlib
import numpy as np
import pytest

from experiments import __main__ as cli
from experiments import bench, figures
from experiments.core import errors
from experiments.core.config import ConfigError, flatten, override, rises
from experiments.core.folders import locked
from experiments.core.progress import progress
from experiments.core.store import read_dataset
from experiments.data import load_corpus

SMOKE = ("--preset", "smoke", "--set", "num_grid=10", "--set", "num_curve=10")
SPLIT = len(load_corpus("embedded").tokens_heldout) // 2  # each Python's help has its own length
FAKE = '''
"""A figure of eight slow members, alone on the command line."""
import dataclasses, signal, sys
import jax, jax.numpy as jnp, numpy as np, xarray as xr
from experiments import figures
from experiments.core import plot as plotting
from experiments.__main__ import main
from experiments.core.config import FigureConfig
from experiments.core.errors import stop
from experiments.core.figure import Figure
from kadam_jax.members import points

@dataclasses.dataclass(frozen=True)
class Config(FigureConfig):
    """Fake.

    Attributes:
      work: Rounds for each member.
      fail_at: Raise KeyboardInterrupt in the sweep of this name.
    """
    work: int = 10
    fail_at: str = ""

def compute(config, run):
    def fn(member):
        x = jax.random.normal(jax.random.key(member["seed"]), (100, 100))
        step = lambda _, x: jnp.tanh(x @ x)
        return {"y": jax.lax.fori_loop(0, config.work, step, x).sum()}
    for name in ("first", "second"):
        if name == config.fail_at:
            raise KeyboardInterrupt
        y = run.sweep(name, fn, points(seed=np.arange(8)), chunk_size=1)["y"]
    return xr.Dataset({"y": ("member", y, {"long_name": "y"})})

def plot(dataset):
    canvas, axes = plotting.canvas(2, 2)
    axes.plot(dataset.y)
    return {"": canvas}

FIGURE = Figure("fake", "Fake", "not in the paper", "{work}",
    dict.fromkeys(("smoke", "laptop", "paper"), Config()), compute, plot)
figures.discover = lambda: {"fake": FIGURE}
if __name__ == "__main__":
    signal.signal(signal.SIGINT, stop)
    sys.exit(main(sys.argv[1:]))
'''


@pytest.fixture
def run(tmp_path, capsys):
    """`run(*arguments)` is (exit code, stdout, stderr) of one command with its own results."""

    def call(command, *arguments, results=tmp_path / "results"):
        code = cli.main([command, *arguments, "--results", str(results), *_one_device(command)])
        return code, *capsys.readouterr()

    return call


def _one_device(command):
    return ("--devices", "1") if command in ("run", "reproduce") else ()


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Make the fake figure the only one; return its path as a program."""
    monkeypatch.setattr(figures, "discover", figures.discover)  # restored afterwards
    path = tmp_path / "fake.py"
    path.write_text(FAKE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("fake", None)
    __import__("fake")
    return path


def test_list_has_a_line_for_each_figure_and_benchmark(capsys):
    assert cli.main(["list"]) == 0
    lines = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    for name, figure in figures.discover().items():
        assert lines.pop(name).strip() == f"{figure.title} ({figure.paper})."
    for name, benchmark in bench.discover().items():
        assert benchmark.name == name
        assert lines.pop(f"bench {name}").strip()
    assert not lines


@pytest.mark.parametrize("argument", ["list", "--help"])
def test_names_are_listed_without_imports(argument):
    code = (
        f"import sys; from experiments.__main__ import main; assert main([{argument!r}]) == 0; "
        "print(sorted({'jax', 'matplotlib', 'numpy', 'rich', 'tyro'} & sys.modules.keys()))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[-1] == "[]"


def test_help_shows_every_field_with_its_meaning_and_preset(capsys):
    assert cli.main(["run", "--preset", "smoke", "stability_plane", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--num_grid INT" in shown
    assert "Points on each side of the grid" in shown
    assert "(default: 40)" in shown


def test_run_writes_everything_and_a_second_run_reuses_it(run, fake, tmp_path):
    folder = tmp_path / "results/smoke/fake"
    written = f"{folder}/data.nc\n{folder}/fake.png\n"
    smoke = ("--preset", "smoke", "--set", "work=5")
    assert run("run", "fake", *smoke)[:2] == (0, written)
    assert sorted(path.name for path in folder.iterdir()) == [
        "data.nc",
        "drawn.json",
        "fake.png",
        "fake.svg",
    ]
    attrs = read_dataset(folder / "data.nc").attrs
    assert attrs["command"].endswith("--preset smoke --set work=5")
    for name in ("version_jax", "device", "git_commit", "date", "wall_seconds", "config", "seeds"):
        assert name in attrs

    code, _, messages = run("run", "fake", *smoke)
    assert code == 0
    assert "reusing" in messages
    assert read_dataset(folder / "data.nc").attrs == attrs

    code, _, messages = run("run", "fake", *smoke, "--force")
    assert "reusing" not in messages

    code, _, messages = run("run", "fake", *smoke, "--set", "work=6")
    assert "has different configuration; it will be replaced" in messages
    assert json.loads(read_dataset(folder / "data.nc").attrs["config"])["work"] == 6


def test_plot_redraws_and_reports_missing_or_damaged_data(run, tmp_path):
    folder = tmp_path / "results/smoke/stability_plane"
    code, _, messages = run("plot", "stability_plane", "--preset", "smoke")
    assert (code, str(folder / "data.nc") in messages) == (1, True)

    run("run", "stability_plane", *SMOKE)
    svg = (folder / "stability_plane.svg").read_bytes()
    (folder / "stability_plane.svg").unlink()
    code, drawn, _ = run("plot", "stability_plane", "--preset", "smoke")
    assert (code, len(drawn.splitlines())) == (0, 2)
    assert (folder / "stability_plane.svg").read_bytes() == svg  # the same figure, the same file

    shutil.copytree(folder, folder.parent / "max_update")
    code, _, messages = run("plot", "max_update", "--preset", "smoke")
    assert (code, "belongs to the figure stability_plane, not max_update" in messages) == (1, True)

    (folder / "data.nc").write_bytes(b"half")
    code, _, messages = run("plot", "stability_plane", "--preset", "smoke")
    assert (code, "data.nc is damaged" in messages) == (1, True)
    code, _, messages = run("run", "stability_plane", *SMOKE)
    assert (code, "computing it again" in messages) == (0, True)


def test_reproduce_ends_with_the_path_of_the_report(run, fake, tmp_path):
    code, printed, _ = run("reproduce", "--preset", "smoke")
    assert code == 0
    report = Path(printed.splitlines()[-1])
    assert report == tmp_path / "results/report-smoke.html"
    assert "computed in this run" in report.read_text()
    run("reproduce", "--preset", "smoke")
    assert "reused, finished before this run" in report.read_text()


def test_reproduce_only_runs_the_named_figures(run, tmp_path):
    code, printed, _ = run("reproduce", "--preset", "smoke", "--only", "stability_plane")
    assert code == 0
    written = sorted(path.name for path in (tmp_path / "results/smoke").iterdir())
    assert written == ["manifest.json", "stability_plane"]
    page = Path(printed.splitlines()[-1]).read_text()
    assert "1 figure computed in this run" in page
    assert "python -m experiments run max_update --preset smoke" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "--only", "stability_plan"], "did you mean 'stability_plane'"),
        (["run", "stability_plan"], "did you mean 'stability_plane'"),
        (["run", "stability_plane", "--set", "num_grdi=3"], "num_grid"),
        (["run", "stability_plane", "--set", "num_grid=x"], "num_grid"),
        (["run", "stability_plane", "--set", "num_grid"], "field=value"),
        (
            ["run", "decay_search", "--set", "rates=1,nan"],
            "rates must be two or more finite numbers that increase from above 0, got [1.0, nan]",
        ),
        (
            ["run", "optimizer_comparison", "--set", "grids.lion.rates=1,2,3,4,5,6,7,8,9,inf"],
            "grids.lion.rates must be two or more finite numbers",
        ),
        (
            ["run", "rate_sensitivity", "--set", "tolerance=inf"],
            "tolerance must be finite and above 0, got inf",
        ),
        (["run", "stability_plane", "--preset", "huge"], "laptop"),
        (["run", "stability_plane", "--devices", "0"], "--devices 0"),
        (["run", "stability_plane", "--devices", "many"], "--devices many"),
        (["run", "stability_plan", "--help"], "did you mean"),
        (
            ["run", "max_update", "--preset", "smoke", "--set", "model.vocab_size=100"],
            "model.vocab_size=100 is below",
        ),
        (
            ["run", "max_update", "--preset", "smoke", "--set", "model.context=10000000"],
            "model.context=10000000 needs",
        ),
        (
            ["run", "max_update", "--preset", "smoke", "--set", "corpus=c4:gpt2"],
            "give model.vocab_size=50257",  # before anything is downloaded
        ),
        *(
            (
                ["run", name, "--preset", "smoke", "--set", "model.context=40000"],
                f"model.context=40000 needs 40001 tokens, but a split of the corpus has {SPLIT}",
            )
            for name in ("rate_sensitivity", "noise_robustness")
        ),
        (["paint"], "reproduce"),
        ([], "COMMAND"),
    ],
)
def test_bad_usage_exits_2_with_a_remedy_and_leaves_nothing(
    arguments, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    assert message in _unboxed(capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(figures.discover()))
def test_every_numeric_field_of_a_figure_rejects_nan(name, capsys):
    smoke = figures.discover()[name].presets["smoke"]
    for field, value in flatten(smoke).items():
        numbers = value if isinstance(value, list) else [value]
        if not any(isinstance(number, float) for number in numbers):
            continue
        for spoiled in {("nan", *map(str, numbers[1:])), (*map(str, numbers[:-1]), "nan")}:
            with pytest.raises((ConfigError, SystemExit)):
                override(smoke, [f"{field}={','.join(spoiled)}"])
    capsys.readouterr()


def test_rising_numbers_do_not_depend_on_the_hash_of_nan():
    for nan in (float("nan") for _ in range(100)):
        for numbers in ((nan, 1.0), (1.0, nan), (1.0, nan, 2.0)):
            assert not rises(*numbers)


def _unboxed(message: str) -> str:
    """Return a message without the frame and line breaks that a terminal's width adds."""
    return " ".join(message.replace("│", " ").split())


def test_a_report_of_nothing_exits_1_and_writes_nothing(run, tmp_path):
    code, _, messages = run("report", "--preset", "paper")
    assert code == 1
    assert "has no dataset of preset paper" in messages
    assert not (tmp_path / "results").exists()


def test_a_missing_text_exits_1_and_writes_nothing(run, tmp_path):
    arguments = "--preset", "smoke", "--set", "corpus=none.txt"
    code, _, messages = run("run", "max_update", *arguments)
    assert code == 1
    assert "there is no file none.txt" in messages
    assert not (tmp_path / "results").exists()


def test_an_impossible_results_folder_exits_1(run, tmp_path):
    (tmp_path / "results").write_text("a file")
    code, _, messages = run("run", "stability_plane", "--preset", "smoke")
    assert code == 1
    assert (
        f"{tmp_path / 'results'} is not a folder that can be written to; name another" in messages
    )


def test_an_unwritable_folder_exits_1_before_any_computation(run, fake, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    code, _, messages = run("run", "fake", "--set", "fail_at=first")
    assert (code, f"{tmp_path} is not a folder that can be written to" in messages) == (1, True)
    assert not (tmp_path / "results").exists()


def test_a_reader_that_stops_early_is_not_an_error():
    command = [sys.executable, "-m", "experiments", "list"]
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_finished_chunks_survive_an_interrupt(run, fake, tmp_path):
    folder = tmp_path / "results/laptop/fake"
    code, _, messages = run("run", "fake", "--set", "fail_at=second")
    assert code == 130
    assert "8 finished chunks are kept" in messages
    (chunks,) = (folder / "chunks").iterdir()
    damaged = chunks / "first-000003.npz"
    damaged.write_bytes(b"")
    written = {path: path.stat().st_mtime_ns for path in chunks.iterdir() if path != damaged}

    code, _, messages = run("run", "fake", "--set", "fail_at=second")
    assert "first-000003.npz is damaged" in messages
    assert "7 finished chunks found" in messages
    assert {path: path.stat().st_mtime_ns for path in written} == written

    code, _, messages = run("run", "fake")  # another configuration reuses none of them
    assert (code, "found" in messages) == (0, False)
    assert [path.name for path in (folder / "chunks").iterdir()] == [chunks.name]
    assert len(read_dataset(folder / "data.nc").y) == 8


def test_sigint_exits_130_and_the_rerun_gives_the_same_numbers(run, fake, tmp_path):
    argv = ("run", "fake", "--set", "work=600")
    interrupted = subprocess.Popen(
        [sys.executable, fake, *argv, "--results", tmp_path / "a", "--devices", "1"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "GLIBC_TUNABLES": ""},
    )
    chunks = tmp_path / "a/laptop/fake/chunks"
    deadline = time.monotonic() + 60
    while len(list(chunks.glob("*/*.npz"))) < 2:
        assert interrupted.poll() is None, interrupted.stderr.read()
        assert time.monotonic() < deadline, "no chunk within a minute"
        time.sleep(0.01)
    interrupted.send_signal(signal.SIGINT)
    messages = interrupted.communicate(timeout=60)[1]
    assert interrupted.returncode == 130, messages
    kept = len(list(chunks.glob("*/*.npz")))
    assert f"{kept} finished chunks are kept" in messages

    code, _, messages = run(*argv, results=tmp_path / "a")
    assert code == 0, messages
    assert f"first: {min(kept, 8)} finished chunks found" in messages
    assert not chunks.exists()
    assert run(*argv, results=tmp_path / "b")[0] == 0
    np.testing.assert_array_equal(
        *(read_dataset(tmp_path / name / "laptop/fake/data.nc").y for name in "ab")
    )


# Unusual machines: each call runs in a forked child of one process, all at once. Two oddities share
# each whole run, which takes two seconds.
RUN = ["run", "stability_plane", *SMOKE]
FIELDS = ["run", "discrete_boundary", "--help"]
NO_HOME = {"HOME": None, "TMPDIR": "/none", "LC_ALL": "C"}
MACHINES = {
    "ascii": (["list"], {"encoding": "ascii"}, 0, ""),
    "latin-1 fields": (FIELDS, {"encoding": "latin-1"}, 0, ""),
    "cp1252 fields": (FIELDS, {"encoding": "cp1252"}, 0, ""),
    "bytes path": (
        ["report", "--preset", "paper", "--results", "\udcff"],
        {},
        1,
        r"\\udcff has no dataset",
    ),
    "closed, no home": (RUN, {"closed": [1, 2], "env": NO_HOME}, 0, ""),
    "unread errors": (["run", "nothing"], {"unread": [2]}, 2, ""),
    "full": (["list"], {"files": {1: "/dev/full"}}, 1, "standard output cannot be written"),
    "full errors": (["run", "nothing"], {"files": {2: "/dev/full"}}, 2, ""),
    "no GPU": (RUN, {"env": {"JAX_PLATFORMS": "cuda"}}, 1, "JAX finds no device .*cuda"),
    "no such device": (["bench", "sweep"], {"env": {"JAX_PLATFORMS": "x"}}, 1, "JAX_PLATFORMS=x"),
    "cwd": (RUN[:4], {"cwd": "deleted"}, 2, "--results: .* working directory no longer exists"),
    "unread, absolute": (
        [*RUN, "--results", "{}/absolute"],
        {"unread": [1, 2], "cwd": "deleted"},
        0,
        "",
    ),
    "disk": (RUN, {"limits": {"RLIMIT_FSIZE": 3000}}, 1, r"'results/.*/data\.nc'"),
    "no width": (FIELDS, {"env": {"COLUMNS": "1", "TERM": "dumb"}}, 0, ""),
    "no width, bad": (["run", "x"], {"env": {"COLUMNS": "1", "TERM": "dumb"}}, 2, "no 'x'"),
    "~": (["report", "--results", "~nobody-has-this/x"], {}, 2, "argument --results: ~nobody"),
    "empty": (["report", "--results", ""], {}, 2, "argument --results: '' does not name a file"),
}


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """The results of all `MACHINES`, each in its own folder."""
    cases = []
    for argv, case, *_ in MACHINES.values():
        folder = tmp_path_factory.mktemp("machine")
        cases += [([word.format(folder) for word in argv], {"cwd": str(folder), **case})]
    done = subprocess.run(
        [sys.executable, "-m", "tests.forked"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(MACHINES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", MACHINES)
def test_an_unusual_machine_works_or_gets_a_message(name, machines):
    _, case, expected, message = MACHINES[name]
    code, output, errors = machines[name]
    assert (code, "Traceback" in errors) == (expected, False), errors
    assert output.isascii() or "encoding" not in case
    assert re.search(message, errors)


def test_random_calls_end_with_a_sentence():
    command = [sys.executable, "-m", "tests.fuzz.command_line", "--calls", "30", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 findings" in done.stdout


@pytest.mark.parametrize("command", ["plot", "commit", "run", "bench", "train"])
def test_help_after_a_name_has_fields_where_there_are_some(command, capsys):
    name = {"bench": "sweep", "train": "text"}.get(command, "stability_plane")
    assert cli.main([command, name, "--help"]) == 0
    assert ("Fields of" in capsys.readouterr().out) == (command not in ("plot", "commit"))


def test_a_matplotlibrc_does_not_reach_the_figures(run, fake, tmp_path):
    run("run", "fake", "--preset", "smoke")
    svg = tmp_path / "results/smoke/fake/fake.svg"
    drawn = svg.read_bytes()
    users = {"text.usetex": True, "axes.facecolor": "black", "lines.linewidth": 5.0}
    with matplotlib.rc_context(users):
        assert run("plot", "fake", "--preset", "smoke")[0] == 0
        assert matplotlib.rcParams["lines.linewidth"] == 5.0
    assert svg.read_bytes() == drawn


@pytest.mark.parametrize("command", ["run", "report", "plot", "commit", "reproduce"])
def test_a_link_to_nowhere_is_named_before_anything_is_computed(command, run, fake, tmp_path):
    (tmp_path / "results").symlink_to(tmp_path / "not_mounted")
    names = [] if command in ("report", "reproduce") else ["fake"]
    code, _, messages = run(command, *names)
    assert code == 2
    assert f"{tmp_path / 'results'} is a link to {tmp_path / 'not_mounted'}, which" in messages
    assert not (tmp_path / "not_mounted").exists()


ASSIGNMENTS = {
    "mesh=--help": "--set 'mesh=--help': mesh is not a field; did you mean mesh.data?",
    "levels=--help": "--set levels='--help': '--help' is not a value",
    "help=1": "--set 'help=1': help is not a field; --help lists all fields",
    "=1": "--set '=1': write the name of a field",
    "num grid=1": "--set 'num grid=1': write the name of a field",
    "levels=-x": "--set levels='-x': '-x' is not a value",
    "levels=\0": "is not a value",
    "levels=\udcff": "is not a value",
    "num_grid=": "num_grid",
}


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_a_bad_assignment_gets_our_own_message(assignment, capsys):
    command = ["train"] if assignment.startswith("mesh") else ["run", "stability_plane"]
    assert cli.main([*command, "--set", assignment]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert ASSIGNMENTS[assignment] in _unboxed(streams.err)


def test_integers_beyond_jaxs_sizes_name_the_field(tmp_path, capsys):
    farther = itertools.cycle((2**63, -(2**31), 10**30))
    for figure in figures.discover().values():
        smoke = figure.presets["smoke"]
        for field, value in flatten(smoke).items():
            if isinstance(value, int) and not isinstance(value, bool):
                for size in (2**31, next(farther)):
                    with pytest.raises((ConfigError, SystemExit)) as error:
                        override(smoke, [f"{field}={size}"])
                    said = f"{error.value} {capsys.readouterr().err}"
                    assert field.rpartition(".")[2] in _unboxed(said).replace("-", "_")


def test_devices_are_counted_in_each_process(monkeypatch):
    def devices(*owners):
        monkeypatch.setattr(
            jax, "devices", lambda: [SimpleNamespace(process_index=i) for i in owners]
        )
        return lambda wanted: [device.process_index for device in cli._devices(wanted)]

    of = devices(0, 0, 1, 1)
    assert (of("auto"), of("1")) == ([0, 0, 1, 1], [0, 1])
    with pytest.raises(ConfigError, match="--devices 3: there are only 2"):
        of("3")
    with pytest.raises(ConfigError, match=r"processes have \[1, 2\] devices"):
        devices(0, 1, 1)("auto")


def test_two_runs_of_one_figure_exclude_each_other(run, fake, tmp_path):
    folder = tmp_path / "results/laptop/fake"
    with locked(folder):
        code, _, messages = run("run", "fake")
        assert (code, f"{folder} is in use by process {os.getpid()}" in messages) == (1, True)
        assert [path.name for path in folder.iterdir()] == [".lock"]
    assert run("run", "fake")[0] == 0
    with locked(folder):  # a report says what it did not draw
        assert run("report")[0] == 0
        code, _, messages = run("plot", "fake")
        assert (code, "is in use" in messages) == (1, True)


def test_the_next_run_removes_what_a_kill_left(run, fake, tmp_path):
    assert run("run", "fake")[0] == 0
    folder = tmp_path / "results/laptop/fake"
    key = read_dataset(folder / "data.nc").attrs["key"]
    for left in (".fake.png.a1", ".data.nc.b2", f"chunks/{key}", "chunks/of_another_run"):
        (folder / left).mkdir(parents=True)
        (folder / left / "first-000000.npz").write_bytes(b"half")
    assert run("run", "fake")[0] == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "chunks",
        "data.nc",
        "drawn.json",
        "fake.png",
        "fake.svg",
    ]
    assert [path.name for path in (folder / "chunks").iterdir()] == ["of_another_run"]


def test_a_sigint_that_the_parent_ignores_stays_ignored():
    before = signal.getsignal(signal.SIGINT)
    try:
        for handler, then in (
            (signal.SIG_IGN, signal.SIG_IGN),
            (signal.default_int_handler, errors.stop),
        ):
            signal.signal(signal.SIGINT, handler)
            cli._handle_interrupts()
            assert signal.getsignal(signal.SIGINT) is then
    finally:
        signal.signal(signal.SIGINT, before)


def test_without_a_terminal_progress_prints_occasional_lines(capsys, monkeypatch):
    seconds = iter([0.0, 1.0, 10.0, 11.0, 40.0, 60.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    with progress("adam", total=12, done=2) as advance:
        for _ in range(5):
            advance(2)
    assert capsys.readouterr().err.splitlines() == [
        "adam: 6/12, 0:00:27 left",  # 2 in 9 s, 6 to go; nothing at 1 s, nor soon again at 11 s
        "adam: 10/12, 0:00:13 left",
    ]


def test_speed_excludes_the_call_that_compiles(capsys, monkeypatch):
    seconds = iter([0.0, 20.0, 40.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    with progress("train, steps", total=30, unit="tokens", size=500) as advance:
        advance(10, "loss 5.0000")
        advance(10, "loss 4.0000")
    assert capsys.readouterr().err.splitlines() == [
        "train, steps: 10/30, loss 5.0000",
        "train, steps: 20/30, loss 4.0000, 250 tokens/s, 0:00:20 left",
    ]


def test_work_that_has_not_begun_shows_no_time_left(capsys, monkeypatch):
    seconds = iter([0.0, 10.0, 20.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    with progress("adam", total=2) as advance:
        advance(0)
        advance(1)
    assert capsys.readouterr().err.splitlines() == ["adam: 1/2, 0:00:20 left"]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_the_process_restarts_itself_with_huge_pages_once(monkeypatch):
    calls = []
    monkeypatch.setattr(os, "execve", lambda *arguments: calls.append(arguments))
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    cli._restart_with_tunables()
    ((program, arguments, environment),) = calls
    assert (program, arguments[1:]) == (sys.executable, sys.orig_argv[1:])
    assert environment["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"

    monkeypatch.setenv("GLIBC_TUNABLES", environment["GLIBC_TUNABLES"])
    cli._restart_with_tunables()
    assert len(calls) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_a_process_that_cannot_restart_itself_continues(monkeypatch):
    def execve(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    cli._restart_with_tunables()


def test_the_module_runs_as_a_program():
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    command = [sys.executable, "-m", "experiments", "list"]
    listed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    assert "stability_plane" in listed.stdout
