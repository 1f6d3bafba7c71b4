"""Every figure, when every member of its sweeps has diverged."""

import jax
import numpy as np
import pytest

from experiments.core import plot as plotting
from experiments.core.claims import INCONCLUSIVE, judge
from experiments.core.config import to_json
from experiments.core.run import Run
from experiments.core.store import ChunkStore
from experiments.data import load_corpus
from experiments.data.images import load_images
from experiments.figures import discover
from experiments.training.config import ImagesConfig, TrainingConfig
from tests.figures.claim_cases import CLAIMS

FIGURES = discover()


class Diverged(Run):
    """Sweeps without training: what they would give, all of it infinite or NaN."""

    bad = np.nan

    def sweep(self, name, fn, members, *, grid_shape=False, **_):
        num = len(next(iter(members.values())))
        lead = members.shape if grid_shape else (num,)
        member = {key: jax.ShapeDtypeStruct((), np.asarray(x).dtype) for key, x in members.items()}
        return {
            key: np.full((*lead, *x.shape), self.bad if x.dtype.kind == "f" else 0, x.dtype)
            for key, x in jax.eval_shape(fn, member).items()
        }


COMPARISONS = {
    "decay_search",
    "noise_robustness",
    "optimizer_comparison",
    "rate_sensitivity",
    "strategies_images",
    "strategies_text",
}
"""Figures in which a diverged run is no evidence; elsewhere it may be an update that grew."""
CASES = [(name, np.nan) for name in FIGURES] + [
    (name, np.inf) for name in ("max_update", "norm_dynamics", "strategies_text")
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN and infinities
@pytest.mark.parametrize(("name", "bad"), CASES)
def test_a_figure_of_diverged_members_is_judged_and_drawn(name, bad, tmp_path, monkeypatch):
    monkeypatch.setattr(Diverged, "bad", bad)
    figure = FIGURES[name]
    config = figure.presets["smoke"]
    corpus = load_corpus(config.corpus) if isinstance(config, TrainingConfig) else None
    images = (
        load_images(config.dataset, cache=tmp_path) if isinstance(config, ImagesConfig) else None
    )
    data = figure.compute(config, Diverged(corpus, None, ChunkStore(tmp_path), images=images))
    data.attrs["config"] = to_json(config)
    for claim in (claim for claim in CLAIMS if claim.figure == name):
        judged = judge(claim, data, {})
        assert name not in COMPARISONS or judged.verdict == INCONCLUSIVE
    with plotting.style():
        for canvas in figure.plot(data).values():
            plotting.mend_empty_axes(canvas)
            canvas.draw_without_rendering()
