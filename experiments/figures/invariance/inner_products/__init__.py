"""Inner products of queries and keys with gradients of other steps (Fig. 8)."""

from dataclasses import replace

from experiments.core.figure import Figure
from experiments.core.questions import SCALE_INVARIANCE
from experiments.figures.invariance.inner_products import claims, plot
from experiments.figures.invariance.inner_products.run import Config, compute
from experiments.training.config import LAPTOP_MINIMUM, LAPTOP_MODEL, PAPER_CORPUS, SMOKE_MODEL

FIGURE = Figure(
    name="inner_products",
    title="Inner products of queries and keys with gradients of other steps",
    paper="Fig. 8",
    question=SCALE_INVARIANCE,
    decided_by={"inner-products-vanish-toward-the-end": ""},
    caption="nanoGPT ({model.num_layers} layers, {model.num_heads} heads, width {model.width}) is "
    "trained on the {corpus} corpus by Adam with η = {learning_rate:g}, (β, γ) = ({b2:g}, {b1:g}), "
    "batch size {batch}, dropout {model.dropout:g}, N = {num_steps} steps and {num_seeds} seeds. "
    "For every head's query and key matrix, W_N is the weight at the end of the run and g_n is the "
    "gradient at step n of the same run. (a, b) |⟨W_N, g_n⟩| with and without qk-norm; (c) their "
    "cosine, which does not fall with ‖g_n‖, next to that of random directions; (d) the signed "
    "cosine's mean over slices and seeds versus the number of steps left, and the contribution of "
    "g_n itself to W_N. (e) The cosine of W_n and its own gradient, which is 0 under qk-norm up to "
    "LayerNorm's ε; (f) the size of the term -2⟨W, u⟩, which Assumption 1 drops, over the term "
    "that is kept: 2γ/(1-γ) for gradients that are noise. Medians are over slices "
    "and seeds.",
    presets={
        "smoke": Config(
            model=replace(SMOKE_MODEL, num_heads=2),
            batch=2,
            num_steps=60,
            num_seeds=2,
            exact_steps=10,
        ),
        "laptop": Config(model=replace(LAPTOP_MODEL, num_layers=2, num_heads=2)),
        "paper": Config(corpus=PAPER_CORPUS, batch=64, chunk_size=1),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={**LAPTOP_MINIMUM, "model.num_layers": 2, "num_steps": 1000},
)
