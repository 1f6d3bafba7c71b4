"""The command line: `python -m experiments list | run | commit | plot | report ...`.

Exit codes: 0 done, 1 something is missing or damaged or training diverged, 2 bad usage, 130 Ctrl-C
and 143 SIGTERM. Figures keep their finished chunks, and the same command continues from them;
`train` writes a checkpoint first, and continues with `--resume`.

Arguments are parsed by argparse, fields of configurations (`--set`) by tyro: for arguments, tyro
would frame an error in up to ten lines instead of one sentence, answer `run NAME --help` before it
has read NAME and thus without the figure's fields, and add 0.2 s to `--help` and `list`.

On Linux the process restarts itself with `GLIBC_TUNABLES=glibc.malloc.hugetlb=1`, unless that
variable is set: every large temporary of a compiled program is fresh memory there, and with huge
pages it causes far fewer page faults.
"""

import argparse
import contextlib
import importlib
import io
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments import bench, figures
from experiments.core.config import PRESETS, override, preset_of, print_help
from experiments.core.errors import (
    ConfigError,
    DamagedFile,
    Failed,
    Stopped,
    say,
    silence,
    stop,
)

if TYPE_CHECKING:
    import jax

PROG = "python -m experiments"
INTERRUPTED = 130
TASKS = ("text", "images")
LEAST_COLUMNS = 40
"""The narrowest terminal: tyro does not terminate if a word does not fit into its frames."""
TUNABLES = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
      argv: The arguments after the program's name; None for those of this process.

    Returns:
      The exit code.
    """
    _mend_streams()
    code = _run_command(argv)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            silence(stream)  # otherwise Python tries again when it ends
            if stream is sys.stdout and not isinstance(error, BrokenPipeError):
                say(f"{PROG}: standard output cannot be written ({error.strerror})")
                code = code or 1
    return code


def _run_command(argv: Sequence[str] | None) -> int:
    """Return the exit code of one command; an error becomes a one-sentence message."""
    try:
        arguments = _parser().parse_args(argv)
        arguments.command.run(arguments)
    except SystemExit as stop:  # argparse and tyro have said why
        return stop.code if isinstance(stop.code, int) else 2
    except ConfigError as error:
        say(f"{PROG}: {error}")
        return 2
    except BrokenPipeError:  # the reader, such as head, has seen enough
        return 0
    except (OSError, DamagedFile, Failed) as error:
        say(f"{PROG}: {error}")
        return 1
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)):
            raise
        say(f"{PROG}: out of memory ({error}); choose smaller sizes with --set")
        return 1
    except Stopped as stop:
        say(f"\n{stop}")
        return 128 + stop.signum
    except KeyboardInterrupt:
        say("\ninterrupted")
        return INTERRUPTED
    return 0


def _mend_streams() -> None:
    """Make sure that any letter can be printed, with any encoding and even without a stream.

    Encodings other than UTF-8 lack letters of the formulas: they get ASCII with escapes, which a
    reader that expects UTF-8 can decode as well.
    """
    if shutil.get_terminal_size().columns < LEAST_COLUMNS:
        os.environ["COLUMNS"] = str(LEAST_COLUMNS)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, io.StringIO())
        with contextlib.suppress(AttributeError):  # replaced by something simpler
            stream = getattr(sys, name)
            encoding = stream.encoding if stream.encoding.lower().startswith("utf") else "ascii"
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def _import_libraries() -> None:
    """Import libraries that read the user's settings, each with its own errors for bad ones.

    Raises:
      Failed: If a library does not accept a setting.
    """
    os.environ.pop("MPLBACKEND", None)  # figures are drawn to files
    for name, settings in (("jax", "JAX_..."), ("matplotlib", "MATPLOTLIBRC and matplotlibrc")):
        try:
            importlib.import_module(name)
        except (OSError, ValueError) as error:
            raise Failed(f"{name} does not start: {error}; its settings are {settings}") from error


class Command(NamedTuple):
    """A command; its help is the first line of its function's docstring."""

    run: Callable[[argparse.Namespace], None]
    options: Sequence[str]
    """Names in `OPTIONS`."""
    defaults: Callable[[str, str], Any] | None
    """`defaults(name, preset)` returns the configuration that `--set` changes."""


COMMANDS: dict[str, Command] = {}
PROCESSES = ("--distributed", "--coordinator", "--num-processes", "--process-id")
"""Options of commands that several processes can run together."""


def _command(*options: str, defaults: Callable[[str, str], Any] | None = None) -> Callable:
    """Make a function `_name(arguments)` the command `name`."""

    def register(function):
        COMMANDS[function.__name__[1:]] = Command(function, options, defaults)
        return function

    return register


