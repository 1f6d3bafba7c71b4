"""k-Adam and the theory of adaptive optimisation, for optax.

The optimizer (`kadam`, `scale_by_kadam`), its stability theory (`is_stable`, `max_update_bound`,
...), monitors to put into a chain, and sweeps over members in one compiled program.
"""

from importlib.metadata import version as _version


__version__ = _version("kadam_jax")

__all__ = [
    "__version__",
]
