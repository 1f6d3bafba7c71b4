"""What a solution of the flow costs: error against gradients (not in the paper)."""

from experiments.core.figure import Figure
from experiments.core.questions import FLOW_FOLLOWS_ADAM
from experiments.figures.flow.solver_cost import claims, plot
from experiments.figures.flow.solver_cost.run import Config, compute
from experiments.training.config import LAPTOP_MODEL, SMOKE_MODEL

FIGURE = Figure(
    name="solver_cost",
    title="What a solution of the flow costs: error against gradients",
    paper="not in the paper",
    question=FLOW_FOLLOWS_ADAM,
    caption="How far each way to solve the flow is from the converged solution at the end, over "
    "the displacement from the start, against gradients a step, {num_seeds} seeds: (a) a "
    "ten-parameter quadratic with one gradient all along and (b) a logistic regression with "
    "another 16 examples at each of {small_steps} steps, learning rate {small_rate:g}; (c) a "
    "nanoGPT ({model.num_layers} layers, width {model.width}, {corpus} corpus, batch {batch}, "
    "without dropout) over {num_steps} steps, learning rate {learning_rate:g}; γ = {b1:g}, "
    "β = {b2:g}, all in float64. The converged solution is the exponential integrator's with "
    "K = {small_reference} in (a) and (b), {reference} in (c); panels are grey below its own "
    "error, estimated for order 2. The dotted line is the error of the paper's Euler scheme with "
    "K = {goal}; titles have the fewest gradients a step with which the exponential integrator's "
    "is no larger. Dashed: diffrax's methods with even substeps in t, where the √t of u at the "
    "start of a minibatch keeps them to order 1.5; in x, where t = (n + x²)η, they have more. (d) "
    "The slopes of ln error over ln K, all K. Tsit5's stages put second moments below 0 where they "
    "start from nothing, and u then is large: on the network its errors are not yet in the regime "
    "of its order.",
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