def _figures() -> Mapping[str, Any]:
    """Return all figures by name, for commands that import some of them."""
    _import_libraries()
    return figures.discover()


def _benchmarks() -> Mapping[str, Any]:
    _import_libraries()
    return bench.discover()


def _train_command() -> Any:
    _import_libraries()
    from experiments.train import command  # grain and orbax take a second

    return command


def _named(every: Mapping[str, Any], name: str) -> Any:
    if name in every:
        return every[name]
    near = get_close_matches(name, every, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(every)}"
    raise ConfigError(f"no {name!r}; {hint}")


@_command()
def _list(arguments: argparse.Namespace) -> None:
    """Show figures and benchmarks."""
    del arguments
    for prefix, catalog in (("", figures.discover()), ("bench ", bench.discover())):
        for name in catalog:
            print(f"{prefix + name:22} {catalog.summary(name)}")


@_command(
    *("names", "--preset", "--set", "--results", "--devices", "--force", *PROCESSES),
    defaults=lambda name, preset: preset_of(_named(_figures(), name).presets, preset, name),
)
def _run(arguments: argparse.Namespace) -> None:
    """Compute figures and draw them."""
    every, preset = _figures(), arguments.preset
    from experiments.core.processes import from_first
    from experiments.reproduce.pipeline import place, run_figure

    chosen = [_named(every, name) for name in arguments.names]
    configs = [
        override(
            preset_of(figure.presets, preset, figure.name),
            arguments.set,
            f"{PROG} run {figure.name}",
        )
        for figure in chosen
    ]
    with _joined(arguments) as devices:
        for figure, config in zip(chosen, configs, strict=True):
            where = place(arguments.results, figure, preset)
            run_figure(where, config, devices, force=arguments.force)
            paths = where.dataset, *sorted(where.folder.glob("*.png"))
            from_first(partial(print, *paths, sep="\n"))


@_command("names", "--preset", "--results", "--reissue", "--devices")
def _commit(arguments: argparse.Namespace) -> None:
    """Make these datasets the ones that come with the code."""
    every, results = _figures(), arguments.results
    from experiments.reproduce.commit import commit
    from experiments.reproduce.pipeline import place
    from experiments.reproduce.reissue import reissue

    places = [place(results, _named(every, name), arguments.preset) for name in arguments.names]
    if arguments.reissue is None:
        paths = map(commit, places)
    else:
        paths = reissue(places, results, arguments.reissue, _devices(arguments.devices))
    for path in paths:
        print(path)


def _other_presets(arguments: argparse.Namespace) -> str:
    """Say what to do if there is no dataset."""
    found = sorted({path.parts[-3] for path in arguments.results.glob("*/*/data.nc")})
    return f"; there is {' and '.join(found)}: give --preset" if found else "; run it first"


@_command("names", "--preset", "--results")
def _plot(arguments: argparse.Namespace) -> None:
    """Redraw figures from their datasets."""
    every = _figures()
    from experiments.reproduce.pipeline import place, redraw

    for name in arguments.names:
        where = place(arguments.results, _named(every, name), arguments.preset)
        if not where.shown.exists():
            raise FileNotFoundError(f"{where.dataset} does not exist{_other_presets(arguments)}")
        for path in redraw(where):
            print(path)


@_command("--preset", "--results")
def _report(arguments: argparse.Namespace) -> None:
    """Write the report from what is on disk."""
    every, preset = _figures(), arguments.preset
    from experiments.reproduce.pipeline import place
    from experiments.reproduce.report import write_report

    if not any(place(arguments.results, f, preset).shown.exists() for f in every.values()):
        raise FileNotFoundError(
            f"{arguments.results} has no dataset of preset {preset}{_other_presets(arguments)}"
        )
    print(write_report(arguments.results, every, preset))


@_command("--preset", "--results", "--devices", "--only", "--force", *PROCESSES)
def _reproduce(arguments: argparse.Namespace) -> None:
    """Run every figure, judge the claims and write the report."""
    every = _figures()
    from experiments.core.processes import from_first, is_first
    from experiments.reproduce.pipeline import place, run_figure
    from experiments.reproduce.report import write_report

    results, preset, reused = arguments.results, arguments.preset, {}
    having = [name for name, figure in every.items() if preset in figure.presets]
    chosen = {name: _named(every, name) for name in arguments.only or having}
    configs = {name: preset_of(figure.presets, preset, name) for name, figure in chosen.items()}
    with _joined(arguments) as devices:
        for number, (name, figure) in enumerate(chosen.items(), 1):
            if is_first():
                say(f"[{number}/{len(chosen)}] {name}: {figure.title}")
            where = place(results, figure, preset)
            _, reused[name] = run_figure(where, configs[name], devices, force=arguments.force)
        from_first(lambda: print(write_report(results, every, preset, reused=reused)))


