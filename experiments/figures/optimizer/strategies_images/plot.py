"""How strategies on images are drawn (Figs 6 and 15), as in every comparison of them."""

from experiments.figures.optimizer.plot import plot

__all__ = ["plot"]
