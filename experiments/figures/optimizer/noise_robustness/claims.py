"""The paper's conjectures about a larger k when gradients are noisy, as rules.

The paper found k = 2 to be the best and left open whether a larger k alleviates noise.
"""

import math

import xarray as xr

from experiments.core.claims import Claim
from experiments.core.stats import NOTHING, Estimate
from experiments.figures.optimizer.noise_robustness.contrasts import (
    AXES,
    SMALLER,
    gain,
    larger,
    reaches,
    trend,
)

NOISES = {
    "batch": (
        "small-batches",
        "at small batch sizes",
        "at the smallest batch size",
        "as batches shrink",
    ),
    "gradient_noise": (
        "gradient-noise",
        "when noise is added to the gradients",
        "at the highest level of noise",
        "as noise is added to the gradients",
    ),
    "label_noise": (
        "label-noise",
        "when training labels are noisy",
        "at the largest share of replaced labels",
        "as more training labels are replaced",
    ),
}
"""The end of an id, and the wording in statements."""


def _gain(run: xr.Dataset, axis: str) -> Estimate:
    """Return the gain over Adam and 2-Adam, if both were trained and the noise is large enough."""
    decides = reaches(run, axis) and {*SMALLER} <= {*run.k.values.tolist()}
    return gain(run, axis) if decides else NOTHING


CLAIMS: tuple[Claim, ...] = tuple(
    claim
    for axis, (name, where, most, growing) in NOISES.items()
    for claim in (
        Claim(
            id=f"larger-k-better-{name}",
            figure="noise_robustness",
            section="§4.3",
            statement=f"A k larger than 2 is beneficial {where}.",
            quantity="test loss of the better of Adam and 2-Adam minus that of the best k ≥ 3, "
            f"nats per token, {most}, each tuned there and picked on validation: mean over fresh "
            "seeds, 95% interval by Student's t",
            statistic=lambda run, axis=axis: _gain(run, axis),
            accept=(0.0, math.inf),
            reason="A beneficial k has a lower loss than Adam and 2-Adam, the usual choices.",
            correction="Adam or 2-Adam, tuned in the same way, has the lower loss there.",
        ),
        Claim(
            id=f"larger-k-loses-less-with-{name}",
            figure="noise_robustness",
            section="§4.3",
            statement=f"A k larger than 2 gains more over Adam, or loses less to it, {growing}.",
            quantity="slope of Adam's test loss minus k-Adam's, mean over k ≥ 3, nats per token "
            f"per {AXES[axis].unit}, each tuned in every condition: mean over fresh seeds, 95% "
            "interval by Student's t",
            statistic=lambda run, axis=axis: (
                trend(run, axis, larger(run)) if reaches(run, axis) else NOTHING
            ),
            accept=(0.0, math.inf),
            reason="A method that alleviates noise is worth more when there is more noise.",
            correction=f"The reverse: compared with Adam, a larger k does worse {growing}.",
        ),
    )
)
