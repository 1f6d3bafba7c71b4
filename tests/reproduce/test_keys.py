"""reproduce/pipeline.py: which edits recompute which figures."""

import dataclasses
import runpy
import shutil
import subprocess

import pytest

from experiments.core.store import PROJECT
from experiments.figures import discover
from experiments.reproduce.pipeline import code_digest, code_of, folder_of, rules_of
from tests.test_layers import MODULES, imports_of, owner

FOLDERS = {name: folder_of(figure) for name, figure in discover().items()}
FAMILIES = {name: folder.parent.name for name, folder in FOLDERS.items()}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the code for editing."""
    copy = tmp_path_factory.mktemp("checkout")
    for package in ("kadam_jax", "models", "experiments"):
        ignored = shutil.ignore_patterns("__pycache__", "*.nc")
        shutil.copytree(PROJECT / package, copy / package, ignore=ignored)
    return copy


@pytest.mark.parametrize(
    ("file", "recomputed"),
    [
        *((f"experiments/figures/flow/trajectories/{told}.py", ()) for told in ("plot", "claims")),
        ("experiments/figures/flow/trajectories/__init__.py", ()),
        ("experiments/figures/stability/__init__.py", ()),
        ("experiments/figures/stability/plot.py", ()),
        ("experiments/figures/optimizer/claims.py", ()),
        ("experiments/core/plot.py", ()),
        ("experiments/core/claims.py", ()),
        ("experiments/core/figure.py", ()),
        ("experiments/reproduce/report.py", ()),
        ("experiments/train/loop.py", ()),
        ("kadam_jax/__main__.py", ()),
        ("experiments/figures/flow/trajectories/run.py", ("trajectories",)),
        ("experiments/figures/flow/trajectories/distances.py", ("trajectories",)),
        ("experiments/figures/stability/losses.py", ("stability",)),
        ("experiments/figures/invariance/queries_and_keys.py", ("invariance",)),
        ("experiments/figures/optimizer/rate_basins.py", ("optimizer",)),
        ("experiments/training/tasks.py", FAMILIES),
        ("experiments/data/__init__.py", FAMILIES),
        ("experiments/core/stats.py", FAMILIES),
        ("kadam_jax/flow/euler.py", FAMILIES),
        ("models/nanogpt.py", FAMILIES),
    ],
)
def test_an_edit_recomputes_only_what_it_affects(checkout, file, recomputed):
    path = checkout / file
    before, whole = digests(checkout), path.read_bytes()
    path.write_bytes(whole + b"# edited\n")
    after = digests(checkout)
    path.write_bytes(whole)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {name for name in FAMILIES if {name, FAMILIES[name]} & {*recomputed}}


def digests(checkout):
    return {
        name: code_digest(checkout / folder.relative_to(PROJECT), checkout)
        for name, folder in FOLDERS.items()
    }


@pytest.mark.parametrize("name", FOLDERS)
def test_the_key_covers_all_code_that_decides_numbers(name):
    """It has every module of ours that `run.py` imports, but of core only what decides numbers."""
    needed, found = [f"experiments.figures.{FAMILIES[name]}.{name}.run"], set()
    while needed:
        module = needed.pop()
        found.add(module)
        needed += {*map(owner, imports_of(module, MODULES[module]))} - {"", "experiments"} - found
    files = {MODULES[module] for module in found}
    missing = files - {*code_of(FOLDERS[name])}
    assert {file.parent for file in missing} <= {PROJECT / "experiments" / "core"}
    assert FOLDERS[name] / "run.py" in files


def test_rules_have_the_last_commit_of_their_own_file(tmp_path):
    def commit(file):
        """Append a line to a file and return the commit's hash."""
        (tmp_path / file).parent.mkdir(exist_ok=True)
        with (tmp_path / file).open("a") as opened:
            opened.write("def compute(): ...\n")
        git = ("git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e")
        for words in (("init", "-q"), ("add", "."), ("commit", "-qm", file)):
            subprocess.run((*git, *words), check=True)
        done = subprocess.run((*git, "rev-parse", "HEAD"), check=True, capture_output=True)
        return done.stdout.decode().strip()

    def claims_commit(name):
        compute = runpy.run_path(str(tmp_path / name / "run.py"))["compute"]
        figure = dataclasses.replace(discover()["trajectories"], compute=compute)
        return rules_of(figure)["claims_commit"]

    one, two = (commit(f"{name}/claims.py") for name in ("one", "two"))
    for name in ("one", "two"):
        commit(f"{name}/run.py")
        commit(f"{name}/plot.py")
    assert [claims_commit("one"), claims_commit("two")] == [one, two]
    one = commit("one/claims.py")
    assert [claims_commit("one"), claims_commit("two")] == [one, two]
    shared = commit("claims.py")  # rules shared by the family
    assert [claims_commit("one"), claims_commit("two")] == [shared, shared]
    (tmp_path / "two/claims.py").write_text("edited")
    assert [claims_commit("one"), claims_commit("two")] == [shared, shared + "+dirty"]
