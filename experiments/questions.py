"""What a reader of the report wants to know, and the figures whose claims answer it."""

from collections.abc import Mapping

QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "Is k-Adam worth trying in place of Adam?": (
        "strategies_images",
        "strategies_text",
        "optimizer_comparison",
        "decay_search",
        "rate_sensitivity",
        "noise_robustness",
        "kadam_stability",
    ),
    "Does C(β, γ) say where updates are bounded, and how fast they grow elsewhere?": (
        "stability_plane",
        "bounded_updates",
        "max_update",
        "discrete_boundary",
    ),
    "Does C(β, γ) predict how well a network generalises?": (
        "normal_curves",
        "level_curve",
        "annealing",
    ),
    "Does the continuous-time model follow Adam?": ("trajectories", "solver_cost"),
    "Do scale-invariant weights behave as the theory says?": (
        "inner_products",
        "norm_dynamics",
        "two_adam_analogy",
        "coarse_graining",
        "architecture",
    ),
}
"""Every figure stands behind one question."""
