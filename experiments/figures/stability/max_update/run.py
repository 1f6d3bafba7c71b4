"""The max-update of nanoGPT along the paper's normal curve, and two ways it breaks (Fig. 3).

Growth needs parameters whose gradients almost vanish, so that m decays like γ^n and √v like
β^(n/2): here, the embedding rows of tokens that the corpus never uses. An ε that √v reaches as it
decays stops the growth; a float32 v underflows as it decays, and the update jumps.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import optax
import xarray as xr

from experiments.core.config import require
from experiments.core.run import Run
from experiments.core.stats import ENDS
from experiments.core.store import labeled, named
from experiments.figures.stability.max_updates import (
    FAST,
    GIVEN,
    GROWING,
    JUST_BELOW,
    check_slopes,
    fitted_relation,
    growth_slopes,
    largest_ratio,
    members_at,
    theory,
    train,
    trajectories,
)
from experiments.training.config import TrainingConfig
from kadam_jax import normal_curve

LATE = (950, 1050)
"""The window around the paper's own n = 1000."""


@dataclass(frozen=True)
class Config(TrainingConfig):
    """The training setup.

    Attributes:
      num_curve: Points, uniform in arc length, from the usual point to γ = 1 (that end excluded).
      num_points: How many of them are trained: the usual point and the last num_points - 1.
      contrast_points: Places among those points at which ε and the dtype of v are varied.
      contrast_eps: The larger ε.
      contrast_seeds: Number of seeds at these points.
      contrast_steps: Number of steps at these points; a float32 v underflows after some 1700.
      slope_first: First step n of the window in which slopes are judged.
      slope_last: Last step n of that window.
    """

    num_curve: int = 40
    num_points: int = 12
    contrast_points: tuple[int, ...] = (-3, -1)
    contrast_eps: float = 1e-8
    contrast_seeds: int = 3
    contrast_steps: int = 2001
    slope_first: int = 200
    slope_last: int = 400

    def __post_init__(self):
        super().__post_init__()
        rule = f"num_points must be from 2 to num_curve={self.num_curve}"
        require(2 <= self.num_points <= self.num_curve, rule, self.num_points)
        check_slopes(self)
        places = self.contrast_points
        there = places and all(-self.num_points <= i < self.num_points for i in places)
        rule = f"contrast_points must name places among num_points={self.num_points}"
        require(there, rule, places)

    @property
    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """γ and β on the whole curve, float32."""
        b1, b2 = normal_curve(*GIVEN, self.num_curve)
        return np.asarray(b1, np.float32), np.asarray(b2, np.float32)

    @property
    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """γ and β of the trained points."""
        chosen = np.r_[0, self.num_curve - self.num_points + 1 : self.num_curve]
        b1, b2 = self.curve
        return b1[chosen], b2[chosen]

    @property
    def contrast(self) -> np.ndarray:
        """`contrast_points` counted from the first point."""
        return np.arange(self.num_points)[list(self.contrast_points)]


def compute(config: Config, run: Run) -> xr.Dataset:
    """Sweep the library's Adam with both ε, and optax's with its float32 v; `analyze` them."""
    b1, b2 = config.points
    few_b1, few_b2, few = b1[config.contrast], b2[config.contrast], range(config.contrast_seeds)
    main = (members_at(b1, b2, config.eps, config.seeds), config.num_steps)
    same_eps, larger_eps = (
        (members_at(few_b1, few_b2, eps, few), config.contrast_steps)
        for eps in (config.eps, config.contrast_eps)
    )
    trained, *contrasts = train(run, "stored_rms", config, [main, same_eps, larger_eps])
    contrasts += train(run, "float32_v", config, [same_eps], optax.scale_by_adam)
    return analyze(config, trained, *(contrast["max_update"] for contrast in contrasts))


