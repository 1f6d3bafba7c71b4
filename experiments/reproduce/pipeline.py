"""The steps of the commands: run a figure, draw it, and find what is on disk."""

import contextlib
import importlib.metadata
import inspect
import json
import shlex
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import xarray as xr

from experiments.core import plot as plotting
from experiments.core.claims import rules_digest
from experiments.core.config import FigureConfig, difference, digest, to_json
from experiments.core.errors import DamagedFile, Failed, Stopped, say
from experiments.core.figure import Figure
from experiments.core.folders import locked
from experiments.core.processes import from_first, in_turn, is_first, together
from experiments.core.run import Run
from experiments.core.store import (
    PROJECT,
    RESULTS,
    ChunkStore,
    atomic,
    check_writable,
    file_sha256,
    last_change,
    provenance,
    read_dataset,
    remove_left,
    versions,
    write_dataset,
)
from experiments.data import Corpus
from experiments.data.images import load_images
from experiments.data.loading import Data
from experiments.data.text import read_corpus, tokenizer_of
from experiments.reproduce.manifest import is_listed, write_manifest
from experiments.training.config import CACHE, ImagesConfig, TrainingConfig
from experiments.training.tasks import check_vocabulary

DECIDING = (
    "kadam_jax/**/*.py",
    "models/**/*.py",
    "experiments/core/run.py",
    "experiments/core/stats.py",
    "experiments/data/**/*.py",
    "experiments/training/**/*.py",
)
"""Code that decides the numbers of all figures."""
TELLING = {"__init__.py", "plot.py", "claims.py"}
"""Code that only names, draws and judges, in a figure's folder and in its family's."""
COMMAND = "kadam_jax/__main__.py"
"""The library's command, which no figure imports."""
MISFITS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions that drawing and judging raise for an unexpected dataset."""
DRAWN = "drawn.json"
"""The names of a figure's pictures, and the `picture_key` that they were drawn for."""
DRAWING = ("matplotlib", "numpy", "pillow", "scipy", "xarray")
"""Packages that decide how a dataset looks."""
COMMITTED = PROJECT / RESULTS
"""Datasets that come with the code, `<preset>/<figure>.nc`, for figures that were not run here."""


@dataclass(frozen=True)
class Place:
    """The location of a figure's files for a preset.

    Attributes:
      folder: `<results>/<preset>/<figure>`.
      figure: The figure.
      preset: The preset's name.
    """

    folder: Path
    figure: Figure
    preset: str

    @property
    def dataset(self) -> Path:
        """The dataset's path."""
        return self.folder / "data.nc"

    @property
    def committed(self) -> Path:
        """The path of the dataset that comes with the code, if one does."""
        return COMMITTED / self.preset / f"{self.figure.name}.nc"

    @property
    def shown(self) -> Path:
        """The dataset that is drawn and judged: this place's own or else the committed one."""
        own_or_none = self.dataset.exists() or not self.committed.exists()
        return self.dataset if own_or_none else self.committed

    @property
    def base_command(self) -> str:
        """The command that makes the preset's dataset."""
        return f"python -m experiments run {self.figure.name} --preset {self.preset}"


def place(results: Path, figure: Figure, preset: str) -> Place:
    """Return the place of `figure` with `preset` below `results`."""
    return Place(results / preset / figure.name, figure, preset)


def run_figure(
    where: Place,
    config: FigureConfig,
    devices: Sequence[jax.Device],
    *,
    force: bool = False,
) -> tuple[xr.Dataset, bool]:
    """Compute a figure's dataset and draw it, or reuse the finished one with the same key.

    The key is a digest of the configuration, the data, the versions, JAX's precision, the platform
    and the code that decides the numbers, `code_of`.

    If there are several processes, only the first one uses the folder; all get the dataset.

    Args:
      where: The figure and where its files are.
      config: The configuration.
      devices: Devices of all processes, over which members are spread.
      force: Compute even if everything is there, and drop finished chunks.

    Returns:
      The dataset, and whether it was reused.

    Raises:
      Failed: Before anything is computed, if the folder cannot be written to or another process
        is using it; if processes would compute different things.
      Stopped: At Ctrl-C, with finished chunks kept on disk.
    """
    with contextlib.ExitStack() as stack:

        def own():
            check_writable(where.folder)
            stack.enter_context(owned(where))

        from_first(own)
        return _run_figure(where, config, devices, force)


