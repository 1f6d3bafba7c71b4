"""How strategies on text are drawn (Fig. 16), as in every comparison of them."""

from experiments.figures.optimizer.plot import plot

__all__ = ["plot"]
