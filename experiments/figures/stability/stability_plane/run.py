"""The plane of (β, γ): level and normal curves of C, and the two stable regions (Fig. 2).

There is no training, only `kadam_jax.stability`. The paper's B₊ is C(β, γ) > 0; the discrete
algorithm is stable where γ² < β, and the boundary of that region is drawn too.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from experiments.core.config import FigureConfig, check_least, require
from experiments.core.run import Run
from experiments.core.store import COORDINATES, coordinates, labeled, over
from kadam_jax import exact_growth_rate, level_curve, normal_curve, stability_coefficient


@dataclass(frozen=True)
class Config(FigureConfig):
    """The curves that are drawn, and the points that are checked.

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
        check_least(self, num_grid=2, num_curve=3)
        for name in ("levels", "normals_through"):
            require(getattr(self, name), f"{name} must not be empty", getattr(self, name))


def compute(config: Config, run: Run) -> xr.Dataset:
    """Compute the curves, and C and the exact growth rate at a grid's cell centers, in float64."""
    del run
    plane, level, normal = ("b2", "b1"), ("level", "point"), ("curve", "point")
    with jax.enable_x64(True):
        centers = (jnp.arange(config.num_grid, dtype=float) + 0.5) / config.num_grid
        gamma_by_beta = (centers[None, :], centers[:, None])
        C, growth = stability_coefficient(*gamma_by_beta), exact_growth_rate(*gamma_by_beta)
        level_b1, level_b2 = level_curve(np.array(config.levels), config.num_curve)
        through_b1, through_b2 = np.array(config.normals_through).T
        normal_b1, normal_b2 = normal_curve(
            through_b1, through_b2, config.num_curve, direction="both"
        )
        normal_C = stability_coefficient(normal_b1, normal_b2)
        angle = _angle_to_gradient(normal_b1, normal_b2)
        usual_C = stability_coefficient(0.9, 0.999)
        b1 = jnp.linspace(0.0, 1.0, config.num_curve + 2)[1:-1]
        boundary = {
            "boundary_b1": (b1, "γ on the exact boundary γ² = β"),
            "boundary_b2": (b1**2, "β on the exact boundary γ² = β"),
        }
    in_plane = {
        "C": (C, *COORDINATES["C"]),
        "exact_growth_rate": (growth, "growth rate of the exact bound, max(0, ln(γ/√β))", "1/step"),
    }
    on_levels = {
        "level_b1": (level_b1, "γ on the level curve C = level"),
        "level_b2": (level_b2, "β on the level curve C = level"),
    }
    on_normals = {
        "normal_b1": (normal_b1, "γ on a normal curve"),
        "normal_b2": (normal_b2, "β on a normal curve"),
        "normal_C": (normal_C, "C on a normal curve"),
    }
    chord = (angle, "angle between a chord of a normal curve and the gradient of C", "degree")
    usual = {"default_C": (usual_C, "C at the usual (β, γ) = (0.999, 0.9)")}
    axes = {"b1": np.asarray(centers), "b2": np.asarray(centers)}
    return labeled(
        xr.Dataset(
            over(plane, in_plane)
            | over(level, on_levels)
            | over(normal, on_normals)
            | over(("curve", "chord"), {"normal_angle": chord})
            | over("point", boundary)
            | over((), usual),
            axes | coordinates(level=(np.array(config.levels, float), "C")),
        )
    )


def _angle_to_gradient(b1: jax.Array, b2: jax.Array) -> jax.Array:
    """Return the angles between chords and C's gradient, degrees: (curve, n) -> (curve, n - 1)."""
    middles = [(b[:, 1:] + b[:, :-1]) / 2 for b in (b1, b2)]
    slope_b1, slope_b2 = jax.grad(lambda *b: stability_coefficient(*b).sum(), (0, 1))(*middles)
    chord_b1, chord_b2 = jnp.diff(b1), jnp.diff(b2)
    cross = chord_b1 * slope_b2 - chord_b2 * slope_b1
    dot = chord_b1 * slope_b1 + chord_b2 * slope_b2
    return jnp.degrees(jnp.arctan2(jnp.abs(cross), jnp.abs(dot)))
