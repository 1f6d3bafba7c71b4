"""core/run.py: a figure's sweeps and the chunks that they keep."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.core.run import Run
from experiments.core.store import ChunkStore
from kadam_jax import points

NAMES = st.lists(st.sampled_from(["adam", "kadam", "kadam-000000", "first_adam"]), max_size=6)


@given(NAMES)
@settings(max_examples=30)
def test_a_name_is_swept_once_in_each_run(names):
    """Otherwise the second sweep would get the first one's chunks, whatever its members are."""
    with tempfile.TemporaryDirectory() as folder:
        store = ChunkStore(Path(folder))
        run = Run(None, None, store)
        for place, name in enumerate(names):
            members = points(x=place + np.arange(2.0, dtype=np.float32))
            if name in names[:place]:
                with pytest.raises(ValueError, match=f"name='{name}' was already swept"):
                    run.sweep(name, dict, members, chunk_size=1)
            else:
                found = run.sweep(name, dict, members, chunk_size=1)
                np.testing.assert_array_equal(found["x"], members["x"])
        for name in set(names):  # a run that continues has the same names
            first = names.index(name) + np.arange(2.0, dtype=np.float32)
            again = Run(None, None, store).sweep(name, dict, points(x=first), chunk_size=1)
            np.testing.assert_array_equal(again["x"], first)
