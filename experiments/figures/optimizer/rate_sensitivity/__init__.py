"""How sensitive is each optimizer to its learning rate, and where does 2-Adam start?"""

from experiments.core.figure import Figure
from experiments.core.questions import WORTH_TRYING
from experiments.figures.optimizer.rate_sensitivity import claims, plot
from experiments.figures.optimizer.rate_sensitivity.run import Config, compute
from experiments.training.config import LAPTOP_MINIMUM, LAPTOP_MODEL, SMOKE_MODEL
from experiments.training.optimizers import ADAMW

FIGURE = Figure(
    name="rate_sensitivity",
    title="How sensitive is each optimizer to its learning rate, and where does 2-Adam start?",
    paper="not in the paper",
    question=WORTH_TRYING,
    caption="nanoGPT ({model.num_layers} layers, {model.num_heads} heads, width {model.width}) on "
    "the {corpus} corpus, batch {batch}, {num_steps} steps: {warmup_steps} of warm-up, then a "
    "cosine down to {final_rate:g} of the learning rate (Schedule-free: none). Every optimizer has "
    "its usual hyperparameters and {num_rates} learning rates that rise by {factor:g}; {num_seeds} "
    "seeds, the same for all. (a) Loss on the first half of the held-out text, mean and range over "
    "seeds; the filled mark is at the best rate, the geometric mean over seeds of the vertices of "
    "parabolas through the lowest loss and its neighbours. (b) How many decades of learning rates "
    "are within {tolerance:g} nat of the lowest loss, interpolated between rates: differences far "
    "below a step of the grid are the interpolation's too; a triangle: the grid ends inside the "
    "basin of some seed. (c) Best rate over AdamW's, paired by seed, and what two properties of "
    "updates on normal noise predict for 2-Adam: their size, and how far many of them carry. (d) "
    "2-Adam's test loss, on the second half of the held-out text, at the rate that is AdamW's "
    "best and at that rate times the ratio of (c), between trained rates interpolated as in (b), "
    "less that at its own best rate; then less AdamW's. Rates and ratios for a seed are from the "
    "other seeds' validation losses. Dots are seeds, bars 95% t intervals of the mean. A ring "
    "marks an arm whose best rate is at an end of its grid: it may lie beyond.",
    presets={
        "smoke": Config(
            model=SMOKE_MODEL,
            batch=2,
            num_steps=30,
            num_seeds=2,
            optimizers=(ADAMW,),
            strategies=("inverse_exp",),
            first_powers=(1, 0),
            num_rates=3,
            warmup_steps=5,
            eval_batches=4,
            noise_steps=200,
            noise_entries=100,
        ),
        "laptop": Config(model=LAPTOP_MODEL),
        # Fig. 16's steps and batch on the embedded text in place of C4; a warm-up as in Fig. 4.
        "paper": Config(
            batch=64,
            num_steps=20_000,
            first_powers=(-3, -3, -4, -6, -4, -3, -4, -4, -4),
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
