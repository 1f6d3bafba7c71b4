"""Flax NNX models (`nanogpt`) and the one place where a module becomes pure (`functional`)."""
