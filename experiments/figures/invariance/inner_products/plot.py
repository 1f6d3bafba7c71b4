"""Plots of products of weights and gradients of other steps (Fig. 8 and its checks)."""

import numpy as np
import xarray as xr
from matplotlib import axes, figure

from experiments.core import plot as plotting
from experiments.core.stats import mean
from experiments.figures.invariance.inner_products.run import NETWORKS

COLORS = {"qk_norm": "tab:blue", "no_qk_norm": "tab:red"}


def plot(dataset: xr.Dataset) -> dict[str, figure.Figure]:
    """Draw the paper's two panels, then cosines, the run's end, Lemma 2 and the radial term."""
    canvas, grid = plotting.canvas(13, 7.2, nrows=2, ncols=3)
    panels = (
        lambda panel, data: _inner_products(panel, data, "qk_norm"),
        lambda panel, data: _inner_products(panel, data, "no_qk_norm"),
        _cosines,
        _toward_the_end,
        _lemma,
        _radial,
    )
    plotting.draw_panels(grid, dataset, panels)
    with_and_without = grid.flat[:2]
    limits = [panel.get_ylim() for panel in with_and_without]
    for panel in with_and_without:
        panel.set_ylim(np.min(limits), np.max(limits))
    return {"": canvas}


def _inner_products(panel: axes.Axes, data: xr.Dataset, network: str) -> str:
    label, color = NETWORKS[network], COLORS[network]
    inner = abs(data.inner.sel(network=network))
    first = inner.isel(seed=0)
    panel.plot(data.step, first.values, color=color, linewidth=0.3, alpha=0.35)
    panel.plot(data.step, inner.median(("seed", "slice")), color="black", label="median, all seeds")
    panel.set(yscale="log", xlabel="step n", ylabel="|⟨$W_N$, $g_n$⟩|")
    panel.legend(loc="lower left")
    return f"{label}: every slice of one seed"


def _band(panel: axes.Axes, x: xr.DataArray, values: xr.DataArray, label: str, **style) -> None:
    """Draw the median and the middle 80% over seeds and slices."""
    ends = values.quantile([0.1, 0.5, 0.9], ("seed", "slice")).values
    plotting.band(panel, x, *ends, label=label, **style)


def _cosines(panel: axes.Axes, data: xr.Dataset) -> str:
    for network, label in NETWORKS.items():
        values = abs(data.cosine.sel(network=network))
        _band(panel, data.step, values, label, color=COLORS[network], linewidth=0.6)
    panel.axhline(data.chance, color="black", linestyle=":", label="chance, 1/√entries")
    panel.set(yscale="log", xlabel="step n", ylabel="|cosine of $W_N$ and $g_n$|")
    panel.legend(loc="lower left")
    return "cosines: median and middle 80%"


def _toward_the_end(panel: axes.Axes, data: xr.Dataset) -> str:
    """Draw means over slices and steps, in bins of equal width on the logarithmic axis."""
    num_steps = data.sizes["step"]
    edges = np.unique(np.geomspace(1, num_steps + 1, 30).round().astype(int))
    middles = np.sqrt(edges[:-1] * (edges[1:] - 1))
    run = data[["cosine", "own_share"]].sel(network="qk_norm").mean("slice")
    run = run.assign_coords(left=num_steps - run.step)
    binned = run.groupby_bins("left", edges, right=False).mean().transpose("left_bins", ...)
    ends = np.array([mean(of_seeds).ends for of_seeds in binned.cosine])
    color = COLORS["qk_norm"]
    label = f"{NETWORKS['qk_norm']}: mean, 95% interval"
    plotting.band(panel, middles, *ends[:, [1, 0, 2]].T, color=color, label=label)
    own = binned.own_share.mean("seed")
    panel.plot(middles, own, color="black", linestyle="--", label="contribution of $g_n$ to $W_N$")
    panel.axhline(0, color="black", linewidth=0.8)
    panel.set(xscale="log", xlabel="steps left, N - n", ylabel="cosine of $W_N$ and $g_n$")
    panel.invert_xaxis()
    panel.legend(loc="lower right")
    return "cosines with their sign, toward the end"


def _lemma(panel: axes.Axes, data: xr.Dataset) -> str:
    for network, label in NETWORKS.items():
        values = abs(data.own_cosine.sel(network=network))
        _band(panel, data.step, values, label, color=COLORS[network], linewidth=0.6)
    exact, label = abs(data.exact_cosine), "qk-norm, ε → 0"
    _band(panel, data.exact_step, exact, label, color="tab:green", linewidth=1)
    panel.set(yscale="log", xlabel="step n", ylabel="|cosine of $W_n$ and $g_n$|")
    panel.legend(loc="lower right", bbox_to_anchor=(1, 0.05))
    return "Lemma 2: 0 for a scale-invariant weight"


def _radial(panel: axes.Axes, data: xr.Dataset) -> str:
    for network, label in NETWORKS.items():
        values = data.radial_share.sel(network=network).median("seed")
        panel.plot(data.step, values, label=label, color=COLORS[network], linewidth=0.8)
    panel.axhline(data.noise_share, color="black", linestyle="--", label="noise: 2γ/(1-γ)")
    panel.axhline(1, color="black", linestyle=":", label="equal")
    panel.set(yscale="log", xlabel="step n", ylabel="|2⟨$W_n$, $u_n$⟩| / η‖$u_n$‖²")
    panel.legend(loc="lower right", bbox_to_anchor=(1, 0.15))
    return "the term Theorem 2 drops over the one it keeps"
