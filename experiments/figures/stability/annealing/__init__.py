"""Annealing the learning rate by the growth that C predicts (Fig. 14)."""

from experiments.core.figure import Figure
from experiments.core.questions import GENERALIZATION
from experiments.figures.stability import NETWORK
from experiments.figures.stability.annealing import claims, plot
from experiments.figures.stability.annealing.run import Config, compute
from experiments.training.config import LAPTOP_MINIMUM, LAPTOP_MODEL, PAPER_CORPUS, SMOKE_MODEL

FIGURE = Figure(
    name="annealing",
    title="Annealing the learning rate by the growth that C predicts",
    paper="Fig. 14",
    question=GENERALIZATION,
    caption=NETWORK
    + ", at (β, γ) = (0.999, 0.9) and at the last of {num_curve} points, uniform in arc length, on "
    "the normal curve through it. The learning rate is e^(-sn|C|/2) times a constant η₀ = "
    "{learning_rate:g} in (a) to (c). In (d) and (e) it is e^(-sn|C|/2) times a schedule: a linear "
    "warm-up of {warmup_steps} steps, then a cosine from {learning_rate:g} to {final_rate:g} times "
    "that. (a) ‖uₙ‖∞ and (b) ‖θₙ₊₁-θₙ‖∞/η₀, medians over seeds, without annealing (dashed) and "
    "with the paper's s = 1, and Theorem 1's bound on the latter at two points. (c) The slope of "
    "ln ‖θₙ₊₁-θₙ‖∞ for {slope_first} ≤ n ≤ {slope_last}, median and range over seeds. (d) Test "
    "loss, median over seeds; (e) the lowest test loss, mean with 95% interval over seeds; (f) the "
    "points.",
    presets={
        "smoke": Config(
            model=SMOKE_MODEL,
            batch=2,
            num_steps=60,
            num_seeds=2,
            num_points=4,
            strengths=(0.0, 1.0),
            warmup_steps=4,
            eval_every=10,
            eval_batches=2,
            slope_first=20,
            slope_last=59,
        ),
        "laptop": Config(
            model=LAPTOP_MODEL, num_steps=600, warmup_steps=20, eval_every=50, eval_batches=32
        ),
        "paper": Config(
            corpus=PAPER_CORPUS,
            batch=64,
            num_steps=3000,
            num_curve=220,
            num_points=40,
            chunk_size=4,
        ),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={
        **LAPTOP_MINIMUM,
        "num_steps": 600,
        "num_points": 8,
        "eval_batches": 32,
        "slope_first": 200,
        "slope_last": 400,
    },
)