@_command(
    *("names", "--set", "--save"),
    defaults=lambda name, preset: _named(_benchmarks(), name).config,
)
def _bench(arguments: argparse.Namespace) -> None:
    """Measure and print tables."""
    every = _benchmarks()
    from experiments.bench._measuring import dataset, markdown
    from experiments.core.store import check_writable, write_dataset

    _devices("auto")  # raises a clear error if there are none
    if arguments.save:
        check_writable(arguments.save, "--save")
    for name in arguments.names:
        chosen = _named(every, name)
        config = override(chosen.config, arguments.set, f"{PROG} bench {name}")
        for number, table in enumerate(chosen.run(config), 1):
            print(markdown(table), end="\n\n")
            if arguments.save:
                write_dataset(arguments.save / f"{name}_{number}.nc", dataset(table, config))


@_command(
    *("task", "--preset", "--set", "--sweep", "--results", "--output", "--resume", "--force"),
    *("--devices", "--tensorboard", "--compilation-cache", "--profile", *PROCESSES),
    defaults=lambda task, preset: _train_command().fields(task, preset),
)
def _train(arguments: argparse.Namespace) -> None:
    """Train the paper's networks, one run or a sweep."""
    _train_command().run(arguments, PROG, _joined)


@contextlib.contextmanager
def _joined(arguments: argparse.Namespace) -> "Iterator[list[jax.Device]]":
    """Make this process one of several, if the arguments say so, and yield all their devices.

    Raises:
      ConfigError: If the processes can't find each other or `--devices` are not available.
      Failed: If another process ends before this one.
    """
    from experiments.core.processes import joined

    given = arguments.coordinator, arguments.num_processes, arguments.process_id
    with joined(arguments.distributed, *given):
        yield _devices(arguments.devices)


def _devices(wanted: str) -> "list[jax.Device]":
    """Return each process's first `wanted` devices; if JAX starts here, a CPU gets that many.

    "auto" means all devices. On a CPU, members then run side by side, each on its own core:
    measured on two cores, a step of a one-layer nanoGPT took 0.58 ms per member this way, versus
    1.8 ms when one device split every small operation across both cores.
    """
    import jax

    from experiments.core.processes import num_cores

    if not re.fullmatch(r"auto|[1-9]\d{0,4}", wanted, re.ASCII):
        raise ConfigError(f"--devices {wanted}: give a number from 1 to 99999, or auto")
    with contextlib.suppress(RuntimeError):  # JAX is already running: use the devices it has
        jax.config.update("jax_num_cpu_devices", num_cores() if wanted == "auto" else int(wanted))
    try:
        devices = jax.devices()
    except (RuntimeError, AssertionError) as error:  # without a message if CUDA is not installed
        raise Failed(
            f"JAX finds no device ({str(error) or 'nothing is installed for it'}); JAX_PLATFORMS="
            f"{os.environ.get('JAX_PLATFORMS', '')} says which to look for; cpu is always there"
        ) from error
    by_process: dict[int, list[jax.Device]] = {}
    for device in devices:
        by_process.setdefault(device.process_index, []).append(device)
    counts = sorted({*map(len, by_process.values())})
    if len(counts) > 1:
        raise ConfigError(
            f"--devices {wanted}: processes have {counts} devices, but all must have the same "
            "number; on CPUs --devices N gives each process N"
        )
    number = counts[0] if wanted == "auto" else int(wanted)
    if number > counts[0]:
        raise ConfigError(f"--devices {wanted}: there are only {counts[0]}")
    return [device for own in by_process.values() for device in own[:number]]


class _Help(argparse.Action):
    """The `--help` option; after names, it also shows the fields that `--set` replaces."""

    def __call__(self, parser, namespace, values, option_string=None):
        print(parser.format_help())
        given, defaults = vars(namespace), namespace.command.defaults
        names = [given["task"]] if given.get("task") else given.get("names", TASKS) or ()
        for name in names if defaults else ():
            try:
                config = defaults(name, given.get("preset"))
            except ConfigError as error:
                parser.error(str(error))
            print(f"Fields of {name}; write them without the dashes: --set field=value\n")
            print_help(config, f"{parser.prog} {name} --set")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROG,
        description="Rerun the paper's figures and judge its claims.",
        epilog="Exit codes: 0 done, 1 something is missing or damaged or training diverged, 2 bad "
        "usage, 130 Ctrl-C, 143 SIGTERM (figures keep finished chunks and the same command "
        "continues from them; train writes a checkpoint and continues with --resume).",
    )
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        summary = (command.run.__doc__ or "").partition("\n")[0]
        subparser = subparsers.add_parser(name, help=summary, description=summary, add_help=False)
        subparser.set_defaults(command=command)
        subparser.add_argument(
            "-h", "--help", action=_Help, nargs=0, help="show this; after a name, also its fields"
        )
        for option in command.options:
            subparser.add_argument(option, **OPTIONS[option])
    return parser


