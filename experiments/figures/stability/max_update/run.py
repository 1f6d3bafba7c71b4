"""The max-update of nanoGPT along the paper's normal curve, and two ways it breaks (Fig. 3).

Growth needs parameters whose gradients almost vanish, so that m decays like γ^n and √v like
β^(n/2): here, the embedding rows of tokens that the corpus never uses. An ε that √v reaches as it
decays stops the growth; a float32 v underflows as it decays, and the update jumps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import optax
import xarray as xr

from experiments.core.config import require
from experiments.core.run import Run
from experiments.core.stats import ENDS
from experiments.core.store import COORDINATES, coordinates, labeled, over
from experiments.figures.stability.max_updates import (
    BOUNDS,
    FAST,
    GROWING,
    JUST_BELOW,
    check_slopes,
    first_and_last,
    fitted_relation,
    growth_slopes,
    largest_ratio,
    members_at,
    theory,
    train,
    trajectories,
    usual_curve,
)
from experiments.training.config import TrainingConfig
from kadam_jax.members import Members

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
        return usual_curve(self.num_curve)

    @property
    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """γ and β of the trained points."""
        return first_and_last(self.curve, self.num_points)

    @property
    def contrast(self) -> np.ndarray:
        """`contrast_points` counted from the first point."""
        return np.arange(self.num_points)[list(self.contrast_points)]


def compute(config: Config, run: Run) -> xr.Dataset:
    """Sweep the library's Adam with both ε, and optax's with its float32 v; `analyze` them."""
    b1, b2 = config.points
    few, longer = range(config.contrast_seeds), config.contrast_steps
    main = members_at(b1, b2, config.eps, config.seeds)
    same_eps, larger_eps = (
        members_at(b1[config.contrast], b2[config.contrast], eps, few)
        for eps in (config.eps, config.contrast_eps)
    )
    groups = [(main, config.num_steps), (same_eps, longer), (larger_eps, longer)]
    trained, *contrasts = train_groups(run, config, groups)
    contrasts.append(
        train(run, "float32_v", config, same_eps, num_steps=longer, stage=optax.scale_by_adam)
    )
    return analyze(config, trained, *(contrast["max_update"] for contrast in contrasts))


def train_groups(
    run: Run, config: Config, groups: Sequence[tuple[Members, int]]
) -> list[dict[str, np.ndarray]]:
    """Train grids of members, each with its own number of steps, in one compiled sweep.

    Returns:
      For each grid, what `train` returns.
    """
    grids, lengths = zip(*groups, strict=True)
    sizes = [len(members["seed"]) for members in grids]
    columns = {key: np.concatenate([members[key] for members in grids]) for key in grids[0]}
    if len(set(lengths)) > 1:
        columns["stop"] = np.repeat(lengths, sizes)
    every = Members(columns, ("member",), (sum(sizes),))
    found = train(run, "stored_rms", config, every, num_steps=max(lengths))
    parts = {key: np.split(x, np.cumsum(sizes)[:-1]) for key, x in found.items()}
    return [
        {key: x[place][:, :length].reshape(*members.shape, length) for key, x in parts.items()}
        for place, (members, length) in enumerate(groups)
    ]


def analyze(
    config: Config,
    trained: Mapping[str, np.ndarray],
    stored: np.ndarray,
    larger_eps: np.ndarray,
    float32: np.ndarray,
) -> xr.Dataset:
    """Return the figure's dataset: trajectories and what theory says about them.

    Args:
      config: The configuration, which determines the points.
      trained: `max_update`, `dead_share`, `loss`, shape (num_points, num_seeds, num_steps).
      stored: Max-updates at the contrasts, shape (num_contrasts, contrast_seeds, contrast_steps).
      larger_eps: The same for the larger ε.
      float32: The same for a float32 v.
    """
    (b1, b2), updates, member = config.points, trained["max_update"], ("point", "seed")
    predicted = theory(b1, b2, config.num_steps)
    exact, paper = (largest_ratio(updates, predicted[bound]) for bound in BOUNDS)
    windows = {"early": (config.slope_first, config.slope_last), "late": LATE}
    slopes = [growth_slopes(updates, b1, b2, window) for window in windows.values()]
    unstable, rates = predicted["C"] < 0, np.stack([-predicted["C"] / 2, predicted["exact_rate"]])
    fits = [fitted_relation(rate[unstable], slopes[0][unstable]) for rate in rates]
    line = "line through median slopes in the first window against a predicted rate, C < 0"
    slope = "slope of ln‖u_n‖∞ over a window, bias correction divided out"
    ratios = {
        "exact_ratio": (exact, "largest max-update over the exact bound"),
        "paper_ratio": (paper, "largest max-update over Theorem 1's bound"),
    }
    rate = (rates, "predicted slope of ln‖u_n‖∞: |C|/2 and ln(γ/√β)", "1/step")
    ends = (list(windows.values()), "first and last step of the window", "step")
    curve = {
        "curve_b1": (config.curve[0], "γ on the whole curve"),
        "curve_b2": (config.curve[1], "β on the whole curve"),
    }
    data = trajectories(config, b1, b2, predicted, trained).assign(
        over(member, ratios)
        | over(("kind", "point"), {"rate": rate})
        | over(("window", *member), {"slope": (slopes, slope, "1/step")})
        | over(("kind", "quantity", "end"), {"fit": (fits, line, "mixed")})
        | _contrasts(config, stored, larger_eps, float32)
    )
    axes = coordinates(
        kind=(["half_C", "exact"], "predicted rate"),
        window=(list(windows), "window of the slope"),
        quantity=(["coefficient", "intercept"], "coefficient (1) or intercept (1/step)"),
        end=(ENDS, *COORDINATES["end"]),
        contrast=(config.contrast, "place of a contrast among the points"),
        contrast_seed=(np.arange(config.contrast_seeds), "seed"),
        contrast_step=(np.arange(config.contrast_steps), *COORDINATES["step"]),
    )
    ends = over(("window", "window_end"), {"window_ends": ends})
    data = data.assign_coords(axes | ends | over("curve", curve))
    return labeled(data.assign(over((), _numbers(data))))


def _contrasts(
    config: Config, stored: np.ndarray, larger_eps: np.ndarray, float32: np.ndarray
) -> dict[str, xr.Variable]:
    """Return the max-updates at the contrasts and what they say."""
    b1, b2 = (b[config.contrast] for b in config.points)
    log_exact = theory(b1, b2, config.contrast_steps)["log_exact_bound"]
    bound = (log_exact, "ln of the exact bound at the contrasts", "ln(learning rate)")
    slope = growth_slopes(larger_eps, b1, b2, LATE)
    excess = np.log10(largest_ratio(float32, log_exact))
    rate, member, step = "learning rate", ("contrast", "contrast_seed"), "contrast_step"
    trained = {
        "contrast_stored": (stored, "max-update ‖u_n‖∞ at the contrasts", rate),
        "contrast_eps": (larger_eps, "max-update ‖u_n‖∞ with the larger ε", rate),
        "contrast_float32": (float32, "max-update ‖u_n‖∞ with a float32 second moment", rate),
    }
    of_eps = (slope, "slope of ln‖u_n‖∞ at n = 1000±50 with the larger ε", "1/step")
    of_float32 = (excess, "largest excess over the exact bound with float32 v", "decade")
    return (
        over(("contrast", step), {"contrast_log_exact_bound": bound})
        | over((*member, step), trained)
        | over(member, {"contrast_eps_slope": of_eps, "contrast_float32_excess": of_float32})
    )


def _numbers(data: xr.Dataset) -> dict[str, tuple]:
    """Return the numbers that the report prints: values, labels and units."""
    stable, growing = data.C > 0, data.C <= GROWING
    just_below = (data.C < 0) & (data.C >= JUST_BELOW)
    largest, rates = data.max_update.max("step"), "learning rates"
    smallest = "largest max-update with C ≤ -0.0196, for the member where it is smallest"
    dead, last = data.dead_share.isel(step=-1).median("seed"), "dead gradients at the last step"
    ratio = (data.slope.median("seed") / data.rate).where(data.C <= FAST)
    farthest = abs(ratio.sel(kind="exact", window="early") - 1).max()
    peak = data.contrast_eps.fillna(-np.inf).argmax("contrast_step").median()
    jumped = data.contrast_float32 > 1.1 * np.exp(data.contrast_log_exact_bound)
    jump = jumped.argmax("contrast_step").where(jumped.any("contrast_step")).median()
    windows = {"early": "in the first window", "late": "at n = 1000±50"}
    kinds = {"half_C": "|C|/2", "exact": "ln(γ/√β)"}
    over_predicted = {
        f"{window}_over_{kind}": (
            ratio.sel(window=window, kind=kind).median(),
            f"slope {where} over {rate}, C ≤ -0.029, median",
        )
        for window, where in windows.items()
        for kind, rate in kinds.items()
    }
    return {
        "largest_stable": (largest.where(stable).max(), "largest max-update where C > 0", rates),
        "largest_just_below": (
            largest.where(just_below).max(),
            "largest max-update where -0.01 ≤ C < 0",
            rates,
        ),
        "smallest_growing": (largest.where(growing).min(), smallest, rates),
        "dead_stable": (dead.where(stable).median(), f"{last} where C > 0, median share"),
        "dead_growing": (dead.where(growing).median(), f"{last} where C ≤ -0.0196, median share"),
        "farthest_early": (
            farthest,
            "slope in the first window over ln(γ/√β), C ≤ -0.029: largest |median - 1| of a point",
        ),
        **over_predicted,
        "eps_peak": (peak, "n of the largest max-update with the larger ε, median", "steps"),
        "float32_jump": (
            jump,
            "n at which float32 v first puts the update 10% above the exact bound, median",
            "steps",
        ),
    }
