"""Adam's continuous-time model (§2)."""
