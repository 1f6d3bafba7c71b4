"""The `train` command: presets, loop, checkpoints, log."""
