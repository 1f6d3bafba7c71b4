"""Plots of strategies on text (Fig. 16), as in every comparison of strategies."""

from experiments.figures.optimizer.plot import plot

__all__ = ["plot"]
