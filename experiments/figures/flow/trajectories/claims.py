"""The paper's claims about its continuous-time model versus the discrete run, as rules."""

from functools import partial

import numpy as np
import xarray as xr

from experiments.core.claims import Claim
from experiments.core.stats import Estimate, every_median, median_over_seeds


def _at_rate(values: xr.DataArray, rate: float) -> Estimate:
    """Return the median over seeds at this learning rate; nothing if it was not run."""
    return every_median(values[np.isclose(values.learning_rate, rate)])


def _euler_over_distance(run: xr.Dataset, substeps: int) -> Estimate:
    """Return Euler's error over the flow's distance to the discrete run; nothing for other K."""
    ratio = run.euler_over_distance
    return every_median(ratio[(ratio.substeps == substeps).values])


claim = partial(Claim, figure="trajectories")

CLAIMS: tuple[Claim, ...] = (
    *(
        claim(
            id=f"flow-tracks-adam-at-{name}",
            section="§2.2, Fig. 1",
            statement="The continuous-time trajectory closely agrees with the discrete-time one, "
            f"at η = {name}.",
            quantity="‖θ_discrete - θ_flow‖ / ‖θ_flow - θ_0‖ after 100 steps: median over seeds",
            statistic=lambda run, rate=rate: _at_rate(
                run.compared.sel(at="steps", flow="paper", group="all"), rate
            ),
            accept=(0.0, 0.1),
            reason="Curves a tenth of their displacement apart look like two.",
            corrected_by="flow-tracks-adam-at-1e-4" if correction else "",
            correction=correction,
        )
        for name, rate, correction in (
            ("1e-4", 1e-4, ""),
            ("3e-4", 3e-4, ""),
            (
                "1e-3",
                1e-3,
                "Their distance is proportional to η, which a picture hides: state the two "
                "together.",
            ),
        )
    ),
    *(
        claim(
            id=f"flow-error-is-first-order-{name}",
            section="§2.2, Prop. 2",
            statement=f"The flow's distance to the discrete run is proportional to η {what}.",
            quantity=f"slope of log(relative error) over log η {what}: median over seeds",
            statistic=lambda run, at=at: median_over_seeds(
                run.order.sel(at=at, flow="paper", group="all")
            ),
            accept=(0.8, 1.2),
            reason="The slope is 1; a fifth is allowed for the next order over a decade of η.",
        )
        for name, at, what in (
            ("in-time", "time", "at a given time Nη"),
            ("in-steps", "steps", "after a given number of steps N"),
        )
    ),
    claim(
        id="self-consistent-correction-halves-the-early-distance",
        section="§2.2, App. B",
        statement="With the bias correction that belongs to its own averages, the flow is at most "
        "half as far from the first discrete steps as with the paper's correction, which belongs "
        "to discrete averages.",
        quantity="distance to the discrete run after 10 steps over that of the paper's flow: "
        "median over seeds at each η, lowest and highest ends of their intervals",
        statistic=lambda run: every_median(run.early_ratio),
        accept=(0.0, 0.5),
        reason="Ten steps are the memory of m, 1/(1-γ); a half is a rough estimate.",
        correction="It is closer, but its distance is reduced by less than a half.",
    ),
    claim(
        id="euler-with-100-substeps-suffices",
        section="App. I",
        statement="Euler's method with K = 100 solves the equation as well as the comparison "
        "needs.",
        quantity="Euler's distance to the converged flow over the discrete run's, after 100 steps "
        "at η = 1e-3, K = 100: median over seeds",
        statistic=lambda run: _euler_over_distance(run, 100),
        accept=(0.0, 0.1),
        reason="A solver error of a tenth of what is measured changes no conclusion.",
        correction="Small errors grow along a trajectory, so check them at its end.",
    ),
)
