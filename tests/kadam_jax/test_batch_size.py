"""Tests of decays for another batch size."""

import math
import warnings

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kadam_jax import critical_batch, decays_for_batch
from kadam_jax.batch_size import RULES

decays = st.floats(0.01, 0.9999)
batches = st.floats(1, 100)


def quiet(*args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return decays_for_batch(*args, **options)


@given(decays, decays, batches, batches)
def test_tokens_keeps_the_half_life_in_examples(b1, b2, batch, new_batch):
    first, second = quiet(b1, b2, batch, new_batch)
    assert first == b1
    if second > 1e-300:
        rounding = 1e-6 - 2.0**-52 / math.log(second)  # all that float64 has of 1 - second
        assert math.isclose(new_batch / math.log(second), batch / math.log(b2), rel_tol=rounding)


@given(decays, decays, batches, batches)
def test_both_keeps_the_sign_of_stability(b1, b2, batch, new_batch):
    first, second = quiet(b1, b2, batch, new_batch, rule="both")
    ratio = new_batch / batch
    if first > 1e-100 and second > 1e-100 and abs(2 * math.log(b1) - math.log(b2)) * ratio > 1e-9:
        assert (first**2 < second) == (b1**2 < b2)


@pytest.mark.parametrize("rule", RULES)
@given(decays, decays, st.floats(0.1, 0.99))
def test_critical_batch_separates_stable_from_unstable(rule, b1, b2, share):
    critical = critical_batch(b1, b2, 32, rule=rule)
    if 1e-3 < critical < 1e3:
        for size, is_stable in ((critical * share, True), (critical / share, False)):
            try:
                first, second = quiet(b1, b2, 32, size, rule=rule)
            except ValueError:
                assert rule == "sde"
                continue
            assert (first**2 < second) == is_stable or second < 1e-300


@pytest.mark.parametrize("rule", RULES)
def test_the_same_batch_keeps_decays(rule):
    assert quiet(0.9, 0.999, 48, 48, rule=rule) == pytest.approx((0.9, 0.999), rel=1e-12)


def test_unstable_decays_warn_with_the_critical_batch():
    with pytest.warns(UserWarning, match="from batch 649.9.* on"):
        decays_for_batch(0.95, 0.98, 128, 1024)
    with pytest.warns(UserWarning, match="at every batch size"):
        decays_for_batch(0.99, 0.9, 128, 64, rule="both")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decays_for_batch(0.95, 0.98, 128, 512)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((1.0, 0.9, 1, 2), {}, "b1 must be in"),
        ((0.9, 0.0, 1, 2), {}, "b2 must be in"),
        ((0.9, 0.99, 0, 2), {}, "batch must be"),
        ((0.9, 0.99, 1, math.inf), {}, "new_batch must be"),
        ((0.9, 0.99, 1, 2), {"rule": "linear"}, "rule must be one of tokens, both, sde"),
        ((0.9, 0.99, 1, 11), {"rule": "sde"}, "new_batch must be below 10 "),
    ],
)
def test_refuses_numbers_out_of_range(arguments, options, words):
    with pytest.raises(ValueError, match=words):
        decays_for_batch(*arguments, **options)


def test_momentum_of_zero_is_always_stable():
    assert critical_batch(0.0, 0.5, 8) == math.inf
    assert decays_for_batch(0.0, 0.5, 8, 800)[0] == 0.0


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("batch", "new_batch"), [(1, 1e9), (1e20, 1), (1e308, 1e-308)])
def test_ratios_beyond_float64_are_refused_with_a_remedy(rule, batch, new_batch):
    words = "new_batch must be below 10 for" if new_batch > batch and rule == "sde" else "closer to"
    with pytest.raises(ValueError, match=words):
        decays_for_batch(0.9, 0.999, batch, new_batch, rule=rule)


@given(st.floats(0, 0.9999), st.floats(1e-4, 0.9999), st.floats(1e-6, 1e6), st.sampled_from(RULES))
def test_decays_are_in_range_and_no_batch_is_infinite(b1, b2, ratio, rule):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            first, second = decays_for_batch(b1, b2, 1, ratio, rule=rule)
        except ValueError:
            return
    assert 0 <= first < 1
    assert 0 < second < 1
    assert bool(caught) == (first**2 >= second)
    assert not any("inf" in str(x.message) for x in caught)


@pytest.mark.parametrize("name", ["b1", "b2", "batch", "new_batch"])
def test_traced_numbers_are_named(name):
    numbers = {"b1": 0.9, "b2": 0.999, "batch": 1.0, "new_batch": 2.0}
    with pytest.raises(TypeError, match=rf"^{name} must be a known number, got a traced one; call"):
        jax.jit(lambda x: decays_for_batch(**numbers | {name: x}))(0.5)
