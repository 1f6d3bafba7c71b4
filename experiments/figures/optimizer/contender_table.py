"""The contenders: a new one is a new row.

A row says where the search for its learning rate and its decays begins. Muon and the stages around
it are for matrices that multiply; all other parameters get NAdamW, as in `optax.contrib.muon`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import optax
from optax import contrib

from experiments.training.optimizers import (
    ADAMS_SIZE,
    ADAMW,
    OPTIMIZERS,
    Member,
    Optimizer,
    input_axes,
    is_matrix,
    muon_dimensions,
    strategy_decays,
)
from kadam_jax import scale_by_adaptive_normalization, scale_to_rms

Stages = Callable[[Member], Sequence[optax.GradientTransformation]]
"""`stages(member)`: transformations in a chain."""


class Contender(NamedTuple):
    """A row of the table."""

    label: str
    optimizer: Optimizer
    rate: float
    """Learning rate where the search begins."""
    b1: float
    """γ there; of every stage for k-Adam, of the momentum for Muon."""
    b2: float
    """β there; of the stages for Muon, and of NAdamW next to it."""
    weight_decay: float = 1e-2
    squares: bool = True
    """Whether b2 averages squares, whose memory in tokens does not depend on the batch."""


def _kadam(label: str, k: int, strategy: str, rate: float) -> Contender:
    """Return k-Adam with the same decays in every stage, from those of a strategy on."""
    row = OPTIMIZERS["kadam"]
    stages = row._replace(make=lambda at, schedule: row.make({**at, "k": k}, schedule))
    begin = strategy_decays(k, strategy)
    return Contender(label, stages, rate, begin["b1"], begin["b2"])


def _ademamix(at: Member, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Return AdEMAMix whose slow average has b3 = b2: then b3² < b2, and updates are bounded."""
    b1, b2 = at["b1"], at["b2"]
    return contrib.ademamix(schedule, b1, b2, b2, weight_decay=at["weight_decay"])


def _stage(at: Member, axes: Any = ()) -> optax.GradientTransformation:
    """Return a stage without momentum: each entry over the root of its average square."""
    return scale_by_adaptive_normalization(0.0, at["b2"], 1e-8, axes=axes)


def _before_muon(at: Member, schedule: optax.Schedule) -> optax.GradientTransformation:
    muon = OPTIMIZERS["muon"].make(at, schedule)
    return optax.chain(optax.masked(_stage(at), is_matrix), muon)


def _chained(stages: Stages) -> Optimizer:
    """Return stages for the matrices, with an update of Adam's size, and NAdamW for the others."""

    def make(at, schedule):
        for_matrices = optax.chain(
            *stages(at),
            scale_to_rms(ADAMS_SIZE),
            optax.add_decayed_weights(at["weight_decay"]),
            optax.scale_by_learning_rate(schedule),
        )
        for_others = optax.nadamw(schedule, at["b1"], at["b2"], weight_decay=at["weight_decay"])
        return optax.partition({True: for_matrices, False: for_others}, is_matrix)

    return Optimizer(make)


def _orthogonal(beta: Any, *, nesterov: bool = False) -> optax.GradientTransformation:
    return contrib.scale_by_muon(
        beta=beta, nesterov=nesterov, weight_dimension_numbers=muon_dimensions
    )


CONTENDERS: dict[str, Contender] = {
    ADAMW: Contender("AdamW", OPTIMIZERS[ADAMW], 2.5e-3, 0.8, 0.95),
    "adamw_equal": Contender("AdamW, b1 = b2", OPTIMIZERS[ADAMW], 2.5e-3, 0.9, 0.9),
    "nadamw": Contender("NAdamW", OPTIMIZERS["nadamw"], 2.5e-3, 0.8, 0.95),
    "rmsprop": Contender("RMSprop", OPTIMIZERS["rmsprop"], 1.8e-3, 0.0, 0.8),
    "lion": Contender("Lion", OPTIMIZERS["lion"], 1e-3, 0.8, 0.9, 5e-2, squares=False),
    # Lion whose two averages are one.
    "signum": Contender("Signum", OPTIMIZERS["lion"], 1e-3, 0.8, 0.8, 5e-2, squares=False),
    "ademamix": Contender("AdEMAMix, b3 = b2", Optimizer(_ademamix), 1.2e-3, 0.8, 0.96),
    "schedule_free_adamw": Contender(
        "Schedule-free AdamW", OPTIMIZERS["schedule_free_adamw"], 7e-3, 0.9, 0.9
    ),
    "muon": Contender("Muon", OPTIMIZERS["muon"], 2e-2, 0.9, 0.95),
    "adamuon": Contender(
        "AdaMuon: a stage after",
        _chained(
            lambda at: (optax.trace(at["b1"]), optax.scale_by_sign(), _orthogonal(0.0), _stage(at))
        ),
        2e-2,
        0.9,
        0.95,
    ),
    "normuon": Contender(
        "NorMuon: a stage per row after",
        _chained(lambda at: (_orthogonal(at["b1"]), _stage(at, input_axes))),
        2e-2,
        0.9,
        0.95,
    ),
    "muon_before": Contender("a stage before Muon", Optimizer(_before_muon), 2e-2, 0.9, 0.95),
    "muon_both": Contender(
        "stages before and after Muon",
        _chained(lambda at: (_stage(at), _orthogonal(at["b1"], nesterov=True), _stage(at))),
        2e-2,
        0.9,
        0.95,
    ),
    "kadam_2": _kadam("2-Adam, from inverse exp", 2, "inverse_exp", 9e-4),
    "kadam_3": _kadam("3-Adam, from inverse exp", 3, "inverse_exp", 9e-4),
    "kadam_2_scaled": _kadam("2-Adam, from scaled", 2, "scaled", 1.8e-3),
    "kadam_3_scaled": _kadam("3-Adam, from scaled", 3, "scaled", 1.8e-3),
}
"""The contenders by name. Searches begin near the laptop's optima of `optimizer_comparison`, where
it has one, else near those of a relative; k-Adam's begin at what its strategies give."""
SGD = Contender("SGD with momentum", OPTIMIZERS["sgd"], 0.5, 0.9, 0.95, 5e-5, squares=False)
"""A row without any normalization; its b2 has no effect. Where its search begins, a step decays the
weights as much as one of AdamW's."""


def decays(contender: Contender, steps: float) -> tuple[float, float]:
    """Return b1 and b2 whose memories are 2^-steps times as long; 0 is no memory.

    >>> [round(decay, 3) for decay in decays(CONTENDERS["adamw"], 1.0)]
    [0.6, 0.9]
    """
    b1, b2 = (max(0.0, 1 - (1 - decay) * 2**steps) for decay in (contender.b1, contender.b2))
    return b1, b2
