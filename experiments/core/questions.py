"""The questions of a reader of the page; every figure answers one of them."""

WORTH_TRYING = "Is k-Adam worth trying in place of Adam?"
UPDATES_BOUNDED = "Does C(β, γ) say where updates are bounded, and how fast they grow elsewhere?"
GENERALIZATION = "Does C(β, γ) predict how well a network generalizes?"
FLOW_FOLLOWS_ADAM = "Does the continuous-time model follow Adam?"
SCALE_INVARIANCE = "Do scale-invariant weights behave as the theory says?"

QUESTIONS = (WORTH_TRYING, UPDATES_BOUNDED, GENERALIZATION, FLOW_FOLLOWS_ADAM, SCALE_INVARIANCE)
"""In the page's order; a question that only one figure asks comes after them."""
