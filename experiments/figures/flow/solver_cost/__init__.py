"""The cost of a solution of the flow: error versus gradients (not in the paper)."""

from experiments.core.figure import Figure
from experiments.core.questions import FLOW_FOLLOWS_ADAM
from experiments.figures.flow.solver_cost import claims, plot
from experiments.figures.flow.solver_cost.run import Config, compute
from experiments.training.config import LAPTOP_MODEL, SMOKE_MODEL

FIGURE = Figure(
    name="solver_cost",
    title="The cost of a solution of the flow: error versus gradients",
    paper="not in the paper",
    question=FLOW_FOLLOWS_ADAM,
    caption="Distance from the converged solution at the end, relative to the displacement from "
    "the start, versus gradients per step, {num_seeds} seeds, all in float64. (a) A ten-parameter "
    "quadratic and (b) a logistic regression with 16 new examples at each of {small_steps} steps, "
    "learning rate {small_rate:g}; (c) nanoGPT ({model.num_layers} layers, width {model.width}, "
    "{corpus} corpus, batch size {batch}, without dropout) over {num_steps} steps, learning rate "
    "{learning_rate:g}; (d) slopes of ln error versus ln K; γ = {b1:g}, β = {b2:g}. The converged "
    "solution is the exponential integrator's with K = {small_reference} in (a) and (b) and "
    "{reference} in (c); panels are gray below its own error, estimated for order 2. The dotted "
    "line is the error of the paper's Euler scheme with K = {goal}; titles state the fewest "
    "gradients with which the exponential integrator does as well. Dashed lines are diffrax's "
    "methods with substeps evenly spaced in t, limited to order 1.5 because u starts like √t in "
    "each minibatch; solid lines have substeps evenly spaced in x, where t = (n + x²)η.",
    presets={
        "smoke": Config(
            model=SMOKE_MODEL,
            batch=2,
            num_steps=2,
            num_seeds=2,
            small_steps=2,
            goal=6,
            reference=8,
            small_reference=16,
            euler=(3, 6),
            exponential=(1, 2),
            heun=(1, 2),
            tsit5=(1, 2),
        ),
        "laptop": Config(model=LAPTOP_MODEL),
        "paper": Config(batch=64, num_steps=10, num_seeds=8, small_steps=100, chunk_size=4),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={
        **{"num_seeds": 5, "num_steps": 3, "small_steps": 12, "goal": 100, "reference": 64},
        **{"model.num_layers": 1, "model.width": 64},
    },
)
