"""The facts about each figure that `test_every_figure.py` checks, as data."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import pytest
import xarray as xr
from flax import nnx

from experiments.core.config import FigureConfig, to_json
from experiments.core.figure import Figure
from experiments.core.run import Run
from experiments.core.store import ChunkStore
from experiments.data import byte_corpus
from experiments.data.images import load_images
from experiments.figures import discover
from models.nanogpt import GPTConfig

CLAIMS = tuple(claim for figure in discover().values() for claim in figure.claims)
"""All claims; those of one figure are neighbors."""
CORPUS = byte_corpus("text", b"the quick brown fox jumps over the lazy dog. " * 40)
NETWORK = GPTConfig(vocab_size=256, context=8, num_layers=1, num_heads=1, width=8, dropout=0.1)


class Bigram(nnx.Module):
    """A stand-in for nanoGPT that compiles in a tenth of the time: each byte predicts the next."""

    def __init__(self, config, *, rngs):
        shape = (config.vocab_size, config.width)
        self.embedding, self.last = (
            nnx.Param(jax.random.normal(rngs.params(), shape) / 8) for _ in range(2)
        )

    def __call__(self, tokens, *, rngs=None, devices=1):
        return self.embedding[...][tokens] @ self.last[...].T


class MeanColor(nnx.Module):
    """A stand-in for the CNN: a linear function of an image's mean color."""

    def __init__(self, config, *, rngs):
        self.weights = nnx.Param(jax.random.normal(rngs.params(), (3, 10)) / 8)

    def __call__(self, images, *, rngs=None):
        return images.mean((1, 2)) @ self.weights[...]


SMALL_NETWORK = {
    "experiments.training.tasks.NanoGPT": Bigram,
    "experiments.training.tasks.CNN": MeanColor,
}


@dataclass(frozen=True)
class Contract:
    """One figure as the shared tests see it; each figure's test module has one as `CONTRACT`.

    Attributes:
      figure: The figure.
      config: Its smallest configuration.
      panels: How many panels each of its pages has.
      refused: Changes of `config` that raise an error with the first field's name, or pairs
        (changes, message).
      made_up: `made_up(**given)` makes a dataset of the laptop preset.
      cases: For each claim the arguments of `made_up` for data that support it, refute it and,
        where seeds give an interval, do neither.
      patches: Stand-ins, by the name that they replace while the smallest dataset is computed.
      strict: The default float widths at which its programs mix no dtypes: none if optax
        (schedules, bias correction) or flax (LayerNorm) mixes them, and not 64 if it computes
        with NumPy's numbers.
      diverged: Runs to judge and draw, each a value for every float in its results, and a width.
      comparison: Whether a diverged run is not evidence; elsewhere it may be an update that grew.
    """

    figure: Figure
    config: FigureConfig
    panels: Mapping[str, int]
    refused: Sequence[Any]
    made_up: Callable[..., xr.Dataset] | None = None
    cases: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    patches: Mapping[str, Any] = field(default_factory=dict)
    strict: Sequence[int] = (32, 64)
    diverged: Sequence[tuple[float, int]] = ((math.nan, 64),)
    comparison: bool = False

    def compute(self, folder: Path) -> xr.Dataset:
        """Compute the dataset of the smallest configuration."""
        images = load_images("digits", cache=folder) if hasattr(self.config, "dataset") else None
        run = Run(CORPUS, None, ChunkStore(folder), images=images)
        with pytest.MonkeyPatch.context() as patch:
            for name, stand_in in self.patches.items():
                patch.setattr(name, stand_in)
            data = self.figure.compute(self.config, run)
        return data.assign_attrs(config=to_json(self.config))
