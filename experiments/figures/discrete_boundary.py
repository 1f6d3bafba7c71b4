"""Where the two theories disagree: C < 0 but γ² < β (not in the paper).

There the paper's Theorem 1 lets updates grow without bound and the supremum over all gradient
sequences of the discrete algorithm is a constant. Real training and the worst-case gradients, run
through the same optimizer, show which of them describes Adam.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib import axes, figure, lines

from experiments import plotting
from experiments.config import LAPTOP_MINIMUM, LAPTOP_MODEL, SMOKE_MODEL, TrainingConfig
from experiments.figures import Figure
from experiments.max_updates import (
    DISAGREE,
    LABELS,
    growth_slopes,
    largest_ratio,
    log_bias_correction,
    stored_rms,
    theory,
    train,
)
from experiments.results import labelled
from experiments.running import Run
from kadam_jax.members import grid, points
from kadam_jax.stability import worst_case_gradients

BOTH_UNSTABLE, BOTH_STABLE = "both unstable", "both stable"


@dataclass(frozen=True)
class Config(TrainingConfig):
    """What is trained and how long the worst cases are.

    Attributes:
      points: γ, β of every point, one pair after the other.
      worst_case_steps: Longest sequence of worst-case gradients.
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
        if not self.points:
            raise ValueError("points is empty: give at least one pair γ, β")
        for point in self.points:
            if not all(0 < decay < 1 for decay in point):
                raise ValueError(f"points must be pairs γ, β in (0, 1), got {point}")
        if self.worst_case_steps < 2:
            raise ValueError(f"worst_case_steps must be at least 2, got {self.worst_case_steps}")


