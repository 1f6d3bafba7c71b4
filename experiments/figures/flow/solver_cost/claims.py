"""What the library says of its ways to solve the flow, as rules; the paper has Euler's alone."""

import math

import xarray as xr

from experiments.core.claims import Claim
from experiments.core.stats import Estimate, every_median


def _orders(run: xr.Dataset, *methods: str) -> Estimate:
    """Of observed orders, at each problem and method over seeds."""
    return every_median(run.order.sel(solver=list(methods)).stack(point=("problem", "solver")))


CLAIMS: tuple[Claim, ...] = (
    *(
        Claim(
            id=name,
            figure="solver_cost",
            section=section,
            statement=statement,
            quantity=f"observed order {of}: median over seeds for each problem and method, ends of "
            "any one's interval",
            statistic=lambda run, methods=methods: _orders(run, *methods),
            accept=accept,
            reason=reason,
            correction=correction,
        )
        for name, section, statement, of, methods, accept, reason, correction in (
            (
                "euler-has-order-one",
                "App. I",
                "The error of the paper's Euler scheme falls like 1/K.",
                "of Euler's scheme",
                ("euler",),
                (0.9, 1.1),
                "A tenth is left to what falls faster.",
                "",
            ),
            (
                "exponential-integrator-has-order-two",
                "ours, for App. I",
                "The exponential integrator's error falls like 1/K².",
                "of the exponential integrator",
                ("exponential",),
                (1.75, 2.25),
                "Nearer to 2 than to the 1.5 at which a √t stops other methods.",
                "",
            ),
            (
                "root-limits-classical-methods",
                "ours, for App. I",
                "In t, Runge-Kutta methods of order 2 and 5 show order about 1.4.",
                "of Heun's and Tsitouras's method, in t",
                ("heun_t", "tsit5_t"),
                (1.25, 1.75),
                "A substep over which u starts like √t costs h^(3/2), whatever the method.",
                "It is 1.5, but for the method of order 5 on the nanoGPT: with less than some "
                "hundred gradients a step its stages put v below 0 after a change of minibatch, "
                "and the errors that this makes fall faster.",
            ),
            (
                "substitution-restores-order",
                "ours, for App. I",
                "In x with t = (n + x²)η, a method of order 5 shows order 2.2 to 2.5.",
                "of Tsitouras's method, in x",
                ("tsit5_x",),
                (2.0, 2.7),
                "Two tenths beside what was said; all of it above 1.75, the most it is in t.",
                "It is 3 where all errors are small: in x only a minibatch's first substep is "
                "off, by h³. On the nanoGPT they are not small yet, and fall faster.",
            ),
        )
    ),
    Claim(
        id="five-gradients-do-what-eulers-hundred-do",
        figure="solver_cost",
        section="ours, for App. I",
        statement="The exponential integrator needs at most 5 gradients a step for the error that "
        "Euler's scheme has with K = 100.",
        quantity="fewest gradients a step: median over seeds for each problem, ends of any one's "
        "interval",
        statistic=lambda run: every_median(run.fewest.sel(solver="exponential")),
        accept=(-math.inf, 5.0),
        reason="The goal that the method was made for.",
    ),
)
