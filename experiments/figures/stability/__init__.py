"""Where the max-update is bounded, and what that says about generalization (§3)."""

from collections.abc import Mapping
from typing import Any

from experiments.training.config import LAPTOP_MINIMUM, LAPTOP_MODEL, PAPER_CORPUS, SMOKE_MODEL

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "smoke": dict(
        model=SMOKE_MODEL,
        batch=2,
        num_steps=30,
        num_seeds=2,
        num_points=6,
        warmup_steps=2,
        eval_every=5,
        eval_batches=2,
    ),
    "laptop": dict(
        model=LAPTOP_MODEL, num_steps=750, warmup_steps=25, eval_every=50, eval_batches=32
    ),
    # The paper's number of steps, with the laptop's network.
    "evening": dict(
        model=LAPTOP_MODEL,
        num_steps=3000,
        num_seeds=16,
        warmup_steps=100,
        eval_every=100,
        eval_batches=32,
    ),
    # Bytes in GPT-2's vocabulary, so almost all of the embedding's rows are dead.
    "paper": dict(corpus=PAPER_CORPUS, batch=64, num_steps=3000, num_points=128, chunk_size=4),
}
"""Settings of the figures of test losses along curves, by preset."""
MINIMUM = {**LAPTOP_MINIMUM, "num_steps": 750, "eval_batches": 32}
"""The minimum that their claims need, except for num_points."""
NETWORK = (
    "nanoGPT ({model.num_layers} layers, width {model.width}, context {model.context}, vocabulary "
    "{model.vocab_size}) is trained on bytes of the {corpus} corpus by Adam with batch size "
    "{batch}, {num_seeds} seeds and {num_steps} steps"
)
"""The beginning of the family's captions."""
SETUP = NETWORK + (
    ": a warm-up of {warmup_steps} steps, then a cosine from {learning_rate:g} to {final_rate:g} "
    "times that."
)
PANELS = (
    " (a) Loss on {eval_batches} held-out batches, the same for all members, every {eval_every} "
    "steps; the vertical line ends the first third of the run. (b) The lowest loss up to that line "
    "and in the whole run, means and 95% intervals; (c) the points, colored by "
)
"""Parts of the captions of the figures of test losses along curves."""
