"""One second moment for each query and key matrix (Fig. 9)."""

from dataclasses import replace

from experiments.core.figure import Figure
from experiments.core.questions import SCALE_INVARIANCE
from experiments.figures.invariance.coarse_graining import claims, plot
from experiments.figures.invariance.coarse_graining.run import Config, compute
from experiments.training.config import LAPTOP_MINIMUM, LAPTOP_MODEL, PAPER_CORPUS, SMOKE_MODEL

FIGURE = Figure(
    name="coarse_graining",
    title="One second moment for each query and key matrix",
    paper="Fig. 9",
    question=SCALE_INVARIANCE,
    decided_by={"coarse-graining-harmless-for-the-loss": ""},
    caption="nanoGPT with qk-norm ({model.num_layers} layers, {model.num_heads} heads, width "
    "{model.width}) on the {corpus} corpus, η = {learning_rate:g}, (β, γ) = ({b2:g}, {b1:g}), "
    "batch size {batch}, dropout {model.dropout:g}, {num_seeds} seeds. Three runs start from the "
    "same weights: Adam; Adam whose second moment is the mean over each query and key matrix "
    "(Assumption 2), with the same batches and dropout; and, as the control, Adam with other "
    "batches and dropout. (a, d) {num_parameters} single entries of one seed; (b, c) norm of the "
    "difference from the first run over the norm of that run's displacement from the start. (e) "
    "Loss on {eval_batches} held-out batches; (f) this loss minus the first run's, and the same "
    "difference in training loss for the coarse-grained run (dropout on, mean of {eval_every} "
    "steps).",
    presets={
        "smoke": Config(
            model=replace(SMOKE_MODEL, num_heads=2, qk_norm=True),
            batch=2,
            num_steps=40,
            num_seeds=2,
            num_parameters=4,
            eval_every=10,
            eval_batches=2,
        ),
        "laptop": Config(
            model=replace(LAPTOP_MODEL, num_layers=2, num_heads=2, qk_norm=True), num_seeds=16
        ),
        "paper": Config(corpus=PAPER_CORPUS, batch=64, num_steps=1000, chunk_size=1),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={**LAPTOP_MINIMUM, "model.num_layers": 2, "eval_batches": 16},
)
