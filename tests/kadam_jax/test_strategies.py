"""How (b1, b2, k) becomes per-stage decays."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kadam_jax import is_stable, per_stage_decays
from kadam_jax.strategies import STRATEGIES
from tests.kadam_jax.support import reference

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
USUAL = [(0.9, 0.999), (0.9, 0.99), (0.9, 0.95), (0.8, 0.999), (0.95, 0.999)]


@every_strategy
def test_one_stage_keeps_its_decays(strategy):
    b1s, b2s = per_stage_decays(0.9, 0.999, 1, strategy)
    np.testing.assert_allclose([*b1s, *b2s], [0.9, 0.999], rtol=1e-15)


@every_strategy
@given(b1=st.floats(0, 1 - 1e-6), b2=st.floats(0, 1 - 1e-6), k=st.integers(1, 12))
@settings(derandomize=True, deadline=None)
def test_decays_stay_decays_the_same_for_every_stage(strategy, b1, b2, k):
    for decays in per_stage_decays(b1, b2, k, strategy):
        assert isinstance(decays, tuple)
        assert len(decays) == k
        assert len(set(decays)) == 1
        assert isinstance(decays[0], float)
        assert 0 <= decays[0] < 1


@given(b1=st.floats(0, 1 - 1e-4), b2=st.floats(0, 1 - 1e-4), k=st.integers(1, 12))
@settings(derandomize=True, deadline=None)
def test_inverse_exp_keeps_the_product_of_the_gains(b1, b2, k):
    """App. O: m of the last stage has the prefactor that Adam's m has."""
    for decays, decay in zip(per_stage_decays(b1, b2, k), (b1, b2), strict=True):
        assert math.isclose(math.prod(1 - b for b in decays), 1 - decay, rel_tol=1e-10)


def test_which_strategies_forget_faster_than_scalar_decays():
    for b in (0.9, 0.999):
        per_stage = {s: per_stage_decays(b, b, 3, s)[0][0] for s in STRATEGIES}
        assert per_stage["scaled"] < per_stage["exp"] < per_stage["naive"] < per_stage["root"]
        assert per_stage["inverse_exp"] < per_stage["naive"]


@every_strategy
def test_every_stage_of_every_strategy_is_usually_stable(strategy):
    """Section 4.3's reason to expect stable training."""
    decays = [per_stage_decays(*pair, k, strategy) for pair in USUAL for k in range(1, 11)]
    assert np.all(is_stable(*np.hstack(decays)))


@every_strategy
def test_the_literal_formulas(strategy):
    for k in (1, 2, 3, 7):
        b1s, b2s = per_stage_decays(0.85, 0.993, k, strategy)
        assert b1s == (reference.per_stage_decay(0.85, k, strategy),) * k
        assert b2s == (reference.per_stage_decay(0.993, k, strategy),) * k


def test_golden(golden):
    rows = golden("strategies")["table"]
    assert {row["strategy"] for row in rows} == set(STRATEGIES)
    for row in rows:
        b1s, b2s = per_stage_decays(row["b1"], row["b2"], row["k"], row["strategy"])
        np.testing.assert_allclose(b1s, row["b1_i"], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(b2s, row["b2_i"], rtol=1e-12, atol=1e-12)


def test_golden_decays_of_the_trajectories(golden):
    for case in golden("kadam_trajectories")["cases"]:
        if case["strategy"]:
            decays = per_stage_decays(case["b1"], case["b2"], case["k"], case["strategy"])
            expected = case["per_stage_b1"], case["per_stage_b2"]
            np.testing.assert_allclose(decays, expected, rtol=1e-12)


@every_strategy
def test_traced_decays_give_the_same_numbers(x64, strategy):
    traced = jax.jit(lambda b1, b2: per_stage_decays(b1, b2, 3, strategy))(0.9, 0.999)
    np.testing.assert_allclose(traced, per_stage_decays(0.9, 0.999, 3, strategy), rtol=1e-14)


@every_strategy
def test_derivatives_are_finite(strategy):
    def total(b):
        return sum(per_stage_decays(b, b, 2, strategy)[0])

    derivative = jax.vmap(jax.grad(total))(jnp.array([0.1, 0.9, 0.999]))
    assert np.all(np.isfinite(derivative))
    assert np.all(np.array(derivative) > 0)


@pytest.mark.parametrize("k", [True, 2.0, "2", None, np.float64(2), np.array([2])])
def test_k_must_be_an_int(k):
    with pytest.raises(TypeError, match="k must be a Python int"):
        per_stage_decays(0.9, 0.999, k)


def test_a_traced_k_says_how_to_keep_it_static():
    with pytest.raises(TypeError, match="static_args"):
        jax.jit(lambda k: per_stage_decays(0.9, 0.999, k))(2)


@pytest.mark.parametrize("k", [0, -1])
def test_there_must_be_a_stage(k):
    with pytest.raises(ValueError, match=f"k must be at least 1, got {k}"):
        per_stage_decays(0.9, 0.999, k)


def test_numpy_integers_are_ints():
    assert per_stage_decays(0.9, 0.999, np.int64(2)) == per_stage_decays(0.9, 0.999, 2)


def test_an_unknown_strategy_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="inverse_exp, exp, scaled, naive, root, got 'linear'"):
        per_stage_decays(0.9, 0.999, 2, "linear")
    with pytest.raises(ValueError, match=r"b1 must be in \[0, 1\), got 2.0"):
        per_stage_decays(2.0, 0.999, 2)
    with pytest.raises(TypeError, match=r"strategy must be one of .*, got 3"):
        per_stage_decays(0.9, 0.999, 2, 3)
