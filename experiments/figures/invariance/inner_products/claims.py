"""The paper's claims about inner products with gradients of other steps, as rules."""

import math
from functools import partial

import numpy as np
import xarray as xr

from experiments.core.claims import Claim
from experiments.core.stats import median_over_seeds

LAST_STEPS = 10
"""Steps in which n is near N, so the products should be near 0."""
LATE_STEPS = 100
"""Ten times momentum's memory 1/(1-γ): longer correlations of gradients play no part."""


def _cosines(run: xr.Dataset, network: str) -> xr.DataArray:
    """Return a network's root mean square cosine over steps and slices, for every seed."""
    return np.sqrt((run.cosine**2).mean(("step", "slice"))).sel(network=network)


def _end_over_all(run: xr.Dataset) -> xr.DataArray:
    inner = np.sqrt((run.inner.sel(network="qk_norm") ** 2).mean("slice"))
    return inner.isel(step=slice(-LAST_STEPS, None)).mean("step") / inner.mean("step")


def _mean_over_own(run: xr.Dataset) -> xr.DataArray:
    late = run.sel(network="qk_norm").isel(step=slice(-LATE_STEPS, None))
    return late.cosine.mean(("step", "slice")) / late.own_share.mean(("step", "slice"))


claim = partial(Claim, figure="inner_products")

CLAIMS: tuple[Claim, ...] = (
    claim(
        id="inner-products-less-with-qk-norm",
        section="App. G, Fig. 8",
        statement="⟨W_N, g_n⟩ is less negligible without qk-norm than with it.",
        quantity="root mean square cosine of W_N and g_n, all n, with qk-norm over without: median "
        "over seeds",
        statistic=lambda run: median_over_seeds(
            _cosines(run, "qk_norm") / _cosines(run, "no_qk_norm")
        ),
        accept=(-math.inf, 0.5),
        reason="A factor of two is the least that a figure with a linear axis would show.",
    ),
    claim(
        id="inner-products-vanish-toward-the-end",
        section="App. G, Fig. 8",
        statement="With qk-norm the inner product converges to 0 as n → N.",
        quantity=f"mean root mean square of ⟨W_N, g_n⟩ over the last {LAST_STEPS} steps, over that "
        "of all steps, with qk-norm: median over seeds",
        statistic=lambda run: median_over_seeds(_end_over_all(run)),
        accept=(-math.inf, 0.1),
        reason="W moves by about η per step and entry, so for the last hundredth of the run it is "
        "within a few hundredths of where it ends.",
        corrected_by="inner-products-less-with-qk-norm",
        correction="It goes to 0 like 1-γ^(N-n): only in the last few times 1/(1-γ) steps.",
    ),
    claim(
        id="assumption-1-chance",
        section="Assumption 1",
        statement="Inner products with gradients of earlier steps are negligible under qk-norm.",
        quantity="root mean square cosine of W_N and g_n over 1/√entries, with qk-norm: median "
        "over seeds",
        statistic=lambda run: median_over_seeds(_cosines(run, "qk_norm") / run.chance),
        accept=(-math.inf, 1.5),
        reason="Independent random directions have 1; 50% more is allowed for what "
        "gradients of neighboring steps share.",
        correction="They are not due to chance: momentum has moved W_N against g_n itself.",
    ),
    claim(
        id="inner-products-are-momentums",
        section="Assumption 1",
        statement="On average ⟨W_N, g_n⟩ is the contribution of g_n itself to W_N, which is "
        "negative: -η(1-γ^(N-n))⟨g_n, g_n/√v_n⟩.",
        quantity=f"mean cosine of W_N and g_n over slices and the last {LATE_STEPS} steps, over "
        "the cosine that this contribution alone gives, with qk-norm: median over seeds",
        statistic=lambda run: median_over_seeds(_mean_over_own(run)),
        accept=(0.85, 1.15),
        reason="The tolerance is that of the factor (1+γ)/(1-γ) in norm_dynamics, which has the "
        "same source: a seventh is allowed for the correlation of gradients of different steps.",
        correction="It is negative, and has this size near the end, where gradients of other "
        "steps have had no time to act; farther back, correlated gradients cancel part of it.",
    ),
    claim(
        id="lemma-2-orthogonal-gradients",
        section="Lemma 2",
        statement="A scale-invariant weight is orthogonal to its own gradient.",
        quantity="largest |cosine| of W_n and g_n over steps and slices, with a vanishing ε of "
        "qk-norm: median over seeds",
        statistic=lambda run: median_over_seeds(abs(run.exact_cosine).max(("exact_step", "slice"))),
        accept=(0.0, 1e-4),
        reason="float32 keeps seven digits, and a backward pass loses two or three of them; "
        "without the lemma, cosines would be a few hundredths.",
    ),
    claim(
        id="radial-term-negligible",
        section="Theorem 2, App. J",
        statement="By Assumption 1 the radial term -2⟨W, u⟩ may be dropped next to η‖u‖².",
        quantity="|2⟨W_n, u_n⟩| over η‖u_n‖², with qk-norm: median over slices and steps, then "
        "over seeds",
        statistic=lambda run: median_over_seeds(
            abs(run.radial_share.sel(network="qk_norm")).median("step")
        ),
        accept=(-math.inf, 0.1),
        reason="A term may be dropped next to one that is ten times as large.",
        correction="Cosines are small, but ‖W‖ is large compared with η‖u‖. For gradients that are "
        "noise, the term is 2γ/(1-γ) times the one that is kept; see norm_dynamics.",
    ),
)
