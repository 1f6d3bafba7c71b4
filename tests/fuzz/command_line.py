"""Random calls of the command line: each ends with an exit code and a sentence, whatever is typed.

    python -m tests.fuzz.command_line --calls 2000 --seed 0

Every call runs in a forked child (tests/forked.py) on its own copy of a small results folder, of
which some files are damaged, cut, removed or replaced by links, folders and pipes. What is found
is printed with the call that shows it: a traceback, an exit code other than 0, 1, 2 and 130, a call
that does not end, or a failure that says nothing.
"""

import argparse
import collections
import dataclasses
import os
import random
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests import forked

SECONDS = 100.0
"""Until a call is taken for one that does not end."""
CODES = {0, 1, 2, 130}
FIGURE = "stability_plane"
SMALL = ("--preset", "smoke", "--set", "num_grid=4", "--set", "num_curve=4")
ODD_TEXTS = (
    "", " ", "0", "-1", "1e400", "nan", "-inf", "x", "--help", "-h", "--", "=", "a=b", "\0",
    "\udcff", "β", "٣", "1_000", "1,2", "1;2", "[1]", "{}", "None", "true", ".", "~",
    "~nobody/x", "%s",
    "{0}", "'", '"', "2147483647", "2147483648", "9" * 30, "9" * 5000, "1e-400", "0x10", "+1", "\n",
)  # fmt: skip
ODD_PLACES = ("file", "folder", "link", "nowhere", "pipe", "loop", "missing", "missing/deeper")
MACHINES = (
    {}, {}, {}, {},
    *({"encoding": encoding} for encoding in ("ascii", "latin-1", "cp1252", "utf-16")),
    {"closed": [1]}, {"closed": [1, 2]}, {"unread": [1]}, {"unread": [1, 2]}, {"cwd": "deleted"},
    {"limits": {"RLIMIT_FSIZE": 2000}}, {"limits": {"RLIMIT_NOFILE": 40}},
    *({"env": env} for env in (
        {"HOME": None}, {"HOME": "/dev/null"}, {"TMPDIR": "/none"}, {"COLUMNS": "1"},
        {"COLUMNS": "x"}, {"TERM": "dumb"}, {"LC_ALL": "C"}, {"JAX_PLATFORMS": "cuda"},
        {"JAX_PLATFORMS": "x"}, {"MPLBACKEND": "x"}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"},
    )),
)  # fmt: skip


def places(folder):
    """Paths of every odd kind in a folder, by kind."""
    (folder / "file").write_text("text")
    (folder / "folder").mkdir()
    (folder / "link").symlink_to(folder / "folder")
    (folder / "nowhere").symlink_to(folder / "gone")
    (folder / "loop").symlink_to(folder / "loop")
    os.mkfifo(folder / "pipe")
    return [str(folder / kind) for kind in ODD_PLACES]


def spoil(path, rng):
    """Does something to a file of the results."""
    kind = rng.choice(("flip", "cut", "grow", "empty", "remove", "folder", "pipe", "link", "text"))
    content = path.read_bytes()
    if kind == "flip" and content:
        changed = bytearray(content)
        changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
    elif kind == "cut":
        path.write_bytes(content[: rng.randrange(len(content) + 1)])
    elif kind == "grow":
        path.write_bytes(content + rng.randbytes(9))
    elif kind in ("empty", "text"):
        path.write_bytes(b"" if kind == "empty" else b"[" * 9999)
    else:
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(rng.choice(("/dev/zero", "/dev/null", "gone", path)))
    return f"{path.name} {kind}"


