"""Hours that figures would take on accelerators: an estimate, from the operations that they take.

No figure runs. Their functions are traced, and the operations of matrix products and convolutions
are counted; those of everything else are a small share of a training step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.bench._flops import CountingRun
from experiments.bench._measuring import Bench, BenchConfig, Table
from experiments.core.config import PRESETS, preset_of
from experiments.core.errors import ConfigError, Failed, say
from experiments.core.figure import Figure
from experiments.core.progress import progress
from experiments.data import load_corpus
from experiments.data.images import Images, load_images
from experiments.data.loading import Data
from experiments.figures import discover
from experiments.training.config import ImagesConfig, TrainingConfig
from models.cnn import IMAGE_SHAPE

PEAKS = {"one H100": 495e12, "a v5e-16": 16 * 197e12}
"""Operations a second for products of float32 at JAX's default precision, which is TensorFloat-32
on an H100 and bfloat16 on a TPU, by the vendors' data sheets."""
CIFAR10 = {"train": 45_000, "validation": 5000, "test": 10_000}
"""Images in each split."""
ALL = "all"


@dataclass(frozen=True)
class HoursBenchConfig(BenchConfig):
    """The configuration.

    Attributes:
      figures: Names of figures, or "all".
      preset: The size of the figures.
      share: The share of its peak at which a chip computes.
    """

    figures: tuple[str, ...] = (ALL,)
    preset: str = "paper"
    share: float = 0.4

    def __post_init__(self):
        super().__post_init__()
        if self.preset not in PRESETS:
            raise ConfigError(f"preset must be among {', '.join(PRESETS)}; got {self.preset!r}")
        if self.share > 1:
            raise ConfigError(f"share must be at most 1, got {self.share}")
        for name in self.figures:
            if name not in (known := (ALL, *discover())):
                raise ConfigError(f"figures must be among {', '.join(known)}; got {name!r}")


def _blank() -> Data:
    """Return as many images as CIFAR-10 has, without content, so that nothing is downloaded."""
    splits = {
        name: Images(
            np.zeros((size, *IMAGE_SHAPE), np.uint8),
            np.zeros(size, np.int32),
            np.zeros(3, np.float32),
            np.ones(3, np.float32),
        )
        for name, size in CIFAR10.items()
    }
    return Data("blank", "", splits.pop("train"), splits, {})


def counted(figure: Figure, preset: str) -> CountingRun:
    """Return the counted operations of a figure's sweeps; without data it trains nothing."""
    config, run = preset_of(figure.presets, preset, figure.name), CountingRun()
    if not isinstance(config, TrainingConfig | ImagesConfig):
        return run
    if isinstance(config, TrainingConfig):
        run.corpus = load_corpus(config.corpus)
    if isinstance(config, ImagesConfig):
        run.images = load_images("digits", cache=Path()) if config.dataset == "digits" else _blank()
    figure.compute(config, run)
    return run


def run(config: HoursBenchConfig) -> Sequence[Table]:
    """Count the operations of figures, the longest first."""
    every, found = discover(), {}
    having = [name for name, figure in every.items() if config.preset in figure.presets]
    names = having if ALL in config.figures else config.figures
    with progress("bench hours", len(names)) as advance:
        for name in names:
            try:
                found[name] = counted(every[name], config.preset)
            except Failed as error:
                say(f"{name} is left out: {error}")
            advance(1)
    longest = sorted(found.items(), key=lambda item: -item[1].flops)
    seconds = {chip: 1 / (config.share * peak) for chip, peak in PEAKS.items()}
    rows = [
        (name, of.members, of.flops / 1e15, *(of.flops * each / 3600 for each in seconds.values()))
        for name, of in longest
        if of.flops
    ]
    columns = ("figure", "members", "10^15 operations", *(f"hours on {chip}" for chip in PEAKS))
    return [Table(f"Figures at {config.preset}, estimated", columns, rows, NOTE.format(config))]


NOTE = (
    "Estimated, not run: operations of matrix products and convolutions in the traced programs, at "
    "{0.share:.0%} of the chips' peak, with members on all chips of a v5e-16. Members that stop "
    "early count as far as they run. Figures without training are left out, and so are compilation "
    "and NumPy's part."
)

BENCH = Bench("hours", HoursBenchConfig(), run)
