"""The plane of (β, γ): level and normal curves of C, and the two stable regions (Fig. 2).

No training: `kadam_jax.stability` alone. The paper's B₊ is C(β, γ) > 0; the discrete algorithm is
stable where γ² < β, whose boundary is drawn beside it.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib import cm, figure, lines, patches

from experiments import plotting
from experiments.config import FigureConfig
from experiments.figures import Figure
from experiments.results import labelled
from experiments.running import Run
from kadam_jax.stability import exact_growth_rate, level_curve, normal_curve, stability_coefficient


@dataclass(frozen=True)
class Config(FigureConfig):
    """What of the plane is drawn and checked.

    Attributes:
      num_grid: Points on each side of the grid that the claims are checked on.
      num_curve: Points on each curve.
      levels: Values of C whose level curves are drawn.
      normals_through: Points γ, β of the normal curves, one pair after the other.
    """

    num_grid: int = 400
    num_curve: int = 400
    levels: tuple[float, ...] = (-8, -4, -2, -1, -0.5, 0, 0.22122, 0.5, 1, 2, 4, 8)
    normals_through: tuple[tuple[float, float], ...] = (
        (0.9, 0.999),
        (0.9, 0.95),
        (0.2, 0.2),
        (0.4, 0.4),
        (0.6, 0.6),
    )

    def __post_init__(self):
        for name, least in (("num_grid", 2), ("num_curve", 3)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("levels", "normals_through"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty: give at least one")


def compute(config: Config, run: Run) -> xr.Dataset:
    """The curves, and C and the exact growth rate on a grid of cell centres, in float64."""
    del run
    with jax.enable_x64(True):
        centres = (jnp.arange(config.num_grid) + 0.5) / config.num_grid
        gamma_by_beta = (centres[None, :], centres[:, None])
        level_b1, level_b2 = level_curve(np.array(config.levels), config.num_curve)
        through_b1, through_b2 = np.array(config.normals_through).T
        normal_b1, normal_b2 = normal_curve(
            through_b1, through_b2, config.num_curve, direction="both"
        )
        boundary_b1 = jnp.linspace(0.0, 1.0, config.num_curve + 2)[1:-1]
        data = {
            "C": (("b2", "b1"), stability_coefficient(*gamma_by_beta)),
            "exact_growth_rate": (("b2", "b1"), exact_growth_rate(*gamma_by_beta)),
            "level_b1": (("level", "point"), level_b1),
            "level_b2": (("level", "point"), level_b2),
            "normal_b1": (("curve", "point"), normal_b1),
            "normal_b2": (("curve", "point"), normal_b2),
            "normal_C": (("curve", "point"), stability_coefficient(normal_b1, normal_b2)),
            "normal_angle": (("curve", "chord"), _angle_to_gradient(normal_b1, normal_b2)),
            "boundary_b1": (("point",), boundary_b1),
            "boundary_b2": (("point",), boundary_b1**2),
            "default_C": ((), stability_coefficient(0.9, 0.999)),
        }
        dataset = xr.Dataset(
            {name: (dims, np.asarray(array)) for name, (dims, array) in data.items()},
            coords={
                "b1": np.asarray(centres),
                "b2": np.asarray(centres),
                "level": np.array(config.levels, float),
            },
        )
    return labelled(dataset, LABELS)


LABELS = {
    "C": ("C(β, γ) = 2/γ - 1/β - 1", "1"),
    "exact_growth_rate": ("growth rate of the exact bound, max(0, ln(γ/√β))", "1/step"),
    "level_b1": ("γ on the level curve C = level", "1"),
    "level_b2": ("β on the level curve C = level", "1"),
    "normal_b1": ("γ on a normal curve", "1"),
    "normal_b2": ("β on a normal curve", "1"),
    "normal_C": ("C on a normal curve", "1"),
    "normal_angle": ("angle of a chord of a normal curve to the gradient of C", "degree"),
    "boundary_b1": ("γ on the exact boundary γ² = β", "1"),
    "boundary_b2": ("β on the exact boundary γ² = β", "1"),
    "default_C": ("C at the usual (β, γ) = (0.999, 0.9)", "1"),
    "b1": ("γ", "1"),
    "b2": ("β", "1"),
    "level": ("C", "1"),
}


def _angle_to_gradient(b1: jax.Array, b2: jax.Array) -> jax.Array:
    """Degrees between chords and C's gradient at their middles: (curve, n) -> (curve, n - 1)."""
    middles = [(b[:, 1:] + b[:, :-1]) / 2 for b in (b1, b2)]
    slope_b1, slope_b2 = jax.grad(lambda *b: stability_coefficient(*b).sum(), (0, 1))(*middles)
    chord_b1, chord_b2 = jnp.diff(b1), jnp.diff(b2)
    cross = chord_b1 * slope_b2 - chord_b2 * slope_b1
    dot = chord_b1 * slope_b1 + chord_b2 * slope_b2
    return jnp.degrees(jnp.arctan2(jnp.abs(cross), jnp.abs(dot)))


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """The unit square with β to the right and γ upwards, as in the paper."""
    canvas, axes = plotting.canvas(5.2, 4.6)
    levels = dataset.level.values
    norm = plotting.stability_norm(levels.min(), levels.max())
    colours = cm.ScalarMappable(norm, plotting.STABILITY_COLOURS)

    inside = dataset.C > 0
    axes.contourf(
        dataset.b2, dataset.b1, inside.T, levels=[0.5, 1.5], colors=["tab:red"], alpha=0.13
    )
    for level, b1, b2 in zip(levels, dataset.level_b1, dataset.level_b2, strict=True):
        axes.plot(b2, b1, color=colours.to_rgba(level), linewidth=2.2 if level == 0 else 1.3)
    normal, *_ = axes.plot(
        dataset.normal_b2.T, dataset.normal_b1.T, "--", color="tab:red", linewidth=0.9
    )
    (exact,) = axes.plot(
        dataset.boundary_b2, dataset.boundary_b1, ":", color="black", linewidth=1.6
    )
    (usual,) = axes.plot(0.999, 0.9, "o", color="black", markersize=4, clip_on=False)

    shade = patches.Patch(color="tab:red", alpha=0.13)
    zero = lines.Line2D([], [], color=colours.to_rgba(0.0), linewidth=2.2)
    canvas.legend(
        [shade, zero, exact, normal, usual],
        ["B₊: C > 0", "C = 0", "exact boundary γ² = β", "normal curves", "β = 0.999, γ = 0.9"],
        loc="outside lower center",
        ncols=3,
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="β (b2)", ylabel="γ (b1)", aspect="equal")
    bar = canvas.colorbar(colours, ax=axes, label="C(β, γ) of the level curve")
    bar.set_ticks(levels, labels=[f"{level:.3g}" for level in levels])
    return {"": canvas}


FIGURE = Figure(
    name="stability_plane",
    title="Level and normal curves of C, and where updates are bounded",
    paper="Fig. 2",
    caption="Level curves of C(β, γ), coloured by C, and normal curves perpendicular to them. "
    "Shaded: B₊, where Theorem 1 bounds the max-update for all steps. Dotted: γ² = β, the boundary "
    "of the discrete algorithm; between it and C = 0 updates are bounded though the theorem's "
    "bound grows. Claims are checked at the {num_grid}² centres of a grid, in float64.",
    presets={
        "smoke": Config(num_grid=40, num_curve=60),
        "laptop": Config(),
        "paper": Config(num_grid=1000, num_curve=1000),
    },
    compute=compute,
    plot=plot,
    minimum={"num_grid": 400, "num_curve": 400},
)
