"""Scale-invariant weights: how their norm and direction move, and under which assumptions.

A loss that does not change under W -> αW, α > 0, has ⟨W, g⟩ = 0. From this the paper (Gould and
Tanaka, `arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_) concludes that ‖W‖² is an average of
‖u‖² and that the direction Ŵ = W/‖W‖ obeys its own equation (Section 4.2, Appendix J). Both are
here as stated and as corrected: dividing each entry of g by its own √v, or averaging gradients of
other steps, gives a u that is not orthogonal to W.

⟨a, b⟩ is Re Σ conj(a) b. This and all other sums are taken over slices of the leaves of a tree. The
argument `axes` says which axes of a leaf one slice spans: None for all of them (the leaf is one
slice), a tuple for every leaf, or, for a choice per leaf, a function of the leaf's path, such as
"blocks/0/qkv", and the leaf. A statistic has the leaf's other axes: with `axes=(0, 3)` the heads'
matrices W[:, i, h] of a (width, 3, heads, head_size) leaf give (3, heads) norms. Sums are at least
float32.
"""

from kadam_jax.invariance.coarse_graining import (
    ScaleByCoarseGrainedNormalizationState,
    scale_by_coarse_grained_normalization,
)
from kadam_jax.invariance.direction import (
    RadialInnerProducts,
    direction_residual,
    radial_inner_products,
)
from kadam_jax.invariance.norm import (
    MovingAverage,
    RecordSquaredNormState,
    momentum_factor,
    predicted_squared_norm,
    record_squared_norm,
    squared_norm_average,
)

__all__ = [
    "MovingAverage",
    "RadialInnerProducts",
    "RecordSquaredNormState",
    "ScaleByCoarseGrainedNormalizationState",
    "direction_residual",
    "momentum_factor",
    "predicted_squared_norm",
    "radial_inner_products",
    "record_squared_norm",
    "scale_by_coarse_grained_normalization",
    "squared_norm_average",
]
