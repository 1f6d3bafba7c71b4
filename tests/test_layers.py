"""Tests of which file may import which, and that importing has no side effects."""

import ast
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

import kadam_jax
from experiments.figures import discover
from experiments.reproduce.pipeline import TELLING, folder_of

ROOT = Path(__file__).parents[1]
OURS = ("kadam_jax", "models", "experiments")

# The packages that each package may import in addition to itself and the standard library; None for
# anything.
PACKAGES = {
    "kadam_jax": {"jax", "optax", "numpy"},
    "models": {"jax", "flax", "numpy"},
    "experiments": None,
}
# The parts of kadam_jax that all of its modules may import.
SHARED = {"_checks", "_numerics", "_slices"}
# Further imports of a module, or of every module of a package; others import nothing else.
LIBRARY = {
    "__main__": {"batch_size", "catalog", "stability", "worst_cases"},
    "conversion": {"normalization"},
    "optimizer": {"normalization", "strategies"},
    "stability": {"curves"},
    "worst_cases": {"stability"},
    "flow": {"normalization", "strategies"},
    "invariance": {"normalization"},
}
# Further packages that a package of experiments may import; only `__main__` sees all.
EXPERIMENTS = {
    "core": {"kadam_jax"},
    "data": {"core"},
    "training": {"core", "data", "models", "kadam_jax"},
    "figures": {"core", "data", "training", "models", "kadam_jax"},
    "reproduce": {"core", "data", "training", "figures"},
    "train": {"core", "data", "training", "models"},
    "bench": {"core", "data", "training", "figures", "train", "models", "kadam_jax"},
    "__main__": {"core", "figures", "reproduce", "train", "bench"},
}
FOUR = {"__init__.py", "run.py", "plot.py", "claims.py"}


def modules_of(package, root=ROOT):
    """Return a dictionary from module name to file, for every Python file of a package."""
    files = sorted((root / package).rglob("*.py"))
    parts = {file: file.relative_to(root).with_suffix("").parts for file in files}
    return {".".join(p[:-1] if p[-1] == "__init__" else p): file for file, p in parts.items()}


MODULES = {name: file for package in OURS for name, file in modules_of(package).items()}


def imports_of(name, file):
    """Return absolute names of all imports anywhere in a module; `from a import b` is a.b."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: -(node.level - 1) or None] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{source}.{alias.name}" for alias in node.names}
    return found


def owner(imported):
    """Return the module of ours that an imported name is or comes from; "" if there is none."""
    while imported and imported not in MODULES:
        imported = imported.rpartition(".")[0]
    return imported


def test_the_reader_of_imports_sees_every_form(tmp_path):
    file = tmp_path / "c.py"
    file.write_text(
        "import x.y as z\nfrom .d import e\nfrom .. import f\n"
        "def function():\n    from optax import adam\n"
    )
    assert imports_of("a.b.c", file) == {"x.y", "a.b.d.e", "a.f", "optax.adam"}


@pytest.mark.parametrize("name", MODULES)
def test_a_package_imports_only_what_its_layer_may(name):
    package = name.partition(".")[0]
    allowed = PACKAGES[package]
    imported = {target.partition(".")[0] for target in imports_of(name, MODULES[name])}
    if allowed is not None:
        assert imported - set(sys.stdlib_module_names) <= allowed | {package}


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("kadam_jax.")])
def test_library_modules_import_only_their_parts(name):
    top = name.split(".")[1]
    allowed = {f"kadam_jax.{module}" for module in LIBRARY.get(top, set()) | SHARED}
    imported = {owner(target) for target in imports_of(name, MODULES[name])} - {""}
    parts = {target for target in imported if target.startswith(f"kadam_jax.{top}.")}
    assert imported - parts <= allowed


@pytest.mark.parametrize("name", MODULES)
def test_a_library_package_is_imported_from_its_init(name):
    """A module inside kadam_jax.flow or kadam_jax.invariance is imported only there."""
    for target in map(owner, imports_of(name, MODULES[name])):
        parts = target.split(".")
        face = ".".join(parts[:2])
        assert parts[0] != "kadam_jax" or len(parts) < 3 or name.startswith(face), target


def test_the_library_imports_every_public_module():
    imported = {owner(target) for target in imports_of("kadam_jax", MODULES["kadam_jax"])} - {""}
    public = {name for name in modules_of("kadam_jax") if "._" not in name}
    assert imported == {name for name in public if name.count(".") == 1}


def layer(name):
    """Return the package within experiments, or the package outside it."""
    top, *within = name.split(".")
    return within[0] if top == "experiments" and within else top


def place(name):
    """Return (family, figure) of a module in a figure's folder, (family,) of a shared one."""
    return MODULES[name].relative_to(ROOT / "experiments" / "figures").parent.parts


