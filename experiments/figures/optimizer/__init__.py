"""k-Adam next to other optimizers (§4.3)."""
