"""‖W‖² of queries and keys: Theorem 2 and what it leaves out (Fig. 5)."""

from dataclasses import replace

from experiments.core.figure import Figure
from experiments.core.questions import SCALE_INVARIANCE
from experiments.figures.invariance.norm_dynamics import claims, plot
from experiments.figures.invariance.norm_dynamics.run import SMALL, TINY, Config, compute
from experiments.training.config import PAPER_CORPUS

FIGURE = Figure(
    name="norm_dynamics",
    title="‖W‖² of queries and keys: Theorem 2 and what it leaves out",
    paper="Fig. 5",
    question=SCALE_INVARIANCE,
    decided_by={
        "theorem-2-predicts-the-norm": "‖W‖² by Theorem 2 is {} times the true one, without decay",
        "full-form-predicts-the-norm-with-decay": "‖W‖² by the form that keeps ⟨W, u⟩ is {} times "
        "the true one, with weight decay",
    },
    caption="nanoGPT with qk-norm ({model.num_layers} layers, {model.num_heads} heads, width "
    "{model.width}) is trained on the {corpus} corpus by Adam with η = {learning_rate:g}, (β, γ) = "
    "({b2:g}, {b1:g}), batch size {batch} and {num_seeds} seeds; {num_slices} slices, each the "
    "query or key of one head, are chosen at random. (a, b) ‖W‖² of one seed's slices, true and by "
    "Theorem 2, without weight decay as in the paper (whose figure ends at n = 100) and with λ = "
    "{weight_decay:g}. (c) Relative error of ‖W‖², mean over slices and seeds with the range over "
    "seeds; the full form keeps -2⟨W,u⟩ and is exact for the discrete step at λ = 0, so its error "
    "there is only rounding; (d) growth of ‖W‖² over {num_steps} steps, over Theorem 2's. (e) "
    "Relative error of the predicted growth on the continuous-time flow ({flow_model.num_layers} "
    "layers, {flow_model.num_heads} heads, width {flow_model.width}, {flow_steps} steps, no "
    "dropout), where no form is exact, with lines at 1% and 5%; (f) the remaining share of a "
    "difference in ‖W₀‖², which a moving average forgets and a sum does not. Second page: every "
    "slice of one seed relative to ‖W₀‖², λ = 0 above and λ > 0 below.",
    presets={
        "smoke": Config(
            model=TINY,
            batch=2,
            num_steps=40,
            num_seeds=2,
            num_slices=4,
            flow_model=TINY,
            flow_b1s=(0.5, 0.9),
            flow_steps=20,
            substeps=2,
        ),
        "laptop": Config(model=replace(SMALL, num_layers=2, num_heads=8), flow_model=SMALL),
        "paper": Config(corpus=PAPER_CORPUS, batch=64, chunk_size=1),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={
        "model.width": 64,
        "num_steps": 300,
        "num_seeds": 5,
        "num_slices": 16,
        "flow_model.width": 64,
        "flow_steps": 256,
        "substeps": 8,
    },
)
