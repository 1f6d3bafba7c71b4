"""What lies in a results folder, as one file to read, compare and copy along."""

import hashlib
import json
from pathlib import Path
from typing import Any

from experiments.results import DamagedFile, atomic, read_dataset

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
    entries = {path.parent.name: _entry(path) for path in sorted(folder.glob("*/data.nc"))}
    with atomic(folder / MANIFEST) as temporary:
        temporary.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n")
    return folder / MANIFEST


def _entry(path: Path) -> dict[str, Any]:
    try:
        attrs = read_dataset(path).attrs
    except DamagedFile as error:
        return {"problem": str(error)}
    listed = {name: attrs[name] for name in LISTED if name in attrs}
    parts = json.loads(attrs.get("key_parts", "{}"))
    return listed | {
        "key_parts": parts,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