def forbidden(name, targets):
    """Return those of `targets` that a module of experiments may not import."""
    found = {target for target in targets if owner(target) not in ("", "experiments")}
    within = {target for target in found if layer(owner(target)) == layer(name)}
    allowed = {target for target in found if layer(owner(target)) in EXPERIMENTS[layer(name)]}
    if layer(name) == "figures":  # from its own folder and its family's
        ours = (place(name), place(name)[:1])
        within = {target for target in within if place(owner(target)) in ours}
        if MODULES[name].name not in TELLING:  # since they are not in the key
            within = {target for target in within if MODULES[owner(target)].name not in TELLING}
    return found - within - allowed


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("experiments.")])
def test_a_module_of_experiments_imports_from_layers_below(name):
    assert not forbidden(name, imports_of(name, MODULES[name]))


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("core.run", "data.Corpus"),
        ("core.figure", "figures.discover"),
        ("data.text", "training.tasks"),
        ("training.train", "train.loop.train"),
        ("training.tuning", "figures.optimizer.rate_basins.basin"),
        ("figures.flow.trajectories.run", "figures.flow.solver_cost.problems.network"),
        ("figures.flow.trajectories.plot", "figures.flow.solver_cost.LABELS"),
        ("figures.flow.trajectories.run", "figures.stability.max_updates"),
        ("figures.stability.max_updates", "figures.stability.max_update.run"),
        ("figures.stability.max_update.run", "figures.discover"),
        ("figures.stability.max_update.run", "figures.stability.max_update.plot.plot"),
        ("figures.stability.max_update.run", "figures.stability.SETUP"),
        ("figures.optimizer.strategy_comparison", "figures.optimizer.claims"),
        ("figures.flow.trajectories.claims", "reproduce.pipeline"),
        ("reproduce.report", "__main__.main"),
    ],
)
def test_an_import_from_elsewhere_would_be_noticed(name, target):
    name, target = f"experiments.{name}", f"experiments.{target}"
    assert forbidden(name, {target, "jax.numpy", "kadam_jax.kadam"}) >= {target}


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("experiments.")])
def test_experiments_import_public_names_from_the_top(name):
    for target in imports_of(name, MODULES[name]):
        package, _, imported = target.rpartition(".")
        assert not (package.startswith("kadam_jax.") and imported in kadam_jax.__all__), target


def test_experiments_contains_only_packages():
    folder = ROOT / "experiments"
    assert {file.name for file in folder.glob("*.*")} == {"__init__.py", "__main__.py"}
    packages = {file.parent.name for file in folder.glob("*/__init__.py")}
    assert packages == EXPERIMENTS.keys() - {"__main__"}


@pytest.mark.parametrize("figure", discover().values(), ids=lambda figure: figure.name)
def test_a_figures_folder_has_its_four_files_and_parts(figure):
    folder = folder_of(figure)
    assert folder.name == figure.name
    files = {file.name for file in folder.iterdir() if file.name != "__pycache__"}
    assert files >= FOUR
    assert all(file.endswith(".py") for file in files)


def test_contributing_has_the_table_of_layers():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", text, re.MULTILINE)
    table = {package: set(re.findall(r"`(\w+)`", allowed)) for package, allowed in rows}
    assert table == {name: x for name, x in EXPERIMENTS.items() if name != "__main__"}


def test_a_family_contains_only_modules_and_figures():
    folders = {folder_of(figure) for figure in discover().values()}
    for file in (ROOT / "experiments" / "figures").glob("*/*"):
        assert file.suffix == ".py" or file in folders or "__pycache__" in file.parts, file