class Calls:
    """Random calls, from the tables of the command line itself."""

    def __init__(self, seed):
        from experiments import bench, figures
        from experiments.core.config import flatten

        self.rng = random.Random(seed)
        self.figures = figures.discover()
        self.benches = bench.discover()
        self.fields = {
            name: list(flatten(figure.presets["smoke"])) for name, figure in self.figures.items()
        }

    def name(self):
        """A figure's name, or something like one."""
        names = [*self.figures, *self.benches, FIGURE[:-1], *ODD_TEXTS]
        return FIGURE if self.rng.random() < 0.7 else self.rng.choice(names)

    def refused(self, name):
        """An assignment that no field accepts, since most figures take long to compute."""
        field = self.rng.choice(self.fields[name])
        return f"{field}={self.rng.choice(('x', '', 'nan', '--help', '2147483648', '-2147483649'))}"

    def assignment(self, name):
        """A field with a value that does not take long to compute."""
        rng = self.rng
        field = rng.choice([*self.fields.get(name, ["num_grid"]), "num_gird", *ODD_TEXTS])
        value = rng.choice((*ODD_TEXTS, "3", "5", "0.5", "0.5,0.6", "-1,0", "0.5 0.5, 0.1 0.2"))
        return f"{field}={value}" if rng.random() < 0.95 else field

    def options(self, name, odd_places):
        """Some options with a value each."""
        rng = self.rng
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
            option, value = rng.choice((
                ("--preset", rng.choice(("smoke", "laptop", "huge", *ODD_TEXTS[:9]))),
                ("--set", self.assignment(name)),
                ("--set", self.assignment(name)),
                ("--devices", rng.choice(("1", "auto", "2", "99", *ODD_TEXTS))),
                ("--results", rng.choice((*odd_places, *ODD_TEXTS))),
                ("--only", rng.choice((FIGURE, "a,b", *ODD_TEXTS))),
                ("--output", rng.choice(odd_places)),
                (rng.choice(("--force", "--help", "--nothing", *ODD_TEXTS)), None),
            ))  # fmt: skip
            yield option
            if value is not None and rng.random() < 0.97:
                yield value

    def argv(self, results, odd_places):
        """One command."""
        rng = self.rng
        commands = ("list", "run", "plot", "commit", "report", "reproduce", "bench", "train")
        command = rng.choice((*commands, *commands, *commands, "plot", "run", *ODD_TEXTS[:5]))
        name = self.name()
        argv = [command]
        if command in ("run", "plot", "commit") or rng.random() < 0.1:
            argv += [name]
        if command == "run" and name in self.fields and name != FIGURE:
            argv += ["--set", self.refused(name)]
        if command == "bench":
            argv += [rng.choice((*self.benches, *ODD_TEXTS)), "--set", "repeats=0"]
        if command in ("run", "plot", "report", "commit", "reproduce"):
            argv += ["--results", results]
            argv += SMALL if command == "run" and name == FIGURE else ["--preset", "smoke"]
            if command == "reproduce":
                argv += ["--only", FIGURE if name in self.figures else name]
        if command == "train":  # refused, or it would train
            argv += ["--set", f"num_steps={rng.choice(('0', '-1', 'x', '2147483648'))}"]
        return [*argv, *self.options(name, odd_places)]


def problem(code, errors, timed_out):
    """Return a description of what is wrong with how a call has ended, or ""."""
    if timed_out:
        return "does not end"
    if "Traceback" in errors or "Fatal Python" in errors:
        found = re.findall(r"^\w+(?:\.\w+)*(?:Error|Exception|Interrupt)\b.*", errors, re.M)
        return f"traceback: {found[-1] if found else errors[-200:]}"
    return "" if code in CODES else f"exit code {code}"


def names_an_argument(argv, errors):
    """Whether a message has a word that was typed, or says what is missing."""
    said = re.sub(r"[\W_]+", " ", errors.replace("-", "_"))
    typed = {re.sub(r"[\W_]+", " ", part).strip() for word in argv for part in word.split("=")}
    if any(not re.search(r"[a-z0-9]", word) for word in argv):  # printed in one way or another
        return True
    return "required" in errors or any(word and word in said for word in typed)


@dataclasses.dataclass
class Finding:
    """A call that went wrong."""

    what: str
    argv: list
    case: dict
    spoilt: list


def fuzz(num_calls, seed, show=print):
    """Return the findings of that many calls, and how often each exit code occurred."""
    from experiments.reproduce import pipeline

    calls, rng = Calls(seed), random.Random(seed + 1)
    codes, findings = collections.Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        whole, pipeline.COMMITTED = Path(folder) / "whole", Path(folder) / "committed"
        code, _, errors = forked.call(["run", FIGURE, *SMALL, "--results", str(whole)])
        assert code == 0, errors
        for number in range(num_calls):
            here = Path(folder) / str(number)
            results = here / "results"
            shutil.copytree(whole, results)
            (here / "odd").mkdir()
            odd_places = places(here / "odd")
            files = sorted(path for path in results.rglob("*") if path.is_file())
            spoilt = [spoil(path, rng) for path in rng.sample(files, rng.choice((0, 0, 1, 1, 2)))]
            argv, case = calls.argv(str(results), odd_places), dict(rng.choice(MACHINES))
            case = {"cwd": str(here), **case, "env": {"HOME": str(here), **case.get("env", {})}}
            start = time.monotonic()
            code, printed, errors = forked.call(argv, **case, seconds=SECONDS)
            errors = errors.replace("\0", "")  # of UTF-16
            late = code == -9 and time.monotonic() - start > SECONDS
            what = problem(code, errors, late)
            heard = not {1, 2} & {*case.get("closed", ()), *case.get("unread", ())}
            if not what and code in (1, 2) and heard and not (errors + printed).strip():
                what = "says nothing"
            if not what and code == 2 and heard and not names_an_argument(argv, errors):
                what = f"names no argument: {errors[-300:]}"
            codes[code] += 1
            if what:
                findings += [Finding(what, argv, case, spoilt)]
                show(f"{number}: {what}\n  {argv}\n  {case}\n  {spoilt}")
            shutil.rmtree(here)
    return findings, codes


def main():
    """The command."""
    parser = argparse.ArgumentParser(description="Random calls of the command line.")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    forked.import_everything()
    findings, codes = fuzz(arguments.calls, arguments.seed)
    print(f"{arguments.calls} calls, exit codes {dict(codes)}, {len(findings)} findings")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