def _assignment(text: str) -> str:
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} has no '='; write --set field=value")
    return text


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} does not name a file or folder")
    path = Path(text)
    try:
        path = path.expanduser()
        path.absolute()
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error
    except FileNotFoundError as error:
        raise argparse.ArgumentTypeError(
            f"{text}: the working directory no longer exists; give an absolute path"
        ) from error
    if path.is_symlink() and not path.exists():
        raise argparse.ArgumentTypeError(
            f"{text} is a link to {os.readlink(path)}, which does not exist; mount or create it"
        )
    return path


OPTIONS: dict[str, dict[str, Any]] = {
    "names": dict(nargs="+", metavar="NAME", help="one or more names that `list` shows"),
    "--preset": dict(
        choices=PRESETS, default="laptop", help="default: laptop; only some figures have evening"
    ),
    "--set": dict(
        action="append",
        default=[],
        type=_assignment,
        metavar="FIELD=VALUE",
        help="replace a field; repeatable; `NAME --help` shows every field with its meaning",
    ),
    "--save": dict(
        type=_path, metavar="DIR", help="also write each table as a dataset, DIR/NAME_NUMBER.nc"
    ),
    "--results": dict(type=_path, default="results", help="folder, default: results"),
    "--devices": dict(
        default="auto", metavar="N", help="number of devices, cores on a CPU; auto: all"
    ),
    "--only": dict(
        type=lambda text: text.split(","),
        metavar="NAME,...",
        help="only these figures; the report shows the others as they are on disk",
    ),
    "--force": dict(
        action="store_true",
        help="start over, and discard earlier results in the folder",
    ),
    "--reissue": dict(
        type=_path,
        metavar="BEFORE",
        help="keep the committed arrays under the current code's key, if its smoke datasets equal, "
        "bit for bit, those in BEFORE, a results folder that the earlier code has written",
    ),
    "task": dict(
        nargs="?", choices=TASKS, metavar="TASK", help="what to train: text, the default, or images"
    ),
    "--sweep": dict(
        action="append",
        default=[],
        type=_assignment,
        metavar="FIELD=VALUE,VALUE,...",
        help="train all combinations of these values of numeric fields in one program; repeatable",
    ),
    "--output": dict(
        type=_path, metavar="DIR", help="the run's own folder; default: RESULTS/PRESET/train_TASK"
    ),
    "--resume": dict(
        action="store_true", help="resume from the newest checkpoint in the folder, if there is one"
    ),
    "--tensorboard": dict(action="store_true", help="write TensorBoard files next to the metrics"),
    "--compilation-cache": dict(
        type=_path, metavar="DIR", help="where JAX keeps compiled programs for the next run"
    ),
    "--profile": dict(
        type=_path,
        metavar="DIR",
        help="where JAX's profiler writes a trace of the second call to the device",
    ),
    "--distributed": dict(
        action="store_true",
        help="this is one of several processes, which JAX finds through SLURM, MPI, Kubernetes, "
        "the TPU pod or JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID",
    ),
    "--coordinator": dict(metavar="HOST:PORT", help="address of process 0"),
    "--num-processes": dict(type=int, metavar="N", help="number of processes of this run"),
    "--process-id": dict(type=int, metavar="I", help="number of this process, from 0"),
}


def _restart_with_tunables() -> None:
    """Replace this process with itself, with huge pages, once: afterwards the variable is set."""
    name, value = TUNABLES
    if sys.platform == "linux" and name not in os.environ:
        environment = {**os.environ, name: value}
        with contextlib.suppress(OSError):  # if this fails, the process is only slower
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _open_streams() -> None:
    """Point closed standard streams to the null device, so that no file takes their place."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def _handle_interrupts() -> None:
    """Stop at SIGINT, unless the parent has it ignored, as a script does for background jobs."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, stop)


if __name__ == "__main__":
    _open_streams()
    _restart_with_tunables()
    _handle_interrupts()
    exit_code = main()
    if exit_code == INTERRUPTED:  # JAX crashes in its own shutdown if stopped while it compiles
        os._exit(exit_code)
    sys.exit(exit_code)
