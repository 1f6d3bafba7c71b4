"""The max-update where the paper says it is bounded: on B₀ and inside B₊ (Figs. 7 and 11).

On B₀, where γ = 2β/(1+β), the paper's bound grows like √n. The exact supremum does not: γ²/β is
then 4β/(1+β)² < 1, and the limit is 1/√(1-β), the bound of RMSprop.
"""

from dataclasses import dataclass

import jax
import numpy as np
import xarray as xr

from experiments.core.config import check_least, require
from experiments.core.run import Run
from experiments.core.stats import means_over_seeds
from experiments.core.store import labeled, named, over
from experiments.figures.stability.max_updates import (
    GIVEN,
    largest_ratio,
    log_bias_correction,
    members_at,
    theory,
    train,
    trajectories,
)
from experiments.training.config import TrainingConfig
from kadam_jax import exact_max_update_bound, level_curve, normal_curve

CURVES = ("B₀", "B₊")
SETTLED = 100
"""n from which growth on B₀ is judged: far more steps than any of its points remembers."""
LATE = f"n ≥ {SETTLED}"
NUDGE = 1e-5
"""A shift of C that tests the effect of precision: larger than that of float32."""


@dataclass(frozen=True)
class Config(TrainingConfig):
    """The training setup.

    Attributes:
      num_boundary: Points on C = 0, uniform in arc length from the origin to (1, 1).
      num_inside: Points on the normal curve from the usual point to C = 0 (that end excluded).
    """

    num_boundary: int = 11
    num_inside: int = 10

    def __post_init__(self):
        super().__post_init__()
        check_least(self, num_boundary=1, num_inside=1)
        least = SETTLED + 2
        rule = f"num_steps must be at least {least}, because growth is judged from n = {SETTLED}"
        require(self.num_steps >= least, rule, self.num_steps)

    @property
    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """γ and β of the trained points, float32: those on B₀, then those in B₊."""
        boundary = np.array(level_curve(0.0, self.num_boundary))
        inside = np.array(_inside(self.num_inside))
        b1, b2 = np.concatenate([boundary, inside], axis=1).astype(np.float32)
        return b1, b2

    @property
    def curves(self) -> np.ndarray:
        """The curve of each point."""
        return np.repeat(CURVES, (self.num_boundary, self.num_inside))


