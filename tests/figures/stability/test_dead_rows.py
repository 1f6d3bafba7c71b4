"""figures/stability/dead_rows and its claims."""

import numpy as np
import xarray as xr

from experiments.figures.stability.dead_rows import FIGURE
from experiments.figures.stability.dead_rows.run import Config, arms
from experiments.figures.stability.unused_rows import UNUSED
from tests.figures.contract import NETWORK, SMALL_NETWORK, Contract

CONFIG = Config(model=NETWORK, batch=2, num_steps=12, num_seeds=2, chunk_size=12)


def test_seeds_and_decays_change_the_loss(data):
    loss = data.loss.sel(arm=["defaults", "inside", "inside by β", "ademamix", "ademamix inside"])
    assert len(np.unique(loss)) == loss.size
    assert np.isfinite(data.loss).all()


def test_no_update_exceeds_its_supremum(data):
    ratio = data.largest.max("tensor") / data.supremum
    assert ratio.max() <= 1 + 1e-5


def test_suprema_are_larger_beyond_the_boundary(data):
    suprema = data.supremum
    assert suprema.sel(arm="defaults") > suprema.sel(arm="inside")
    assert suprema.sel(arm="clipped") == suprema.sel(arm="defaults")


def test_clipped_updates_are_at_most_the_supremum_inside(data):
    largest = data.largest.max("tensor")
    assert (largest.sel(arm="clipped") <= data.supremum.sel(arm="inside") * (1 + 1e-6)).all()


def made_up(
    grows=1e4,
    elsewhere=0.0,
    exceeds=0.5,
    small=100.0,
    harm=1.0,
    clipped=0.0,
    slow=0.0,
    changed=0.0,
    mix=10.0,
):
    """Make a dataset with what the claims read."""
    names = list(arms(FIGURE.presets["laptop"]))
    noise = np.linspace(0.99, 1.01, 5)
    unused = dict.fromkeys(names, np.ones(5))
    unused |= {name: np.full(5, exceeds) for name in names if "inside" in name}
    unused["defaults"] = grows * noise
    unused["defaults, small ε"] = grows * small * noise[::-1]
    unused["ademamix"] = exceeds * mix * noise
    others = {name: np.full(5, elsewhere if name == "defaults" else 0.1) for name in names}
    losses = dict.fromkeys(names, np.full(5, 2.0))
    added = {"defaults": harm, "clipped": clipped, "inside by β": slow, "inside, clipped": changed}
    losses |= {name: 2.0 + extra * noise for name, extra in added.items()}
    return xr.Dataset(
        {
            "largest": (
                ("tensor", "arm", "seed"),
                [[x[name] for name in names] for x in (unused, others)],
            ),
            "supremum": ("arm", np.ones(len(names))),
            "loss": (("arm", "seed"), [losses[name] for name in names]),
        },
        {"tensor": [UNUSED, "embedding"], "arm": names},
    )


CONTRACT = Contract(
    FIGURE,
    CONFIG,
    panels={"": 4},
    refused=[
        {"num_steps": 9},
        {"small_eps": 1e-7},
        {"b2": 1.0},
        {"b1": 0.97},
        {"inside_b1": 0.98},
        {"inside_b2": 0.98},
        {"mix_b2": 0.0},
        {"mix_b3": 0.99},
        {"inside_b3": 0.999},
    ],
    made_up=made_up,
    cases={
        "defaults-grow-in-training": ({}, {"grows": 2.0}, {"grows": 10.0}),
        "unused-rows-have-the-largest-update": ({}, {"elsewhere": 1e9}),
        "inside-updates-are-bounded": ({}, {"exceeds": 1.001}),
        "epsilon-limits-growth": ({}, {"small": 1.0}, {"small": 10.0}),
        "dead-rows-harm-the-loss": ({}, {"harm": 0.0}, {"harm": 0.02}),
        "clipping-cures": ({}, {"clipped": 1.0}, {"clipped": 0.02}),
        "clipping-at-the-supremum-changes-nothing-inside": ({}, {"changed": 1e-3}),
        "slower-momentum-does-not-harm-the-loss": ({}, {"slow": 1.0}, {"slow": 0.02}),
        "clipping-is-no-substitute-for-stable-decays": (
            {"clipped": 1.0},
            {},
            {"clipped": 0.02},
        ),
        "ademamix-grows-in-training": ({}, {"mix": 1.0}, {"mix": 2.0}),
    },
    patches=SMALL_NETWORK,
    strict=(),
)
