"""Adam's trajectories and those of its continuous-time model (Fig. 1)."""

from experiments.core.figure import Figure
from experiments.core.questions import FLOW_FOLLOWS_ADAM
from experiments.figures.flow.trajectories import claims, plot
from experiments.figures.flow.trajectories.run import Config, compute
from experiments.training.config import LAPTOP_MODEL, SMOKE_MODEL

FIGURE = Figure(
    name="trajectories",
    title="Adam's trajectories and those of its continuous-time model",
    paper="Fig. 1",
    question=FLOW_FOLLOWS_ADAM,
    decided_by=(
        "flow-tracks-adam-at-1e-4",
        "flow-tracks-adam-at-3e-4",
        "flow-tracks-adam-at-1e-3",
    ),
    caption="nanoGPT ({model.num_layers} layers, width {model.width}, context {model.context}) on "
    "the {corpus} corpus by Adam, (β, γ) = ({b2:g}, {b1:g}), batch {batch}, {num_seeds} seeds, and "
    "the paper's differential equation from the same weights on the same minibatches, each held "
    "for a step; dropout off. (a) {num_drawn} parameters chosen at random, as in the paper, at its "
    "η = {learning_rate:g}, and (b) at the smallest η, one seed. (c) Relative error over at most "
    "{num_measured} parameters chosen at random, median and range over seeds: of the flow with the "
    "paper's bias correction, which is the discrete averages', with that of its own averages "
    "(self-consistent), and the paper's outside of the embedding, most of whose rows belong to "
    "tokens that never occur and move as one. (d) The same over η, after {compared_steps} steps "
    "and after equal times Nη, with the regressed slopes' medians. (e) Euler's method, the paper's "
    "solver, and the exponential integrator of (a-d, f), {substeps} substeps, against one with "
    "{reference_substeps}; with them the discrete run. (f) The first steps: learning rates "
    "between the flow and the discrete run. Second page: each drawn parameter of one seed, η = "
    "{learning_rate:g}, named by its array.",
    presets={
        "smoke": Config(
            model=SMOKE_MODEL,
            batch=2,
            num_steps=40,
            num_seeds=2,
            compared_steps=20,
            substeps=2,
            reference_substeps=4,
            euler_substeps=(4,),
        ),
        "laptop": Config(model=LAPTOP_MODEL, batch=4, num_seeds=6, chunk_size=6),
        "paper": Config(batch=64, chunk_size=1),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={
        "model.width": 64,
        "model.context": 32,
        "num_steps": 200,
        "num_seeds": 5,
        "num_measured": 16384,
        "compared_steps": 100,
        "early_steps": 10,
        "substeps": 8,
        "reference_substeps": 16,
    },
)
