"""The paper's claims about k-Adam's strategies on text, as rules."""

from experiments.figures.optimizer.claims import strategy_claims

CLAIMS = strategy_claims("strategies_text", "text", "§4.3, App. P")
