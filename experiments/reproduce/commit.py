"""Datasets that come with the code: small enough for its history, with the verdicts of the whole.

Large arrays are what curves are drawn from; most of their bits are noise that does not compress.
"""

import json
from pathlib import Path

import numpy as np
import xarray as xr

from experiments.core.claims import judge
from experiments.core.errors import Failed
from experiments.core.store import write_dataset
from experiments.reproduce.pipeline import Place, read

BITS = 12
"""What is kept of a significand: an error of at most 2^-12, 2.5e-4, of each number."""
LARGE = 2**15
"""Bytes of an array that is rounded."""


def commit(where: Place) -> Path:
    """Writes `where.committed` from the place's own dataset, and returns its path.

    Args:
      where: The figure and where its files lie.

    Raises:
      FileNotFoundError: If there is no dataset.
      DamagedFile: If it is damaged or of another version.
      Failed: If it is not of the preset as it is, or a verdict would be another one.
    """
    if not where.dataset.exists():
        raise FileNotFoundError(f"{where.dataset} does not exist; run it first")
    with read(where) as dataset:
        if json.loads(dataset.attrs["overrides"]):
            raise Failed(f"{where.dataset} is not of the preset: {dataset.attrs['overrides']}")
        small = rounded(dataset)
        for claim in where.figure.claims:
            whole, now = (judge(claim, x, where.figure.minimum) for x in (dataset, small))
            if whole.verdict != now.verdict:
                raise Failed(
                    f"{where.dataset}: {claim.id} would read {now.verdict}, not "
                    f"{whole.verdict}, from rounded arrays"
                )
    write_dataset(where.committed, small)
    return where.committed


def rounded(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset with large arrays of floats rounded to `BITS` of their significands.

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
