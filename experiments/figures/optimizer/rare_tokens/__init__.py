"""Rare tokens: text in byte pairs, with and without normalization stages (not in the paper).

The corpus is the embedded text in 4,096 byte pairs that are trained on its training part. Each
contender is searched as in `contenders`: the coarse grid with the first tuning seed, a step of a
compass, closing steps, the finalists with all tuning seeds, and fresh seeds for the choice. Test
targets are in bins by how often the target occurs in the training part. Each bin has about the same
number of test targets, and tokens that occur equally often are in the same bin. The mean of the
bins' losses, weighted by `bin_share`, is the test loss. `adamw_loss_per_byte` is a loss per token
divided by `bytes_per_token`, so it compares with losses of text by bytes.

SGD is the one contender without normalization. Kunstner et al. (2024, arXiv 2402.19449) find that
it falls behind Adam because the losses of rare tokens hardly fall.
"""

import dataclasses

from experiments.core.figure import Figure
from experiments.core.questions import WORTH_TRYING
from experiments.figures.optimizer.rare_tokens import claims, plot
from experiments.figures.optimizer.rare_tokens.run import PAIRS_MODEL, Config, compute
from experiments.training.config import LAPTOP_MINIMUM
from models.nanogpt import GPTConfig

FIGURE = Figure(
    name="rare_tokens",
    title="Rare tokens: text in byte pairs, with and without normalization stages",
    paper="not in the paper",
    question=WORTH_TRYING,
    caption="nanoGPT ({model.num_layers} layers of width {model.width}) on the {corpus} corpus, "
    "{model.vocab_size} tokens, batch {batch}, {num_steps} steps with a warm-up of {warmup_steps} "
    "and a cosine to {final_rate:g}; each contender is searched with the same number of runs. "
    "(a) AdamW's test loss minus the contender's, {num_seeds} fresh seeds, mean and paired 95% "
    "interval; a ring marks an optimum beyond which nothing was tried, either in learning rate at "
    "its memory or in memory at its learning rate. (b) Test loss by how often the target occurs in "
    "the training text, in {num_bins} bins of about equally many targets. "
    "(c) Gains over AdamW in these bins, with paired 95% intervals. The second page shows one "
    "seed's validation loss versus learning rate at the chosen memory.",
    presets={
        "smoke": Config(
            model=dataclasses.replace(PAIRS_MODEL, context=16, width=16),
            contenders=("adamw", "sgd"),
            batch=2,
            num_steps=8,
            warmup_steps=2,
            num_rates=2,
            num_memories=1,
            num_rounds=1,
            num_closings=1,
            num_finalists=2,
            num_tuning_seeds=2,
            num_seeds=2,
            num_points=4,
            course_batches=1,
            eval_batches=4,
            chunk_size=2,
        ),
        "laptop": Config(num_closings=3, num_finalists=3, chunk_size=2),
        "evening": Config(num_steps=1600, warmup_steps=160, num_seeds=20),
        "paper": Config(  # Appendix P's network and steps
            model=GPTConfig(vocab_size=4096),
            batch=64,
            num_steps=20_000,
            warmup_steps=400,
            eval_batches=200,
            chunk_size=1,
        ),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={
        **LAPTOP_MINIMUM,
        "model.vocab_size": 4096,
        "num_rates": 6,
        "num_memories": 3,
        "num_tuning_seeds": 3,
        "num_seeds": 10,
        "eval_batches": 32,
    },
)
