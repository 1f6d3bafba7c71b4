"""Rows without gradients under simplified_ademamix and ademamix (not in the paper)."""

from experiments.core.figure import Figure
from experiments.core.questions import UPDATES_BOUNDED
from experiments.figures.stability.dead_rows import claims, plot
from experiments.figures.stability.dead_rows.run import Config, compute
from experiments.training.config import LAPTOP_MINIMUM, LAPTOP_MODEL, SMOKE_MODEL

FIGURE = Figure(
    name="dead_rows",
    title="Rows without gradients under simplified_ademamix and ademamix",
    paper="not in the paper",
    question=UPDATES_BOUNDED,
    caption="nanoGPT ({model.num_layers} layers, width {model.width}, batch size {batch}, "
    "{corpus} corpus, vocabulary {model.vocab_size}, {num_seeds} seeds) is trained by "
    "simplified_ademamix at optax's defaults (γ = {b1:g}, β = {b2:g}), with γ = {inside_b1:g}, and "
    "with updates clipped at the supremum of that γ, each with ε = {eps:g} and {small_eps:g}; with "
    "γ = {inside_b1:g} and clipping; with γ = {b1:g} and β = {inside_b2:g}; and by ademamix with "
    "β = {mix_b2:g} and b3 = {mix_b3:g} or {inside_b3:g}. A constant gradient moves weights "
    "equally in all of them. (a) The largest update of a step in rows of the embedding "
    "that the text never uses, (b) in all other entries, (c) of the whole run in each tensor. (d) "
    "The training loss at the end.",
    presets={
        "smoke": Config(model=SMOKE_MODEL, batch=2, num_steps=20, num_seeds=2, chunk_size=12),
        "laptop": Config(model=LAPTOP_MODEL),
        "paper": Config(batch=64, num_steps=3000, chunk_size=4),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={**LAPTOP_MINIMUM, "num_steps": 1000},
)
