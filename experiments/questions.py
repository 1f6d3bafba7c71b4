"""What a reader of the report wants to know, and what answers it."""

from collections.abc import Mapping
from typing import NamedTuple


class Answer(NamedTuple):
    """Where the answer to a question is.

    Attributes:
      claims: Those that decide it.
      figures: All whose claims are about it.
    """

    claims: tuple[str, ...]
    figures: tuple[str, ...]


QUESTIONS: Mapping[str, Answer] = {
    "Is k-Adam worth trying in place of Adam?": Answer(
        (
            "tuned-kadam-beats-tuned-adamw",
            "two-adam-beats-tuned-adamw",
            "two-adam-beats-adam-on-images",
            "searched-decays-beat-adamw-on-text",
        ),
        (
            "strategies_images",
            "strategies_text",
            "optimizer_comparison",
            "decay_search",
            "rate_sensitivity",
            "noise_robustness",
            "kadam_stability",
        ),
    ),
    "Does C(β, γ) say where updates are bounded, and how fast they grow elsewhere?": Answer(
        (
            "bounded-in-b-plus",
            "grows-in-b-minus",
            "growth-starts-at-the-boundary",
            "late-slope-is-half-c",
        ),
        ("stability_plane", "bounded_updates", "max_update", "discrete_boundary"),
    ),
    "Does C(β, γ) predict how well a network generalises?": Answer(
        (
            "larger-c-generalises-faster-0.999",
            "larger-c-generalises-faster-0.95",
            "largest-c-generalises-fastest-0.999",
            "largest-c-generalises-fastest-0.95",
        ),
        ("normal_curves", "level_curve", "annealing"),
    ),
    "Does the continuous-time model follow Adam?": Answer(
        ("flow-tracks-adam-at-1e-4", "flow-tracks-adam-at-3e-4", "flow-tracks-adam-at-1e-3"),
        ("trajectories", "solver_cost"),
    ),
    "Do scale-invariant weights behave as the theory says?": Answer(
        (
            "inner-products-vanish-towards-the-end",
            "theorem-2-predicts-the-norm",
            "full-form-predicts-the-norm-with-decay",
            "coarse-graining-harmless-for-the-loss",
        ),
        (
            "inner_products",
            "norm_dynamics",
            "two_adam_analogy",
            "coarse_graining",
            "architecture",
        ),
    ),
}
"""Every figure stands behind one question."""
