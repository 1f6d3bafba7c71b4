"""Claims about the library's ways to solve the flow, as rules; the paper has only Euler's."""

import math
from functools import partial
from typing import Any

import xarray as xr

from experiments.core.claims import Claim
from experiments.core.stats import Estimate, every_median

claim = partial(Claim, figure="solver_cost")


def order(*methods: str, of: str, **words: Any) -> Claim:
    """Return a claim about the observed order of methods, over seeds for each problem."""

    def orders(run: xr.Dataset) -> Estimate:
        return every_median(run.order.sel(solver=list(methods)).stack(point=("problem", "solver")))

    return claim(
        quantity=f"observed order of {of}: median over seeds for each problem and method, lowest "
        "and highest end of their intervals",
        statistic=orders,
        **words,
    )


CLAIMS: tuple[Claim, ...] = (
    order(
        "euler",
        id="euler-has-order-one",
        section="App. I",
        statement="The error of the paper's Euler scheme falls like 1/K.",
        of="Euler's scheme",
        accept=(0.9, 1.1),
        reason="A tenth is allowed for terms that fall faster.",
    ),
    order(
        "exponential",
        id="exponential-integrator-has-order-two",
        section="ours, for App. I",
        statement="The exponential integrator's error falls like 1/K².",
        of="the exponential integrator",
        accept=(1.75, 2.25),
        reason="The order must be nearer to 2 than to 1.5, to which a √t limits other methods.",
    ),
    order(
        "heun_t",
        "tsit5_t",
        id="root-limits-classical-methods",
        section="ours, for App. I",
        statement="In t, Runge-Kutta methods of order 2 and 5 show an order of about 1.4.",
        of="Heun's and Tsitouras's methods, in t",
        accept=(1.25, 1.75),
        reason="A substep in which u starts like √t has an error of h^(3/2), whatever the method.",
        correction="It is 1.5, except for the method of order 5 on nanoGPT: with fewer than about "
        "a hundred gradients per step its stages make v negative after a change of minibatch, "
        "and the errors that this causes fall faster.",
    ),
    order(
        "tsit5_x",
        id="substitution-restores-order",
        section="ours, for App. I",
        statement="In x, where t = (n + x²)η, a method of order 5 shows an order of 2.2 to 2.5.",
        of="Tsitouras's method, in x",
        accept=(2.0, 2.7),
        reason="Two tenths are allowed on either side; the whole range is above 1.75, the most "
        "that is allowed in t.",
        correction="It is 3 where all errors are small: in x only a minibatch's first substep has "
        "an error, of h³. On nanoGPT the errors are not yet small and fall faster.",
    ),
    claim(
        id="five-gradients-do-what-eulers-hundred-do",
        section="ours, for App. I",
        statement="The exponential integrator needs at most 5 gradients per step for the error "
        "that Euler's scheme has with K = 100.",
        quantity="fewest gradients per step: median over seeds for each problem, lowest and "
        "highest end of their intervals",
        statistic=lambda run: every_median(run.fewest.sel(solver="exponential")),
        accept=(-math.inf, 5.0),
        reason="This is the method's design goal.",
    ),
)
