"""The questions that the page answers for a reader; every figure answers one of them."""

from collections.abc import Iterable

from experiments.core.figure import Figure

WORTH_TRYING = "Is k-Adam worth trying in place of Adam?"
UPDATES_BOUNDED = "Does C(β, γ) say where updates are bounded, and how fast they grow elsewhere?"
GENERALIZATION = "Does C(β, γ) predict how well a network generalizes?"
FLOW_FOLLOWS_ADAM = "Does the continuous-time model follow Adam?"
SCALE_INVARIANCE = "Do scale-invariant weights behave as the theory says?"

QUESTIONS = (WORTH_TRYING, UPDATES_BOUNDED, GENERALIZATION, FLOW_FOLLOWS_ADAM, SCALE_INVARIANCE)
"""In the page's order; a question that only one figure asks comes after them."""


def by_question(figures: Iterable[Figure]) -> dict[str, list[Figure]]:
    """Return the figures that ask each question, in the page's order of questions."""
    asking: dict[str, list[Figure]] = {question: [] for question in QUESTIONS}
    for figure in figures:
        asking.setdefault(figure.question, []).append(figure)
    return {question: of for question, of in asking.items() if question and of}
