"""Where the two theories disagree: C < 0 but γ² < β (not in the paper).

There the paper's Theorem 1 lets updates grow without bound, but the discrete algorithm's supremum
over all gradient sequences is a constant. Real training and worst-case gradients, run through the
same optimizer, show which of the two describes Adam.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from experiments.core.config import check_least, require
from experiments.core.errors import ConfigError
from experiments.core.run import Run
from experiments.core.store import COORDINATES, coordinates, labeled, named, over
from experiments.figures.stability.max_updates import (
    DISAGREE,
    growth_slopes,
    largest_ratio,
    log_bias_correction,
    members_at,
    stored_rms,
    theory,
    train,
    trajectories,
)
from experiments.training.config import TrainingConfig
from kadam_jax import worst_case_gradients

BOTH_UNSTABLE, BOTH_STABLE = "both unstable", "both stable"


@dataclass(frozen=True)
class Config(TrainingConfig):
    """The training setup and how long the worst cases are.

    Attributes:
      points: γ, β of every point, one pair after the other.
      worst_case_steps: Length of the longest sequence of worst-case gradients.
    """

    points: tuple[tuple[float, float], ...] = (
        (0.1, 0.02),
        (0.18, 0.05),
        (0.25, 0.1),
        (0.4, 0.2),
        (0.5, 0.3),
        (0.6, 0.4),
        (0.69, 0.5),
        (0.765, 0.6),
        (0.35, 0.1),
        (0.994, 0.955),
        (0.9, 0.999),
    )
    worst_case_steps: int = 256

    def __post_init__(self):
        super().__post_init__()
        inside = all(0 < decay < 1 for point in self.points for decay in point)
        require(self.points and inside, "points must be pairs γ, β in (0, 1)", self.points)
        check_least(self, worst_case_steps=2)

    @property
    def decays(self) -> np.ndarray:
        """γ and β of the points, float32, shape (2, num_points)."""
        return np.array(self.points, np.float32).T


def compute(config: Config, run: Run) -> xr.Dataset:
    """Run one sweep of real training, then worst cases of every length in float64."""
    b1, b2 = config.decays
    members = members_at(b1, b2, config.eps, config.seeds)
    trained = train(run, "training", config, members)
    worst = worst_case_updates(b1, b2, config.worst_case_steps)
    return analyze(config, trained, worst)


def analyze(config: Config, trained: Mapping[str, np.ndarray], worst: np.ndarray) -> xr.Dataset:
    """Return the figure's dataset from what `train` and `worst_case_updates` return."""
    (b1, b2), num_steps, longest = config.decays, config.num_steps, config.worst_case_steps
    predicted = theory(b1, b2, max(num_steps, longest))
    C, exact_rate, log_exact = (predicted[key] for key in ("C", "exact_rate", "log_exact_bound"))
    corrections = log_bias_correction(b1[:, None], b2[:, None], np.arange(longest))
    growing = worst / np.exp(corrections)
    updates, second_half = trained["max_update"], (num_steps // 2, num_steps - 1)
    ratio = largest_ratio(updates, log_exact[:, :num_steps])
    slope = "slope of ln‖u_n‖∞ over the second half, bias correction divided out"
    by_member = {
        "exact_ratio": (ratio, "largest max-update over the exact bound"),
        "slope": (growth_slopes(updates, b1, b2, second_half), slope, "1/step"),
    }
    error = abs(worst / np.exp(log_exact[:, :longest]) - 1).max(-1)
    growth = growing[:, -1] / growing[:, longest // 2 - 1]
    by_point = {
        "exact_rate": (exact_rate, "growth rate of the exact bound, ln(γ/√β)", "1/step"),
        "worst_error": (error, "largest relative difference between worst case and exact bound"),
        "worst_growth": (growth, "worst case at the longest length over that at half of it"),
    }
    last = (worst, "last update of worst-case gradients", "learning rate")
    kinds = np.select([C > 0, exact_rate < 0], [BOTH_STABLE, DISAGREE], BOTH_UNSTABLE)
    data = trajectories(config, b1, b2, predicted, trained, bound_step="bound_step").assign(
        over(("point", "seed"), by_member)
        | over("point", by_point)
        | over(("point", "worst_step"), {"worst_case": last})
    )
    data = data.assign_coords(
        coordinates(
            bound_step=(np.arange(log_exact.shape[1]), *COORDINATES["step"]),
            worst_step=(np.arange(longest), *COORDINATES["step"]),
        )
        | over("point", {"theories": (kinds, "what C and γ² < β say about the point")})
    )
    largest = data.max_update.where(data.theories == DISAGREE).max()
    label = "largest max-update where the theories disagree"
    return labeled(data.assign(largest=named(largest, label, "learning rates")))


def worst_case_updates(b1: np.ndarray, b2: np.ndarray, num_steps: int) -> np.ndarray:
    """Compute the last update of worst-case gradients of every length with the real optimizer.

    This runs in float64 and with ε = 0. A sequence of length N consists of the longest one's last N
    gradients, run from the optimizer's initial state.

    Args:
      b1, b2: Decays, shape (num_points,).
      num_steps: The longest length.

    Returns:
      |u_{N-1}| in units of the learning rate for N = 1, ..., num_steps, shape
      (num_points, num_steps).

    Raises:
      ConfigError: If a worst case of that length overflows float64.

    >>> worst_case_updates(np.array([0.25]), np.array([0.1]), 64)[0, -1].round(3)
    np.float64(1.291)
    """

    def last_update(b1, b2, gradients, start):
        optimizer = stored_rms(b1, b2, 0.0)

        def step(state, index):
            update, state = optimizer.update(gradients[index], state)
            return state, update

        # Steps past the end wrap around and are not read.
        places = (start + jnp.arange(num_steps)) % num_steps
        _, updates = jax.lax.scan(step, optimizer.init(gradients[0]), places)
        return updates[num_steps - 1 - start]

    with jax.enable_x64(True):
        b1, b2 = jnp.asarray(b1, jnp.float64), jnp.asarray(b2, jnp.float64)
        try:
            gradients = worst_case_gradients(num_steps, b1, b2)  # (num_steps, num_points)
        except ValueError as error:
            raise ConfigError(f"worst_case_steps={num_steps} is too many: {error}") from error
        starts = jnp.arange(num_steps - 1, -1, -1)
        lengths = jax.vmap(last_update, (None, None, None, 0))
        every = jax.jit(jax.vmap(lengths, (0, 0, 1, None)))
        return np.asarray(every(b1, b2, gradients, starts))
