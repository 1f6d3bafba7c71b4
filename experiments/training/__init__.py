"""One training run as a pure function, and choosing among runs."""