def analyze(
    config: Config,
    trained: Mapping[str, np.ndarray],
    stored: np.ndarray,
    larger_eps: np.ndarray,
    float32: np.ndarray,
) -> xr.Dataset:
    """Return trajectories and what theory says about them.

    Args:
      config: The configuration, which determines the points.
      trained: `max_update`, `dead_share`, `loss`, shape (num_points, num_seeds, num_steps).
      stored: Max-updates at the contrasts, shape (num_contrasts, contrast_seeds, contrast_steps).
      larger_eps: The same for the larger ε.
      float32: The same for a float32 v.

    Returns:
      The figure's dataset.
    """
    (b1, b2), contrast = config.points, config.contrast
    predicted = theory(b1, b2, config.num_steps)
    C, log_exact = predicted["C"], predicted["log_exact_bound"]
    windows = {"early": (config.slope_first, config.slope_last), "late": LATE}
    slopes = [growth_slopes(trained["max_update"], b1, b2, window) for window in windows.values()]
    rates = np.stack([-C / 2, predicted["exact_rate"]])
    fits = [fitted_relation(rate[C < 0], slopes[0][C < 0]) for rate in rates]
    eps_slope = growth_slopes(larger_eps, b1[contrast], b2[contrast], LATE)
    few_log_exact = theory(b1[contrast], b2[contrast], config.contrast_steps)["log_exact_bound"]
    excess = np.log10(largest_ratio(float32, few_log_exact))
    member, few = ("point", "seed"), ("contrast", "contrast_seed")
    data = trajectories(config, b1, b2, predicted, trained).assign(
        {
            "exact_ratio": named(
                (member, largest_ratio(trained["max_update"], log_exact)),
                "largest max-update over the exact bound",
            ),
            "paper_ratio": named(
                (member, largest_ratio(trained["max_update"], predicted["log_paper_bound"])),
                "largest max-update over Theorem 1's bound",
            ),
            "rate": named(
                (("kind", "point"), rates),
                "predicted slope of ln‖u_n‖∞: |C|/2 and ln(γ/√β)",
                "1/step",
            ),
            "slope": named(
                (("window", *member), np.stack(slopes)),
                "slope of ln‖u_n‖∞ over a window, bias correction divided out",
                "1/step",
            ),
            "fit": named(
                (("kind", "quantity", "end"), np.array(fits)),
                "line through median slopes in the first window against a predicted rate, C < 0",
                "mixed",
            ),
            "contrast_log_exact_bound": named(
                (("contrast", "contrast_step"), few_log_exact),
                "ln of the exact bound at the contrasts",
                "ln(learning rate)",
            ),
            "contrast_stored": named(
                ((*few, "contrast_step"), stored),
                "max-update ‖u_n‖∞ at the contrasts",
                "learning rate",
            ),
            "contrast_eps": named(
                ((*few, "contrast_step"), larger_eps),
                "max-update ‖u_n‖∞ with the larger ε",
                "learning rate",
            ),
            "contrast_eps_slope": named(
                (few, eps_slope), "slope of ln‖u_n‖∞ at n = 1000±50 with the larger ε", "1/step"
            ),
            "contrast_float32": named(
                ((*few, "contrast_step"), float32),
                "max-update ‖u_n‖∞ with a float32 second moment",
                "learning rate",
            ),
            "contrast_float32_excess": named(
                (few, excess), "largest excess over the exact bound with float32 v", "decade"
            ),
        }
    )
    data = data.assign_coords(
        {
            "kind": named(("kind", ["half_C", "exact"]), "predicted rate"),
            "window": named(("window", list(windows)), "window of the slope"),
            "window_ends": named(
                (("window", "window_end"), np.array(list(windows.values()))),
                "first and last step of the window",
                "step",
            ),
            "quantity": named(
                ("quantity", ["coefficient", "intercept"]), "coefficient (1) or intercept (1/step)"
            ),
            "end": list(ENDS),
            "contrast": named(("contrast", contrast), "place of a contrast among the points"),
            "contrast_seed": named(("contrast_seed", np.arange(config.contrast_seeds)), "seed"),
            "contrast_step": named(
                ("contrast_step", np.arange(config.contrast_steps)),
                "optimizer steps done before, n",
                "step",
            ),
            "curve_b1": named(("curve", config.curve[0]), "γ on the whole curve"),
            "curve_b2": named(("curve", config.curve[1]), "β on the whole curve"),
        }
    )
    return labeled(data.assign(_numbers(data)))


def _numbers(data: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return the scalars that the report prints."""
    dead = data.dead_share.isel(step=-1).median("seed")
    ratio = (data.slope.median("seed") / data.rate).where(data.C <= FAST)
    exact_ratio = ratio.sel(kind="exact", window="early")
    jumped = data.contrast_float32 > 1.1 * np.exp(data.contrast_log_exact_bound)
    largest_just_below = data.max_update.where((data.C < 0) & (data.C >= JUST_BELOW)).max()
    jump = jumped.argmax("contrast_step").where(jumped.any("contrast_step")).median()
    windows = {"early": "in the first window", "late": "at n = 1000±50"}
    kinds = {"half_C": "|C|/2", "exact": "ln(γ/√β)"}
    return {
        "largest_stable": named(
            data.max_update.where(data.C > 0).max(),
            "largest max-update where C > 0",
            "learning rates",
        ),
        "largest_just_below": named(
            largest_just_below, "largest max-update where -0.01 ≤ C < 0", "learning rates"
        ),
        "smallest_growing": named(
            data.max_update.max("step").where(data.C <= GROWING).min(),
            "largest max-update with C ≤ -0.0196, for the member where it is smallest",
            "learning rates",
        ),
        "dead_stable": named(
            dead.where(data.C > 0).median(),
            "dead gradients at the last step where C > 0, median share",
        ),
        "dead_growing": named(
            dead.where(data.C <= GROWING).median(),
            "dead gradients at the last step where C ≤ -0.0196, median share",
        ),
        "farthest_early": named(
            abs(exact_ratio - 1).max(),
            "slope in the first window over ln(γ/√β), C ≤ -0.029: largest |median - 1| of a point",
        ),
        **{
            f"{window}_over_{kind}": named(
                ratio.sel(window=window, kind=kind).median(),
                f"slope {where} over {rate}, C ≤ -0.029, median",
            )
            for window, where in windows.items()
            for kind, rate in kinds.items()
        },
        "eps_peak": named(
            data.contrast_eps.fillna(-np.inf).argmax("contrast_step").median(),
            "n of the largest max-update with the larger ε, median",
            "steps",
        ),
        "float32_jump": named(
            jump,
            "n at which float32 v first puts the update 10% above the exact bound, median",
            "steps",
        ),
    }
