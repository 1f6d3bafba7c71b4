"""figures/stability/optimizer_stability and its claims."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr
from optax import contrib

from experiments.core.errors import ConfigError
from experiments.figures.stability.optimizer_stability import FIGURE
from experiments.figures.stability.optimizer_stability.run import (
    ARGUMENTS,
    FOUND,
    KINDS,
    NOT_ASKED,
    Config,
    make,
)
from kadam_jax import exact_max_update_bound, find_optimizers
from tests.figures.contract import Contract

CONFIG = Config(
    longest=30, search_length=4, search_steps=1, optimizers=("adam", "lion", "momo", "sgd")
)


def updated(name):
    """Return the shapes of an optimizer's first update."""
    gradients = {"matrix": jnp.ones((2, 2)), "vector": jnp.ones(2)}
    optimizer = make(name)
    return jax.eval_shape(lambda x: optimizer.update(x, optimizer.init(x), x)[0], gradients)


@pytest.mark.filterwarnings("ignore:.*optimistic_adam:DeprecationWarning")
@pytest.mark.parametrize("name", [name for name in FOUND if name not in NOT_ASKED])
def test_every_optimizer_of_optax_can_be_asked_or_is_listed(name):
    shape = updated(name)["matrix"].shape
    assert shape == (2, 2), f"{name} has no update: list it in NOT_ASKED with the reason"


@pytest.mark.parametrize("name", NOT_ASKED)
def test_a_listed_optimizer_cannot_be_asked(name):
    with pytest.raises((TypeError, ValueError)):
        updated(name)


def test_the_tables_name_optimizers_that_optax_has():
    assert {*NOT_ASKED, *ARGUMENTS} <= set(FOUND)


def test_a_new_optimizer_is_found(monkeypatch):
    def newest(learning_rate: float, b1: float = 0.9) -> optax.GradientTransformation:
        return optax.sgd(learning_rate, b1)

    monkeypatch.setattr(contrib, "newest", newest, raising=False)
    assert set(find_optimizers()) - set(FOUND) == {"newest"}


def test_every_function_of_optax_with_a_learning_rate_is_found():
    """Functions whose learning rate is not the first argument are parts or wrap an optimizer."""
    assert {"adam", "nadam", "nadamw", "lbfgs", "polyak_sgd", "dog", "muon"} <= set(FOUND)
    assert not {"chain", "schedule_free", "lookahead", "scale_by_rprop", "sam"} & set(FOUND)


def test_unknown_optimizers_are_refused():
    with pytest.raises(ConfigError, match=r"optimizers must be .* got \('adma',\)"):
        Config(optimizers=("adma",))


def test_suprema_are_adams_where_they_are_exact(data):
    adam = data.sel(optimizer="adam")
    exact = exact_max_update_bound(data.length.values - 1, 0.9, 0.999)
    np.testing.assert_allclose(adam.supremum, exact, rtol=1e-5)
    np.testing.assert_allclose(adam.attained, adam.supremum, rtol=1e-9)
    assert np.isnan(data.supremum.drop_sel(optimizer="adam")).all()


def test_every_kind_has_a_reason_and_its_values(data):
    assert data.kind.values.tolist() == [KINDS[0], KINDS[1], KINDS[2], KINDS[2]]
    assert data.reason.sel(optimizer="momo") == NOT_ASKED["momo"]
    assert "no bound" in data.reason.sel(optimizer="sgd").item()
    assert data.lower_bound.notnull().values.tolist() == [False, True, False, False]
    np.testing.assert_allclose(data.lower_bound.sel(optimizer="lion"), 1.0)


def made_up(adam=7.2703, ademamix=1674.0, growth=0.015596, growing=True, missed=0.0):
    """Make a dataset with what the claims read."""
    names = ["adam", "ademamix", "lion", "simplified_ademamix"]
    suprema = np.array([[7.0, adam, adam], [31.0, ademamix, 1e9], 3 * [np.nan], [1e3, 1e9, 1e9]])
    return xr.Dataset(
        {
            "supremum": (("optimizer", "length"), suprema),
            "attained": (("optimizer", "length"), suprema * (1 - missed)),
            "growth": ("optimizer", [-0.1, 4e-4 if growing else -4e-4, np.nan, growth]),
        },
        {
            "optimizer": names,
            "kind": ("optimizer", ["exact", "exact", "lower bound", "exact"]),
            "length": [1000, 20_000, 100_000],
        },
    )


CONTRACT = Contract(
    FIGURE,
    CONFIG,
    panels={"": 3},
    refused=[{"longest": 9}, {"search_length": 1}, {"search_steps": 0}, {"optimizers": ("adma",)}],
    made_up=made_up,
    cases={
        "kingma-and-bas-bound": ({"adam": 3.16}, {}),
        "adams-supremum": ({}, {"adam": 3.16}),
        "two-optimizers-grow": ({}, {"growing": False}),
        "ademamix-at-its-defaults": ({}, {"ademamix": 1600.0}),
        "simplified-ademamix-grows": ({}, {"growth": 0.0147}),
        "optimizers-attain-their-suprema": ({}, {"missed": 1e-5}),
    },
    strict=(),
)
