"""Scale-invariant weights and normalization layers (§4.1, §4.2)."""
