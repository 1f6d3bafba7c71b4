"""Tests of the wheel: its contents, and that it works with only jax and optax installed."""

import importlib.metadata
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    directory = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = directory.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def needed(marked):
    """Return the requirements of a distribution that apply here without any extra."""
    requirements = map(Requirement, marked or ())
    return {r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})}


def closure(names):
    """Return the distributions needed by `names`, by name, including indirect ones."""
    found, open_names = {}, set(names)
    while open_names:
        name = open_names.pop()
        found[name] = importlib.metadata.distribution(name)
        open_names |= needed(found[name].requires) - set(found)
    return found


def test_the_wheel_contains_only_the_library(wheel):
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    sources = ROOT / "kadam_jax"
    tracked = (path for path in sources.rglob("*") if path.suffix in {".py", ".typed"})
    assert files == {path.relative_to(ROOT).as_posix() for path in tracked}
    assert "kadam_jax/flow/euler.py" in files
    assert "kadam_jax/py.typed" in files
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())


def test_it_needs_exactly_jax_and_optax(wheel):
    (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    lines = wheel.read(path).decode().splitlines()
    prefix = "Requires-Dist: "
    assert needed(x.removeprefix(prefix) for x in lines if x.startswith(prefix)) == {"jax", "optax"}


SCRIPT = """
import importlib.util, sys
import jax, jax.numpy as jnp, optax
import kadam_jax

assert kadam_jax.__file__.startswith(sys.prefix), kadam_jax.__file__
for name in ("flax", "models", "experiments", "pytest"):
    assert importlib.util.find_spec(name) is None, name

optimizer = kadam_jax.kadam(0.1, k=2)

@jax.jit
def step(params, state):
    updates, state = optimizer.update(params, state, params)  # the gradient of |params|^2 / 2
    return optax.apply_updates(params, updates), state

params = jnp.array([1.0, -2.0])
state = optimizer.init(params)
for _ in range(10):
    params, state = step(params, state)
assert 0 < params[0] < 0.5, params

print(f"{kadam_jax.stability_coefficient(0.9, 0.999):.5f}")
print(kadam_jax.sweep(lambda member: 2 * member["x"], kadam_jax.grid(x=[1.0, 2.0, 3.0])).tolist())
print(kadam_jax.__version__)
"""


def test_it_works_where_only_jax_and_optax_are_installed(wheel, tmp_path):
    venv.create(tmp_path, with_pip=False, symlinks=True)
    (site_packages,) = tmp_path.glob("lib/python*/site-packages")
    for distribution in closure({"jax", "optax"}).values():
        for entry in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            if not (site_packages / entry).exists():
                (site_packages / entry).symlink_to(distribution.locate_file(entry))
    wheel.extractall(site_packages)

    done = subprocess.run(
        [tmp_path / "bin" / "python", "-I", "-c", SCRIPT],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    coefficient, doubled, version = done.stdout.splitlines()
    assert coefficient == "0.22122"
    assert doubled == "[2.0, 4.0, 6.0]"
    assert version == importlib.metadata.version("kadam_jax")
