"""The paper's claims about the plane of (β, γ), as rules."""

from functools import partial

from experiments.core.claims import Claim
from experiments.core.stats import exact, share

claim = partial(Claim, figure="stability_plane")

CLAIMS: tuple[Claim, ...] = (
    claim(
        id="beta-above-gamma",
        section="§3.1",
        statement="β > γ is sufficient for (β, γ) to lie in B₊.",
        quantity="share of the grid's points with β > γ that have C > 0",
        statistic=lambda plane: share(plane.C > 0, plane.b2 > plane.b1),
        accept=(1.0, 1.0),
        reason="A sufficient condition has no exceptions.",
    ),
    claim(
        id="stable-implies-exactly-stable",
        section="§3.1, Theorem 1",
        statement="(β, γ) in B₊ ensures bounded updates, also for the discrete algorithm.",
        quantity="share of the points with C > 0 where no gradient sequence makes updates grow",
        statistic=lambda plane: share(plane.exact_growth_rate == 0, plane.C > 0),
        accept=(1.0, 1.0),
        reason="β/γ² - 1 = C + (β-γ)²/(γ²β), so C > 0 must imply γ² < β at every point.",
    ),
    claim(
        id="unstable-implies-exactly-unstable",
        section="§3.1",
        statement="Outside B₊ updates can grow exponentially, at the rate |C|/2.",
        quantity="share of the points with C < 0 where some gradient sequence makes updates grow",
        statistic=lambda plane: share(plane.exact_growth_rate > 0, plane.C < 0),
        accept=(1.0, 1.0),
        reason="B₋ is the unstable region only if no point of it is stable.",
        corrected_by="worst-case-grows-beyond-the-exact-boundary-alone",
        correction="The discrete algorithm's boundary is γ² = β: between C = 0 and γ² = β its "
        "updates are bounded although C < 0. The supremum grows at the rate max(0, ln(γ/√β)), not "
        "|C|/2.",
    ),
    claim(
        id="monotone-along-normal-curves",
        section="§3.1",
        statement="C varies monotonically along a normal curve.",
        quantity="share of the steps along all normal curves, taken toward γ = 1, where C falls",
        statistic=lambda plane: exact(
            (plane.normal_C.diff("point") < 0).mean(), plane.normal_C.diff("point").size
        ),
        accept=(1.0, 1.0),
        reason="Monotone means that every step counts.",
    ),
    claim(
        id="normal-curves-perpendicular",
        section="§3.1, App. F",
        statement="Normal curves γ = (k - 2β³)^(1/3) are perpendicular to the level curves of C.",
        quantity="largest angle between a chord of a normal curve and the gradient of C, degrees",
        statistic=lambda plane: exact(plane.normal_angle.max(), plane.normal_angle.size),
        accept=(0.0, 1.0),
        reason="A chord differs from its curve's tangent by rounding and the square of its length, "
        "while a wrong exponent or factor in the formula turns curves by tens of degrees.",
    ),
)
