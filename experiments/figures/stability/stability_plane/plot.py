"""Plot of the plane of (β, γ) (Fig. 2)."""

import xarray as xr
from matplotlib import cm, figure, lines, patches

from experiments.core import plot as plotting


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw the unit square with β to the right and γ upward, as in the paper."""
    canvas, axes = plotting.canvas(5.2, 4.6)
    levels = dataset.level.values
    norm = plotting.stability_norm(levels.min(), levels.max())
    mappable = cm.ScalarMappable(norm, plotting.STABILITY_COLORMAP)

    inside = dataset.C > 0
    axes.contourf(
        dataset.b2, dataset.b1, inside.T, levels=[0.5, 1.5], colors=["tab:red"], alpha=0.13
    )
    for level, b1, b2 in zip(levels, dataset.level_b1, dataset.level_b2, strict=True):
        axes.plot(b2, b1, color=mappable.to_rgba(level), linewidth=2.2 if level == 0 else 1.3)
    normal, *_ = axes.plot(
        dataset.normal_b2.T, dataset.normal_b1.T, "--", color="tab:red", linewidth=0.9
    )
    (exact,) = axes.plot(
        dataset.boundary_b2, dataset.boundary_b1, ":", color="black", linewidth=1.6
    )
    (usual,) = axes.plot(0.999, 0.9, "o", color="black", markersize=4, clip_on=False)

    shade = patches.Patch(color="tab:red", alpha=0.13)
    zero = lines.Line2D([], [], color=mappable.to_rgba(0.0), linewidth=2.2)
    canvas.legend(
        [shade, zero, exact, normal, usual],
        ["B₊: C > 0", "C = 0", "exact boundary γ² = β", "normal curves", "β = 0.999, γ = 0.9"],
        loc="outside lower center",
        ncols=3,
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="β (b2)", ylabel="γ (b1)", aspect="equal")
    bar = canvas.colorbar(mappable, ax=axes, label="C(β, γ) of the level curve")
    bar.set_ticks(levels, labels=[f"{level:.3g}" for level in levels])
    return {"": canvas}
