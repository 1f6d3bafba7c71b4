"""Trajectories of Adam and of its continuous-time model (Fig. 1)."""

from experiments.core.figure import Figure
from experiments.core.questions import FLOW_FOLLOWS_ADAM
from experiments.figures.flow.trajectories import claims, plot
from experiments.figures.flow.trajectories.run import Config, compute
from experiments.training.config import LAPTOP_MODEL, SMOKE_MODEL

FIGURE = Figure(
    name="trajectories",
    title="Trajectories of Adam and of its continuous-time model",
    paper="Fig. 1",
    question=FLOW_FOLLOWS_ADAM,
    decided_by=("flow-tracks-adam-at-1e-4", "flow-tracks-adam-at-3e-4", "flow-tracks-adam-at-1e-3"),
    caption="nanoGPT ({model.num_layers} layers, width {model.width}, context {model.context}) is "
    "trained on the {corpus} corpus by Adam with (β, γ) = ({b2:g}, {b1:g}), batch size {batch}, "
    "{num_seeds} seeds and no dropout, and the paper's differential equation is solved from the "
    "same weights on the same minibatches, each held for a step. (a) {num_drawn} parameters chosen "
    "at random, as in the paper, at its η = {learning_rate:g}, and (b) at the smallest η, one "
    "seed. (c) Relative error over at most {num_measured} parameters chosen at random, median and "
    "range over seeds, of the flow with the paper's bias correction, which is that of the discrete "
    "averages, of the flow with the correction of its own averages (self-consistent), and of the "
    "paper's flow outside the embedding, most of whose rows belong to tokens that never occur and "
    "move as one; (d) the same versus η, after {compared_steps} steps and after equal times Nη, "
    "with the medians of the regressed slopes. (e) Euler's method, which is the paper's solver, "
    "and the exponential integrator of the other panels with {substeps} substeps, compared with "
    "{reference_substeps} substeps, and the discrete run; (f) the distance between the flow and "
    "the discrete run in the first steps, in learning rates. Second page: each drawn parameter of "
    "one seed at η = {learning_rate:g}, named by its array.",
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
