"""The paper's claims about k-Adam's strategies on images, as rules."""

from experiments.figures.optimizer.claims import strategy_claims

CLAIMS = strategy_claims("strategies_images", "images", "§4.3, Fig. 6")
