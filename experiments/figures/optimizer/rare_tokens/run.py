"""Which optimizers learn the rare tokens of a text in byte pairs; not in the paper.

The losses of test targets are averaged in bins by how often the target occurs in the training text,
as by F. Kunstner, R. Yadav, A. Milligan, M. Schmidt and A. Bietti, "Heavy-tailed class imbalance
and why Adam outperforms gradient descent on language models", NeurIPS 2024 (arXiv 2402.19449).
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from experiments.core.config import check_least, check_names, require
from experiments.core.run import Run
from experiments.core.stats import mean, number, paired_mean
from experiments.core.store import coordinates, labeled, named
from experiments.data import Corpus
from experiments.figures.optimizer.contender_table import CONTENDERS, SGD
from experiments.figures.optimizer.problems import Problem, problem, text_crops
from experiments.figures.optimizer.protocol import SearchedConfig, results, searched
from experiments.training.config import LAPTOP_MODEL
from experiments.training.optimizers import ADAMW
from experiments.training.tasks import check_corpus
from models.nanogpt import GPTConfig

ROWS = {
    name: CONTENDERS[name] for name in (ADAMW, "kadam_2", "kadam_2_scaled", "muon", "muon_before")
} | {"sgd": SGD}
"""The contenders by name."""
PAIRS_MODEL = dataclasses.replace(LAPTOP_MODEL, vocab_size=4096)
"""The laptop's network for byte pairs."""


@dataclasses.dataclass(frozen=True)
class Config(SearchedConfig):
    """The configuration; model.vocab_size is the corpus's number of tokens.

    Attributes:
      contenders: Who is compared, always including "adamw".
      num_bins: Bins of target tokens, from the rarest in the training text to the most frequent,
        with about the same number of test targets.
    """

    corpus: str = "embedded_pairs"
    model: GPTConfig = PAIRS_MODEL
    contenders: tuple[str, ...] = tuple(ROWS)
    num_bins: int = 5

    def __post_init__(self):
        super().__post_init__()
        check_names(self, "contenders", ROWS, ADAMW)
        check_least(self, num_bins=2)


class Bins:
    """Bins of tokens by their number in the training text.

    Attributes:
      crops: Test crops, (num_batches, batch, context + 1).
      counts: Number of each token in the training text, (vocab_size,).
      of_token: The bin of each token, (vocab_size,).
      of_target: The bin of each crop's targets, (num_batches, batch, context).
      sizes: Number of targets in each bin, (num_bins,).
    """

    def __init__(self, corpus: Corpus, crops: np.ndarray, num_bins: int):
        targets = crops[..., 1:]
        self.crops = crops
        self.counts = np.bincount(corpus.tokens_train, minlength=corpus.vocab_size)
        self.of_token = frequency_bins(self.counts, targets, num_bins)
        self.of_target = self.of_token[targets]
        self.sizes = np.bincount(self.of_target.ravel(), minlength=num_bins)

    def measured(self, of: Problem) -> Problem:
        """Return the problem whose measures include `bin_loss`, the mean loss in each bin."""

        def measure(params, state):
            def losses(tokens):
                return of.task.token_losses(params, state, tokens)

            found = jax.lax.map(losses, jnp.asarray(self.crops))
            places = jnp.asarray(self.of_target.ravel())
            sums = jax.ops.segment_sum(found.ravel(), places, len(self.sizes))
            return {**of.measure(params, state), "bin_loss": sums / self.sizes}

        return of._replace(measure=measure)

    def labels(self) -> dict[str, xr.Variable]:
        """Return the bins' coordinates."""
        places = np.arange(len(self.sizes))
        vocabulary = np.bincount(self.of_token, minlength=len(places))
        most = [self.counts[self.of_token == place].max(initial=0) for place in places]
        return coordinates(bin=(places, "bin of targets, the rarest first")) | {
            "bin_share": named(("bin", self.sizes / self.sizes.sum()), "share of the test targets"),
            "bin_tokens": named(("bin", vocabulary), "tokens of the vocabulary"),
            "bin_count": named(("bin", most), "largest number of a token in the training text"),
        }


def frequency_bins(counts: np.ndarray, targets: np.ndarray, num_bins: int) -> np.ndarray:
    """Return the bin of each token, 0 for the rarest; bins have about equally many targets.

    Tokens with the same number are in the same bin, so bins differ in size.

    Args:
      counts: Number of each token in the training text, (vocab_size,).
      targets: Tokens, of any shape.
      num_bins: Number of bins.

    >>> counts = np.array([9, 1, 1, 4])
    >>> frequency_bins(counts, targets=np.array([0, 0, 1, 2, 3, 3]), num_bins=3).tolist()
    [2, 0, 0, 1]
    """
    ends = np.quantile(counts[targets], np.arange(1, num_bins) / num_bins)
    return np.searchsorted(ends, counts)


def compute(config: Config, run: Run) -> xr.Dataset:
    """Search and test every contender, one program for each; then `analyze`."""
    corpus, size = check_corpus(run.corpus, config.model), config.model.vocab_size
    rule = f"model.vocab_size must be {corpus.vocab_size}, the number of the corpus's tokens"
    require(size == corpus.vocab_size, rule, size)
    bins = Bins(corpus, text_crops(config, config.model, corpus)[1], config.num_bins)
    rule = "num_bins must be small enough for each bin to have test targets"
    require(bins.sizes.all(), rule, config.num_bins)
    of = bins.measured(problem(config, "text", run))
    arms = [_contender(config, run, name, of) for name in config.contenders]
    data = xr.concat(arms, "arm").isel(task=0, drop=True).assign_coords(bins.labels())
    return analyze(data, corpus.bytes_per_token)


def _contender(config: Config, run: Run, name: str, of: Problem) -> xr.Dataset:
    its = searched(config, run, name, ROWS[name], of)
    losses = its.fresh["bin_loss"][None]
    label = "test loss of the targets in a bin, fresh seeds"
    return results(config, name, ROWS[name], "text", of, its).assign(
        bin_loss=named((("arm", "task", "seed", "bin"), losses), label, "nat/token")
    )


def analyze(data: xr.Dataset, bytes_per_token: float) -> xr.Dataset:
    """Compute the figure's dataset.

    Args:
      data: What every contender was given and what came out, by arm.
      bytes_per_token: Divisor that turns a loss per token into a loss per byte.

    Returns:
      The data with gains over AdamW, of all test targets and of those in each bin, and the numbers
      of the figure.
    """
    gains = (data.loss.sel(arm=ADAMW, drop=True) - data.loss).transpose("arm", "seed").values
    by_bin = data.bin_loss.sel(arm=ADAMW, drop=True) - data.bin_loss
    by_bin = by_bin.transpose("arm", "bin", "seed").values
    adamw = data.loss.sel(arm=ADAMW).values
    return labeled(
        data.assign(
            gain=number(
                [paired_mean(gain) for gain in gains],
                "test loss of AdamW minus the arm's, mean over fresh seeds",
                "nat/token",
                ["arm"],
            ),
            bin_gain=number(
                [[paired_mean(gain) for gain in of_arm] for of_arm in by_bin],
                "the same for targets in a bin",
                "nat/token",
                ["arm", "bin"],
            ),
            settings=named(data.sizes["candidate"], "settings each contender tries"),
            bytes_per_token=named(bytes_per_token, "bytes of held-out text for each token", "B"),
            adamw_loss=number(mean(adamw), "test loss of AdamW", "nat/token"),
            adamw_loss_per_byte=number(
                mean(adamw / bytes_per_token), "test loss of AdamW by byte", "nat/B"
            ),
        )
    )
