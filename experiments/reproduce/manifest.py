"""What lies in a results folder, as one file to read, compare and copy along."""

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
"""Attributes of a dataset that its entry repeats."""


def write_manifest(folder: Path) -> Path:
    """Writes `manifest.json` for the datasets of a preset and returns its path.

    Args:
      folder: `<results>/<preset>`.

    Returns:
      The path of an object by figure: what `LISTED` names, the digests that the key is made of,
      so that two entries show what they differ in, and the SHA-256 of the file; or what is wrong
      with it.
    """
    written = None
    while written != (text := _text(folder)):  # another run may have ended meanwhile
        with atomic(folder / MANIFEST) as temporary:
            temporary.write_text(text)
        written = text
    return folder / MANIFEST


def is_listed(dataset: Path) -> bool:
    """Whether the `manifest.json` above a dataset can be read and has this very file."""
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
    except FileNotFoundError:  # gone since it was found
        return {}
    listed = {name: attrs[name] for name in LISTED if name in attrs}
    return listed | {"key_parts": json.loads(attrs.get("key_parts", "{}")), "sha256": sha256}
