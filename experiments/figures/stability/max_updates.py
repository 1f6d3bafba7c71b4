"""Max-updates of trained members, and what theory says about them; shared by figures of §3.2.

Everything after training is NumPy in float64, because a float32 logarithm of e^4500 has no digits
left for a comparison. Updates are in units of the learning rate, slopes in nats per step.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
import xarray as xr
from jax.typing import ArrayLike

from experiments.core.config import require
from experiments.core.run import Run
from experiments.core.store import over
from experiments.training.config import TrainingConfig
from experiments.training.tasks import language_task
from experiments.training.train import train_member
from kadam_jax import (
    exact_max_update_bound,
    grid,
    max_update_bound,
    normal_curve,
    points,
    record_dead_gradients,
    record_max_update,
    scale_by_kadam,
    stability_coefficient,
)
from kadam_jax.members import Members

GIVEN = (0.9, 0.999)
"""γ, β of the usual point, through which normal curves go."""
GROWING, FAST, JUST_BELOW = -0.0196, -0.029, -0.01
"""C up to which updates must have grown tenfold; C up to which slopes must be within a tenth of the
exact rate; C from which (and below 0) growth would be "almost immediate"."""
DISAGREE = "theories disagree"
"""Label of points with C < 0 but γ² < β."""

Stage = Callable[[ArrayLike, ArrayLike, ArrayLike], optax.GradientTransformation]
"""`stage(b1, b2, eps)`: Adam without its learning rate."""
Member = Mapping[str, jax.Array]
Schedule = Callable[[Member], optax.Schedule]
"""`schedule(member)`: the member's learning rate by step."""

RECORDED = {
    "max_update": ("max-update ‖u_n‖∞", "learning rate"),
    "dead_share": ("share of entries with |g| < 1e-3 of their own root mean square", "1"),
    "loss": ("mean cross-entropy of the training batch", "nat/token"),
}
BOUNDS = {
    "log_exact_bound": ("ln of the supremum over all gradient sequences", "ln(learning rate)"),
    "log_paper_bound": ("ln of Theorem 1's bound", "ln(learning rate)"),
}
"""long_name and units of the results of `train` and `theory`."""


def check_slopes(config: Any) -> None:
    """Raise ConfigError unless the window of slopes has three steps or more."""
    first, last = config.slope_first, config.slope_last
    rule = "slope_first must not be negative, and slope_last must be at least 2 above it"
    require(0 <= first < last - 1, rule, f"{first} and {last}")


def stored_rms(b1: ArrayLike, b2: ArrayLike, eps: ArrayLike) -> optax.GradientTransformation:
    """Build this library's Adam: k = 1 with the decays taken verbatim."""
    return scale_by_kadam(1, (b1,), (b2,), eps)


def usual_curve(num: int) -> tuple[np.ndarray, np.ndarray]:
    """Return γ and β, float32, on the normal curve from the usual point to γ = 1, excluded."""
    b1, b2 = normal_curve(*GIVEN, num)
    return np.asarray(b1, np.float32), np.asarray(b2, np.float32)


