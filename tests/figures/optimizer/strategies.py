"""Shared parts of the tests of figures that compare strategies."""

import dataclasses
import functools

import numpy as np
import xarray as xr

from experiments.core.config import to_json
from experiments.figures.optimizer import strategies_images, strategies_text
from experiments.figures.optimizer.strategy_comparison import label

FIGURES = {"text": strategies_text.FIGURE, "images": strategies_images.FIGURE}


def made_up(task, levels=None, spread=0.0, edges=(), **settings):
    """Make a dataset where an arm's test is 10 minus its strategy's gain, the same at every k.

    Args:
      task: The figure's task.
      levels: Gains over Adam by strategy, or by arm.
      spread: Standard deviation of the noise added to every seed of every arm.
      edges: Arms whose learning rate is at an edge.
      settings: Fields of the configuration that differ from the laptop's.
    """
    config = dataclasses.replace(FIGURES[task].presets["laptop"], **settings)
    gains = {"inverse_exp": 2.0, "exp": 1.0, "scaled": 0.5, "naive": -5.0, "root": -1.0}
    gains |= {"inverse_exp_2": 3.0} | (levels or {})
    arms = [label(*arm) for arm in config.arms]
    strategies, ks = zip(*config.arms, strict=True)
    test = np.zeros((len(arms), config.num_seeds, 6))
    random = np.random.default_rng(0)
    for place, (arm, strategy) in enumerate(zip(arms, strategies, strict=True)):
        noise = spread * random.normal(size=config.num_seeds)
        test[place] = 10 - gains.get(arm, gains.get(strategy, 0.0)) + noise[:, None]
    data = xr.Dataset(
        {
            "test": (("arm", "seed", "example"), test),
            "rate_at_edge": ("arm", np.isin(arms, list(edges))),
        },
        {
            "arm": arms,
            "strategy": ("arm", list(strategies)),
            "k": ("arm", list(ks)),
            "seed": np.array(config.seeds),
        },
    )
    data.attrs["config"] = to_json(config)
    return data


WORSE = {"inverse_exp": -1.0, "inverse_exp_2": -1.0, "exp": -1.0, "scaled": -1.0}
CASES = {
    "two-adam-is-best": ({}, {"levels": {"exp": 4.0}}, {"spread": 5.0}),
    "two-adam-beats-adam": ({}, {"levels": WORSE}, {"spread": 5.0}),
    "k-adam-beats-adam": ({}, {"levels": WORSE}, {"spread": 9.0}),
    "naive-is-bad": ({}, {"levels": {"naive": 0.1}}, {"levels": {"naive": 2.0}, "spread": 2.0}),
    "root-is-bad": ({}, {"levels": {"root": 0.1}}, {"spread": 9.0}),
}
REFUSED = [
    {"ks": (2, 3)},
    {"ks": (1,)},
    {"ks": (1, 3, 2)},
    {"b1": 1.0},
    {"rates": (1.0,)},
    {"rates": (1.0, 0.1)},
    {"weight_decays": ()},
    {"weight_decays": (-1.0,)},
    {"decays": ()},
    {"decays": ("coupled", "coupled")},
    {"num_seeds": 1},
]


def claims_of(task):
    """Return the arguments for `Contract`."""
    cases = {f"{name}-on-{task}": of for name, of in CASES.items()}
    return {"made_up": functools.partial(made_up, task), "cases": cases}
