"""The library's checks of arguments: each value works or is refused in the one style."""

from decimal import Decimal
from fractions import Fraction

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import kadam_jax
from kadam_jax import _checks
from kadam_jax._checks import check_real

HALVES = [
    0.5,
    np.float32(0.5),
    np.float64(0.5),
    np.float16(0.5),
    ml_dtypes.bfloat16(0.5),
    np.array(0.5),
    np.array(0.5, ml_dtypes.bfloat16),
]
NOT_REAL = [
    True,
    np.bool_(False),
    0.5 + 0j,
    np.complex64(0.5),
    "0.5",
    b"0.5",
    None,
    Decimal("0.5"),
    Fraction(1, 2),
    lambda count: 0.5,
    {"b1": 0.5},
    {0.5},
    object(),
    np.array(0.5, object),
    np.array("0.5"),
    np.longdouble(0.5),
    np.timedelta64(1, "s"),
    np.datetime64("2000-01-01"),
    10**30,
    [[0.5], [0.5, 0.5]],
    [None, 0.5],
]
RANGES = {
    "FINITE": ([-1e300, -1, 0, 1], [np.inf, -np.inf, np.nan]),
    "NOT_NEGATIVE": ([0.0, -0.0, 5e-324, 1, 1e300], [np.inf, -5e-324, np.nan]),
    "POSITIVE": ([5e-324, 1, 1e300], [0.0, -0.0, -1, np.inf, np.nan]),
    "AT_LEAST_0": ([0, -0.0, 3, np.inf], [-1, -np.inf, np.nan]),
    "DECAY": ([0, -0.0, 0.5, 1 - 1e-16], [-5e-324, 1, 1.5, np.inf, np.nan]),
    "POSITIVE_DECAY": ([5e-324, 0.5, 1 - 1e-16], [0, -0.0, 1, np.nan]),
}


@pytest.mark.parametrize("small", [5e-324, 1e-310, 1e-50, 1e-30, np.float32(1e-40)])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: kadam_jax.kadam(x, b1=x, b2=1 - x, eps=x).update(jnp.ones(2), _state(x)),
        lambda x: kadam_jax.sweep(lambda member: member["x"], kadam_jax.grid(x=[x, 0.1])),
        lambda x: kadam_jax.exact_max_update_bound(10, x, 0.9),
        lambda x: kadam_jax.exact_growth_rate(0.9, x),
        lambda x: kadam_jax.stability_coefficient(x, 0.9),
        lambda x: kadam_jax.worst_case_gradients(10, x, 0.9),
        lambda x: kadam_jax.level_curve(x, 3),
        lambda x: kadam_jax.normal_curve(x, 0.9, 3),
        lambda x: kadam_jax.predicted_squared_norm(
            1.0, jnp.ones(3), learning_rate=x, weight_decay=x
        ),
    ],
)
def test_numpys_error_state_decides_nothing(call, small):
    def outcome(**state):
        with np.errstate(**state):
            try:
                return jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), call(small))
            except (ValueError, TypeError) as error:
                return str(error)

    assert outcome(all="raise") == outcome(all="ignore")


def _state(x):
    return kadam_jax.kadam(x).init(jnp.ones(2))


@pytest.mark.parametrize("value", [*HALVES, *map(np.ravel, HALVES), [0.5, 0.5], (0.5,), []])
def test_numbers_of_every_kind_pass(value):
    numbers = check_real("b1", value, _checks.DECAY, single=np.ndim(value) == 0)
    assert isinstance(numbers, np.ndarray)
    assert np.all(numbers == 0.5)
    numbers = check_real("b1", jnp.asarray(value), _checks.DECAY, single=np.ndim(value) == 0)
    assert np.all(numbers == 0.5)


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("value", NOT_REAL, ids=range(len(NOT_REAL)))
def test_other_kinds_are_refused_by_name(value, single):
    with pytest.raises(TypeError, match=r"^b1 must be (a )?real numbers? \(.*\), .*; try 0\.9$"):
        check_real("b1", value, _checks.DECAY, single=single, hint="try 0.9")


@pytest.mark.parametrize("value", [1j, True], ids=repr)
def test_kind_and_shape_of_traced_values_are_checked(value):
    def check(x):
        check_real("b1", x, _checks.DECAY)

    with pytest.raises(TypeError, match=r"^b1 must be a real number"):
        jax.jit(check)(value)
    with pytest.raises(TypeError, match=r"^b1 must be a single number, got .* shape \(3,\)"):
        jax.jit(check)(jnp.ones(3))
    jax.jit(check)(7.0)  # out of range, which only a concrete value can be
    jax.jit(lambda x: check_real("b1", [x, 0.5], _checks.DECAY, single=False))(7.0)


