"""Results on disk: labeled datasets with provenance, and finished chunks, nothing half-written.

results/<preset>/<figure>/data.nc             the dataset, whose attrs say how it was made
results/<preset>/<figure>/<figure>.png, .svg  drawn from it
results/<preset>/<figure>/drawn.json          the key of what they were drawn from
results/<preset>/manifest.json                a list of the datasets there, written with each
results/<preset>/<figure>/chunks/<key>/       finished parts of a run that is not over
"""

import contextlib
import dataclasses
import datetime
import glob
import hashlib
import importlib.metadata
import io
import json
import math
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

import kadam_jax
from experiments.core.errors import DamagedFile, Failed
from experiments.core.folders import locked

PACKAGES = ("jax", "jaxlib", "optax", "flax")
SCHEMA = 1
"""The schema number of datasets, which changes with the meaning of their content."""
SHA256_BYTES = 32
COMPRESSION = {"compression": "gzip", "compression_opts": 9, "shuffle": True}
UNCOMPRESSED_BYTES = 4096
"""Largest size, in bytes, of a variable that compression would only enlarge."""
PROJECT = Path(__file__).resolve().parents[2]
RESULTS = "experiments/committed"
"""The folder in the project of the datasets that come with the code."""
JSON_ATTRIBUTES = {"config": dict, "key_parts": dict, "overrides": list}
"""Attributes of a dataset that are JSON, and the types of their content."""


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` if the block succeeds and vanishes otherwise.

    Temporary folders of the same path that a killed process left are removed.

    Raises:
      OSError: If the disk is full, or the file cannot be written; it names `path`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with atomic(path) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> path.read_text(), [file.name for file in path.parent.iterdir()]
    ('whole', ['a.txt'])
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_left(path.parent, glob.escape(path.name))
        with (
            tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder,
            locked(Path(folder)),
        ):
            temporary = Path(folder) / path.name
            yield temporary
            temporary.replace(path)
    except OSError as error:
        if error.filename is not None and f".{path.name}." not in str(error.filename):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def remove_left(folder: Path, name: str = "*") -> None:
    """Remove what `atomic` left in a folder when its process was killed, by the file's name."""
    for left in folder.glob(f".{name}.*"):
        with contextlib.suppress(Failed), locked(left):  # not of a process that is still writing
            shutil.rmtree(left)


def check_writable(folder: Path, option: str = "--results") -> None:
    """Check that files can be written below a folder, without creating anything.

    Args:
      folder: The folder, which need not exist.
      option: The option of the command that names it.

    Raises:
      Failed: If the folder, or else its nearest existing parent, cannot be written to.
    """
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if there.is_symlink() and not there.exists():
        raise Failed(
            f"{there} is a link to {os.readlink(there)}, which does not exist; mount or make it, "
            f"or name another folder with {option}"
        )
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise Failed(f"{there} is not a folder that can be written to; name another with {option}")


def named(variable: Any, long_name: str, units: str = "1") -> xr.Variable | xr.DataArray:
    """Return a variable with its label and its units, for use where it is made.

    Args:
      variable: A DataArray, whose other attributes are dropped; a pair of dimensions and values; or
        a single number.
      long_name: Its label.
      units: Its units, "1" if it has none.

    >>> named(("step", [1, 2]), "steps done", "step").attrs
    {'long_name': 'steps done', 'units': 'step'}
    """
    attrs = {"long_name": long_name, "units": units}
    if isinstance(variable, xr.DataArray):
        variable = variable.copy(deep=False)
        variable.attrs = attrs
        return variable
    return xr.Variable(*(variable if isinstance(variable, tuple) else ((), variable)), attrs)


def over(dims: str | Sequence[str], rows: Mapping[str, Sequence[Any]]) -> dict[str, xr.Variable]:
    """Return labeled variables over the same dimensions, from a row for each.

    Args:
      dims: The dimensions.
      rows: Values, label and, if there are any, units by name, the label and units as in `named`.

    >>> over("step", {"loss": ([2.0, 1.0], "training loss", "nat")})["loss"].attrs
    {'long_name': 'training loss', 'units': 'nat'}
    """
    return {
        name: named((dims, np.asarray(values)), *label) for name, (values, *label) in rows.items()
    }


def coordinates(**rows: Sequence[Any]) -> dict[str, xr.Variable]:
    """Return labeled coordinates, each over the dimension of its own name, from rows as in `over`.

    >>> coordinates(rate=([0.1, 0.3], "learning rate η"))["rate"].dims
    ('rate',)
    """
    return {name: over(name, {name: row})[name] for name, row in rows.items()}


COORDINATES: Mapping[str, tuple[str, str]] = {
    "C": ("C(β, γ) = 2/γ - 1/β - 1", "1"),
    "b1": ("γ", "1"),
    "b2": ("β", "1"),
    "end": ("value, or end of its interval", "1"),
    "seed": ("seed", "1"),
    "step": ("optimizer steps done before, n", "step"),
}
"""long_name and units of coordinates that mean the same in every figure."""


def labeled(dataset: xr.Dataset) -> xr.Dataset:
    """Return the dataset with labels from `COORDINATES` on whatever has none of its own.

    Raises:
      KeyError: If a variable or coordinate has no label.
    """
    for name, variable in dataset.variables.items():
        if "long_name" not in variable.attrs:
            dataset[name].attrs = dict(zip(("long_name", "units"), COORDINATES[name], strict=True))
    return dataset


def file_sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checked(path: Path, content: bytes) -> None:
    """Write a file atomically, with the SHA-256 of its content appended.

    Readers of netCDF and of zip archives skip these bytes.
    """
    with atomic(path) as temporary:
        temporary.write_bytes(content + hashlib.sha256(content).digest())


def read_checked(path: Path) -> bytes:
    """Return the content of a file that `write_checked` wrote.

    Raises:
      FileNotFoundError: If there is no such file.
      DamagedFile: If it is anything else, or differs in a single bit.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if not path.is_file():  # reading a pipe would block
        raise DamagedFile(f"{path} is damaged: it is not a file")
    content = path.read_bytes()
    content, checksum = content[:-SHA256_BYTES], content[-SHA256_BYTES:]
    if hashlib.sha256(content).digest() != checksum:  # HDF5 can hang on unexpected content
        raise DamagedFile(f"{path} is damaged, or was not written by this program")
    return content


def write_dataset(path: Path, dataset: xr.Dataset) -> None:
    """Write netCDF-4 as `write_checked` does.

    The file is made in memory, because HDF5 itself does not survive a full disk.
    """
    encoding = {
        name: COMPRESSION for name, x in dataset.variables.items() if x.nbytes > UNCOMPRESSED_BYTES
    }
    dataset = dataset.assign_attrs(schema=SCHEMA)
    write_checked(path, bytes(dataset.to_netcdf(engine="h5netcdf", encoding=encoding)))


def read_dataset(path: str | Path) -> xr.Dataset:
    """Read a dataset into memory and close its file.

    Raises:
      FileNotFoundError: If there is no such file.
      DamagedFile: If it is not, bit for bit, one that `write_dataset` wrote, if it has another
        schema, or if an attribute's type is not the one that this version writes.
    """
    content = read_checked(Path(path))
    try:
        dataset = xr.load_dataset(io.BytesIO(content), engine="h5netcdf")
    except Exception as error:  # HDF5's readers raise anything for lookalike files
        raise DamagedFile(f"{path} is damaged: {error}") from error
    schema = dataset.attrs.pop("schema", None)
    if not (isinstance(schema, np.integer) and schema == SCHEMA):
        raise DamagedFile(
            f"{path} has schema {schema}, but this version reads {SCHEMA}; run it again"
        )
    if odd := [name for name, value in dataset.attrs.items() if not _is_written(name, value)]:
        raise DamagedFile(
            f"{path} was written by another version: its attributes {', '.join(odd)} are of "
            "another type; run it again"
        )
    return dataset


def _is_written(name: str, value: Any) -> bool:
    """Whether an attribute of a dataset has the type that this version writes."""
    if name == "wall_seconds":
        return isinstance(value, float) and math.isfinite(value)
    if not isinstance(value, str) or name not in JSON_ATTRIBUTES:
        return isinstance(value, str)
    try:
        held = json.loads(value)
    except (ValueError, RecursionError):
        return False
    if not isinstance(held, JSON_ATTRIBUTES[name]):
        return False
    texts = held.values() if isinstance(held, dict) else held
    return name == "config" or all(isinstance(text, str) for text in texts)


@dataclasses.dataclass(frozen=True)
class ChunkStore:
    """Finished chunks of a run.

    Attributes:
      folder: Where this run's chunks lie, and no other's: its name is the run's key.
    """

    folder: Path

    def path(self, sweep: str, start: int) -> Path:
        """Return the path of a sweep's chunk that begins with member `start`."""
        return self.folder / f"{sweep}-{start:06d}.npz"

    def save(self, sweep: str, start: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Write a chunk atomically."""
        content = io.BytesIO()
        np.savez(content, **arrays)
        write_checked(self.path(sweep, start), content.getvalue())

    def load(self, sweep: str, start: int) -> dict[str, np.ndarray] | None:
        """Return a chunk, or None if it was not finished.

        Raises:
          DamagedFile: If it is not, bit for bit, one that `save` wrote.
        """
        path = self.path(sweep, start)
        try:
            content = read_checked(path)
        except FileNotFoundError:
            return None
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return dict(arrays)
        except Exception as error:  # NumPy's readers do so too
            raise DamagedFile(f"{path} is damaged: {error}") from error

    def count(self) -> int:
        """Number of finished chunks."""
        return len(list(self.folder.glob("*.npz")))

    def clear(self) -> None:
        """Remove this run's chunks, and the parent folder if nothing else is left in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.parent.rmdir()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide the numbers."""
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    ours = kadam_jax.__version__  # known also for a copy that is not installed
    return {"python": platform.python_version(), **packages, "kadam_jax": ours}


def git_commit(folder: Path = PROJECT) -> str:
    """Return the commit, followed by `+dirty` if files differ from it, other than results.

    It is "unknown" outside git, and for a copy inside a repository that has none of its files.
    """
    return _commit(folder, [".", f":(exclude){RESULTS}"], "rev-parse", "HEAD")


def last_change(folder: Path, *files: str) -> str:
    """Return the last commit that changed one of a folder's files, in the form of `git_commit`."""
    return _commit(folder, files, "log", "-1", "--format=%H", "--", *files)


def _commit(folder: Path, files: Sequence[str], *command: str) -> str:
    def git(*arguments: str) -> str:
        words = ("git", "-C", str(folder), *arguments)
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if git("rev-parse", "--show-prefix") and not git("ls-files", "--", *files):
            return "unknown"
        return git(*command) + ("+dirty" if git("status", "--porcelain", "--", *files) else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def provenance(devices: Sequence[jax.Device], wall_seconds: float) -> dict[str, str | float]:
    """Return how a dataset was made, as netCDF attributes."""
    return {
        **{f"version_{name}": version for name, version in versions().items()},
        "device": f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})",
        "machine": platform.platform(),
        "git_commit": git_commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "wall_seconds": round(wall_seconds, 3),
    }
