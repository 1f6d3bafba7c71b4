"""Hours that figures would take on accelerators, estimated from their operations.

No figure runs. Their functions are traced, and the operations of matrix products and convolutions
are counted; those of everything else are a small share of a training step. With a chip, the memory
of a chunk of members is read from the program compiled for that chip, which need not be there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from experiments.bench import _figures, _memory, _topologies
from experiments.bench._flops import CountingRun, num_members
from experiments.bench._measuring import Bench, BenchConfig, Table
from experiments.core.config import PRESETS, preset_of
from experiments.core.errors import ConfigError, Failed, say
from experiments.core.figure import Figure
from experiments.core.progress import progress
from experiments.data import Corpus
from experiments.data.images import Images, load_images
from experiments.data.loading import Data
from experiments.data.text import NUM_SHARDS, SHARD, read_corpus, split_name, tokenizer_of
from experiments.figures import discover
from experiments.training.config import CACHE, ImagesConfig, TrainingConfig
from models.cnn import IMAGE_SHAPE

PEAKS = {"one H100": 495e12, "a v5e-16": 16 * 197e12}
"""Operations a second for products of float32 at JAX's default precision, which is TensorFloat-32
on an H100 and bfloat16 on a TPU, by the vendors' data sheets."""
CIFAR10 = {"train": 45_000, "validation": 5000, "test": 10_000}
"""Images in each split."""
CPU = "cpu"


@dataclass(frozen=True)
class HoursBenchConfig(BenchConfig):
    """The configuration.

    Attributes:
      figures: Names of figures, or "all".
      preset: The size of the figures.
      share: The share of its peak at which a chip computes.
      chip: The topology, such as v5e:2x2, v5p:2x2x1 or h100:1, for one of whose chips the largest
        program of each figure is compiled; "cpu" for this machine's; None for no compilation.
      gpu_target: As in `bench scale`.
      at_once: Members on that chip at once, or all if there are fewer; None for the figure's
        chunk_size.
    """

    figures: tuple[str, ...] = (_figures.ALL,)
    preset: str = "paper"
    share: float = 0.4
    chip: str | None = None
    gpu_target: Path | None = None
    at_once: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.preset not in PRESETS:
            raise ConfigError(f"preset must be among {', '.join(PRESETS)}; got {self.preset!r}")
        if self.share > 1:
            raise ConfigError(f"share must be at most 1, got {self.share}")
        if self.chip and self.chip != CPU:
            _topologies.platform_of(self.chip, "chip")
        if self.at_once and not self.chip:
            raise ConfigError(f"at_once={self.at_once} needs a chip, such as chip=v5e:2x2")
        _figures.check(self.figures)


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


def _corpus(name: str) -> Corpus:
    """Read a corpus; in place of C4, return as many tokens, without content or a download."""
    if split_name(name)[0] != "c4":
        return read_corpus(name, cache=Path(CACHE))
    size = tokenizer_of(name).vocab_size
    counts = NUM_SHARDS * SHARD, SHARD // 8  # a validation shard is an eighth of one for training
    tokens = (np.zeros(count, np.min_scalar_type(size - 1)) for count in counts)
    return Corpus("blank", *tokens, size, "")


def counted(figure: Figure, preset: str, at_once: int | None = None) -> CountingRun:
    """Return the counted operations of a figure's sweeps; without data it trains nothing."""
    config, run = preset_of(figure.presets, preset, figure.name), CountingRun(at_once=at_once)
    if not isinstance(config, TrainingConfig | ImagesConfig):
        return run
    if isinstance(config, TrainingConfig):
        run.corpus = _corpus(config.corpus)
    if isinstance(config, ImagesConfig):
        run.images = load_images("digits", cache=Path()) if config.dataset == "digits" else _blank()
    figure.compute(config, run)
    return run


def run(config: HoursBenchConfig) -> Sequence[Table]:
    """Count the operations of figures, the longest first."""
    every, device = discover(), _device(config)
    names = _figures.chosen(config.figures, config.preset)
    rows = []
    with progress("bench hours", len(names)) as advance:
        for name in names:
            try:
                of = counted(every[name], config.preset, config.at_once)
            except Failed as error:
                say(f"{name} is left out: {error}")
            else:
                if of.flops:
                    rows.append((name, of.members, of.flops, *_memory_of(of, device)))
            advance(1)
    seconds = {chip: 1 / (config.share * peak) for chip, peak in PEAKS.items()}
    cells = [
        (name, members, flops / 1e15, *(flops * each / 3600 for each in seconds.values()), *memory)
        for name, members, flops, *memory in sorted(rows, key=lambda row: -row[2])
    ]
    columns = ["figure", "members", "10^15 operations", *(f"hours on {chip}" for chip in PEAKS)]
    note = NOTE.format(config)
    if device:
        columns += ["members at once", f"GiB on {config.chip}"]
        note += MEMORY_NOTE.format(config)
    return [Table(f"Figures at {config.preset}, estimated", columns, cells, note)]


def _device(config: HoursBenchConfig) -> jax.Device | None:
    """Return the chip that is compiled for, if any.

    Raises:
      Failed: If its compiler is not installed.
    """
    if config.chip is None:
        return None
    if config.chip == CPU:
        return jax.devices(CPU)[0]
    if what := _topologies.missing(config.chip, config.gpu_target):
        raise Failed(
            f"chip={config.chip} needs {what}; chip={CPU} compiles for this machine instead"
        )
    return _topologies.devices(config.chip, config.gpu_target)[0]


def _memory_of(of: CountingRun, device: jax.Device | None) -> tuple[()] | tuple[int, float | str]:
    """Return the members of the largest chunk and its GiB on the chip, if there is one."""
    if device is None:
        return ()
    chunk = _memory.largest(of.chunks.items())
    peak = _memory.peak(chunk, device)
    return num_members(chunk[1]), "does not fit" if peak is None else peak / 2**30


NOTE = (
    "Estimated, not run: operations of matrix products and convolutions in the traced programs, at "
    "{0.share:.0%} of the chips' peak, with members on all chips of a v5e-16. Members that stop "
    "early count as far as they run. Figures without training are left out, and so are compilation "
    "and NumPy's part."
)
MEMORY_NOTE = (
    " Memory is that of the program whose trace has the most bytes, compiled for one chip of "
    "{0.chip} and not run: data, results and temporaries of a chunk. Its members are side by side, "
    "or in turn on a CPU."
)

BENCH = Bench("hours", HoursBenchConfig(), run)
