"""How large updates get: each of optax's optimizers at its defaults (not in the paper)."""

from experiments.core.figure import Figure
from experiments.core.questions import UPDATES_BOUNDED
from experiments.figures.stability.optimizer_stability import claims, plot
from experiments.figures.stability.optimizer_stability.run import Config, compute

FIGURE = Figure(
    name="optimizer_stability",
    title="How large updates get: each of optax's optimizers at its defaults",
    paper="not in the paper",
    question=UPDATES_BOUNDED,
    caption="All optimizers that optax and optax.contrib have, at their defaults, with ε → 0. "
    "(a) The largest update that any N gradients can cause, for optimizers whose update is a "
    "weighted sum of gradients over the root of a weighted sum of their squares: the exact "
    "supremum (lines) and the update that the optimizer reaches on the worst gradients (dots). "
    "(b) How fast their updates grow once gradients stop. (c) For optimizers of another form, the "
    "largest update that a search with {search_length} gradients reached for a parameter with one "
    "entry, a lower bound. The table lists the optimizers to which the question does not apply.",
    presets={
        "smoke": Config(
            longest=30,
            search_length=10,
            search_steps=5,
            optimizers=("adam", "lion", "momo", "sgd", "simplified_ademamix"),
        ),
        "laptop": Config(),
        "paper": Config(search_length=100, search_steps=1000),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={"longest": 100_000, "search_length": 30, "search_steps": 200},
)
