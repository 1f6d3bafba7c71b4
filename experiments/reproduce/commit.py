"""Datasets that come with the code: small enough for its history, with unchanged verdicts.

Large arrays are the points of curves; most of their bits are noise that does not compress.
"""

import json
from pathlib import Path

import numpy as np
import xarray as xr

from experiments.core.errors import Failed
from experiments.core.store import write_dataset
from experiments.reproduce.pipeline import Place, read

BITS = 12
"""Bits that are kept of a significand: a relative error of at most 2^-12, or 2.5e-4."""
LARGE = 2**15
"""Arrays with at least this many bytes are rounded."""


def commit(where: Place) -> Path:
    """Write `where.committed` from the place's own dataset and return its path.

    Args:
      where: The figure and where its files are.

    Raises:
      FileNotFoundError: If there is no dataset.
      DamagedFile: If it is damaged or from another version.
      Failed: If it does not have the preset's current values, or if a verdict would change.
    """
    if not where.dataset.exists():
        raise FileNotFoundError(f"{where.dataset} does not exist; run it first")
    with read(where) as dataset:
        if json.loads(dataset.attrs["overrides"]):
            raise Failed(f"{where.dataset} differs from the preset: {dataset.attrs['overrides']}")
        small = rounded(dataset)
        for whole, now in zip(*map(where.figure.judge, (dataset, small)), strict=True):
            if whole.verdict != now.verdict:
                raise Failed(
                    f"{where.dataset}: {whole.claim.id} would read {now.verdict}, not "
                    f"{whole.verdict}, from rounded arrays"
                )
    write_dataset(where.committed, small)
    return where.committed


def rounded(dataset: xr.Dataset) -> xr.Dataset:
    """Return the dataset with large arrays of floats rounded to `BITS` of their significands.

    >>> x = xr.Dataset({"large": ("x", np.full(8192, np.pi)), "small": np.pi})
    >>> float(rounded(x).large[0]), float(rounded(x).small)
    (3.1416015625, 3.141592653589793)
    """

    def values(array: xr.DataArray) -> np.ndarray:
        significand, exponent = np.frexp(array.values)
        return np.ldexp(np.round(significand * 2**BITS) / 2**BITS, exponent)

    large = {
        name: array.copy(data=values(array))
        for name, array in dataset.data_vars.items()
        if array.dtype.kind == "f" and array.nbytes > LARGE
    }
    return dataset.assign(large).assign_attrs(
        rounded=f"{', '.join(map(str, large)) or 'nothing'}: {BITS} bits of every significand"
    )
