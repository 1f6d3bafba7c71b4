"""Annealing the learning rate by the growth that C predicts, beyond the boundary (Fig. 14).

With η_n = η_0 e^(-n|C|/2) the paper's bound on the change of parameters is constant in B₋, as it
is in B₊. But an update grows only while gradients die out, and they die out because weights move;
annealed weights come to rest before that. The exponent, which the paper fixes, is varied too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr

from experiments.core.config import require, rises
from experiments.core.run import Run
from experiments.core.stats import means_over_seeds
from experiments.core.store import coordinates, labeled, named, over
from experiments.figures.stability import losses
from experiments.figures.stability.max_updates import (
    BOUNDS,
    GROWING,
    RECORDED,
    check_slopes,
    first_and_last,
    growth_slopes,
    members_at,
    theory,
    train,
    usual_curve,
)
from kadam_jax import growth_rate


@dataclass(frozen=True)
class Config(losses.Config):
    """The training setup; num_points counts the usual point and the last points of the curve.

    Attributes:
      num_curve: Points, uniform in arc length, from the usual one to γ = 1 (that end excluded).
      strengths: s of η_n = η_0 e^(-s n|C|/2), from 0, no annealing, to 1, the paper's.
      slope_first: First step n of the window in which slopes are fitted.
      slope_last: Last step n of that window.
    """

    num_curve: int = 40
    num_points: int = 8
    strengths: tuple[float, ...] = (0.0, 0.5, 1.0)
    slope_first: int = 200
    slope_last: int = 400

    def __post_init__(self):
        super().__post_init__()
        rule = f"num_points must be at most num_curve={self.num_curve}"
        require(self.num_points <= self.num_curve, rule, self.num_points)
        whole = {0.0, 1.0} <= set(self.strengths) and rises(*self.strengths)
        require(whole, "strengths must increase and include 0 and 1", self.strengths)
        check_slopes(self)

    @property
    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """γ and β of the trained points, float32; the usual point is first."""
        return first_and_last(usual_curve(self.num_curve), self.num_points)


def annealed(member: Mapping[str, jax.Array], schedule: optax.Schedule) -> optax.Schedule:
    r"""Return `schedule` times the member's annealing.

    .. math:: \eta_n = \eta_0 \exp(-s n |C(\beta, \gamma)| / 2)

    (appendix N, where s = 1); the factor is 1 where C > 0.

    >>> constant = optax.constant_schedule(1e-3)
    >>> rate = annealed({"strength": 1.0, "b1": 0.25, "b2": 0.1}, constant)  # C = -3
    >>> [f"{rate(n):.1e}" for n in (0, 1, 2)]
    ['1.0e-03', '2.2e-04', '5.0e-05']
    """
    exponent = member["strength"] * growth_rate(member["b1"], member["b2"])
    return lambda count: schedule(count) * jnp.exp(-exponent * count)


def compute(config: Config, run: Run) -> xr.Dataset:
    """Sweep for the max-update at a constant η_0 and for the test loss, and `analyze` both."""
    b1, b2 = config.points
    strength = np.array(config.strengths, np.float32)
    members = members_at(b1, b2, config.eps, config.seeds, strength=strength)
    constant = optax.constant_schedule(config.learning_rate)
    trained = train(
        run, "max_update", config, members, schedule=lambda member: annealed(member, constant)
    )
    found = losses.train(
        run, "test_loss", config, members, lambda member: annealed(member, config.warmup_cosine)
    )
    return analyze(config, trained["max_update"], trained["dead_share"], found)


def analyze(
    config: Config, max_update: np.ndarray, dead_share: np.ndarray, test_loss: np.ndarray
) -> xr.Dataset:
    """Return what annealing does to updates, to changes of parameters and to the test loss.

    Args:
      config: The configuration, which determines the points.
      max_update: ‖u_n‖∞ at an annealed constant rate, shape (num_strengths, num_points, num_seeds,
        num_steps).
      dead_share: Share of dead gradients for the same members and steps.
      test_loss: With warm-up and cosine, (num_strengths, num_points, num_seeds, num_evaluations).
    """
    b1, b2 = config.points
    predicted = theory(b1, b2, config.num_steps)
    half_C, n = np.maximum(-predicted["C"] / 2, 0), np.arange(config.num_steps)
    strength = np.array(config.strengths)
    factor = np.exp(-strength[:, None, None] * half_C[:, None] * n)  # (strength, point, step)
    change, log_paper = max_update * factor[:, :, None], predicted["log_paper_bound"]
    window = (config.slope_first, config.slope_last)
    slopes = [growth_slopes(updates, b1, b2, window) for updates in change]
    last = config.num_steps - max(1, config.num_steps // 10)
    final_change, final_update = (np.median(x[..., last:], axis=-1) for x in (change, max_update))
    moved = "largest change of a parameter over η_0, ‖θ_{n+1}-θ_n‖∞/η_0"
    by_step = {
        "max_update": (max_update, *RECORDED["max_update"]),
        "dead_share": (dead_share, *RECORDED["dead_share"]),
        "change": (change, moved),
    }
    slope = "slope of ln ‖θ_{n+1}-θ_n‖∞ over a window, bias correction divided out"
    late = "over the last tenth of the steps"
    by_member = {
        "slope": (slopes, slope, "1/step"),
        "final_change": (final_change, f"median of ‖θ_{{n+1}}-θ_n‖∞/η_0 {late}"),
        "final_update": (final_update, f"median of ‖u_n‖∞ {late}", "learning rate"),
    }
    bound = (log_paper, *BOUNDS["log_paper_bound"])
    label = "ln of Theorem 1's bound on ‖θ_{n+1}-θ_n‖∞/η_0, annealed"
    annealed_bound = (log_paper + np.log(factor), label, "ln(1)")
    member = ("strength", "point", "seed")
    data = xr.concat(
        [losses.dataset(config, ("point",), b1, b2, of_strength) for of_strength in test_loss],
        xr.DataArray(strength, dims="strength", name="strength"),
        data_vars="all",
        coords="minimal",
        compat="override",
    )
    data = data.assign_coords(
        step=n, **coordinates(strength=(strength, "s of the annealing e^(-s n|C|/2)"))
    ).assign(
        over((*member, "step"), by_step)
        | over(member, by_member)
        | over(("point", "step"), {"log_paper_bound": bound})
        | over(("strength", "point", "step"), {"log_annealed_bound": annealed_bound})
    )
    best = data.best_loss.sel(horizon="whole", drop=True)
    data["excess_loss"] = named(
        best - best.isel(point=0).sel(strength=0.0, drop=True),
        "lowest test loss minus that at the usual point without annealing, same seed",
        losses.NAT,
    )
    return labeled(data.assign(means_over_seeds(_statistics(data))))


def _statistics(data: xr.Dataset) -> dict[str, tuple[xr.DataArray, str, str]]:
    """Return the numbers that the report states, where C ≤ GROWING, medians over points."""
    growing = data.isel(point=data.C.values <= GROWING)
    measured = {
        "final_change": ("‖θ_{n+1}-θ_n‖∞/η_0 in the last tenth of the steps", "1"),
        "final_update": ("‖u_n‖∞ in the last tenth of the steps", "learning rates"),
        "excess_loss": ("lowest test loss minus that at the usual (β, γ)", losses.NAT),
    }
    return {
        f"{name}_{place}": (
            growing[name].isel(strength=place).median("point"),
            f"{label}, annealing by e^(-{s:g}n|C|/2), median over points with C ≤ {GROWING}",
            units,
        )
        for name, (label, units) in measured.items()
        for place, s in enumerate(data.strength.values)
    }
