"""Inner products of queries and keys with gradients of other steps (Fig. 8)."""

from dataclasses import replace

from experiments.core.figure import Figure
from experiments.core.questions import SCALE_INVARIANCE
from experiments.figures.invariance.inner_products import claims, plot
from experiments.figures.invariance.inner_products.run import Config, compute
from experiments.training.config import LAPTOP_MODEL, SMOKE_MODEL

FIGURE = Figure(
    name="inner_products",
    title="Inner products of queries and keys with gradients of other steps",
    paper="Fig. 8",
    question=SCALE_INVARIANCE,
    decided_by=("inner-products-vanish-towards-the-end",),
    caption="nanoGPT ({model.num_layers} layers, {model.num_heads} heads, width {model.width}) on "
    "the {corpus} corpus by Adam, η = {learning_rate:g}, (β, γ) = ({b2:g}, {b1:g}), batch {batch}, "
    "dropout {model.dropout:g}, N = {num_steps} steps, {num_seeds} seeds; every head's query and "
    "key matrix. W_N stands at the end of the run, g_n is the gradient at step n of the same run. "
    "(a, b) |⟨W_N, g_n⟩| with and without qk-norm. (c) Its cosine, which does not fall with ‖g_n‖, "
    "next to that of random directions. (d) Its mean over slices and seeds, with its sign, against "
    "the steps that are left, and what g_n itself has put into W_N. (e) Each step's own gradient: "
    "orthogonal under qk-norm up to LayerNorm's ε. (f) The size of the term -2⟨W, u⟩ that the "
    "assumption is to justify dropping, over the term that is kept: 2γ/(1-γ) for gradients that "
    "are noise. Medians over slices and seeds.",
    presets={
        "smoke": Config(
            model=replace(SMOKE_MODEL, num_heads=2),
            batch=2,
            num_steps=60,
            num_seeds=2,
            exact_steps=10,
        ),
        "laptop": Config(model=replace(LAPTOP_MODEL, num_layers=2, num_heads=2)),
        "paper": Config(batch=64, chunk_size=1),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={
        "model.num_layers": 2,
        "model.width": 64,
        "model.context": 32,
        "batch": 8,
        "num_steps": 1000,
        "num_seeds": 5,
    },
)