def test_random_keys_are_not_numbers():
    for key in (jax.random.key(0), jax.random.split(jax.random.key(0))):
        with pytest.raises(TypeError, match=r"^b1 must be real numbers"):
            check_real("b1", key, _checks.DECAY, single=False)


@pytest.mark.parametrize("name", RANGES)
def test_ranges_hold_their_ends(name):
    inside, outside = RANGES[name]
    for value in inside:
        check_real("x", value, getattr(_checks, name))
    for value in outside:
        for array in (value, np.array([inside[0], value])):
            with pytest.raises(ValueError, match=rf"^x must be .*, got {value}(\.0)?$"):
                check_real("x", array, getattr(_checks, name), single=np.ndim(array) == 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ranges_are_those_of_the_rounded_number(dtype):
    tiny, eps = np.finfo(dtype).tiny, np.finfo(dtype).eps
    for value in (float(tiny), 1 - float(eps) / 2):
        check_real("b2", value, _checks.POSITIVE_DECAY, dtype=dtype)
    words = rf"^b2 must be in \(0, 1\) once rounded to {np.dtype(dtype)}, .* is 0, got"
    for value in (float(tiny) / 2, 0.0, 1 - float(eps) / 8, 1.0):
        with pytest.raises(ValueError, match=words):
            check_real("b2", value, _checks.POSITIVE_DECAY, dtype=dtype)
    check_real("b1", float(tiny) / 2, _checks.DECAY, dtype=dtype)
    with pytest.raises(ValueError, match=r"^x must be finite"):
        check_real("x", 1e300, _checks.FINITE, dtype=np.float32)


@pytest.mark.parametrize("value", [1, np.int64(1), np.uint8(1)])
def test_integers_come_back_as_pythons_own(value):
    assert type(_checks.check_integer("k", value)) is int


@pytest.mark.parametrize("value", [1.0, True, "1", None, np.array(1), jnp.array(1), np.array([1])])
def test_values_that_are_not_integers_are_refused(value):
    with pytest.raises(TypeError, match=r"^k must be a Python int, got .*; it is static$"):
        _checks.check_integer("k", value, hint="it is static")


def test_integers_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"^k must be at least 1, got 0$"):
        _checks.check_integer("k", 0)
    with pytest.raises(ValueError, match=r"^k must be at least 0, got -1$"):
        _checks.check_integer("k", -1, 0)
    for large in (2**31, 10**30):
        with pytest.raises(ValueError, match=rf"^k must be below 2\*\*31, got {large}$"):
            _checks.check_integer("k", large)


def test_bools_choices_functions_dtypes_and_shapes():
    assert _checks.check_bool("log", np.True_) is True
    _checks.check_choice("form", "a", {"a": 1})
    _checks.check_function("fn", lambda a, b: None, ("params", "batch"))
    _checks.check_function("fn", max, ("params",))
    _checks.check_inexact("params", jnp.dtype(jnp.bfloat16))
    _checks.check_shape("radial", np.ones((2, 3)), (), (2, 3))
    for call, error, message in [
        (lambda: _checks.check_bool("log", 1), TypeError, "log must be a Python bool, got 1"),
        (lambda: _checks.check_choice("form", 3, "ab"), TypeError, "form must be one of a, b, got"),
        (lambda: _checks.check_choice("form", [], "ab"), TypeError, "form must be one of a, b,"),
        (lambda: _checks.check_choice("form", "c", "ab"), ValueError, "one of a, b, got 'c'"),
        (lambda: _checks.check_function("fn", 3), TypeError, "fn must be a function, got 3"),
        (
            lambda: _checks.check_function("fn", lambda a: None, ("params", "batch")),
            TypeError,
            r"fn must take \(params, batch\), got .*: too many",
        ),
        (lambda: _checks.check_inexact("p", np.dtype("int8")), TypeError, "floating .* got int8"),
        (lambda: _checks.check_inexact("p", "no dtype"), TypeError, "p must be floating"),
        (
            lambda: _checks.check_shape("radial", np.ones(3), (), (2, 3)),
            ValueError,
            r"radial must have shape \(\) or \(2, 3\), got \(3,\)",
        ),
    ]:
        with pytest.raises(error, match=message):
            call()
