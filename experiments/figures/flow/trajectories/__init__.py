"""Trajectories of Adam and of its continuous-time model (Fig. 1)."""

from experiments.core.figure import Figure
from experiments.core.questions import FLOW_FOLLOWS_ADAM
from experiments.figures.flow.trajectories import claims, plot
from experiments.figures.flow.trajectories.run import Config, compute
from experiments.training.config import LAPTOP_MODEL, PAPER_CORPUS, SMOKE_MODEL

FIGURE = Figure(
    name="trajectories",
    title="Trajectories of Adam and of its continuous-time model",
    paper="Fig. 1",
    question=FLOW_FOLLOWS_ADAM,
    decided_by={
        f"flow-tracks-adam-at-{rate}": f"at η = {float(rate):g} its distance from Adam after 100 "
        "steps is {} of the distance traveled"
        for rate in ("1e-4", "3e-4", "1e-3")
    },
    caption="nanoGPT ({model.num_layers} layers, width {model.width}, context {model.context}) is "
    "trained on the {corpus} corpus by Adam with (β, γ) = ({b2:g}, {b1:g}), batch size {batch}, "
    "{num_seeds} seeds and no dropout; the paper's flow starts from the same weights and sees the "
    "same minibatches, each held for a step. (a) {num_drawn} random parameters of one seed at the "
    "paper's η = {learning_rate:g} and (b) at the smallest η; the second page names their arrays. "
    "(c) Relative error over up to {num_measured} random parameters, median and range over seeds, "
    "of the flow with the paper's bias correction, of the flow with the correction that belongs to "
    "its own averages (self-consistent), and of the paper's flow outside the embedding, most of "
    "whose rows belong to tokens that never occur and move together. (d) The same versus η, after "
    "{compared_steps} steps and after equal times Nη. (e) How far Euler's method (the paper's), "
    "the exponential integrator with {substeps} substeps, and the discrete run are from the flow "
    "solved with {reference_substeps} substeps; (f) the flow's distance to the discrete run in the "
    "first steps.",
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
        "evening": Config(model=LAPTOP_MODEL, batch=4, num_seeds=20, chunk_size=6),
        "paper": Config(corpus=PAPER_CORPUS, batch=64, chunk_size=1),
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
