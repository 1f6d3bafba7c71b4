"""The tests by which optax judges optimizers, run on k-Adam: those that the installed optax has."""

import os
import unittest

import jax
import optax
import pytest

from kadam_jax import kadam

with pytest.MonkeyPatch.context() as environment:
    environment.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])  # one of the two changes it
    common = pytest.importorskip("optax.contrib._common_test")
    sharding = pytest.importorskip("optax._src.sharding_test")


def names_of(case, row):
    """The tests of an absl test case whose parameters, or else whose name, contain `row`."""
    names = unittest.TestLoader().getTestCaseNames(case)
    return [n for n in names if row in getattr(getattr(case, n), "__x_params_repr__", n)]


def kadam_of(k, weight_decay):
    """`kadam` with a static k, which `optax.inject_hyperparams` needs to be told."""

    def factory(
        learning_rate: optax.ScalarOrSchedule, weight_decay: optax.ScalarOrSchedule = weight_decay
    ):
        return kadam(learning_rate, k, weight_decay=weight_decay)

    return factory


# k-Adam takes the place of the optimizer of one row: a learning rate of 1e-3, or 1 and mechanic.
ALONE, IN_MECHANIC = "opt_name='acprop'", "opt_name='adam'"
SHARDED = "_adamw"


def run(case, name):
    case(name).debug()  # raises what fails, at once


@pytest.mark.parametrize("name", names_of(common.ContribTest, ALONE))
@pytest.mark.parametrize(("k", "weight_decay"), [(1, 0.0), (3, 1e-4)])
def test_contributed_optimizers(k, weight_decay, name, monkeypatch):
    monkeypatch.setattr(common, "_get_opt_factory", lambda _: kadam_of(k, weight_decay))
    run(common.ContribTest, name)


@pytest.mark.parametrize("name", names_of(common.ContribTest, IN_MECHANIC))
def test_optimizers_inside_mechanic(name, monkeypatch):
    monkeypatch.setattr(common, "_get_opt_factory", lambda _: kadam_of(1, 0.0))
    run(common.ContribTest, name)


@pytest.mark.parametrize("name", names_of(sharding.ShardingTest, SHARDED))
@pytest.mark.parametrize(("k", "weight_decay"), [(1, 0.0), (2, 0.1)])
def test_sharding(k, weight_decay, name, monkeypatch):
    monkeypatch.setattr(jax, "__version__", "0.9")  # read as a string: 0.10 would be older than 0.7
    test = getattr(sharding.ShardingTest, name).__wrapped__
    test(sharding.ShardingTest(name), kadam(1.0, k, weight_decay=weight_decay))


def test_every_kind_of_optaxs_tests_is_run():
    for case, rows in (
        (common.ContribTest, (ALONE,)),
        (sharding.ShardingTest, (SHARDED, "_replicated", "_sharded")),  # two that have no optimizer
    ):
        every = unittest.TestLoader().getTestCaseNames(case)
        run = {name for row in rows for name in names_of(case, row)}
        assert {_kind(case, name) for name in run} == {_kind(case, name) for name in every}
        assert len(run) >= 5


def _kind(case, name):
    return getattr(case, name).__wrapped__.__name__
