"""Decays that follow the batch size, and where they leave the stable region (not in the paper)."""

from experiments.core.figure import Figure
from experiments.core.questions import UPDATES_BOUNDED
from experiments.figures.stability.batch_scaling import claims, plot
from experiments.figures.stability.batch_scaling.run import Config, compute
from experiments.training.config import LAPTOP_MODEL, PAPER_CORPUS, SMOKE_MODEL

FIGURE = Figure(
    name="batch_scaling",
    title="Decays that follow the batch size, and where they leave the stable region",
    paper="not in the paper",
    question=UPDATES_BOUNDED,
    caption="From γ = {b1:g} and β = {b2:g} at one batch size, three rules derive the decays at "
    "another: tokens (β^ρ, γ unchanged), both (γ^ρ, β^ρ) and sde (1-γ and 1-β times ρ), where ρ is "
    "the ratio of batch sizes. (a) How fast updates grow once gradients stop; the vertical line is "
    "B*, where the tokens rule crosses γ² = β. (b) The supremum of an update after {num_steps} "
    "steps, and the largest one in training: nanoGPT ({model.num_layers} layers, width "
    "{model.width}, {corpus} corpus, vocabulary {model.vocab_size}) at batch size {batch} and up, "
    "learning rate {learning_rate:g}, ε = {eps:g}, {num_seeds} seeds. (c) The largest update of a "
    "step with the tokens rule, in rows of the embedding that the text never uses. (d) The "
    "training loss at the end.",
    presets={
        "smoke": Config(
            model=SMOKE_MODEL, batch=1, num_steps=20, num_seeds=2, ratios=(1, 8), num_ratios=11
        ),
        "laptop": Config(model=LAPTOP_MODEL, num_steps=600),
        "evening": Config(model=LAPTOP_MODEL, num_steps=600, num_seeds=12),
        "paper": Config(corpus=PAPER_CORPUS, batch=16, num_steps=3000, chunk_size=4),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={
        "model.num_layers": 1,
        "model.width": 64,
        "model.context": 32,
        "batch": 4,
        "num_steps": 600,
        "num_seeds": 5,
        "num_ratios": 121,
    },
)
