"""Is k-Adam more stable than Adam? (not in the paper)."""

from experiments.core.figure import Figure
from experiments.core.questions import WORTH_TRYING
from experiments.figures.stability.kadam_stability import claims, plot
from experiments.figures.stability.kadam_stability.run import Config, compute
from experiments.training.config import LAPTOP_MINIMUM, LAPTOP_MODEL, PAPER_CORPUS, SMOKE_MODEL

FIGURE = Figure(
    name="kadam_stability",
    title="Is k-Adam more stable than Adam?",
    paper="not in the paper",
    question=WORTH_TRYING,
    caption="Every stage of k-Adam has Adam's decays, so the last stage's bound, which no "
    "gradients can exceed whatever the earlier stages do, is Adam's. In training, nanoGPT "
    "({model.num_layers} layers, width {model.width}, context {model.context}, vocabulary "
    "{model.vocab_size}) runs on bytes of the {corpus} corpus with learning rate "
    "{learning_rate:g}, batch size {batch}, {num_seeds} seeds and {num_steps} steps, at points of "
    "the normal curve through (β, γ) = (0.999, 0.9). (a, b, c) ‖uₙ‖∞ for k = 1, 2, 3, median over "
    "seeds, and the exact bound at the last point; (d) the largest ‖uₙ‖∞, median and range over "
    "seeds. (e) Gradients that are normal noise for {dead_after} steps and 0 from then on: median "
    "and range over {dead_seeds} seeds of the largest of {dead_entries} entries, every stage with "
    "(γ, β) = {dead_point}. (f) The last update after N gradients constructed to be k-Adam's worst "
    "case, through the optimizer in float64, and the last stage's exact bound.",
    presets={
        "smoke": Config(
            model=SMOKE_MODEL,
            batch=2,
            num_steps=40,
            num_seeds=2,
            num_stable=2,
            num_unstable=2,
            dead_after=20,
            dead_steps=200,
            dead_seeds=3,
            worst_lengths=(1, 4, 16, 64),
        ),
        "laptop": Config(model=LAPTOP_MODEL, num_steps=401),
        "evening": Config(model=LAPTOP_MODEL, num_steps=801, num_seeds=12),
        "paper": Config(
            corpus=PAPER_CORPUS,
            batch=64,
            num_steps=3000,
            num_curve=220,
            num_stable=24,
            num_unstable=40,
            chunk_size=4,
        ),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={
        **LAPTOP_MINIMUM,
        "num_stable": 4,
        "num_unstable": 5,
        "dead_after": 50,
        "dead_steps": 1000,
        "dead_seeds": 20,
    },
)