@contextlib.contextmanager
def owned(where: Place) -> Iterator[None]:
    """Keep other processes out of a figure's folder, and remove it if it stays empty.

    Raises:
      Failed: If another process is using it, or it cannot be written to.
    """
    above = (where.folder, *where.folder.parents[:2])
    made = [folder for folder in above if not folder.exists()]
    try:
        with locked(where.folder):
            remove_left(where.folder)
            yield
    finally:
        with contextlib.suppress(OSError):  # it is not empty
            for folder in made:
                folder.rmdir()


def _run_figure(
    where: Place, config: FigureConfig, devices: Sequence[jax.Device], force: bool
) -> tuple[xr.Dataset, bool]:
    figure = where.figure
    corpus, images = in_turn(lambda: _data(config))
    sha256 = "+".join(data.sha256 for data in (corpus, images) if data) or "none"
    parts = {
        "configuration": digest(to_json(config)),
        "data": sha256,
        "versions": digest(json.dumps(versions())),
        "precision": f"{jax.config.jax_enable_x64}, {jax.config.jax_default_matmul_precision}",
        "platform": devices[0].platform,
        "code": code_digest(folder_of(figure)),
    }
    _check_same(figure.name, parts)
    key = digest(figure.name, *parts.values())
    identity = {
        "key": key,
        "key_parts": json.dumps(parts),
        "figure": figure.name,
        "preset": where.preset,
        "config": to_json(config),
        "data_sha256": sha256,
    }
    store = ChunkStore(where.folder / "chunks" / key)

    def reuse():
        finished = None if force else _finished(where, key, parts)
        if finished is not None and not is_listed(where.dataset):
            write_manifest(where.folder.parent)
        if force or finished is not None:
            store.clear()  # left by a process that was killed before it did so
        return finished

    if (finished := from_first(reuse)) is not None:
        return finished, True

    mesh = jax.sharding.Mesh(np.array(devices), ("members",)) if len(devices) > 1 else None
    rules = rules_of(figure)
    start = time.monotonic()
    try:
        dataset = figure.compute(config, Run(corpus, mesh, store, images))
    except KeyboardInterrupt:
        if not is_first():
            raise
        raise Stopped(
            signal.SIGINT,
            f"interrupted; {figure.name}: {store.count()} finished chunks are kept in "
            f"{store.folder}; the same command continues from them",
        ) from None
    overrides = difference(config, figure.presets[where.preset])
    dataset.attrs |= provenance(devices, time.monotonic() - start) | {
        **identity,
        **rules,
        "overrides": json.dumps(overrides),
        "command": " ".join(
            [where.base_command, *(f"--set {shlex.quote(item)}" for item in overrides)]
        ),
        "seeds": str(list(getattr(config, "seeds", ()))),
    }

    def write():
        write_dataset(where.dataset, dataset)
        write_manifest(where.folder.parent)
        store.clear()
        draw(where, dataset, picture_key(where))

    from_first(write)
    return dataset, False


def _data(config: FigureConfig) -> tuple[Corpus | None, Data | None]:
    """Load the text and the images that a configuration names, if any."""
    cache, corpus = Path(getattr(config, "cache", CACHE)), None
    if isinstance(config, TrainingConfig):
        check_vocabulary(config.model, tokenizer_of(config.corpus).vocab_size)
        corpus = read_corpus(config.corpus, cache=cache)
    images = load_images(config.dataset, cache=cache) if isinstance(config, ImagesConfig) else None
    return corpus, images


def _check_same(figure: str, parts: Mapping[str, str]) -> None:
    """Raise in all processes unless they would compute the same figure in the same way."""
    mine = {"figure": figure, **parts}
    its = from_first(lambda: mine)

    def compare():
        if others := [name for name, value in mine.items() if its[name] != value]:
            raise Failed(
                f"process {jax.process_index()} differs from process 0 in {' and '.join(others)}; "
                "give all processes the same command, code, packages and data"
            )

    together(compare)


@contextlib.contextmanager
def read(where: Place) -> Iterator[xr.Dataset]:
    """Read the dataset that is shown, to draw and judge it in the block.

    Raises:
      FileNotFoundError: If there is none.
      DamagedFile: If it is damaged, belongs to another figure, or lacks what the block needs.
    """
    path = where.shown
    dataset = read_dataset(path)
    if (its := dataset.attrs.get("figure")) != where.figure.name:
        raise DamagedFile(f"{path} belongs to the figure {its}, not {where.figure.name}")
    try:
        yield dataset
    except MISFITS as error:
        raise DamagedFile(
            f"{path} was computed by another version: it lacks what is needed ({error}); "
            "run it again"
        ) from error