def _inside(num: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points of the normal curve from the usual one to C = 0, uniform in arc length."""
    b1, b2 = (np.asarray(b, np.float64) for b in normal_curve(*GIVEN, 4096))
    length = int((2 / b1 - 1 / b2 - 1 > 0).sum())
    places = np.arange(num) * length // num
    return b1[places], b2[places]


def compute(config: Config, run: Run) -> xr.Dataset:
    """Run one sweep over the points of both curves and `analyze` it."""
    b1, b2 = config.points
    members = members_at(b1, b2, config.eps, config.seeds)
    trained = train(run, "training", config, members)
    return analyze(config, trained["max_update"], trained["loss"])


def analyze(config: Config, max_update: np.ndarray, loss: np.ndarray) -> xr.Dataset:
    """Return the figure's dataset; updates and losses are (num_points, num_seeds, num_steps)."""
    (b1, b2), boundary = config.points, config.curves == "B₀"
    predicted = theory(b1, b2, config.num_steps)
    square_root = log_square_root_bound(b1, b2, config.num_steps)
    paper = np.where(boundary[:, None], square_root, predicted["log_paper_bound"])
    predicted["log_paper_bound"] = paper
    exact_ratio = largest_ratio(max_update, predicted["log_exact_bound"])
    paper_ratio = largest_ratio(max_update[..., 1:], paper[:, 1:])  # the √n form is 0 at n = 0
    ratios = {
        "exact_ratio": (exact_ratio, "largest max-update over the exact bound"),
        "paper_ratio": (paper_ratio, "largest max-update over Theorem 1's bound, n ≥ 1"),
        "exponent": (exponents(max_update, SETTLED), f"exponent of n in ‖u_n‖∞, {LATE}"),
    }
    member, curve = ("point", "seed"), (config.curves, "curve that the point lies on")
    data = trajectories(config, b1, b2, predicted, {"max_update": max_update, "loss": loss})
    data = data.assign(over(member, ratios)).assign_coords(over("point", {"curve": curve}))
    late = data.sel(step=slice(SETTLED, None))
    share = (late.max_update / np.exp(late.log_exact_bound)).max("step")
    data["largest"] = named(
        late.max_update.max("step"), f"largest max-update, {LATE}", "learning rate"
    )
    data["share"] = named(share, f"largest max-update over the exact bound, {LATE}")
    on, inside = (data.isel(point=data.curve.values == curve) for curve in CURVES)
    above = (on.max_update > np.exp(on.log_paper_bound)).any(member) & (on.step > 0)
    below = (on.log_paper_bound < on.log_exact_bound).any("point")
    last_above, last_below = (on.step.where(holds, 0).max() for holds in (above, below))
    change = precision_change(b2[boundary], config.num_steps)
    above_label = "last n > 0 with an update above the √n form on B₀"
    below_label = "last n at which the √n form is below the exact bound"
    change_label = "largest relative change of the exact bound between C = "
    numbers = {
        "last_above_square_root": (last_above, above_label, "step"),
        "square_root_below_exact": (last_below, below_label, "step"),
        "precision_change": (change, f"{change_label}-{NUDGE:g} and {NUDGE:g}"),
    }
    exponent = f"exponent of n in ‖u_n‖∞ on B₀, {LATE}, median over points"
    stated = {"boundary_exponent": (on.exponent.median("point"), exponent, "1")}
    for name, part, where in (("boundary", on, "B₀"), ("inside", inside, "B₊")):
        largest, share = part.largest.max("point"), part.share.median("point")
        label = f"largest max-update on the points of {where}, {LATE}"
        stated[f"{name}_largest"] = (largest, label, "learning rates")
        label = f"largest share of the exact bound, {LATE}, median over points of {where}"
        stated[f"{name}_share"] = (share, label, "1")
    return labeled(data.assign(over((), numbers) | means_over_seeds(stated)))


def log_square_root_bound(b1: np.ndarray, b2: np.ndarray, num_steps: int) -> np.ndarray:
    r"""Compute ln of Theorem 1's bound with B_n = √n, wherever rounding puts the decays.

    .. math:: \frac{\sqrt{1-\beta^{n+1}}}{1-\gamma^{n+1}} \frac{1-\gamma}{\gamma}
        \sqrt{\frac{\beta}{1-\beta}} \sqrt{n}

    Args:
      b1, b2: Decays, shape (num_points,).
      num_steps: Steps n = 0, 1, ...

    Returns:
      Shape (num_points, num_steps); -inf at n = 0.

    >>> np.exp(log_square_root_bound(np.array([2 / 3]), np.array([0.5]), 3)).round(3).tolist()
    [[0.0, 0.779, 0.94]]
    """
    b1, b2 = (np.asarray(b, np.float64)[:, None] for b in (b1, b2))
    n = np.arange(num_steps)
    with np.errstate(divide="ignore"):
        return (
            log_bias_correction(b1, b2, n) + np.log((1 - b1) / b1) + np.log(n * b2 / (1 - b2)) / 2
        )


def exponents(max_update: np.ndarray, first: int) -> np.ndarray:
    """Return p of the least-squares line ln ‖u_n‖∞ = p ln n + constant, n from `first` on.

    >>> exponents(3 * np.sqrt(np.arange(400.0))[None], 100).round(9).tolist()
    [0.5]
    """
    values = max_update[..., first:].astype(np.float64)
    n = np.log(np.arange(first, max_update.shape[-1]))
    n = n - n.mean()
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(values) @ n / (n @ n)


def precision_change(b2: np.ndarray, num_steps: int) -> float:
    """Return the exact supremum's largest change as C goes from -NUDGE to NUDGE, at one β."""
    with jax.enable_x64(True):
        b2 = np.asarray(b2, np.float64)[:, None]
        below, above = (
            np.asarray(exact_max_update_bound(np.arange(num_steps), 2 / (1 + 1 / b2 + C), b2))
            for C in (-NUDGE, NUDGE)
        )
    return float(abs(below / above - 1).max())
