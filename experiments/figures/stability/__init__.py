"""Where the max-update is bounded, and what that says of generalization (§3)."""
