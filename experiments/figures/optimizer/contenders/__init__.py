"""k-Adam, Muon with stages around it, and their rivals on text and images (not in the paper).

On each task every contender has the same number of runs of the same length: the coarse grid of
learning rates and memories with the first tuning seed; a step of a compass, to four settings around
the best one; closing steps, each to four settings beyond the best ones, on sides on which nothing
was tried; the finalists with all tuning seeds, whose mean validation loss at the end of the decay
chooses; and fresh seeds for the choice. Memory is one axis for all decays of a contender:
1 - b1 and 1 - b2 are multiplied by the same power of two. Weight decay is not searched. With a
larger batch, b2 is raised to the power by which the batch grows, so that averages of squares
remember the same number of tokens.

Muon and the stages around it are for matrices that multiply, with NAdamW for other parameters.
"A stage before" has γ = 0; AdaMuon orthogonalizes the signs of the momentum, as published.
Schedule-free AdamW is measured through its averaged parameters, at a constant learning rate.
AdEMAMix has b3 = b2, inside its boundary b3² = b2.

The target of a task is the mean validation loss of tuned AdamW at three quarters of its run; it is
reached where straight lines between measurements pass it. The shared setting of a contender is the
one of the coarse grid with the lowest validation loss, as a share of a uniform guess's, on average
over tasks.

On each task a contender has one run for each setting tried, `num_finalists` times
(`num_tuning_seeds` - 1) more that choose among the finalists, and `num_seeds` + `num_shared_seeds`
with fresh seeds: 70 at the preset evening and 56 at laptop. The dataset's `wall_seconds` is the
time of all of them, unless some were found finished.
"""

from experiments.core.figure import Figure
from experiments.core.questions import WORTH_TRYING
from experiments.figures.optimizer.contenders import claims, plot
from experiments.figures.optimizer.contenders.run import Config, compute
from experiments.training.config import LAPTOP_MINIMUM, PAPER_CORPUS, SMOKE_MODEL
from models.cnn import CNNConfig
from models.nanogpt import GPTConfig

FIGURE = Figure(
    name="contenders",
    title="k-Adam, Muon with stages around it, and their rivals on text and images",
    paper="not in the paper",
    question=WORTH_TRYING,
    decided_by={
        "searched-kadam-beats-adamw-on-text": "the test loss of AdamW on text minus that of "
        "k-Adam, decays of both searched, is {} nats per token",
        "searched-kadam-beats-adamw-on-images": "the test error of AdamW on images minus that of "
        "k-Adam, decays of both searched, is {} percentage points",
        "searched-kadam-saves-steps-on-text": "k-Adam saves {} percent of AdamW's steps to a loss "
        "on text",
        "searched-kadam-saves-steps-on-images": "k-Adam saves {} percent of AdamW's steps to a "
        "loss on images",
    },
    caption="nanoGPT ({model.num_layers} layers of width {model.width}; deep: "
    "{deep_model.num_layers} of {deep_model.width}) on the {corpus} corpus, batch {batch}, and "
    "the CNN at {cnn.width:g} times the paper's width on {dataset}, batch {image_batch}, "
    "{num_steps} steps with a warm-up of {warmup_steps} and a cosine to {final_rate:g}; each "
    "contender is searched with the same number of runs. In each column, from top to bottom: "
    "AdamW's test loss, or test error on images, minus the contender's (mean and paired 95% "
    "interval, {num_seeds} fresh seeds, filled where Holm's procedure finds it different from "
    "zero); steps saved on the way to AdamW's own loss at three quarters of its run; the gain in "
    "test loss with one setting for all tasks, in percent of a uniform guess's loss "
    "({num_shared_seeds} fresh seeds). A ring marks an optimum beyond which nothing was tried, "
    "either in learning rate at its memory or in memory at its learning rate. The second page "
    "shows the validation loss during training, with the target dotted, and the third page shows "
    "validation loss versus learning rate at the chosen memory.",
    presets={
        "smoke": Config(
            model=SMOKE_MODEL,
            cnn=CNNConfig(width=1 / 64),
            tasks=("text",),
            contenders=("adamw", "kadam_2"),
            batch=2,
            image_batch=2,
            num_steps=8,
            warmup_steps=2,
            num_rates=2,
            num_memories=1,
            num_rounds=1,
            num_closings=1,
            num_finalists=2,
            num_tuning_seeds=2,
            num_seeds=2,
            num_shared_seeds=2,
            num_points=4,
            course_batches=1,
            eval_batches=2,
            chunk_size=2,
        ),
        "laptop": Config(
            tasks=("text", "images"),
            contenders=(
                *("adamw", "kadam_2", "kadam_2_scaled"),
                *("muon", "muon_before", "adamuon", "muon_both"),
            ),
            num_closings=3,
            num_finalists=3,
            num_seeds=12,
            chunk_size=2,
        ),
        "evening": Config(num_closings=6),
        # Appendix P's network, corpus and steps for text; Appendix H's for images.
        "paper": Config(
            corpus=PAPER_CORPUS,
            model=GPTConfig(),
            deep_model=GPTConfig(num_layers=12, num_heads=12, width=768, qk_norm=True),
            cnn=CNNConfig(),
            dataset="cifar10",
            tasks=("text", "images", "text_batch", "text_deep"),
            batch=64,
            image_batch=512,
            num_steps=20_000,
            warmup_steps=400,
            num_tuning_seeds=3,
            eval_batches=200,
            chunk_size=1,
        ),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={
        **LAPTOP_MINIMUM,
        "cnn.width": 1 / 16,
        "image_batch": 4,
        "num_rates": 6,
        "num_memories": 3,
        "num_tuning_seeds": 3,
        "num_seeds": 10,
        "num_shared_seeds": 4,
        "eval_batches": 32,
    },
)
