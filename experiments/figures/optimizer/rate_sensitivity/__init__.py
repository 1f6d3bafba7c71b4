"""How sensitive are optimizers to learning rates? Where should 2-Adam start? (not in the paper).

The first half of the held-out text is for validation, the second half is the test. The best rate is
the geometric mean over seeds of the vertices of parabolas through the lowest loss and its
neighbors; at an end of its grid, it may lie beyond. Basins and losses between trained rates are
interpolated, so differences far below a step of the grid are partly due to the interpolation. Rates
and ratios for a seed come from the other seeds' validation losses.
"""

from experiments.core.figure import Figure
from experiments.core.questions import WORTH_TRYING
from experiments.figures.optimizer.rate_sensitivity import claims, plot
from experiments.figures.optimizer.rate_sensitivity.run import Config, compute
from experiments.training.config import (
    DEEP_MODEL,
    LAPTOP_MINIMUM,
    LAPTOP_MODEL,
    PAPER_CORPUS,
    SMOKE_MODEL,
)
from experiments.training.optimizers import ADAMW

FIGURE = Figure(
    name="rate_sensitivity",
    title="How sensitive are optimizers to learning rates? Where should 2-Adam start?",
    paper="not in the paper",
    question=WORTH_TRYING,
    caption="nanoGPT ({model.num_layers} layers, {model.num_heads} heads, width {model.width}) on "
    "the {corpus} corpus, batch {batch}, {num_steps} steps: {warmup_steps} of warm-up, then a "
    "cosine to {final_rate:g} of the learning rate (none for Schedule-free); every optimizer has "
    "its usual hyperparameters, {num_rates} learning rates that rise by a factor of {factor:g}, "
    "and the same {num_seeds} seeds. (a) Validation loss, mean and range over seeds, with the best "
    "rate filled; (b) width of the basin, in decades: the learning rates whose loss is within "
    "{tolerance:g} nat of the lowest; (c) best rate over AdamW's, paired by seed, and what two "
    "properties of updates on normal noise predict for 2-Adam: their size, and how far many of "
    "them together move a weight. (d) 2-Adam's test loss at AdamW's best rate, and at that rate "
    "times the ratio of (c), minus that at its own best rate; then the loss at the scaled rate "
    "minus AdamW's. Dots are seeds and bars are 95% t intervals for the mean. A ring marks a best "
    "rate at an end of its grid, and a triangle a grid that ends inside the basin of some seed.",
    presets={
        "smoke": Config(
            model=SMOKE_MODEL,
            batch=2,
            num_steps=30,
            num_seeds=2,
            optimizers=(ADAMW,),
            strategies=("inverse_exp",),
            first_power=1,
            num_rates=3,
            warmup_steps=5,
            eval_batches=4,
            noise_steps=200,
            noise_entries=100,
        ),
        "laptop": Config(model=LAPTOP_MODEL),
        # One learning rate below laptop's lowest one.
        "evening": Config(
            model=DEEP_MODEL,
            num_seeds=6,
            first_power=-2,
            num_rates=8,
        ),
        # Fig. 16's corpus, steps and batch; a warm-up as in Fig. 4.
        "paper": Config(
            corpus=PAPER_CORPUS,
            batch=64,
            num_steps=20_000,
            first_power=-3,
            num_rates=8,
            warmup_steps=100,
            eval_batches=200,
            chunk_size=1,
        ),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={
        **LAPTOP_MINIMUM,
        "num_rates": 7,
        "eval_batches": 32,
        "noise_steps": 2000,
        "noise_entries": 4096,
    },
)
