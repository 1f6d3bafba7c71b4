"""A search for decays with which 2-Adam beats tuned AdamW (not in the paper).

2-Adam's four decays and learning rate, and AdamW's two decays and learning rate, are searched in
the same way: members of a scrambled Sobol sequence, then others around the best, one seed each; of
the finalists, the one with the lowest mean validation loss is chosen. On images, the decays are
kept and only the learning rate is tuned again, by cross-entropy; where only rates are tuned, the
best two get all tuning seeds.

Panel (a) draws losses that are more than 1.5 nat above the best at that height. Panel (b) draws the
best quarter of 2-Adam's members. Of the strategies, (c) shows inverse exp and the best one on
validation; its intervals are from the bootstrap, but no narrower than Student's t. Panel (d) covers
the members of the whole box that did not diverge: where it is negative, larger values are better.
"""

from experiments.core.figure import Figure
from experiments.core.questions import WORTH_TRYING
from experiments.figures.optimizer.decay_search import claims, plot
from experiments.figures.optimizer.decay_search.run import Config, compute
from experiments.training.config import LAPTOP_MINIMUM, LAPTOP_MODEL, PAPER_CORPUS, SMOKE_MODEL
from models.cnn import CNNConfig

FIGURE = Figure(
    name="decay_search",
    title="A search for decays with which 2-Adam beats tuned AdamW",
    paper="not in the paper",
    question=WORTH_TRYING,
    decided_by={
        "searched-decays-beat-adamw-on-text": "the test loss of AdamW on text, its decays searched "
        "too, minus that of 2-Adam with searched decays is {} nats per token"
    },
    caption="nanoGPT ({model.num_layers} layers, width {model.width}) is trained on the {corpus} "
    "corpus, batch {batch}, {num_steps} steps with warm-up and cosine, λ = {weight_decay:g}. For "
    "each optimizer, {num_searched} members are spread over the whole box, γ from 0 to "
    "{highest_b1:g}, β from {b2[0]:g} to {b2[1]:g}, learning rates {rates[0]:g} to {rates[1]:g} "
    "times {learning_rate:g}, and {num_refined} more around the best of them; the best "
    "{num_finalists} are run with {num_tuning_seeds} seeds. (a) Validation loss of all members, "
    "and of the paper's five strategies at {strategy_rates} times the same learning rate; (b) the "
    "decays of 2-Adam's best members, darker where better. (c) Tuned AdamW's test loss minus "
    "2-Adam's, {num_seeds} fresh seeds, {eval_batches} batches, mean and paired 95% interval, on "
    "text and on images (CNN at {second_model.width:g} times the paper's width, {dataset}, "
    "{second_steps} steps); (d) Spearman's correlation of each coordinate with validation loss. "
    "Stars mark what was chosen, gray is the outer tenth of a range, and a ring marks a learning "
    "rate near an end of its range.",
    presets={
        "smoke": Config(
            model=SMOKE_MODEL,
            batch=2,
            num_steps=10,
            warmup_steps=2,
            num_seeds=2,
            eval_batches=2,
            num_searched=8,
            num_refined=4,
            num_finalists=2,
            num_tuning_seeds=2,
            strategy_rates=(1.0, 4.0),
            confirmed=False,
            chunk_size=2,  # the smallest sweep's size: one more would be one more program
        ),
        "laptop": Config(
            model=LAPTOP_MODEL,
            strategy_rates=(0.25, 0.5, 1.0, 2.0, 4.0),
            second_rates=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0),
            chunk_size=4,  # the smallest sweep's size, as above
        ),
        "evening": Config(
            model=LAPTOP_MODEL,
            num_seeds=40,
            strategy_rates=(0.25, 0.5, 1.0, 2.0, 4.0),
            second_rates=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0),
            chunk_size=4,  # the smallest sweep's size, as above
        ),
        # As in the figure of k-Adam's strategies on text, with the paper's images.
        "paper": Config(
            corpus=PAPER_CORPUS,
            batch=64,
            num_steps=20_000,
            warmup_steps=2000,
            eval_batches=200,
            num_searched=256,
            num_refined=256,
            dataset="cifar10",
            second_model=CNNConfig(),
            second_batch=512,
            second_steps=8789,
            second_warmup=176,
            chunk_size=1,
        ),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={
        **LAPTOP_MINIMUM,
        "eval_batches": 32,
        "num_searched": 64,
        "num_refined": 64,
        "num_finalists": 8,
        "num_tuning_seeds": 3,
        "confirmed": 1,
        "second_model.width": 1 / 16,
        "second_batch": 4,
        "second_steps": 400,
    },
)