def first_and_last(curve: Sequence[np.ndarray], num_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return γ and β of the first point of a curve and of its last num_points - 1."""
    b1, b2 = (np.r_[b[:1], b[len(b) - num_points + 1 :]] for b in curve)
    return b1, b2


def members_at(
    b1: np.ndarray, b2: np.ndarray, eps: float, seeds: Sequence[int], **axes: Any
) -> Members:
    """Return the members of every point with every seed, at one ε; other axes come first."""
    eps = np.full(len(b1), eps, np.float32)
    return grid(**axes, point=points(b1=b1, b2=b2, eps=eps), seed=seeds)


def train(
    run: Run,
    name: str,
    config: TrainingConfig,
    members: Members,
    *,
    num_steps: int | None = None,
    stage: Stage = stored_rms,
    schedule: Schedule | None = None,
) -> dict[str, np.ndarray]:
    """Train members in one compiled sweep and record every step.

    Args:
      run: The figure's run.
      name: The sweep's name.
      config: Gives model, data, learning rate and number of steps.
      members: Columns `b1`, `b2`, `eps`, `seed`, and `stop` if members differ in length.
      num_steps: Replaces the configuration's.
      stage: The optimizer, built from a member's `b1`, `b2` and `eps`.
      schedule: Replaces the configuration's constant learning rate.

    Returns:
      `max_update`, `dead_share` and `loss`, each of shape (*members.shape, num_steps).
    """
    task = language_task(config.model, run.corpus, config.batch)

    def fn(member):
        optimizer = optax.chain(
            record_dead_gradients(member["b2"]),
            stage(member["b1"], member["b2"], member["eps"]),
            record_max_update(),
            optax.scale_by_learning_rate(schedule(member) if schedule else config.learning_rate),
        )

        def read(opt_state):
            gradients, _, updates, _ = opt_state
            return {"max_update": updates.max_update, "dead_share": gradients.dead_share}

        result = train_member(
            task,
            optimizer,
            seed=member["seed"],
            num_steps=num_steps or config.num_steps,
            stop=member.get("stop"),
            read=read,
        )
        return {"loss": result.loss, **result.read}

    return run.sweep(name, fn, members, chunk_size=config.chunk_size)


def theory(b1: ArrayLike, b2: ArrayLike, num_steps: int) -> dict[str, np.ndarray]:
    """Compute C, the exact rate and the logarithms of both bounds, in float64, for float32 decays.

    Args:
      b1, b2: Decays, shape (num_points,), as the optimizer has them.
      num_steps: How many steps the bounds cover.

    Returns:
      `C`, `exact_rate` (ln(γ/√β), negative where γ² < β), both (num_points,), `log_exact_bound`
      and `log_paper_bound`, both (num_points, num_steps).

    >>> at = theory(np.array([0.25]), np.array([0.1]), 1000)
    >>> f"{np.exp(at['log_exact_bound'][0, -1]):.3f} e^{at['log_paper_bound'][0, -1]:.0f}"
    '1.291 e^1498'
    """
    with jax.enable_x64(True):
        b1, b2 = np.asarray(b1, np.float64), np.asarray(b2, np.float64)
        at = (np.arange(num_steps)[None], b1[:, None], b2[:, None])
        return {
            "C": np.asarray(stability_coefficient(b1, b2)),
            "exact_rate": np.log(b1) - np.log(b2) / 2,
            "log_exact_bound": np.asarray(exact_max_update_bound(*at, log=True)),
            "log_paper_bound": np.asarray(max_update_bound(*at, log=True)),
        }


def trajectories(
    config: Any,
    b1: np.ndarray,
    b2: np.ndarray,
    predicted: Mapping[str, np.ndarray],
    trained: Mapping[str, np.ndarray],
    dims: Sequence[str] = ("point",),
    bound_step: str = "step",
) -> xr.Dataset:
    """Return what training recorded at the points, and the bounds there.

    Args:
      config: The configuration, with `seeds` and `num_steps`.
      b1, b2: Decays, shape (num_points,).
      predicted: From `theory`, or a mapping with the same names.
      trained: From `train`, over `dims`, the seeds and the steps.
      dims: Dimensions of the members except the seed.
      bound_step: Step dimension of the bounds, whose steps need not be those of training.
    """
    rows = {name: (array, *RECORDED[name]) for name, array in trained.items()}
    bounds = {name: (predicted[name], *label) for name, label in BOUNDS.items()}
    return xr.Dataset(
        over((*dims, "seed", "step"), rows) | over(("point", bound_step), bounds),
        {
            "b1": ("point", b1),
            "b2": ("point", b2),
            "C": ("point", predicted["C"]),
            "seed": np.array(config.seeds),
            "step": np.arange(config.num_steps),
        },
    )


def log_bias_correction(b1: np.ndarray, b2: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Return ln of √(1-β^{n+1}) / (1-γ^{n+1}) in float64 for broadcast arguments.

    >>> log_bias_correction(0.5, 0.75, np.array([0])).round(9).tolist()
    [0.0]
    """
    b1, b2 = np.asarray(b1, np.float64), np.asarray(b2, np.float64)
    return np.log1p(-(b2 ** (n + 1))) / 2 - np.log1p(-(b1 ** (n + 1)))


def growth_slopes(
    max_update: np.ndarray, b1: np.ndarray, b2: np.ndarray, window: tuple[int, int]
) -> np.ndarray:
    r"""Fit the slope of ln‖u_n‖∞ over n in a window, the bias correction divided out first.

    .. math:: \ln \|u_n\|_\infty - \ln \frac{\sqrt{1-\beta^{n+1}}}{1-\gamma^{n+1}} \approx a + b n

    (Section 3.2 takes the difference of two values ten steps apart, which is noise in B₊.)

    Args:
      max_update: Shape (num_points, ..., num_steps), from n = 0.
      b1, b2: Decays, shape (num_points,).
      window: First and last n of the least-squares fit.

    Returns:
      b in nats per step, shape (num_points, ...); NaN where the run is shorter than the window.

    >>> n = np.arange(401)
    >>> b1, b2 = np.array([0.99]), np.array([0.95])
    >>> u = np.exp(0.01 * n) * np.sqrt(1 - b2 ** (n + 1)) / (1 - b1 ** (n + 1))
    >>> growth_slopes(u[None], b1, b2, (200, 400)).round(6).tolist()
    [0.01]
    """
    first, last = window
    if max_update.shape[-1] < last:
        return np.full(max_update.shape[:-1], np.nan)
    n = np.arange(max_update.shape[-1])[first : last + 1]
    b1, b2 = (np.reshape(b, (-1, *(1,) * (max_update.ndim - 1))) for b in (b1, b2))
    correction = log_bias_correction(b1, b2, n)
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.log(max_update[..., first : last + 1].astype(np.float64)) - correction
        centered = n - n.mean()
        return (level @ centered) / (centered @ centered)


def fitted_relation(rates: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Fit a line through median slopes against a predicted rate, with 95% bootstrap intervals.

    Points and seeds are both drawn with replacement, 2,000 times and with a fixed seed; a seed is
    drawn for all points at once, since it stands for the same initial weights and batches at each
    of them.

    Args:
      rates: Predicted, shape (num_points,).
      slopes: Measured, shape (num_points, num_seeds).

    Returns:
      Shape (2, 3): the coefficient and the intercept, each with its value and the low and high end
      of its interval; NaN if any slope is NaN or all rates are the same.

    >>> slopes = np.array([[3.0], [5.0], [7.0]])
    >>> fitted_relation(np.array([1.0, 2.0, 3.0]), slopes).round(9).tolist()
    [[2.0, 2.0, 2.0], [1.0, 1.0, 1.0]]
    """
    num_points, num_seeds = slopes.shape
    value = _line(rates, np.median(slopes, axis=-1)) if num_points else np.full(2, np.nan)
    if np.isnan(value).any():
        return np.full((2, 3), np.nan)
    random = np.random.default_rng(0)
    point = random.integers(num_points, size=(2000, num_points))
    seed = random.integers(num_seeds, size=(2000, num_seeds))
    resampled = np.median(slopes[point[:, :, None], seed[:, None, :]], axis=-1)
    ends = np.nanquantile(_line(rates[point], resampled), [(1 - 0.95) / 2, (1 + 0.95) / 2], axis=-1)
    return np.stack([value, *ends], axis=-1)


def _line(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Fit by least squares over the last axis: (coefficient, intercept), NaN for constant x."""
    centered = x - x.mean(-1, keepdims=True)
    spread = (centered**2).sum(-1)
    coefficient = (centered * y).sum(-1) / np.where(spread > 1e-12 * (x**2).sum(-1), spread, np.nan)
    return np.stack([coefficient, y.mean(-1) - coefficient * x.mean(-1)])


def largest_ratio(max_update: np.ndarray, log_bound: np.ndarray) -> np.ndarray:
    """Return the largest ‖u_n‖∞ over its bound.

    Args:
      max_update: Shape (num_points, num_seeds, num_steps).
      log_bound: Shape (num_points, num_steps).

    Returns:
      Shape (num_points, num_seeds); infinite if an update is not finite, which no bound allows.
    """
    with np.errstate(divide="ignore", over="ignore"):
        ratio = np.exp(np.log(max_update.astype(np.float64)) - log_bound[:, None])
    return np.where(np.isfinite(max_update).all(-1), ratio.max(-1), np.inf)
