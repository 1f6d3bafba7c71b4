"""Figures that compare k-Adam with other optimizers (§4.3)."""
