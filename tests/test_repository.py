"""Workflows run only what can be run by hand, and metadata agree with each other."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import kadam_jax
from experiments.__main__ import COMMANDS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(" ".join(re.findall(r"^\.PHONY: (.*)", MAKEFILE, re.MULTILINE)).split())
WORKFLOWS = {
    file.stem: yaml.safe_load(file.read_text()) for file in ROOT.glob(".github/workflows/*.yml")
}
JOBS = {
    f"{name}-{job}": body
    for name, workflow in WORKFLOWS.items()
    for job, body in workflow["jobs"].items()
}
PYTHONS = [
    version for version in re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
]


def commands(job):
    """Return what a job runs, with each value of its matrix."""
    runs = [step["run"] for step in JOBS[job]["steps"] if "run" in step]
    for name, values in JOBS[job].get("strategy", {}).get("matrix", {}).items():
        name = f"${{{{ matrix.{name} }}}}"
        runs = list(dict.fromkeys(run.replace(name, value) for run in runs for value in values))
    return runs


@pytest.mark.parametrize("job", JOBS)
def test_a_step_runs_a_make_target_or_the_ci_script(job):
    for command in commands(job):
        target = re.fullmatch(r"make ([\w-]+)", command)
        assert command == ".ci/run" or (target and target[1] in TARGETS), command


def test_every_check_is_in_a_workflow():
    run = {command for job in JOBS for command in commands(job)}
    targets = ("test", "test-oldest", "test-newest", "lint", "docs", "dist", "check-tag")
    assert run == {".ci/run", *(f"make {target}" for target in targets)}


@pytest.mark.parametrize("job", JOBS)
def test_actions_have_a_version_and_jobs_a_limit(job):
    for step in JOBS[job]["steps"]:
        assert "run" in step or re.fullmatch(r"(actions|pypa)/[\w-]+@v\d+(\.\d+)*", step["uses"])
    assert JOBS[job]["timeout-minutes"] <= 60


def test_only_jobs_that_publish_have_an_identity():
    for workflow in WORKFLOWS.values():
        assert workflow["permissions"] == {"contents": "read"}
    writing = {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job}
    assert writing == {
        "docs-publish": {"pages": "write", "id-token": "write"},
        "release-publish": {"id-token": "write"},
    }
    for name in writing:  # what was built and tested, and nothing else
        assert JOBS[name]["needs"] == "build"
        assert commands(name) == []


def test_every_declared_python_is_tested():
    assert JOBS["tests-python"]["strategy"]["matrix"]["python"] == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_the_citation_has_the_version_and_license():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == kadam_jax.__version__
    assert citation["license"] == PROJECT["license"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## {kadam_jax.__version__}\n" in changelog


def test_everything_that_contributing_names_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert set(re.findall(r"make ([a-z-]+)", text.replace("`make lint` changes", ""))) <= TARGETS
    assert set(re.findall(r"-m experiments (\w+)", text)) <= set(COMMANDS)
    named = {name for name in re.findall(r"[`(]([\w./]+/[\w.]+)[`)]", text) if name == name.lower()}
    assert {name for name in named if not (ROOT / name).exists()} == set()
    assert len(named) > 8