def redraw(where: Place) -> list[Path]:
    """Draw the dataset that is shown again and return the pictures' paths.

    Raises:
      FileNotFoundError, DamagedFile: As `read`.
      Failed: If another process is using the folder.
    """
    with owned(where):
        key = picture_key(where)
        with read(where) as dataset:
            return draw(where, dataset, key)


def draw(where: Place, dataset: xr.Dataset, key: str) -> list[Path]:
    """Draw a dataset as PNG and SVG next to it and return their paths.

    Args:
      where: The figure and where its files are.
      dataset: The dataset that is shown.
      key: Its `picture_key`, computed before the dataset was read: a file that has replaced it
        since then has another key.
    """
    name, record = where.figure.name, where.folder / DRAWN
    record.unlink(missing_ok=True)
    with plotting.style():
        canvases = where.figure.plot(dataset)
        stems = {suffix: f"{name}_{suffix}" if suffix else name for suffix in canvases}
        paths = [
            path
            for suffix, canvas in canvases.items()
            for path in plotting.save(canvas, where.folder / stems[suffix])
        ]
    for kind in ("png", "svg"):
        for stale in set(where.folder.glob(f"*.{kind}")) - set(paths):
            stale.unlink(missing_ok=True)
    with atomic(record) as temporary:
        temporary.write_text(json.dumps({"key": key, "pictures": [path.name for path in paths]}))
    return paths


def drawn(where: Place, key: str) -> list[Path]:
    """Return the pictures that were drawn for a `picture_key`, none if one of them is missing."""
    try:
        record = json.loads((where.folder / DRAWN).read_bytes())
        paths = [where.folder / name for name in record["pictures"]]
        return paths if record["key"] == key and all(map(Path.is_file, paths)) else []
    except (OSError, *MISFITS):  # not there, or not ours
        return []


def picture_key(where: Place) -> str:
    """Hash what decides the pictures: the dataset that is shown, the code and the packages.

    Raises:
      FileNotFoundError: If there is no dataset.
    """
    folder = folder_of(where.figure)
    drawing = (plotting.__file__, folder.parent / "plot.py", folder / "plot.py")
    code = [*code_of(folder), *filter(Path.is_file, map(Path, drawing))]
    packages = {name: importlib.metadata.version(name) for name in DRAWING} | versions()
    return digest(*map(file_sha256, [where.shown, *code]), json.dumps(packages))


def _finished(where: Place, key: str, parts: Mapping[str, str]) -> xr.Dataset | None:
    """Return the place's own dataset, with pictures, if it has the key; else say what differs."""
    path = where.dataset
    if not path.exists():
        return None
    try:
        as_drawn = picture_key(where)
        with read(where) as dataset:
            if dataset.attrs["key"] == key:
                say(f"{where.figure.name}: reusing {path}, computed {dataset.attrs['date']}")
                drawn(where, as_drawn) or draw(where, dataset, as_drawn)
                return dataset
            its = json.loads(dataset.attrs["key_parts"])
    except DamagedFile as error:
        say(f"{error}; computing it again")
        return None
    others = [name for name, value in parts.items() if its.get(name) != value]
    say(f"{path} has different {', '.join(others) or 'code'}; it will be replaced")
    return None


def folder_of(figure: Figure) -> Path:
    """Return the folder of the file that computes a figure."""
    return Path(inspect.getfile(figure.compute)).parent


def rules_of(figure: Figure) -> dict[str, str]:
    """Return what a dataset records about its rules: their last commit, with shared ones."""
    commit = last_change(folder_of(figure), "claims.py", "../claims.py")
    return {"claims_commit": commit, "rules": rules_digest(figure.claims)}


def code_of(folder: Path, project: Path = PROJECT) -> list[Path]:
    """Return the files that decide a figure's numbers: shared by all, its family's and its own.

    Args:
      folder: The figure's folder.
      project: The checkout.
    """
    shared = [path for pattern in DECIDING for path in sorted(project.glob(pattern))]
    shared = [path for path in shared if path != project / COMMAND]
    own = sorted([*folder.parent.glob("*.py"), *folder.glob("*.py")])
    return shared + [path for path in own if path.name not in TELLING]


def code_digest(folder: Path, project: Path = PROJECT) -> str:
    """Hash the contents of `code_of`."""
    return digest(*map(file_sha256, code_of(folder, project)))
