"""2-Adam with γ₂ = 0 versus Adam with a normalization layer (not in the paper).

Does a layer do to Adam what a second stage with γ₂ = 0 and β₂ = 1/(1+2λη) does? The average in (a)
begins at 0, and at λ = 0 it is the sum, β₂ = 1. In (b), a constant would only change the
learning rate; at λ = 0, β₂ → 1 and the stage's average is a running mean. In (c), the cosine is 1
if the stage only scales u. The second page draws running means over a twentieth of the run.
"""

from dataclasses import replace

from experiments.core.figure import Figure
from experiments.core.questions import SCALE_INVARIANCE
from experiments.figures.invariance.two_adam_analogy import claims, plot
from experiments.figures.invariance.two_adam_analogy.run import Config, compute
from experiments.training.config import LAPTOP_MODEL, PAPER_CORPUS, SMOKE_MODEL

FIGURE = Figure(
    name="two_adam_analogy",
    title="2-Adam with γ₂ = 0 versus Adam with a normalization layer",
    paper="not in the paper",
    question=SCALE_INVARIANCE,
    caption="nanoGPT ({model.num_layers} layers, {model.num_heads} heads, width {model.width}) is "
    "trained on the {corpus} corpus with (β, γ) = ({b2:g}, {b1:g}), batch size {batch} and "
    "{num_seeds} seeds; weight decay applies only to queries and keys, with λ = 0 or with 1/(2λη) "
    "= {averaging_steps} steps. For Adam with qk-norm at η = {learning_rate:g}: (a) ‖W‖² of every "
    "head's query and key over the moving average of ‖u‖² to which the paper equates it; (b) ‖W‖ "
    "times the scale that a coarse-grained second stage gives u, relative to its value just after "
    "the middle; (c) cosine of u and the elementwise second stage's output. After {num_steps} "
    "steps from the same weights: (d, e) held-out loss versus η; (f) the gain over Adam, paired by "
    "seed, each at the learning rate that is best on the other seeds, means with 95% intervals. "
    "Elsewhere lines are medians with the range over seeds. The second page shows training losses.",
    presets={
        "smoke": Config(
            model=replace(SMOKE_MODEL, num_heads=2),
            batch=2,
            num_steps=20,
            num_seeds=2,
            learning_rates=(1e-3, 1e-2),
            averaging_steps=4,
            norm_steps=40,
            eval_batches=2,
        ),
        "laptop": Config(model=replace(LAPTOP_MODEL, num_heads=4)),
        # A deeper network, chosen by the layer's gain with seeds 100 to 102 alone: 0.006 nats per
        # token at λ = 0 and 0.023 at λ > 0. With these sixteen seeds it gains nothing.
        "evening": Config(
            model=replace(LAPTOP_MODEL, num_layers=4, num_heads=4),
            learning_rates=(3e-4, 1e-3, 3e-3),
            num_seeds=16,
        ),
        "paper": Config(
            corpus=PAPER_CORPUS,
            batch=64,
            num_steps=3000,
            norm_steps=3000,
            eval_batches=200,
            chunk_size=1,
        ),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={
        "model.width": 64,
        "num_steps": 600,
        "num_seeds": 5,
        "averaging_steps": 100,
        "norm_steps": 1000,
        "eval_batches": 16,
    },
)
