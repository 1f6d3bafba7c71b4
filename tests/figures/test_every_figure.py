"""Every figure, at smoke size: that its programs can be made under JAX's own switches."""

import jax
import numpy as np
import pytest

from experiments.core.run import Run
from experiments.core.store import ChunkStore
from experiments.data import load_corpus
from experiments.data.images import load_images
from experiments.figures import discover
from experiments.training.config import ImagesConfig, TrainingConfig

FIGURES = discover()


class Traced(Run):
    """A run whose sweeps trace their programs and give ones, of the right shapes and dtypes."""

    def sweep(self, name, fn, members, *, grid_shape=False, **_):
        columns = {key: np.asarray(column) for key, column in members.items()}
        texts = [key for key, column in columns.items() if column.dtype.kind == "U"]
        member = {
            key: jax.ShapeDtypeStruct(x.shape[1:], jax.dtypes.canonicalize_dtype(x.dtype))
            for key, x in columns.items()
            if key not in texts
        }
        for values in set(zip(*(columns[key] for key in texts), strict=True)) or {()}:
            fixed = dict(zip(texts, values, strict=True))
            results = jax.eval_shape(lambda member, fixed=fixed: fn(member | fixed), member)
        shape = members.shape if grid_shape else (len(next(iter(columns.values()))),)
        return {key: np.ones((*shape, *x.shape), x.dtype) for key, x in results.items()}


# Whose programs have what optax (schedules, bias correction) and flax (LayerNorm) mix themselves.
MIXED = {
    "annealing",
    "decay_search",
    "level_curve",
    "max_update",
    "normal_curves",
    "optimizer_comparison",
    "rate_sensitivity",
    "solver_cost",
    "strategies_images",
    "strategies_text",
}


def trace(figure, folder):
    """Makes all of a figure's programs at smoke size, and what is computed from them."""
    config = figure.presets["smoke"]
    corpus = load_corpus(config.corpus) if isinstance(config, TrainingConfig) else None
    images = load_images("digits", cache=folder) if isinstance(config, ImagesConfig) else None
    figure.compute(config, Traced(corpus, None, ChunkStore(folder), images=images))


@pytest.mark.parametrize("name", FIGURES)
def test_a_figures_programs_can_be_made_in_float64(name, tmp_path, x64):
    trace(FIGURES[name], tmp_path)


@pytest.mark.parametrize("name", sorted(FIGURES.keys() - MIXED))
def test_a_figures_programs_mix_no_dtypes(name, tmp_path):
    with jax.numpy_dtype_promotion("strict"):
        trace(FIGURES[name], tmp_path)
