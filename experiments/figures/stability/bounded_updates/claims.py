"""The paper's claims about updates on B₀ and along a normal curve inside B₊, as rules."""

import math
from functools import partial

from experiments.core.claims import Claim
from experiments.core.stats import every_median, exact

claim = partial(Claim, figure="bounded_updates")

CLAIMS: tuple[Claim, ...] = (
    claim(
        id="bounded-on-b-zero",
        section="App. E",
        statement="On B₀ the max-update is bounded as in B₊; it does not grow like √n.",
        quantity="exponent p of ‖uₙ‖∞ ∝ n^p from n = 100 to the end: median over "
        "seeds at each point, lowest and highest ends of the points' intervals",
        statistic=lambda run: every_median(run.exponent.isel(point=run.curve.values == "B₀")),
        accept=(-math.inf, 0.25),
        reason="Every point must be nearer to 0, a constant, than to 1/2, which is √n.",
        correction="Finite precision, which blurs C = 0, is not the reason: on B₀ the exact "
        "supremum is finite and tends to 1/√(1-β), and it is continuous across B₀.",
    ),
    claim(
        id="exact-bound-on-b-zero",
        section="App. E",
        statement="On B₀ updates stay below the exact supremum, for large n the constant 1/√(1-β).",
        quantity="largest ‖uₙ‖∞ over the exact bound on B₀, all members and steps",
        statistic=lambda run: _largest(run, "exact_ratio", "B₀"),
        accept=(-math.inf, 1 + 1e-5),
        reason="No gradients can exceed a supremum, except by the rounding of float32.",
    ),
    claim(
        id="square-root-bound-on-b-zero",
        section="App. E, Theorem 1",
        statement="On B₀ Theorem 1's bound, with its √n, is not violated.",
        quantity="largest ‖uₙ‖∞ over the √n form of Theorem 1 on B₀, all members, n ≥ 1 (at n = 0 "
        "the form is 0 and every update is above it)",
        statistic=lambda run: _largest(run, "paper_ratio", "B₀"),
        accept=(-math.inf, 1 + 1e-5),
        reason="A bound has no exceptions beyond the rounding of float32.",
        corrected_by="exact-bound-on-b-zero",
        correction="The √n form holds for continuous time. In the first steps it lies below what "
        "gradients can reach and below what they do reach; the exact supremum holds from n = 0.",
    ),
    claim(
        id="theorem-1-inside-b-plus",
        section="App. L",
        statement="In B₊ the predicted bounds are satisfied.",
        quantity="largest ‖uₙ‖∞ over Theorem 1's bound along the normal curve inside B₊, all "
        "members and steps",
        statistic=lambda run: _largest(run, "paper_ratio", "B₊"),
        accept=(-math.inf, 1 + 1e-5),
        reason="A bound has no exceptions beyond the rounding of float32.",
    ),
)


def _largest(run, name: str, curve: str):
    ratio = run[name].isel(point=run.curve.values == curve)
    return exact(ratio.max(), ratio.size)
