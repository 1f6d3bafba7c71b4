"""k-Adam and six other optimizers, each tuned with as many runs (not in the paper)."""

from experiments.core.figure import Figure
from experiments.core.questions import WORTH_TRYING
from experiments.figures.optimizer.optimizer_comparison import claims, plot
from experiments.figures.optimizer.optimizer_comparison.grids import Grids, first_few
from experiments.figures.optimizer.optimizer_comparison.run import KADAM, Config, compute
from experiments.training.config import LAPTOP_MINIMUM, LAPTOP_MODEL, SMOKE_MODEL
from experiments.training.optimizers import ADAMW
from kadam_jax import STRATEGIES

FIGURE = Figure(
    name="optimizer_comparison",
    title="k-Adam and six other optimizers, each tuned with as many runs",
    paper="not in the paper",
    question=WORTH_TRYING,
    decided_by=(
        "tuned-kadam-beats-tuned-adamw",
        "two-adam-beats-tuned-adamw",
    ),
    caption="nanoGPT ({model.num_layers} layers, {model.num_heads} heads, width {model.width}) on "
    "the {corpus} corpus, batch {batch}, {num_steps} steps: a warm-up of {warmup_steps}, then a "
    "cosine to {final_rate:g} of the learning rate (Schedule-free AdamW: constant, and measured "
    "through its averaged parameters). Every optimizer is tuned with the same number of runs: "
    "learning rates of its own range times settings of its decays and weight decay with one seed, "
    "the best {num_finalists} of these (of k-Adam equally many of each k and strategy) with "
    "{num_tuning_seeds}, the first included, whose mean chooses. Settings lie around the best of "
    "earlier searches; k-Adam's are its strategies at k in {ks}, with the usual decays and weight "
    "decay, untuned, so each of these arms has its learning rate tuned alone. The loss on the "
    "first half of the held-out text chooses, the second half is the test, with {num_seeds} fresh "
    "seeds, {eval_batches} batches of each. (a) How much lower the test loss is than tuned "
    "AdamW's, mean over paired seeds with its 95% interval (bootstrap, no narrower than Student's "
    "t), on an axis that is logarithmic beyond ±0.1; filled where it is not zero by Holm's "
    "procedure over all rows; (picked) is what tuning k-Adam ends with. (b) The test loss of each "
    "seed, and their mean. A ring marks an arm with a learning rate, γ, β or λ at an end of what "
    "was tried (second page: a learning rate): beyond it the arm might be better. Second page: "
    "validation loss, first tuning seed, over the learning rate at the chosen setting (γ, β, λ), "
    "of every stage for k-Adam; the chosen rate, by all tuning seeds, is filled; (a) each "
    "optimizer, (b) every k and strategy, k = 3 dashed, with AdamW at its first setting, dotted.",
    presets={
        "smoke": Config(
            model=SMOKE_MODEL,
            batch=2,
            num_steps=20,
            warmup_steps=2,
            num_seeds=2,
            optimizers=(ADAMW, "schedule_free_adamw", KADAM),
            ks=(2,),
            grids=first_few(Grids(), 2, len(STRATEGIES)),
            num_finalists=len(STRATEGIES),
            num_tuning_seeds=2,
            eval_batches=4,
            chunk_size=2,
        ),
        "laptop": Config(model=LAPTOP_MODEL, num_seeds=20),
        # Appendix P's network and number of steps, on the embedded text in place of C4.
        "paper": Config(
            batch=64,
            num_steps=20_000,
            warmup_steps=400,
            learning_rate=3e-3,
            num_tuning_seeds=5,
            eval_batches=200,
            chunk_size=1,
        ),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={
        **LAPTOP_MINIMUM,
        "num_seeds": 10,
        "num_finalists": 20,
        "num_tuning_seeds": 5,
        "eval_batches": 64,
    },
)
