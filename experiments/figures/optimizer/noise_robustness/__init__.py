"""k-Adam by number of stages when gradients are noisy (not in the paper).

The chosen learning rate is refined by a parabola through the lowest validation loss and its
neighbors. At an end of the grid, the loss might be lower beyond it.
"""

from experiments.core.figure import Figure
from experiments.core.questions import WORTH_TRYING
from experiments.figures.optimizer.noise_robustness import claims, plot
from experiments.figures.optimizer.noise_robustness.run import Config, compute
from models.ngram import NGramConfig

FIGURE = Figure(
    name="noise_robustness",
    title="k-Adam by number of stages when gradients are noisy",
    paper="not in the paper",
    question=WORTH_TRYING,
    caption="A feed-forward language model (context {model.context}, embedding size "
    "{model.embedding_size}, hidden width {model.width}) on the {corpus} corpus, {num_steps} "
    "steps with a linear warm-up over the first {warmup_steps} and a cosine to {final_rate:g} of "
    "the learning rate; k = 1 is Adam, and the decays of k stages follow the {strategy} "
    "strategy. Noise grows to the right: (a, d) from smaller batches with the same number of "
    "steps; (b, e) from normal noise added to gradients at batch {batch}, its root mean square "
    "relative to the gradient's; (c, f) from training labels replaced by uniform bytes at batch "
    "{batch}, with clean test labels. Top: test loss minus Adam's, paired by seed; bottom: test "
    "loss; means over {num_seeds} fresh seeds with 95% intervals by Student's t. Every k is "
    "tuned in every condition on the validation split, over {num_rates} learning rates with "
    "{num_tuning_seeds} other seeds, and a ring marks a learning rate at an end of the grid. The "
    "second page shows validation loss versus learning rate, with the chosen rates marked above "
    "the axis.",
    presets={
        "smoke": Config(
            model=NGramConfig(context=4, embedding_size=4, width=8),
            batch=16,
            num_steps=20,
            num_seeds=2,
            learning_rate=1e-2,
            ks=(1, 3),
            batch_sizes=(16,),
            gradient_noises=(1.0,),
            label_noises=(0.3,),
            warmup_steps=2,
            num_rates=3,
            num_tuning_seeds=1,
            eval_examples=256,
            chunk_size=1,
        ),
        "laptop": Config(),
        "paper": Config(
            model=NGramConfig(context=16, embedding_size=64, width=1024),
            num_steps=10_000,
            num_seeds=25,
            learning_rate=1.25e-4,
            gradient_noises=(0.3, 1.0, 3.0),
            label_noises=(0.1, 0.2, 0.3),
            warmup_steps=400,
            num_rates=10,
            num_tuning_seeds=5,
            eval_examples=16384,
            chunk_size=25,
        ),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={
        "model.width": 64,
        "model.context": 8,
        "num_steps": 400,
        "num_seeds": 5,
        "num_rates": 6,
        "num_tuning_seeds": 2,
        "eval_examples": 8192,
    },
)
