"""Data that tests of several of these figures train on."""

from pathlib import Path

import pytest

from experiments.data.images import Images, load_images
from experiments.data.loading import Data


@pytest.fixture(scope="session")
def few_images():
    """A hundred of the digits in each split."""
    full = load_images("digits", cache=Path("unused"))

    def few(split):
        return Images(split.pixels[:100], split.labels[:100], split.mean, split.std)

    heldout = {name: few(split) for name, split in full.heldout.items()}
    return Data(full.name, full.sha256, few(full.train), heldout, full.info)
