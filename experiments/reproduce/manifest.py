"""A list of a results folder's datasets, as one file to read, compare and copy."""

import json
from pathlib import Path
from typing import Any

from experiments.core.errors import DamagedFile
from experiments.core.store import atomic, file_sha256, read_dataset

MANIFEST = "manifest.json"
LISTED = (
    "key",
    "data_sha256",
    "command",
    "git_commit",
    "claims_commit",
    "rules",
    "date",
    "wall_seconds",
    "device",
)
"""Attributes of a dataset that are repeated in its entry."""


def write_manifest(folder: Path) -> Path:
    """Write `manifest.json` for the datasets of a preset and return its path.

    Args:
      folder: `<results>/<preset>`.

    Returns:
      The path of an object by figure: the attributes in `LISTED`; the digests that make up the key,
      so that two entries show how they differ; and the SHA-256 of the file. For a file that cannot
      be read, its entry says what is wrong.
    """
    written = None
    while written != (text := _text(folder)):  # another run may have ended in the meantime
        with atomic(folder / MANIFEST) as temporary:
            temporary.write_text(text)
        written = text
    return folder / MANIFEST


def is_listed(dataset: Path) -> bool:
    """Whether the `manifest.json` above a dataset can be read and lists this very file."""
    path = dataset.parent.parent / MANIFEST
    try:
        return path.is_file() and json.loads(path.read_bytes())[dataset.parent.name] == _entry(
            dataset
        )
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def _text(folder: Path) -> str:
    found = {path.parent.name: _entry(path) for path in folder.glob("*/data.nc")}
    entries = {name: entry for name, entry in found.items() if entry}
    return json.dumps(entries, indent=1, sort_keys=True) + "\n"


def _entry(path: Path) -> dict[str, Any]:
    try:
        attrs, sha256 = read_dataset(path).attrs, file_sha256(path)
    except DamagedFile as error:
        return {"problem": str(error)}
    except FileNotFoundError:  # removed since it was found
        return {}
    listed = {name: attrs[name] for name in LISTED if name in attrs}
    return listed | {"key_parts": json.loads(attrs.get("key_parts", "{}")), "sha256": sha256}
