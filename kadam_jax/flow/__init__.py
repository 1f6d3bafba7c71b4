r"""Adam and k-Adam in continuous time: an ordinary differential equation for the discrete run.

It is the second-order equation (Proposition 2) of Gould and Tanaka,
`arXiv 2411.05746 <https://arxiv.org/abs/2411.05746>`_, with the moving averages of Lemma 1, here
for k stages. Time is :math:`t = n\eta`: an optimizer step takes η = `learning_rate`. Only this
timescale, p = 1 in the paper's :math:`t = n\eta^p`, leaves both terms of the equation in place.
With :math:`g = \nabla L(\theta)` and :math:`u^{(0)} = g`, for stages i = 1, ..., k,

.. math::

    \tfrac12 \eta \ddot\theta + \dot\theta + \lambda\theta &= -u^{(k)} \\
    \eta \dot m_i &= \tfrac{1-\gamma_i}{\gamma_i} \big(u^{(i-1)} - m_i\big), \qquad
      \eta \dot v_i = \tfrac{1-\beta_i}{\beta_i} \big(|u^{(i-1)}|^2 - v_i\big) \\
    u^{(i)} &= \frac{\sqrt{1-\beta_i^{1+t/\eta}}}{1-\gamma_i^{1+t/\eta}} \frac{m_i}{\sqrt{v_i}}

and everything except θ is zero at t = 0, including u (0/0 = 0); ε is added to the bias-corrected
root as in `scale_by_kadam`. `solve_flow` integrates this, `flow_vector_field` hands it to other
solvers, and the other functions are closed forms of it.
"""

from kadam_jax.flow.closed_forms import (
    continuous_update,
    moving_average_kernel,
    unforced_rates,
    unforced_solution,
)
from kadam_jax.flow.equation import BIAS_CORRECTIONS, FlowVariables, flow_vector_field
from kadam_jax.flow.solve import METHODS, FlowSolution, FlowState, solve_flow

__all__ = [
    "BIAS_CORRECTIONS",
    "METHODS",
    "FlowSolution",
    "FlowState",
    "FlowVariables",
    "continuous_update",
    "flow_vector_field",
    "moving_average_kernel",
    "solve_flow",
    "unforced_rates",
    "unforced_solution",
]
