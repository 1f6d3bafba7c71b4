"""figures/stability/discrete_boundary and its claims."""

import numpy as np
import pytest
import xarray as xr

from experiments.core.errors import ConfigError
from experiments.figures.stability.discrete_boundary import FIGURE
from experiments.figures.stability.discrete_boundary.run import Config, worst_case_updates
from experiments.figures.stability.max_updates import theory
from kadam_jax.stability import exact_max_update_bound
from tests.figures.contract import NETWORK, SMALL_NETWORK, Contract
from tests.figures.stability.runs import assert_sound

CONFIG = Config(
    model=NETWORK,
    batch=2,
    num_steps=24,
    num_seeds=2,
    points=((0.25, 0.1), (0.35, 0.1), (0.9, 0.999)),
    worst_case_steps=16,
)


def test_worst_cases_of_every_length_attain_the_exact_bound(x64):
    b1, b2 = np.array([0.25, 0.35, 0.9, 0.994]), np.array([0.1, 0.1, 0.999, 0.955])
    worst = worst_case_updates(b1, b2, 40)
    exact = exact_max_update_bound(np.arange(40)[None], b1[:, None], b2[:, None])
    np.testing.assert_allclose(worst, exact, rtol=1e-12)


def test_worst_cases_that_overflow_are_refused():
    with pytest.raises(ConfigError, match=r"worst_case_steps=1000 .* must be at most"):
        worst_case_updates(np.array([0.35]), np.array([0.1]), 1000)


def test_members_differ_by_seed_and_respect_the_exact_bound(data):
    assert_sound(data)


def test_points_are_sorted_by_the_two_theories(data):
    assert data.theories.values.tolist() == ["theories disagree", "both unstable", "both stable"]


@pytest.mark.parametrize("preset", ["laptop", "paper"])
def test_presets_have_points_between_the_boundaries(preset):
    points = FIGURE.presets[preset].points
    b1, b2 = np.array(points).T
    disagree = (theory(b1, b2, 1)["C"] < 0) & (b1**2 < b2)
    assert (0.25, 0.1) in points
    assert disagree.sum() >= 7


def made_up(exceeds=0.9, grows_by=0.0, misses=0.0, worst_growth=(1.0, 5.0, 1.0)):
    """Make the other figure's dataset at three points, replacing what its claims read."""
    b2, b1 = np.array([(0.1, 0.25), (0.1, 0.35), (0.999, 0.9)]).T
    at = theory(b1, b2, 1)
    seeds = np.ones((3, 5))
    point, member = ("point",), ("point", "seed")
    return xr.Dataset(
        {
            "exact_ratio": (member, exceeds * seeds),
            "exact_rate": (point, at["exact_rate"]),
            "slope": (member, grows_by * seeds * np.linspace(0.99, 1.01, 5)),
            "worst_case": (("point", "worst_step"), np.ones((3, 256))),
            "worst_error": (point, np.full(3, misses)),
            "worst_growth": (point, np.array(worst_growth)),
        },
        {
            "C": (point, at["C"]),
            "theories": (point, ["theories disagree", "both unstable", "both stable"]),
            "point": np.arange(3),
        },
    )


CONTRACT = Contract(
    FIGURE,
    CONFIG,
    panels={"": 4},
    refused=[({"points": ()}, "points must be"), {"worst_case_steps": 1}],
    made_up=made_up,
    cases={
        "exact-bound-holds-between-the-boundaries": ({}, {"exceeds": 1.001}),
        "growth-between-the-boundaries": ({"grows_by": 1.5}, {}, {"grows_by": 1.35}),
        "worst-case-attains-exact-bound": ({}, {"misses": 1e-5}),
        "worst-case-grows-beyond-the-exact-boundary-alone": ({}, {"worst_growth": (1.5, 5.0, 1.0)}),
    },
    patches=SMALL_NETWORK,
)
