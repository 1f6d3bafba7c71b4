"""The max-update along a normal curve, and what makes it grow (Fig. 3)."""

from experiments.core.figure import Figure
from experiments.core.questions import UPDATES_BOUNDED
from experiments.figures.stability import NETWORK
from experiments.figures.stability.max_update import claims, plot
from experiments.figures.stability.max_update.run import LATE, Config, compute
from experiments.training.config import LAPTOP_MINIMUM, LAPTOP_MODEL, PAPER_CORPUS, SMOKE_MODEL

FIGURE = Figure(
    name="max_update",
    title="The max-update along a normal curve, and what makes it grow",
    paper="Fig. 3",
    question=UPDATES_BOUNDED,
    decided_by={
        "bounded-in-b-plus": "where C > 0 the largest update is {} learning rates",
        "grows-in-b-minus": "where C < 0 every run reaches an update of {} learning rates",
        "growth-starts-at-the-boundary": "just below C = 0 updates grow at {} times the predicted "
        "rate",
        "late-slope-is-half-c": "updates show {} of the difference between |C|/2 and the "
        "exact rate",
    },
    caption=NETWORK
    + " ({contrast_steps} in (c) and (d) of the second page) at a constant learning "
    "rate of {learning_rate:g}; most bytes never occur. The points are (β, γ) = (0.999, 0.9) and "
    "the last of {num_curve} points, uniform in arc length, on the normal curve through it. First "
    "page: (a, b) ‖uₙ‖∞; (c) slope of its logarithm by least squares, the bias correction divided "
    "out, for {slope_first} ≤ n ≤ {slope_last} and around the paper's n = 1000; (d) the points; "
    "(e) the share of dead gradients, without which nothing grows, and (f) the loss, as running "
    "medians. Second page: (a) the fitted relation to both predicted rates, with intervals from a "
    "bootstrap over points and seeds; (b) slopes divided by each prediction. Two changes alter the "
    "picture: (c) ε = {contrast_eps:g} in place of {eps:g}, and (d) optax.scale_by_adam, whose "
    "float32 second moment underflows.",
    presets={
        "smoke": Config(
            model=SMOKE_MODEL,
            batch=2,
            num_steps=80,
            num_seeds=2,
            num_points=6,
            contrast_seeds=1,
            contrast_steps=100,
            slope_first=40,
            slope_last=79,
        ),
        "laptop": Config(model=LAPTOP_MODEL, num_steps=LATE[1] + 1, num_seeds=20),
        "evening": Config(model=LAPTOP_MODEL, num_steps=LATE[1] + 1, num_seeds=60),
        # Bytes in GPT-2's vocabulary, so almost all of the embedding's rows are dead.
        "paper": Config(
            corpus=PAPER_CORPUS,
            batch=64,
            num_steps=3000,
            contrast_steps=3000,
            num_curve=220,
            num_points=64,
            chunk_size=4,
        ),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={**LAPTOP_MINIMUM, "num_points": 12, "slope_first": 200, "slope_last": 400},
)
