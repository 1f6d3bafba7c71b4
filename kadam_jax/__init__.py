"""k-Adam and the theory of adaptive optimization, for optax.

The optimizer (`kadam`, `scale_by_kadam`), its stability theory (`is_stable`, `max_update_bound`,
...), the flow that it approximates (`solve_flow`), monitors to put into a chain, and sweeps over
members in one compiled program. States, closed forms and components are in their modules, such as
`kadam_jax.flow`.

The paper is Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and
Normalization`, `arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_.
"""

from kadam_jax.batch_size import critical_batch, decays_for_batch
from kadam_jax.catalog import find_optimizers
from kadam_jax.conversion import convert_adam_state
from kadam_jax.curves import level_curve, normal_curve
from kadam_jax.flow import flow_vector_field, solve_flow
from kadam_jax.invariance import (
    predicted_squared_norm,
    radial_inner_products,
    record_squared_norm,
    scale_by_coarse_grained_normalization,
)
from kadam_jax.members import grid, points, sweep
from kadam_jax.monitor import (
    measure_dead_gradients,
    measure_max_update,
    measure_rms_ratio,
    record_dead_gradients,
    record_max_update,
)
from kadam_jax.normalization import (
    ScaleByAdaptiveNormalizationState,
    scale_by_adaptive_normalization,
    scale_to_rms,
)
from kadam_jax.optimizer import kadam, scale_by_kadam
from kadam_jax.stability import (
    exact_growth_rate,
    exact_max_update_bound,
    growth_rate,
    is_exactly_stable,
    is_stable,
    max_update_bound,
    stability_coefficient,
    worst_case_gradients,
)
from kadam_jax.strategies import STRATEGIES, per_stage_decays
from kadam_jax.worst_cases import (
    ImpulseResponse,
    WorstCase,
    dead_gradient_growth,
    impulse_response,
    max_travel,
    steps_until_update,
    worst_case,
)

__version__ = "0.1.0"

__all__ = [
    "STRATEGIES",
    "ImpulseResponse",
    "ScaleByAdaptiveNormalizationState",
    "WorstCase",
    "__version__",
    "convert_adam_state",
    "critical_batch",
    "dead_gradient_growth",
    "decays_for_batch",
    "exact_growth_rate",
    "exact_max_update_bound",
    "find_optimizers",
    "flow_vector_field",
    "grid",
    "growth_rate",
    "impulse_response",
    "is_exactly_stable",
    "is_stable",
    "kadam",
    "level_curve",
    "max_travel",
    "max_update_bound",
    "measure_dead_gradients",
    "measure_max_update",
    "measure_rms_ratio",
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
    "scale_to_rms",
    "solve_flow",
    "stability_coefficient",
    "steps_until_update",
    "sweep",
    "worst_case",
    "worst_case_gradients",
]
