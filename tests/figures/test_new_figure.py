"""A new figure is a new folder in a family; no other file changes."""

import os
import shutil
import subprocess
import sys

import pytest

from experiments.core.store import PROJECT

PACKAGE = "experiments.figures.flow.straight_line"
FILES = {
    "__init__.py": f'''"""A straight line."""

from experiments.core.figure import Figure
from experiments.core.questions import FLOW_FOLLOWS_ADAM
from {PACKAGE} import claims, plot
from {PACKAGE}.run import Config, compute

FIGURE = Figure(
    name="straight_line",
    title="A straight line",
    paper="not in the paper",
    question=FLOW_FOLLOWS_ADAM,
    decided_by={{"lines-rise": "lines rise by {{}}"}},
    caption="CAPTION, {{num_points}} points.",
    presets={{"smoke": Config(), "laptop": Config(20), "paper": Config(200)}},
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={{"num_points": 2}},
)
''',
    "run.py": f'''"""y = 2x."""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from experiments.core.config import FigureConfig
from experiments.core.run import Run
from experiments.core.store import coordinates, over
from {PACKAGE}.doubling import double
from kadam_jax import points


@dataclass(frozen=True)
class Config(FigureConfig):
    """The points.

    Attributes:
      num_points: How many.
    """

    num_points: int = 2


def compute(config: Config, run: Run) -> xr.Dataset:
    """Run one member for each point."""
    x = np.linspace(0, 1, config.num_points, dtype=np.float32)
    y = run.sweep("line", double, points(x=x))["y"]
    return xr.Dataset(over("x", {{"y": (y, "y")}}), coordinates(x=(x, "x")))
''',
    "doubling.py": '''"""A part of the figure."""


def double(member):
    """y = 2x."""
    return {"y": 2 * member["x"]}
''',
    "plot.py": '''"""Plot of the line."""

from experiments.core import plot as plotting


def plot(dataset):
    """Draw one panel."""
    canvas, axes = plotting.canvas(3, 2)
    axes.plot(dataset.x, dataset.y, color="tab:blue")
    return {"": canvas}
''',
    "claims.py": '''"""Claims about lines."""

from experiments.core.claims import Claim
from experiments.core.stats import exact

CLAIMS = (
    Claim(
        id="lines-rise",
        figure="straight_line",
        section="none",
        statement="A straight line rises.",
        quantity="the last value minus the first",
        statistic=lambda run: exact(run.y[-1] - run.y[0], run.sizes["x"]),
        accept=(2.0, 2.0),
        reason="Twice one.",
    ),
)
''',
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the code with one more folder."""
    copy = tmp_path_factory.mktemp("checkout")
    for package in ("kadam_jax", "models", "experiments"):
        ignored = shutil.ignore_patterns("__pycache__", "*.nc")
        shutil.copytree(PROJECT / package, copy / package, ignore=ignored)
    folder = copy / PACKAGE.replace(".", "/")
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return copy


def commands(checkout, *lines):
    """Return what each command prints, standard error included, in one process."""
    code = "import sys\nfrom experiments.__main__ import main\nsys.stderr = sys.stdout\n"
    for line in lines:
        code += f"print('\\0', end='')\nassert main({line.split()!r}) == 0\n"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split("\0")[1:]


SMOKE = "--preset smoke --results results"
RUN = f"run straight_line {SMOKE} --devices 1"


@pytest.fixture(scope="module")
def printed(checkout):
    """Return what the commands print when the figure is new."""
    lines = ("list", "run straight_line --help", RUN, RUN, f"plot straight_line {SMOKE}")
    return commands(checkout, *lines, f"report {SMOKE}")


def test_one_more_folder_is_one_more_figure(checkout, printed):
    listed, told, first, second, drawn, page = printed
    assert "straight_line" in listed
    assert "A straight line" in listed
    assert "--num_points INT" in told
    assert "reusing" not in first
    assert "reusing" in second
    assert "straight_line.png" in drawn
    html = (checkout / page.split()[-1]).read_text()
    assert "CAPTION, 2 points." in html
    answer = html.partition("Does the continuous-time model follow Adam?</h2>")[2]
    assert answer.partition("Decided by")[0].count("In part: lines rise by ") == 1
    assert html.partition('id="claim-lines-rise"')[2].startswith(' data-verdict="holds"')
    assert html.count("<img") == 2  # the thumbnail of its answer, and the figure


def test_only_parts_that_compute_recompute(checkout, printed):
    folder = checkout / PACKAGE.replace(".", "/")
    for name, old, new in (
        ("__init__.py", "CAPTION", "Other words"),
        ("plot.py", "tab:blue", "tab:red"),
        ("claims.py", "A straight line rises.", "Lines rise."),
    ):
        (folder / name).write_text(FILES[name].replace(old, new))
    again, page = commands(checkout, RUN, f"report {SMOKE}")
    assert "reusing" in again
    html = (checkout / page.split()[-1]).read_text()
    assert "Other words, 2 points." in html
    assert "Lines rise." in html
    assert "rules of this figure's claims, or their words, have changed" in html
    (folder / "doubling.py").write_text(FILES["doubling.py"].replace("2 *", "3 *"))
    (recomputed,) = commands(checkout, RUN)
    assert "has different code" in recomputed
    for name, text in FILES.items():
        (folder / name).write_text(text)
