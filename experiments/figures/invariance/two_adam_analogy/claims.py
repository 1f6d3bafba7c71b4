"""The paper's claims about 2-Adam as Adam with a normalization layer, as rules."""

import math
from functools import partial

import xarray as xr

from experiments.core.claims import Claim
from experiments.core.stats import NOTHING, Estimate, median_over_seeds

LAYER = "adam_qk_norm"
TWO_ADAMS = {
    "two_adam_everywhere": "2-Adam",
    "two_adam_elementwise": "2-Adam on queries and keys only",
    "two_adam_coarse": "2-Adam with a coarse-grained second stage on queries and keys only",
}


def _gain(run: xr.Dataset, arm: str, decay: int) -> xr.DataArray:
    """Return held-out loss of Adam minus that of `arm`, each at its best learning rate, by seed."""
    loss = run.tuned_loss.isel(decay=decay).sel(split="heldout")
    return loss.sel(arm="adam") - loss.sel(arm=arm)


def _beyond_half(run: xr.Dataset, arm: str, decay: int) -> Estimate:
    """Return the gain of `arm` minus half of the layer's; nothing if the layer gains nothing."""
    of_layer = _gain(run, LAYER, decay)
    if not median_over_seeds(of_layer).low > 0:
        return NOTHING
    return median_over_seeds(_gain(run, arm, decay) - of_layer / 2)


DECAYS = (("with-decay", 1, "λ > 0"), ("without-decay", 0, "λ = 0"))
"""The end of an id, the place along `decay`, and the wording in statements."""
AT_ZERO = dict(
    corrected_by="norm-scales-like-the-second-stage-with-decay",
    correction="At λ = 0 ‖W‖² is a sum: u/‖W‖ falls like 1/√n, which no stage with a bias "
    "correction does.",
)

claim = partial(Claim, figure="two_adam_analogy")

CLAIMS: tuple[Claim, ...] = (
    *(
        claim(
            id=f"norm-scales-like-the-second-stage-{name}",
            section="§4.2",
            statement="u/‖W‖ is u with a second adaptive normalization, γ₂ = 0 and "
            f"β₂ = 1/(1+2λη), at {which}.",
            quantity="‖W‖ times the scale that the coarse-grained second stage gives u, mean over "
            "the last tenth of the run divided by the mean over the tenth after the middle: median "
            "over slices, then over seeds",
            statistic=lambda run, place=place: median_over_seeds(run.drift.isel(decay=place)),
            accept=(0.95, 1.05),
            reason="A constant only changes the learning rate; a twentieth is allowed for e^-5 of "
            "‖W_0‖² and the run's noise, which may be left after five averaging times.",
            **correction,
        )
        for (name, place, which), correction in zip(DECAYS, ({}, AT_ZERO), strict=True)
    ),
    claim(
        id="norm-is-the-root-of-the-average",
        section="Theorem 2, App. J",
        statement="‖W‖² is η/(2λ) times the moving average of ‖u‖² with decay 1/(1+2λη).",
        quantity="‖W‖² over that average in the last tenth of the run, λ > 0: median over slices, "
        "then over seeds",
        statistic=lambda run: median_over_seeds(run.final_ratio.isel(decay=1)),
        accept=(0.85, 1.15),
        reason="The tolerance is that of Theorem 2 in norm_dynamics.",
        corrected_by="norm-is-the-root-of-the-corrected-average",
        correction="It is (1+γ)/(1-γ) times as large: a different constant, but the same stage.",
    ),
    claim(
        id="norm-is-the-root-of-the-corrected-average",
        section="Theorem 2, App. J",
        statement="‖W‖² is (1+γ)/(1-γ) η/(2λ) times the moving average of ‖u‖².",
        quantity="‖W‖² over (1+γ)/(1-γ) times the average in the last tenth of the run, λ > 0: "
        "median over slices, then over seeds",
        statistic=lambda run: median_over_seeds(
            run.final_ratio.isel(decay=1) / run.momentum_factor
        ),
        accept=(0.85, 1.15),
        reason="The tolerance is that of the same factor in norm_dynamics.",
    ),
    claim(
        id="elementwise-stage-keeps-the-direction",
        section="Assumption 2",
        statement="2-Adam's second stage, elementwise, does to u what dividing by ‖W‖ does.",
        quantity="cosine of u and the elementwise second stage's output in the second half of the "
        "run, λ > 0: median over slices, then over seeds",
        statistic=lambda run: median_over_seeds(run.final_cosine.isel(decay=1)),
        accept=(0.95, 1.0 + 1e-5),
        reason="Division by a number preserves the direction; 0.95 is within 18 degrees of it.",
    ),
    *(
        row
        for name, place, which in DECAYS
        for row in (
            claim(
                id=f"normalization-layer-helps-{name}",
                section="§4.1",
                statement=f"A normalization layer on queries and keys helps training at {which}.",
                quantity="held-out loss of Adam without qk-norm minus that with it, nats per "
                "token, each at the learning rate that is best on the other seeds: median over "
                "seeds",
                statistic=lambda run, place=place: median_over_seeds(_gain(run, LAYER, place)),
                accept=(0.0, math.inf),
                reason="It helps if the loss is lower.",
            ),
            *(
                claim(
                    id=f"{arm.replace('_', '-')}-recovers-half-{name}",
                    section="§4.3",
                    statement=f"{label}, γ₂ = 0, captures explicitly what the layer does "
                    f"implicitly at {which}.",
                    quantity="gain in held-out loss over Adam minus half of qk-norm's gain, nats "
                    "per token, each at the learning rate that is best on the other seeds: median "
                    "over seeds; decided if the layer helps",
                    statistic=lambda run, arm=arm, place=place: _beyond_half(run, arm, place),
                    accept=(0.0, math.inf),
                    reason="Capturing an effect means showing more than half of it.",
                )
                for arm, label in TWO_ADAMS.items()
            ),
        )
    ),
)
