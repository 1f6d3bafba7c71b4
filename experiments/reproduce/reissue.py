"""Committed datasets under the key of the current code, if its numbers are the previous code's.

The equality is checked: the smoke dataset of the current code must be equal, to the bit, to the one
that the previous code left in another results folder.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
import xarray as xr

from experiments.core.config import digest, to_json
from experiments.core.errors import Failed
from experiments.core.store import git_commit, read_dataset, write_dataset
from experiments.reproduce.pipeline import (
    Place,
    code_digest,
    folder_of,
    place,
    rules_of,
    run_figure,
)

SMOKE = "smoke"
CIRCUMSTANCES = (
    *("key", "key_parts", "claims_commit", "rules", "command", "note"),
    *("git_commit", "date", "wall_seconds", "device", "machine"),
)
"""Attributes, besides versions, in which equal datasets may differ."""


def reissue(
    places: Iterable[Place], results: Path, before: Path, devices: Sequence[jax.Device]
) -> Iterator[Path]:
    """Give committed datasets the current code's key and rules, and yield their paths.

    Their arrays do not change, nor does the commit of their run; labels that were those of the
    previous smoke dataset become the current ones. The attribute `reissued` has the commit whose
    numbers were compared with the previous ones, and the previous commit.

    Args:
      places: Figures, each with the preset of the committed dataset.
      results: The results folder that has, or gets, smoke datasets of the current code.
      before: The results folder that the previous code has written.
      devices: Members are spread over them.

    Raises:
      FileNotFoundError: If a figure has no committed dataset, or no previous smoke dataset.
      DamagedFile: If one of them is damaged.
      Failed: If files differ from their commit; and, in the end, if datasets differ, in which case
        these stay unchanged.
    """
    commit = git_commit()
    if commit.endswith("+dirty"):
        raise Failed(f"{commit}: commit what has changed first; keys are of the committed code")
    refused = []
    for where in places:
        figure = where.figure
        old = read_dataset(place(before, figure, SMOKE).dataset)
        new, _ = run_figure(place(results, figure, SMOKE), figure.presets[SMOKE], devices)
        committed = read_dataset(where.committed)
        found = differences(old, new)
        if committed.attrs["config"] != to_json(figure.presets[where.preset]):
            found += [f"{where.committed} has another configuration"]
        if found:
            refused += [f"{figure.name}: {'; '.join(found)}"]
            continue
        parts = json.loads(committed.attrs["key_parts"]) | {"code": code_digest(folder_of(figure))}
        committed.attrs |= rules_of(figure) | {
            "key": digest(figure.name, *parts.values()),
            "key_parts": json.dumps(parts),
            "reissued": f"{commit}, equal at {SMOKE} size to {old.attrs['git_commit']}",
        }
        for name, variable in committed.variables.items():  # labels may hold a preset's numbers
            if name in old.variables and variable.attrs == old.variables[name].attrs:
                variable.attrs = dict(new.variables[name].attrs)
        write_dataset(where.committed, committed)
        yield where.committed
    if refused:
        raise Failed("numbers have changed, compute these again:\n" + "\n".join(refused))


def differences(old: xr.Dataset, new: xr.Dataset) -> list[str]:
    """List what differs between two datasets besides circumstances; numbers must have equal bits.

    >>> old = xr.Dataset({"x": ("n", [1.0, 2.0])}, attrs={"date": "now"})
    >>> differences(old, old.assign_attrs(date="then"))
    []
    >>> differences(old, old.assign(x=old.x + [0, 0.5], y=0).assign_attrs(seeds="new"))
    ['attribute seeds', 'x: 1 of 2 values, by at most 0.5', 'y: missing in one']
    """
    attrs = sorted({*old.attrs, *new.attrs} - {*CIRCUMSTANCES})
    found = [
        f"attribute {name}"
        for name in attrs
        if not name.startswith("version_") and old.attrs.get(name) != new.attrs.get(name)
    ]
    for name in sorted({*old.variables, *new.variables}):
        if name not in old.variables or name not in new.variables:
            found.append(f"{name}: missing in one")
        elif how := _difference(old.variables[name], new.variables[name]):
            found.append(f"{name}: {how}")
    return found


def _difference(old: xr.Variable, new: xr.Variable) -> str:
    """Say how two variables differ, or "": the sign of 0 or of NaN counts, words do not."""
    if (old.dims, old.shape, old.dtype) != (new.dims, new.shape, new.dtype):
        return "another shape or type"
    if old.dtype.kind not in "biuf":
        return "" if old.equals(new) else "other values"
    bits = f"V{old.dtype.itemsize}"
    other = np.ravel(old.values).view(bits) != np.ravel(new.values).view(bits)
    if not other.any():
        return ""
    apart = np.abs(old.values.astype(float) - new.values.astype(float))
    return f"{other.sum()} of {old.size} values, by at most {np.nanmax(apart):.3g}"
