"""Decays that follow the batch size, in theory and in training (not in the paper).

If β falls as the batch grows, so that the second moment remembers as many examples as before, but γ
does not, then γ² = β is crossed at the batch size B*, and updates without gradients grow beyond it.
"""

import warnings
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from experiments.core.config import check_least, check_rising, require
from experiments.core.run import Run
from experiments.core.store import labeled, named
from experiments.figures.stability.max_updates import stored_rms, theory
from experiments.figures.stability.unused_rows import UNUSED, train_recording
from experiments.training.config import TrainingConfig
from kadam_jax import critical_batch, decays_for_batch, grid, points
from kadam_jax.batch_size import RULES

REFERENCE = 128
"""The batch size at which the decays .95 and .98 are in public use."""
WHERE = ("unused rows of the embedding", "all other entries")


@dataclass(frozen=True)
class Config(TrainingConfig):
    """The training setup; `batch` is the smallest batch size, at which `b1` and `b2` are used.

    Attributes:
      b1: γ at the smallest batch size.
      b2: β at the smallest batch size.
      ratios: Batch sizes of training over the smallest one, rising from 1.
      num_ratios: Batch sizes of the theory, up to the largest of training.
    """

    batch: int = 4
    eps: float = 1e-15
    b1: float = 0.95
    b2: float = 0.98
    ratios: tuple[int, ...] = (1, 2, 4, 8, 16)
    num_ratios: int = 121

    def __post_init__(self):
        super().__post_init__()
        check_least(self, num_ratios=2)
        check_rising(ratios=self.ratios)
        require(self.ratios[0] == 1, "ratios must begin with 1", self.ratios)
        for name in ("b1", "b2"):
            decay = getattr(self, name)
            require(0 < decay < 1, f"{name} must be in (0, 1)", decay)
            words = f"{name} must be above 1 - 1/{self.ratios[-1]}, for rule sde"
            require(self.ratios[-1] * (1 - decay) < 1, words, decay)


def decays(config: Config, ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return γ and β, float32, of every rule at every ratio, each (num_rules, num_ratios)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of unstable decays, which are wanted here
        every = [
            [decays_for_batch(config.b1, config.b2, 1, ratio, rule=rule) for ratio in ratios]
            for rule in RULES
        ]
    b1, b2 = np.moveaxis(np.array(every, np.float32), -1, 0)
    return b1, b2


def compute(config: Config, run: Run) -> xr.Dataset:
    """Run a sweep over rules and seeds for every batch size, and `analyze` them."""
    ratios = np.array(config.ratios)
    trained = []
    for place, ratio in enumerate(ratios):
        b1, b2 = (decay[:, place] for decay in decays(config, ratios))
        rate = np.full(len(RULES), config.learning_rate, np.float32)
        members = grid(point=points(b1=b1, b2=b2, learning_rate=rate), seed=config.seeds)
        at_batch = replace(config, batch=config.batch * int(ratio))
        loss, largest = train_recording(
            run,
            f"batch_{at_batch.batch}",
            at_batch,
            members,
            lambda member: stored_rms(member["b1"], member["b2"], config.eps),
        )
        unused = largest.pop(UNUSED)
        rest = np.max(list(largest.values()), 0)
        trained.append([loss, unused, rest])
    loss, *largest = np.stack(trained, 2)  # (3, num_rules, num_ratios, num_seeds, num_steps)
    return analyze(config, loss, np.stack(largest))


def analyze(config: Config, loss: np.ndarray, largest: np.ndarray) -> xr.Dataset:
    """Compute what the theory says about every rule and batch size, and compare training with it.

    Args:
      config: The configuration.
      loss: Training losses, shape (num_rules, len(config.ratios), num_seeds, num_steps).
      largest: Largest updates in unused rows and elsewhere, shape (2, *loss.shape).

    Returns:
      The figure's dataset.
    """
    ratios = np.geomspace(1, config.ratios[-1], config.num_ratios)
    b1, b2 = decays(config, ratios)
    at = theory(b1.ravel(), b2.ravel(), config.num_steps)
    trained = np.array(config.ratios)
    b1, b2 = decays(config, trained)
    at_trained = theory(b1.ravel(), b2.ravel(), config.num_steps)
    log_bound = at_trained["log_exact_bound"].reshape(*b1.shape, 1, -1)
    with np.errstate(divide="ignore", over="ignore"):
        exceeds = np.exp(np.log(largest.max(0).astype(np.float64)) - log_bound)
    last = max(config.num_steps // 10, 1)
    rule_ratio, member = ("rule", "ratio"), ("rule", "trained_ratio", "seed")
    data = xr.Dataset(
        {
            "growth": named(
                (rule_ratio, at["exact_rate"].reshape(len(RULES), -1)),
                "slope of ln|u| once gradients stop, ln(γ/√β)",
                "1/step",
            ),
            "log_supremum": named(
                (rule_ratio, at["log_exact_bound"][:, -1].reshape(len(RULES), -1)),
                f"ln of the supremum of |u| after {config.num_steps} steps",
                "ln(learning rate)",
            ),
            "max_update": named(
                (("where", *member, "step"), largest), "largest modulus of u_n", "learning rate"
            ),
            "largest": named(
                (("where", *member), largest.max(-1)),
                "largest modulus of u_n of all steps",
                "learning rate",
            ),
            "exceeds": named(
                (member, np.where(np.isfinite(largest).all((0, -1)), exceeds.max(-1), np.inf)),
                "largest modulus of u_n over its supremum, all steps",
            ),
            "loss": named(
                (member, loss[..., -last:].mean(-1)),
                f"mean training loss of the last {last} steps",
                "nat/token",
            ),
        },
        {
            "rule": named(("rule", list(RULES)), "rule by which decays follow the batch size"),
            "where": named(("where", list(WHERE)), "part of the parameters"),
            "ratio": named(("ratio", ratios), "batch size over the smallest one"),
            "trained_ratio": named(
                ("trained_ratio", trained), "batch size of training over the smallest one"
            ),
            "trained_b1": named((("rule", "trained_ratio"), b1), "γ of training"),
            "trained_b2": named((("rule", "trained_ratio"), b2), "β of training"),
            "seed": np.array(config.seeds),
            "step": np.arange(config.num_steps),
        },
    )
    for name, batch in {"critical": config.batch, "critical_reference": REFERENCE}.items():
        data[name] = named(
            critical_batch(config.b1, config.b2, batch),
            f"batch size B* at which rule tokens crosses γ² = β, from batch size {batch}",
            "example",
        )
    return labeled(data)
