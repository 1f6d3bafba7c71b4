"""k-Adam by number of stages and strategy on text (Fig. 16).

The loss on the first half of the held-out text chooses, and the second half is the test. An arm
whose chosen learning rate is at an end of the sweep might be better beyond it.
"""

from experiments.core.figure import Figure
from experiments.core.questions import WORTH_TRYING
from experiments.figures.optimizer.strategies_text import claims, plot
from experiments.figures.optimizer.strategies_text.run import Config, compute
from experiments.training.config import LAPTOP_MINIMUM
from models.nanogpt import GPTConfig

FIGURE = Figure(
    name="strategies_text",
    title="k-Adam by number of stages and strategy on text",
    paper="Fig. 16",
    question=WORTH_TRYING,
    caption="nanoGPT ({model.num_layers} layers, {model.num_heads} heads, width {model.width}) "
    "on the {corpus} corpus, batch {batch}, {num_steps} steps at a constant learning rate; the "
    "decays of k stages come from (β, γ) = ({b2:g}, {b1:g}). Every strategy and k is trained "
    "with one seed at learning rates {learning_rate:g} times {rates} and λ in {weight_decays}, "
    "{decays}, and the lowest validation loss chooses. (a) Test loss of the chosen setting, "
    "{num_seeds} fresh seeds, zoomed; (b) the same in full; (c) the paper's statistic, the "
    "lowest test loss over the sweep, with its one seed; (d) Adam's test loss (k = 1) minus the "
    "arm's, paired by seed and test batch. Bars are 95% intervals for other seeds and other test "
    "batches, and a ring marks a chosen learning rate at an end of the sweep. The second page "
    "shows validation loss versus learning rate, lowest over λ, with the chosen rate filled.",
    presets={
        "smoke": Config(
            model=GPTConfig(vocab_size=256, context=8, num_layers=1, num_heads=1, width=16),
            batch=2,
            num_steps=20,
            num_seeds=2,
            ks=(1, 2),
            rates=(1.0, 10.0),
            eval_batches=4,
        ),
        "laptop": Config(
            model=GPTConfig(vocab_size=256, context=32, num_layers=1, num_heads=4, width=64),
            rates=(0.03, 0.1, 0.3, 1.0, 3.0),
        ),
        # Appendix H's sweep, on the embedded text in place of C4.
        "paper": Config(
            batch=64,
            num_steps=20_000,
            rates=(0.01, 0.05, 0.1, 0.5, 1.0),
            weight_decays=(1e-4, 1e-3, 1e-2),
            eval_batches=200,
            chunk_size=1,
        ),
    },
    compute=compute,
    plot=plot.plot,
    claims=claims.CLAIMS,
    minimum={
        **LAPTOP_MINIMUM,
        "eval_batches": 64,
    },
)
