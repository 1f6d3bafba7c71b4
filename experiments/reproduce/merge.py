"""Results of several machines in one folder: datasets as they are, and chunks of shared runs.

Nothing is copied before everything has been read and found to fit.
"""

import json
import shutil
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from experiments.core.config import PRESETS
from experiments.core.errors import DamagedFile, Failed
from experiments.core.store import IDENTITY, SCHEMA, atomic, read_dataset

COMPARED = {"schema": "schema", "config": "configuration", "data_sha256": "data's hash"}
"""What must be equal for two results to be of one thing, in words."""


def merge(source: Path, results: Path, figures: Container[str]) -> list[Path]:
    """Takes the datasets and finished chunks of another results folder over.

    Chunks of one run that several machines have shared come together; the next `run` of the same
    command finds them and computes what is still missing.

    Args:
      source: The other folder.
      results: This one.
      figures: Names of the figures there are.

    Returns:
      What has been written here; what was here already is left alone.

    Raises:
      Failed: If the other folder holds no results, a figure or preset is unknown, or results of
        the same ones differ in configuration, data, schema, code or versions.
      DamagedFile: If a file of the other folder is damaged.
    """
    found = {folder: files for folder in sorted(source.glob("*/*")) if (files := _results(folder))}
    if not found:
        raise Failed(f"{source} holds no results; give the folder that --results named")
    missing: list[tuple[Path, Path]] = []
    for folder, files in found.items():
        here = results / folder.relative_to(source)
        if folder.name not in figures:
            raise Failed(f"{files[0]} is of a figure that this version does not have")
        if folder.parent.name not in PRESETS:
            raise Failed(f"{files[0]} is of no preset; there are {', '.join(PRESETS)}")
        mine = {file: identity(file) for file in _results(here)}
        for file in files:
            target = here / file.relative_to(folder)
            theirs = identity(file)
            _check_same(file, theirs, mine if target not in mine else {target: mine[target]})
            finished = mine.get(here / "data.nc", {})
            if target in mine or finished.get("key") == theirs.get("key"):
                continue
            missing += [(file, target)]
            if file.suffix == ".npz":
                missing += [(file.parent / IDENTITY, target.parent / IDENTITY)]
    for file, target in missing:
        with atomic(target) as temporary:
            shutil.copyfile(file, temporary)
    return sorted({target for _, target in missing})


def identity(file: Path) -> dict[str, Any]:
    """What a dataset or a chunk is, by the attributes that say so.

    Raises:
      DamagedFile: If it is damaged or of another schema.
    """
    if file.suffix == ".nc":
        return {"schema": SCHEMA, **read_dataset(file).attrs}
    try:
        found = dict(json.loads((file.parent / IDENTITY).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise DamagedFile(f"{file.parent / IDENTITY} is damaged ({error})") from error
    if found.get("schema") != SCHEMA:
        raise DamagedFile(f"{file} has schema {found.get('schema')}, this version reads {SCHEMA}")
    return found


def _results(folder: Path) -> list[Path]:
    """The dataset and the chunks of one figure and preset."""
    return sorted([*folder.glob("data.nc"), *folder.glob("chunks/*/*.npz")])


def _check_same(
    file: Path, theirs: Mapping[str, Any], mine: Mapping[Path, Mapping[str, Any]]
) -> None:
    """Raises unless nothing is here, or some of the same run, whatever older runs left."""
    if not mine or any(found.get("key") == theirs.get("key") for found in mine.values()):
        return
    here, its = next(iter(mine.items()))
    other = [words for name, words in COMPARED.items() if theirs.get(name) != its.get(name)]
    what = " and ".join(other) or "code or the versions that computed it"
    raise Failed(
        f"{file} does not belong with {here}: they differ in the {what}; merge into another "
        "folder, or remove one of them"
    )
