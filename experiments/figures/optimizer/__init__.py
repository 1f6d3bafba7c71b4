"""Figures that compare k-Adam with other optimizers (§4.3)."""

TUNED = (
    "the decays of k stages come from (β, γ) = ({b2:g}, {b1:g}). Every strategy and k is trained "
    "with one seed at learning rates {learning_rate:g} times {rates} and λ in {weight_decays}, "
    "{decays}, and the setting is chosen by the lowest validation"
)
"""The middle of the captions of figures that compare strategies."""


def panels(measure: str, example: str) -> str:
    """Return the end of these captions, for a test measure of examples."""
    return (
        f"(a) Test {measure} of the chosen setting, {{num_seeds}} fresh seeds, zoomed in; (b) the "
        f"same in full; (c) the paper's statistic, the lowest test {measure} over the sweep, with "
        f"its one seed; (d) Adam's test {measure} (k = 1) minus the arm's, paired by seed and test "
        f"{example}. Bars are 95% intervals, and a ring marks a chosen learning rate at an end of "
        "the sweep. The second page shows validation loss versus learning rate, with the chosen "
        "rate filled."
    )
