"""The max-update on the boundary B₀ and inside B₊ (Figs. 7 and 11)."""

from experiments.core.figure import Figure
from experiments.core.questions import UPDATES_BOUNDED
from experiments.figures.stability import NETWORK
from experiments.figures.stability.bounded_updates import claims, plot
from experiments.figures.stability.bounded_updates.run import Config, compute
from experiments.training.config import LAPTOP_MINIMUM, LAPTOP_MODEL, PAPER_CORPUS, SMOKE_MODEL

FIGURE = Figure(
    name="bounded_updates",
    title="The max-update on the boundary B₀ and inside B₊",
    paper="Figs. 7 and 11",
    question=UPDATES_BOUNDED,
    caption=NETWORK + " at a constant learning rate of {learning_rate:g}. First page, "
    "{num_boundary} points on C = 0, uniform in arc length: (a) ‖uₙ‖∞, median over seeds, with the "
    "√n form of Theorem 1 and the exact supremum at three of the points; (b) the largest ‖uₙ‖∞ of "
    "every seed from n = 100 on, with both bounds at the last step. (c) The exponent of n in "
    "‖uₙ‖∞ from n = 100 on, median and range over seeds; (d) the points. Second page, "
    "{num_inside} points of the normal curve through (β, γ) = (0.999, 0.9), from that point to C = "
    "0: (a) and (b) as on the first page, with Theorem 1's bound; (c) the points.",
    presets={
        "smoke": Config(
            model=SMOKE_MODEL, batch=2, num_steps=120, num_seeds=2, num_boundary=4, num_inside=3
        ),
        "laptop": Config(model=LAPTOP_MODEL, num_steps=1001),
        "paper": Config(corpus=PAPER_CORPUS, batch=64, num_steps=3000, num_inside=32, chunk_size=4),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={**LAPTOP_MINIMUM, "num_boundary": 11, "num_inside": 8},
)
