"""The worst case of each of optax's optimizers at its defaults (not in the paper).

Optimizers are found by introspection, so any that optax adds are analyzed too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import optax
import xarray as xr

from experiments.core.config import FigureConfig, check_least, require
from experiments.core.progress import progress
from experiments.core.run import Run
from experiments.core.store import labeled, named
from kadam_jax import dead_gradient_growth, find_optimizers, worst_case
from kadam_jax.worst_cases import COUPLED, OTHER

LENGTHS = (10, 30, 100, 300, 1000, 3000, 10_000, 20_000, 50_000, 100_000)
"""Numbers of gradients at which exact suprema are computed."""
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {"noisy_sgd": {"key": 0}}
"""Arguments that an optimizer needs in addition to a learning rate."""
LOSS = "needs the value of the loss"
NOT_ASKED: Mapping[str, str] = {
    "dpsgd": "needs a gradient for each example",
    "lbfgs": "needs the loss function, for its line search",
    "momo": LOSS,
    "momo_adam": LOSS,
    "polyak_sgd": LOSS,
    "sophia": "needs the loss function, for its estimate of the Hessian",
}
"""Optimizers that cannot update from gradients and parameters alone, and why."""
KINDS = EXACT, LOWER, NOT_APPLICABLE = "exact", "lower bound", "not applicable"


FOUND = find_optimizers()


def make(name: str) -> optax.GradientTransformation:
    """Make an optimizer at its defaults, with learning rate 1."""
    return FOUND[name](1.0, **ARGUMENTS.get(name, {}))


@dataclass(frozen=True)
class Config(FigureConfig):
    """Which worst cases are computed.

    Attributes:
      longest: The longest sequence of gradients; shorter ones are those of `LENGTHS`.
      search_length: Length of the sequences that are searched for lower bounds.
      search_steps: Steps of gradient ascent in a search.
      optimizers: Names in optax, or none for all that it has.
    """

    longest: int = LENGTHS[-1]
    search_length: int = 30
    search_steps: int = 200
    optimizers: tuple[str, ...] = ()

    def __post_init__(self):
        check_least(self, longest=LENGTHS[0], search_length=2, search_steps=1)
        known = set(self.optimizers) <= set(FOUND)
        require(known, "optimizers must be names of optax's optimizers", self.optimizers)

    @property
    def names(self) -> tuple[str, ...]:
        """The optimizers that are analyzed."""
        return self.optimizers or tuple(FOUND)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Numbers of gradients at which exact suprema are computed."""
        return tuple(length for length in LENGTHS if length <= self.longest)


def compute(config: Config, run: Run) -> xr.Dataset:
    """Ask every optimizer for its worst case; `run` is not needed."""
    del run
    with progress("optimizers", len(config.names), 0) as advance:
        rows = []
        for name in config.names:
            rows.append(ask(config, name))
            advance(1)
    columns = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    at_lengths = ("optimizer", "length")
    data = xr.Dataset(
        {
            "supremum": named(
                (at_lengths, columns["supremum"]),
                "exact supremum of |u| at the last of N gradients; NaN if unknown",
                "learning rate",
            ),
            "attained": named(
                (at_lengths, columns["attained"]),
                "|u| that the optimizer reaches on the worst gradients",
                "learning rate",
            ),
            "growth": named(
                ("optimizer", columns["growth"]),
                "slope of ln|u| once gradients stop, -inf if updates stop too; NaN if unknown",
                "1/step",
            ),
            "lower_bound": named(
                ("optimizer", columns["lower_bound"]),
                f"largest |u| that a search found with {config.search_length} gradients",
                "learning rate",
            ),
        },
        {
            "optimizer": named(("optimizer", list(config.names)), "optimizer's name in optax"),
            "kind": named(("optimizer", columns["kind"]), "what is known of its supremum"),
            "reason": named(("optimizer", columns["reason"]), "why"),
            "length": named(("length", np.array(config.lengths)), "number N of gradients", "step"),
        },
    )
    for kind, name in zip(KINDS, ("num_exact", "num_lower", "num_not_applicable"), strict=True):
        data[name] = named(int((data.kind == kind).sum()), f"number of optimizers: {kind}")
    for name in ("adam", "ademamix", "simplified_ademamix"):
        row = data.reindex(optimizer=[name]).isel(optimizer=0, drop=True)
        data[f"growth_{name}"] = named(
            row.growth, f"slope of ln|u| of {name} once gradients stop", "1/step"
        )
    return labeled(data)


def ask(config: Config, name: str) -> dict[str, Any]:
    """Return what is known of one optimizer: `kind`, `reason` and values, NaN where unknown."""
    unknown = np.full(len(config.lengths), np.nan)
    row = {"supremum": unknown, "attained": unknown, "growth": np.nan, "lower_bound": np.nan}
    if name in NOT_ASKED:
        return {"kind": NOT_APPLICABLE, "reason": NOT_ASKED[name], **row}
    optimizer = make(name)
    short = worst_case(optimizer, config.search_length, search_steps=config.search_steps)
    reason, *_ = short.reason.split(";")
    if not short.exact:
        if not reason.startswith((COUPLED, OTHER)):
            return {"kind": NOT_APPLICABLE, "reason": reason, **row}
        return {"kind": LOWER, "reason": reason, **row, "lower_bound": short.supremum}
    # One step of a search is enough: what it finds is not used.
    every = [worst_case(optimizer, length, search_steps=1) for length in config.lengths]
    known = [(x.supremum, x.attained) if x.exact else (np.nan, np.nan) for x in every]
    supremum, attained = np.array(known).T
    growth = dead_gradient_growth(optimizer)
    found = {"supremum": supremum, "attained": attained, "growth": growth}
    return {"kind": EXACT, "reason": reason, **row, **found}
