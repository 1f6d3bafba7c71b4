"""figures/stability/stability_plane and its claims."""

import dataclasses

import numpy as np
import xarray as xr

from experiments.figures.stability.stability_plane import FIGURE
from tests.figures.contract import Contract


def made_up(C=(1.0, -1.0), rate=(0.0, 0.1), normal_C=(1.0, 0.0, -1.0), angle=0.1):
    """Two points, the first with β > γ, and one normal curve."""
    return xr.Dataset(
        {
            "C": (("b2", "b1"), np.array([[C[0]], [C[1]]])),
            "exact_growth_rate": (("b2", "b1"), np.array([[rate[0]], [rate[1]]])),
            "normal_C": (("curve", "point"), np.array([normal_C])),
            "normal_angle": (("curve", "chord"), np.full((1, 2), angle)),
        },
        {"b1": [0.5], "b2": [0.9, 0.1]},
    )


CONTRACT = Contract(
    FIGURE,
    dataclasses.replace(FIGURE.presets["smoke"], num_grid=12, num_curve=20),
    panels={"": 1},
    refused=[{"num_grid": 1}, {"num_curve": 2}, {"levels": ()}, {"normals_through": ()}],
    made_up=made_up,
    cases={
        "beta-above-gamma": ({}, {"C": (-1.0, -1.0)}),
        "stable-implies-exactly-stable": ({}, {"rate": (0.1, 0.1)}),
        "unstable-implies-exactly-unstable": ({}, {"rate": (0.0, 0.0)}),
        "monotone-along-normal-curves": ({}, {"normal_C": (1.0, -1.0, 0.0)}),
        "normal-curves-perpendicular": ({}, {"angle": 10.0}),
    },
)
