"""Rows without gradients, under two optimizers whose updates then grow (not in the paper).

At optax's defaults simplified_ademamix and ademamix are beyond the boundary where updates stop
being bounded. nanoGPT, whose embedding has rows that the text never uses, is trained with them, and
with the remedies: a slower average inside the boundary, a larger ε, and updates that are clipped.
Two controls separate the effects of clipping and momentum: clipping where nothing grows, and the
same slow average inside the boundary of a larger β.
"""

import functools
import itertools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
import optax
import xarray as xr
from optax import contrib

from experiments.core.config import check_least, require
from experiments.core.run import Run
from experiments.core.store import labeled, named
from experiments.figures.stability.unused_rows import UNUSED, train_recording
from experiments.training.config import TrainingConfig
from kadam_jax import grid, points, worst_case

SIMPLIFIED, ADEMAMIX = "simplified_ademamix", "ademamix"
WHERE = ("unused rows of the embedding", "all other entries")
ALPHA = 5.0
"""optax's default weight of ademamix's slow average."""


@dataclass(frozen=True)
class Config(TrainingConfig):
    """The training setup; `learning_rate` is how far a constant gradient moves a weight in a step.

    Attributes:
      eps: optax's default.
      small_eps: A smaller epsilon, as in some recipes.
      b1: simplified_ademamix's γ; optax's default.
      inside_b1: γ that is inside the boundary.
      b2: simplified_ademamix's β; optax's default.
      inside_b2: β that is inside the boundary; at β = γ no update exceeds a steady gradient's.
      mix_b2: ademamix's β, for a horizon a tenth of that of optax's default.
      mix_b3: Decay of ademamix's slow average, for such a horizon.
      inside_b3: Decay of the slow average that is inside the boundary.
    """

    num_steps: int = 1000
    eps: float = 1e-8
    small_eps: float = 1e-15
    b1: float = 0.99
    inside_b1: float = 0.97
    b2: float = 0.95
    inside_b2: float = 0.99
    mix_b2: float = 0.99
    mix_b3: float = 0.999
    inside_b3: float = 0.99

    def __post_init__(self):
        super().__post_init__()
        check_least(self, num_steps=10)
        require(0 < self.small_eps < self.eps, "small_eps must be below eps", self.small_eps)
        for slow, inside, b2 in (("b1", "inside_b1", "b2"), ("mix_b3", "inside_b3", "mix_b2")):
            square = getattr(self, b2)
            require(0 < square < 1, f"{b2} must be in (0, 1)", square)
            decay = getattr(self, slow)
            require(square < decay**2 < 1, f"{slow} must be from √{b2} to 1", decay)
            decay = getattr(self, inside)
            require(0 < decay**2 < square, f"{inside} must be from 0 to √{b2}", decay)
        require(self.b1**2 < self.inside_b2 < 1, "inside_b2 must be from b1² to 1", self.inside_b2)


class Arm(NamedTuple):
    """An arm that is trained."""

    optimizer: str
    slow: float
    """Decay of the slowest average: γ of simplified_ademamix, b3 of ademamix."""
    b2: float
    eps: float
    clipped: bool


def arms(config: Config) -> dict[str, Arm]:
    """Return everything that is trained, by name; arms of one optimizer and β follow each other.

    >>> list(arms(Config()))[:3]
    ['defaults', 'defaults, small ε', 'inside']
    """
    b1, inside, b2 = config.b1, config.inside_b1, config.b2
    eps, small = config.eps, config.small_eps
    return {
        "defaults": Arm(SIMPLIFIED, b1, b2, eps, False),
        "defaults, small ε": Arm(SIMPLIFIED, b1, b2, small, False),
        "inside": Arm(SIMPLIFIED, inside, b2, eps, False),
        "inside, small ε": Arm(SIMPLIFIED, inside, b2, small, False),
        "clipped": Arm(SIMPLIFIED, b1, b2, eps, True),
        "clipped, small ε": Arm(SIMPLIFIED, b1, b2, small, True),
        "inside, clipped": Arm(SIMPLIFIED, inside, b2, eps, True),
        "inside by β": Arm(SIMPLIFIED, b1, config.inside_b2, eps, False),
        "ademamix": Arm(ADEMAMIX, config.mix_b3, config.mix_b2, eps, False),
        "ademamix inside": Arm(ADEMAMIX, config.inside_b3, config.mix_b2, eps, False),
    }


