"""k-Adam and six other optimizers, each tuned with the same number of runs (not in the paper).

Every optimizer has its own range of learning rates, times settings of its decays and weight decay
around the best known ones. All of these are trained with one seed, and the finalists with all
tuning seeds, including the first; their mean validation loss, on the first half of the held-out
text, chooses. k-Adam has the same number of finalists for each k and strategy, which have the usual
decays and weight decay, untuned. Schedule-free AdamW is measured through its averaged parameters.

Intervals of gains are from the bootstrap, but no narrower than Student's t. The axis of (a) is
logarithmic beyond ±0.1. An optimum at an end of what was tried might be better beyond it. For
k-Adam the γ, β and λ of the second page are those of every stage, and a ring there marks a
learning rate.
"""

from experiments.core.figure import Figure
from experiments.core.questions import WORTH_TRYING
from experiments.figures.optimizer.optimizer_comparison import claims, plot
from experiments.figures.optimizer.optimizer_comparison.grids import Grids, first_few
from experiments.figures.optimizer.optimizer_comparison.run import KADAM, Config, compute
from experiments.training.config import LAPTOP_MINIMUM, LAPTOP_MODEL, PAPER_CORPUS, SMOKE_MODEL
from experiments.training.optimizers import ADAMW
from kadam_jax import STRATEGIES

FIGURE = Figure(
    name="optimizer_comparison",
    title="k-Adam and six other optimizers, each tuned with the same number of runs",
    paper="not in the paper",
    question=WORTH_TRYING,
    decided_by={
        "tuned-kadam-beats-tuned-adamw": "the test loss of AdamW, tuned with as many runs as "
        "k-Adam, minus that of k-Adam is {} nats per token",
        "two-adam-beats-tuned-adamw": "the test loss of AdamW, tuned with as many runs as all of "
        "k-Adam, minus that of 2-Adam is {} nats per token",
    },
    caption="nanoGPT ({model.num_layers} layers, {model.num_heads} heads, width {model.width}) on "
    "the {corpus} corpus, batch {batch}, {num_steps} steps: a warm-up of {warmup_steps}, then a "
    "cosine to {final_rate:g} of the learning rate (constant for Schedule-free AdamW). Every "
    "optimizer is tuned with the same number of runs: all of its rates and settings with one seed, "
    "and the best {num_finalists} with {num_tuning_seeds} seeds; k-Adam's settings are its "
    "strategies at k in {ks}, and only their learning rates are tuned. (a) Tuned AdamW's test loss "
    "minus the arm's, {num_seeds} fresh seeds, {eval_batches} batches, mean and paired 95% "
    "interval, filled where Holm's procedure over all rows finds it different from zero; (picked) "
    "marks the arm that the tuning of k-Adam selects; (b) the test loss of each seed, and their "
    "mean. A ring marks an arm with a learning rate, γ, β or λ at an end of what was tried. The "
    "second page shows validation loss of the first tuning seed versus learning rate, with the "
    "chosen rate filled: (a) each optimizer at its chosen γ, β and λ; (b) every k and strategy, k "
    "= 3 dashed, with AdamW at its first setting, dotted.",
    presets={
        "smoke": Config(
            model=SMOKE_MODEL,
            batch=2,
            num_steps=20,
            warmup_steps=2,
            num_seeds=2,
            optimizers=(ADAMW, "schedule_free_adamw", KADAM),
            ks=(2,),
            grids=first_few(Grids(), 2, len(STRATEGIES)),
            num_finalists=len(STRATEGIES),
            num_tuning_seeds=2,
            eval_batches=4,
            chunk_size=2,
        ),
        "laptop": Config(model=LAPTOP_MODEL, num_seeds=20),
        # Appendix P's network, corpus and number of steps.
        "paper": Config(
            corpus=PAPER_CORPUS,
            batch=64,
            num_steps=20_000,
            warmup_steps=400,
            learning_rate=3e-3,
            num_tuning_seeds=5,
            eval_batches=200,
            chunk_size=1,
        ),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={
        **LAPTOP_MINIMUM,
        "num_seeds": 10,
        "num_finalists": 20,
        "num_tuning_seeds": 5,
        "eval_batches": 64,
    },
)
