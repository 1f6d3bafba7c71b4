"""k-Adam and the theory of adaptive optimisation, for optax.

The optimizer (`kadam`, `scale_by_kadam`), its stability theory (`is_stable`, `max_update_bound`,
...), monitors to put into a chain, and sweeps over members in one compiled program.
"""

from importlib.metadata import version as _version

from kadam_jax.flow import (
    FlowSolution,
    FlowState,
    FlowVariables,
    continuous_update,
    flow_vector_field,
    moving_average_kernel,
    solve_flow,
    unforced_rates,
    unforced_solution,
)
from kadam_jax.invariance import (
    MovingAverage,
    RadialInnerProducts,
    RecordSquaredNormState,
    ScaleByCoarseGrainedNormalizationState,
    direction_residual,
    momentum_factor,
    predicted_squared_norm,
    radial_inner_products,
    record_squared_norm,
    scale_by_coarse_grained_normalization,
    squared_norm_average,
)
from kadam_jax.members import Members, grid, points, split_static, sweep, sweep_chunks
from kadam_jax.monitor import (
    RecordDeadGradientsState,
    RecordMaxUpdateState,
    record_dead_gradients,
    record_max_update,
)
from kadam_jax.normalization import (
    ScaleByAdaptiveNormalizationState,
    scale_by_adaptive_normalization,
)
from kadam_jax.optimizer import kadam, scale_by_kadam
from kadam_jax.stability import (
    exact_growth_rate,
    exact_max_update_bound,
    growth_rate,
    is_exactly_stable,
    is_stable,
    level_curve,
    max_update_bound,
    normal_curve,
    stability_coefficient,
    worst_case_gradients,
)
from kadam_jax.strategies import per_stage_decays

__version__ = _version("kadam_jax")

__all__ = [
    "FlowSolution",
    "FlowState",
    "FlowVariables",
    "Members",
    "MovingAverage",
    "RadialInnerProducts",
    "RecordDeadGradientsState",
    "RecordMaxUpdateState",
    "RecordSquaredNormState",
    "ScaleByAdaptiveNormalizationState",
    "ScaleByCoarseGrainedNormalizationState",
    "__version__",
    "continuous_update",
    "direction_residual",
    "exact_growth_rate",
    "exact_max_update_bound",
    "flow_vector_field",
    "grid",
    "growth_rate",
    "is_exactly_stable",
    "is_stable",
    "kadam",
    "level_curve",
    "max_update_bound",
    "momentum_factor",
    "moving_average_kernel",
    "normal_curve",
    "per_stage_decays",
    "points",
    "predicted_squared_norm",
    "radial_inner_products",
    "record_dead_gradients",
    "record_max_update",
    "record_squared_norm",
    "scale_by_adaptive_normalization",
    "scale_by_coarse_grained_normalization",
    "scale_by_kadam",
    "solve_flow",
    "split_static",
    "squared_norm_average",
    "stability_coefficient",
    "sweep",
    "sweep_chunks",
    "unforced_rates",
    "unforced_solution",
    "worst_case_gradients",
]