def compute(config: Config, run: Run) -> xr.Dataset:
    """One sweep of real training, then worst cases of every length in float64."""
    b1, b2 = np.array(config.points, np.float32).T
    eps = np.full(len(b1), config.eps, np.float32)
    members = grid(point=points(b1=b1, b2=b2, eps=eps), seed=config.seeds)
    (trained,) = train(run, "training", config, [(members, config.num_steps)])
    num_steps, longest = config.num_steps, config.worst_case_steps
    predicted = theory(b1, b2, max(num_steps, longest))
    C, exact_rate, log_exact = (predicted[key] for key in ("C", "exact_rate", "log_exact_bound"))
    worst = worst_case_updates(b1, b2, longest)
    corrections = log_bias_correction(b1[:, None], b2[:, None], np.arange(longest))
    growing = worst / np.exp(corrections)
    updates, second_half = trained["max_update"], (num_steps // 2, num_steps - 1)
    point, member, bound = "point", ("point", "seed"), ("point", "bound_step")
    data = xr.Dataset(
        {name: ((*member, "step"), array) for name, array in trained.items()}
        | {
            "log_exact_bound": (bound, log_exact),
            "log_paper_bound": (bound, predicted["log_paper_bound"]),
            "exact_rate": (point, exact_rate),
            "exact_ratio": (member, largest_ratio(updates, log_exact[:, :num_steps])),
            "slope": (member, growth_slopes(updates, b1, b2, second_half)),
            "worst_case": (("point", "worst_step"), worst),
            "worst_error": (point, abs(worst / np.exp(log_exact[:, :longest]) - 1).max(-1)),
            "worst_growth": (point, growing[:, -1] / growing[:, longest // 2 - 1]),
        },
        {
            "b1": (point, b1),
            "b2": (point, b2),
            "C": (point, C),
            "theories": (
                point,
                np.select([C > 0, exact_rate < 0], [BOTH_STABLE, DISAGREE], BOTH_UNSTABLE),
            ),
            "seed": np.array(config.seeds),
            "step": np.arange(num_steps),
            "bound_step": np.arange(log_exact.shape[1]),
            "worst_step": np.arange(longest),
        },
    )
    data["largest"] = data.max_update.where(data.theories == DISAGREE).max()
    return labelled(data, LABELS | FIGURE_LABELS)


def worst_case_updates(b1: np.ndarray, b2: np.ndarray, num_steps: int) -> np.ndarray:
    """The last update of worst-case gradients of every length, through the real optimizer.

    In float64 and with ε=0. A sequence of length N is the longest one's last N gradients, run from
    the optimizer's initial state.

    Args:
      b1, b2: Decays, shape (num_points,).
      num_steps: The longest length.

    Returns:
      |u_{N-1}| in units of the learning rate for N = 1, ..., num_steps, shape
      (num_points, num_steps).

    Raises:
      ValueError: If a worst case of that length does not fit float64.

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
        gradients = worst_case_gradients(num_steps, b1, b2)  # (num_steps, num_points)
        starts = jnp.arange(num_steps - 1, -1, -1)
        lengths = jax.vmap(last_update, (None, None, None, 0))
        every = jax.jit(jax.vmap(lengths, (0, 0, 1, None)))
        return np.asarray(every(b1, b2, gradients, starts))


FIGURE_LABELS = {
    "bound_step": ("optimizer steps done before, n", "step"),
    "worst_step": ("optimizer steps done before, n", "step"),
    "theories": ("what C and γ² < β say of the point", "1"),
    "exact_ratio": ("largest max-update over the exact bound", "1"),
    "slope": ("slope of ln‖u_n‖∞ over the second half, bias correction divided out", "1/step"),
    "worst_case": ("last update of worst-case gradients", "learning rate"),
    "worst_error": ("largest relative difference of worst case and exact bound", "1"),
    "largest": ("largest max-update where the theories disagree", "learning rates"),
    "worst_growth": ("worst case at the longest length over that at half of it", "1"),
}


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """The plane, then one panel for each point; axes are shared and the theorem leaves them."""
    num_points = dataset.sizes["point"]
    num_rows = -(-(num_points + 1) // NUM_COLUMNS)
    canvas, panels = plotting.canvas(
        2.9 * NUM_COLUMNS, 2.5 * num_rows + 0.4, nrows=num_rows, ncols=NUM_COLUMNS, squeeze=False
    )
    panels = panels.flatten()
    _plane(panels[0], dataset)
    for number, panel in enumerate(panels[1 : num_points + 1]):
        _point(panel, dataset.isel(point=number), f"{number + 1}")
    for panel in panels[num_points + 1 :]:
        panel.set_axis_off()
    canvas.legend(handles=list(HANDLES), loc="outside lower center", ncols=len(HANDLES))
    return {"": canvas}


NUM_COLUMNS = 4
LINES = {
    "trained": {"color": "tab:blue", "linewidth": 1.6},
    "worst_case": {"color": "black", "marker": "o", "markersize": 3.5, "linestyle": "none"},
    "exact": {"color": "tab:orange", "linestyle": "--"},
    "paper": {"color": "tab:red", "linestyle": ":", "linewidth": 1.6},
}
HANDLES = tuple(
    lines.Line2D([], [], label=label, **LINES[name])
    for name, label in (
        ("trained", "nanoGPT, median and range over seeds"),
        ("worst_case", "worst-case gradients of length n + 1"),
        ("exact", "exact bound"),
        ("paper", "Theorem 1"),
    )
)


def _point(panel: axes.Axes, data: xr.Dataset, name: str) -> None:
    x = data.step + 1
    panel.fill_between(
        x, data.max_update.min("seed"), data.max_update.max("seed"), color="tab:blue", alpha=0.25
    )
    panel.plot(x, data.max_update.median("seed"), **LINES["trained"])
    for bound in ("exact", "paper"):
        # Far outside the axes e^4500 would overflow.
        values = np.exp(np.minimum(data[f"log_{bound}_bound"], 50))
        panel.plot(data.bound_step + 1, values, **LINES[bound])
    lengths = np.unique(np.geomspace(1, data.sizes["worst_step"], 12).astype(int))
    panel.plot(lengths, data.worst_case[lengths - 1], **LINES["worst_case"])
    panel.set(xscale="log", yscale="log", xlim=(0.9, None), ylim=(0.7, 200))
    panel.set(xlabel="step n + 1", ylabel="‖uₙ‖∞ (learning rates)")
    panel.set_title(
        f"({name}) β = {data.b2:.4g}, γ = {data.b1:.4g}, C = {data.C:.3g}\n"
        f"{data.theories.item()}; largest {data.max_update.max():.3g}",
        loc="left",
    )


def _plane(panel: axes.Axes, data: xr.Dataset) -> None:
    b2 = np.linspace(0, 1, 400)
    paper, exact = 2 * b2 / (1 + b2), np.sqrt(b2)
    panel.fill_between(b2, 0, paper, color="0.85", linewidth=0)
    panel.fill_between(b2, paper, exact, color="tab:orange", alpha=0.5, linewidth=0)
    panel.plot(b2, paper, **LINES["paper"])
    panel.plot(b2, exact, **LINES["exact"])
    for number, (x, y) in enumerate(zip(data.b2.values, data.b1.values, strict=True), 1):
        panel.plot(x, y, "o", color="black", markersize=3, clip_on=False)
        panel.annotate(str(number), (x, y), (4, -9), textcoords="offset points", fontsize=7)
    panel.text(0.62, 0.25, "C > 0")
    panel.set(xlim=(0, 1), ylim=(0, 1), xlabel="β (b2)", ylabel="γ (b1)")
    panel.set_title("the points; orange: C < 0 but γ² < β", loc="left")


FIGURE = Figure(
    name="discrete_boundary",
    title="Where C < 0 but γ² < β: the theorem's explosion does not come",
    paper="not in the paper",
    caption="Real training and the worst case, between two theories. Each panel: the max-update of "
    "nanoGPT ({model.num_layers} layers, width {model.width}, learning rate {learning_rate:g}, "
    "{num_seeds} seeds, {corpus} corpus), its largest value in the title; the last update of "
    "worst-case gradients of every length, through the same optimizer in float64; the exact bound "
    "of the discrete algorithm; and Theorem 1, which soon leaves the axes where C is well below 0. "
    "Where γ² < β the exact bound is a constant, and both keep to it. Where γ² > β worst cases "
    "grow; training grows only if gradients die out faster than β^(n/2), which they rarely do when "
    "β is small.",
    presets={
        "smoke": Config(
            model=SMOKE_MODEL,
            batch=2,
            num_steps=40,
            num_seeds=2,
            worst_case_steps=32,
        ),
        "laptop": Config(model=LAPTOP_MODEL, num_steps=400),
        "paper": Config(batch=64, num_steps=3000, chunk_size=4, worst_case_steps=512),
    },
    compute=compute,
    plot=plot,
    minimum={**LAPTOP_MINIMUM, "worst_case_steps": 256},
)