def test_all_is_every_public_name():
    public = {
        name
        for name, value in vars(kadam_jax).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert sorted(kadam_jax.__all__) == sorted(public | {"__version__"})


def test_no_function_has_the_name_of_a_module():
    modules = {name.rpartition(".")[2] for name in modules_of("kadam_jax")}
    assert not modules & set(kadam_jax.__all__)


def test_the_version_is_that_of_the_package():
    assert kadam_jax.__version__ == importlib.metadata.version("kadam_jax")


def test_a_copy_that_is_not_installed_can_be_imported(tmp_path):
    """On PYTHONPATH, as a git submodule or in a frozen program there is no metadata to read."""
    shutil.copytree(ROOT / "kadam_jax", tmp_path / "kadam_jax")
    hidden = (
        "import importlib.metadata as m\n"
        "real = m.Distribution.from_name\n"
        "def from_name(name):\n"
        "    if name == 'kadam_jax': raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.Distribution.from_name = from_name\n"
        "import kadam_jax; print(kadam_jax.__file__, kadam_jax.__version__)"
    )
    command = [sys.executable, "-c", hidden]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    file, version = done.stdout.split()
    assert file.startswith(str(tmp_path))
    assert version == kadam_jax.__version__


def test_no_identifier_is_a_bare_beta_or_gamma():
    """The paper's beta is the second moment's decay, which half the field calls beta2."""
    fields = ("id", "arg", "attr", "name", "asname")
    for name, file in modules_of("kadam_jax").items():
        for node in ast.walk(ast.parse(file.read_text())):
            identifiers = {getattr(node, field, None) for field in fields}
            assert not identifiers & {"beta", "gamma"}, f"{name}, line {node.lineno}"


def test_exceptions_are_defined_in_one_module():
    for name, file in modules_of("experiments").items():
        for node in ast.walk(ast.parse(file.read_text())):
            bases = [ast.unparse(base) for base in getattr(node, "bases", ())]
            if any(base.endswith(("Error", "Exception", "Interrupt")) for base in bases):
                assert name == "experiments.core.errors", f"{node.name} of {name}"


def test_a_bad_configuration_raises_one_exception_class():
    """It is ConfigError, which ends a command with its message; others would be a traceback."""
    for name, file in modules_of("experiments").items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name == "__post_init__":
                raised = {x.exc.func.id for x in ast.walk(node) if isinstance(x, ast.Raise)}
                assert raised <= {"ConfigError"}, f"{name}, line {node.lineno}"


# Runs in a separate process: imports what argv names and prints all side effects as JSON.
IMPORTER = """
import importlib, json, os, sys
import jax

effects = []
settings = dict(jax.config.values)

def record(event, args):
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
    if writes or event in ("os.mkdir", "os.rename", "socket.connect"):
        target = os.path.abspath(args[0]) if isinstance(args[0], str | bytes) else repr(args)
        if not str(target).startswith((os.environ["SCRATCH"], os.devnull)):
            effects.append(f"{event} {target}")

sys.addaudithook(record)
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except RuntimeError as error:
        effects.append(f"{module}: {error}")
effects += [f"jax.config {k}" for k, v in jax.config.values.items() if settings.get(k, v) != v]
print(json.dumps(effects))
"""


def effects_of_importing(modules, tmp_path, root=ROOT):
    """Return side effects of imports: files, connections, JAX settings and backends started.

    No backend can start, since the platform does not exist. Dependencies may cache in SCRATCH.
    """
    scratch = {name: str(tmp_path) for name in ("SCRATCH", "HOME", "MPLCONFIGDIR", "TMPDIR")}
    done = subprocess.run(
        [sys.executable, "-B", "-c", IMPORTER, *modules],
        env=os.environ | scratch | {"JAX_PLATFORMS": "no_such_platform", "PYTHONPATH": str(root)},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_no_import_has_a_side_effect(tmp_path):
    modules = [module for package in OURS for module in modules_of(package)]
    assert effects_of_importing(modules, tmp_path) == []


def test_a_side_effect_would_be_noticed(tmp_path):
    guilty = tmp_path / "guilty"
    guilty.mkdir()
    effects = {
        "import jax; jax.numpy.zeros(1)": "no_such_platform",
        "import jax; jax.config.update('jax_enable_x64', True)": "jax.config jax_enable_x64",
        "import os; os.mkdir('folder')": "os.mkdir",
        "open('file', 'w')": "open",
    }
    modules = [f"guilty_{number}" for number in range(len(effects))]
    for module, statement in zip(modules, effects, strict=True):
        (guilty / f"{module}.py").write_text(statement)
    found = effects_of_importing(modules, tmp_path / "scratch", root=guilty)
    assert all(any(effect in one for one in found) for effect in effects.values()), found
