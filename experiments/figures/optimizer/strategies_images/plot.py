"""Plots of strategies on images (Figs. 6 and 15), as in every comparison of strategies."""

from experiments.figures.optimizer.plot import plot

__all__ = ["plot"]