MAKERS: Mapping[str, Callable] = {
    SIMPLIFIED: lambda slow, b2, eps: contrib.scale_by_simplified_ademamix(slow, b2, eps=eps),
    ADEMAMIX: lambda slow, b2, eps: contrib.scale_by_ademamix(b2=b2, b3=slow, alpha=ALPHA, eps=eps),
}
"""Functions from the slowest decay, β and ε to each optimizer without a learning rate."""


def compute(config: Config, run: Run) -> xr.Dataset:
    """Run a sweep for each optimizer and β; `analyze` them."""

    @functools.cache
    def supremum(optimizer, slow, b2):
        return worst_case(MAKERS[optimizer](slow, b2, 1e-8), config.num_steps).supremum

    losses, updates = [], []
    program = operator.attrgetter("optimizer", "b2")
    for (name, b2), group in itertools.groupby(arms(config).values(), program):
        of_it = list(group)
        # A constant gradient's update in units of the learning rate.
        steady = [1 / (1 - arm.slow) if name == SIMPLIFIED else 1 + ALPHA for arm in of_it]
        limits = [supremum(name, config.inside_b1, b2) if x.clipped else np.inf for x in of_it]
        columns = {
            "slow": [arm.slow for arm in of_it],
            "eps": [arm.eps for arm in of_it],
            "clip": limits,
            "learning_rate": config.learning_rate / np.array(steady),
        }
        members = grid(
            point=points(**{key: np.array(x, np.float32) for key, x in columns.items()}),
            seed=config.seeds,
        )
        make = _clipping(functools.partial(MAKERS[name], b2=b2))
        loss, largest = train_recording(run, f"{name}_{b2:g}", config, members, make)
        losses.append(loss)
        updates.append(largest)
    largest = {key: np.concatenate([x[key] for x in updates]) for key in updates[0]}
    suprema = [supremum(arm.optimizer, arm.slow, arm.b2) for arm in arms(config).values()]
    return analyze(config, np.concatenate(losses), largest, np.array(suprema))


def _clipping(make: Callable) -> Callable[[Mapping[str, jax.Array]], optax.GradientTransformation]:
    return lambda member: optax.chain(
        make(member["slow"], eps=member["eps"]), optax.clip(member["clip"])
    )


def analyze(
    config: Config, loss: np.ndarray, largest: Mapping[str, np.ndarray], suprema: np.ndarray
) -> xr.Dataset:
    """Compare the trained arms.

    Args:
      config: The configuration.
      loss: Training losses, shape (num_arms, num_seeds, num_steps).
      largest: Largest updates by tensor, each of that shape.
      suprema: The supremum after all steps without clipping, shape (num_arms,).

    Returns:
      The figure's dataset.
    """
    every = np.stack(list(largest.values()))
    parts = np.stack([largest[UNUSED], np.max([x for k, x in largest.items() if k != UNUSED], 0)])
    last = max(config.num_steps // 10, 1)
    chosen = arms(config)
    data = xr.Dataset(
        {
            "max_update": named(
                (("where", "arm", "seed", "step"), parts), "largest modulus of u_n", "learning rate"
            ),
            "largest": named(
                (("tensor", "arm", "seed"), every.max(-1)),
                "largest modulus of u_n of all steps",
                "learning rate",
            ),
            "supremum": named(
                ("arm", suprema),
                f"supremum of |u| after {config.num_steps} steps, without clipping",
                "learning rate",
            ),
            "loss": named(
                (("arm", "seed"), loss[..., -last:].mean(-1)),
                f"mean training loss of the last {last} steps",
                "nat/token",
            ),
        },
        {
            "where": named(("where", list(WHERE)), "part of the parameters"),
            "tensor": named(("tensor", list(largest)), "tensor, the embedding in two parts"),
            "arm": named(("arm", list(chosen)), "what is trained"),
            "optimizer": named(
                ("arm", [arm.optimizer for arm in chosen.values()]), "optimizer's name in optax"
            ),
            "slow": named(
                ("arm", [arm.slow for arm in chosen.values()]), "decay of the slowest average"
            ),
            "b2": named(("arm", [arm.b2 for arm in chosen.values()]), "β"),
            "eps": named(("arm", [arm.eps for arm in chosen.values()]), "ε"),
            "seed": np.array(config.seeds),
            "step": np.arange(config.num_steps),
        },
    )
    return labeled(data)
