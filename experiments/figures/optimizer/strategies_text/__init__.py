"""k-Adam by number of stages and strategy on text (Fig. 16).

The loss on the first half of the held-out text chooses, and the second half is the test. An arm
whose chosen learning rate is at an end of the sweep might be better beyond it. Intervals are for
other seeds and other test batches. The second page draws the lowest loss over λ.
"""

from experiments.core.figure import Figure
from experiments.core.questions import WORTH_TRYING
from experiments.figures.optimizer import TUNED, panels
from experiments.figures.optimizer.strategies_text import claims, plot
from experiments.figures.optimizer.strategies_text.run import Config, compute
from experiments.training.config import LAPTOP_MINIMUM, PAPER_CORPUS
from models.nanogpt import GPTConfig

FIGURE = Figure(
    name="strategies_text",
    title="k-Adam by number of stages and strategy on text",
    paper="Fig. 16",
    question=WORTH_TRYING,
    caption="nanoGPT ({model.num_layers} layers, {model.num_heads} heads, width {model.width}) is "
    "trained on the {corpus} corpus, batch {batch}, {num_steps} steps at a constant learning rate; "
    + TUNED
    + " loss. "
    + panels("loss", "batch"),
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
        "evening": Config(
            model=GPTConfig(vocab_size=256, context=32, num_layers=2, num_heads=4, width=64),
            num_steps=800,
            num_seeds=24,
            ks=(1, 2, 3),
            rates=(0.03, 0.1, 0.3, 1.0, 3.0),
            eval_batches=256,
            chunk_size=8,
        ),
        # Appendix H's sweep.
        "paper": Config(
            corpus=PAPER_CORPUS,
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
    minimum={**LAPTOP_MINIMUM, "eval_batches": 64},
)
