"""The max-update on the boundary B₀ and inside B₊ (Figs. 7 and 11)."""

from experiments.core.figure import Figure
from experiments.core.questions import UPDATES_BOUNDED
from experiments.figures.stability.bounded_updates import claims, plot
from experiments.figures.stability.bounded_updates.run import Config, compute
from experiments.training.config import LAPTOP_MINIMUM, LAPTOP_MODEL, SMOKE_MODEL

FIGURE = Figure(
    name="bounded_updates",
    title="The max-update on the boundary B₀ and inside B₊",
    paper="Figs. 7 and 11",
    question=UPDATES_BOUNDED,
    caption="nanoGPT ({model.num_layers} layers, width {model.width}, context {model.context}, "
    "vocabulary {model.vocab_size}) is trained on bytes of the {corpus} corpus by Adam at a "
    "constant learning rate of {learning_rate:g} with batch size {batch}, {num_seeds} seeds and "
    "{num_steps} steps. First page, {num_boundary} points on C = 0, uniform in arc length: (a) "
    "‖uₙ‖∞, median over seeds, with the √n form of Theorem 1 and the exact supremum at three of "
    "the points; (b) the largest ‖uₙ‖∞ of every seed from n = 100 on, with both bounds at the last "
    "step, where the supremum is 1/√(1-β); (c) the exponent of n in ‖uₙ‖∞ from n = 100 on, median "
    "and range over seeds, which would be 1/2 for the theorem's √n; (d) the points. Second page, "
    "{num_inside} points of the normal curve through (β, γ) = (0.999, 0.9), from that point to C = "
    "0: (a) ‖uₙ‖∞, median over seeds, with both bounds at three of the points; (b) the largest "
    "‖uₙ‖∞ of every seed from n = 100 on, with both bounds at the last step; (c) the points.",
    presets={
        "smoke": Config(
            model=SMOKE_MODEL, batch=2, num_steps=120, num_seeds=2, num_boundary=4, num_inside=3
        ),
        "laptop": Config(model=LAPTOP_MODEL, num_steps=1001),
        "paper": Config(batch=64, num_steps=3000, num_inside=32, chunk_size=4),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={**LAPTOP_MINIMUM, "num_boundary": 11, "num_inside": 8},
)
