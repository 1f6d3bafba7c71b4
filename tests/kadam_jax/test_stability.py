"""The theory of the max-update: its properties, the golden numbers, the curves, the errors."""

import itertools
import math
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kadam_jax import stability
from tests.kadam_jax.support import reference_stability as reference

STEPS = np.array([0, 1, 2, 3, 5, 10, 30, 100, 300, 1000, 3000, 10**6])


RNG = np.random.default_rng(0)


DECAYS = 1 / (1 + np.exp(-RNG.uniform(-6.9, 9.2, (2, 1000))))  # from 1e-3 to 1 - 1e-4
BOUNDS = [
    ("max_update_bound", stability.max_update_bound, reference.log_max_update_bound),
    (
        "exact_max_update_bound",
        stability.exact_max_update_bound,
        reference.log_exact_max_update_bound,
    ),
]
bounds = pytest.mark.parametrize(
    ("name", "bound", "log_reference"), BOUNDS, ids=[name for name, *_ in BOUNDS]
)


def assert_golden(actual, expected, rtol=1e-12):
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=1e-12)


def exact_decays(pair):
    """A golden pair's decays: fractions with small denominators where golden says so."""
    decays = Fraction(pair["b1"]), Fraction(pair["b2"])
    return [b.limit_denominator(1000) for b in decays] if pair["exact_arithmetic"] else decays


def has_bound(pair, name):
    """Golden's C=0 is out of reach of floats, except by luck; Theorem 1 needs b1 > 0."""
    if name == "exact_max_update_bound":
        return True
    return pair["b1"] > 0 and (
        pair["exact_arithmetic"] != "C=0"
        or stability.stability_coefficient(pair["b1"], pair["b2"]) == 0
    )


# Properties of the theory


def test_the_gap_between_the_two_criteria_is_a_square(x64):
    """β/γ² - 1 = C + (β-γ)²/(γ²β): so C > 0 implies γ² < β."""
    b1, b2 = DECAYS
    c = np.array(stability.stability_coefficient(b1, b2))
    gap = c + (b2 - b1) ** 2 / (b1**2 * b2)
    assert np.all(np.abs(b2 / b1**2 - 1 - gap) <= 1e-12 * (np.abs(gap) + 1 / (b1**2 * b2)))
    stable = c > 1e-12
    assert 100 < np.sum(stable) < 900
    assert np.all(stability.is_exactly_stable(b1, b2)[stable])
    assert np.all(stability.is_stable(b1, b2)[stable])


def test_b2_above_b1_suffices_for_stability(x64):
    assert np.all(stability.is_stable(*np.sort(DECAYS, 0)))


def test_theorem_is_above_integral_and_stable_supremum(x64):
    theorem, integral, supremum = jax.jit(
        lambda *at: [
            stability.max_update_bound(*at, log=True),
            stability.max_update_bound(*at, form="integral", log=True),
            stability.exact_max_update_bound(*at, log=True),
        ]
    )(STEPS[:, None], *DECAYS)
    assert np.all(theorem >= integral - 1e-12)
    stable = stability.is_stable(*DECAYS)
    assert np.all(theorem[:, stable] >= supremum[:, stable] - 1e-12)


@pytest.mark.parametrize(("b1", "below_until"), [("9/10", 13), ("2/3", 4), ("99/100", 141)])
def test_theorem_at_c_zero_starts_below_the_supremum(b1, below_until):
    """In exact fractions, since C=0 is out of reach of most floats."""
    b1 = Fraction(b1)
    b2 = b1 / (2 - b1)
    assert reference.stability_coefficient(b1, b2) == 0
    below = [
        reference.log_max_update_bound(n, b1, b2) < reference.log_exact_max_update_bound(n, b1, b2)
        for n in range(1, 300)
    ]
    assert below == [n < below_until for n in range(1, 300)]


@pytest.mark.parametrize(
    ("b1", "b2", "last_below"), [(0.9, 0.5, 3), (0.25, 0.1, 0), (0.9999, 0.9, 29)]
)
def test_theorem_where_unstable_starts_below_the_supremum(x64, b1, b2, last_below):
    n = np.arange(60)
    theorem, supremum = (jax.jit(bound)(n, b1, b2) for _, bound, _ in BOUNDS)
    expected = [
        reference.log_max_update_bound(n, b1, b2) < reference.log_exact_max_update_bound(n, b1, b2)
        for n in n.tolist()
    ]
    np.testing.assert_array_equal(theorem < supremum, expected)
    assert np.flatnonzero(expected).max() == last_below


@pytest.mark.parametrize("b1", [0.3, 0.9, 0.99])
def test_integral_form_is_continuous_through_c_zero(x64, b1):
    """B_n² = (1-e^{-Cn})/C is n(1 - Cn/2 + (Cn)²/6 - ...)."""
    for c in (-1e-6, -1e-9, -1e-12, 0, 1e-12, 1e-9, 1e-6):
        b2 = 1 / (2 / b1 - 1 - c)
        for n in (1, 10, 1000):
            x = n * float(reference.stability_coefficient(b1, b2))
            bound = stability.max_update_bound(n, b1, b2, form="integral", log=True)
            b_n_squared = np.exp(2 * (float(bound) - reference.log_prefactor(n, b1, b2)))
            np.testing.assert_allclose(b_n_squared, n * (1 - x / 2 + x**2 / 6), rtol=1e-10)


@pytest.mark.parametrize(("learning_rate", "p"), [(1e-3, 1), (1e-3, 2), (0.3, 1), (0.3, 2)])
def test_bound_does_not_depend_on_the_timescale(x64, learning_rate, p):
    for n in (1, 10, 500):
        for b1, b2 in [(0.9, 0.999), (0.9, 0.5)]:
            expected = reference.cauchy_schwarz_bound(
                n * learning_rate**p, learning_rate, p, b1, b2
            )
            actual = stability.max_update_bound(n, b1, b2, form="integral")
            np.testing.assert_allclose(actual, expected, rtol=1e-10)


@pytest.mark.parametrize("b2", [0.5, 0.9, 0.999])
def test_rmsprop_is_bounded_without_momentum(x64, b2):
    assert_golden(stability.exact_max_update_bound(jnp.inf, 0.0, b2), 1 / np.sqrt(1 - b2))
    tiny, zero = jax.jit(stability.exact_max_update_bound)(STEPS, np.array([[1e-12], [0]]), b2)
    np.testing.assert_allclose(tiny, zero, rtol=1e-11)


def test_bounds_grow_at_their_rates(x64):
    """ln of a bound is its rate times n plus a constant."""
    b1, b2 = np.array([(0.9, 0.5), (0.99, 0.9), (0.3, 0.05)]).T
    for bound, rate in [
        (stability.max_update_bound, stability.growth_rate),
        (stability.exact_max_update_bound, stability.exact_growth_rate),
    ]:
        early, late = jax.jit(partial(bound, log=True))(np.array([[5000], [9000]]), b1, b2)
        np.testing.assert_allclose((late - early) / 4000, rate(b1, b2), rtol=1e-9)


# Worst-case gradients

WORST = [(0.9, 0.999), (0.9, 0.99), (0.25, 0.1), (0.5, 0.5), (0.9, 0.5), (0.99, 0.9), (0.0, 0.9)]


@pytest.mark.parametrize(
    ("precision", "num_steps"),
    [*itertools.product(["float32", "float64"], [1, 2, 100]), ("float32", 3000)],
)
def test_worst_case_attains_the_bound(num_steps, precision):
    pairs = [pair for pair in WORST if num_steps < 3000 or pair[0] ** 2 < pair[1]]
    b1, b2 = np.array(pairs).T
    with jax.enable_x64(precision == "float64"):
        gradients = np.array(jax.jit(lambda: stability.worst_case_gradients(num_steps, b1, b2))())
    assert gradients.dtype == precision
    assert np.all(np.isfinite(gradients))
    assert np.all(gradients[-1] == 1)
    attained = reference.adam_updates(gradients, b1, b2)[-1]
    expected = [reference.log_exact_max_update_bound(num_steps - 1, *pair) for pair in pairs]
    rtol = {"float32": 1e-6, "float64": 1e-10}[precision]
    np.testing.assert_allclose(attained, np.exp(expected), rtol=rtol)


@pytest.mark.parametrize(("b1", "b2"), [pair for pair in WORST if pair[0] ** 2 >= pair[1]])
def test_worst_cases_that_overflow_float32_are_refused(b1, b2):
    with pytest.raises(ValueError, match="num_steps must be at most"):
        stability.worst_case_gradients(3000, b1, b2)


def test_left_out_gradients_cost_what_the_docstring_says(x64):
    """γ² just below β: the sequence is cut to the K that fit float32."""
    b1, b2, num_steps = np.float32(0.5), np.float32(0.26), 1000
    gradients = jax.jit(lambda: stability.worst_case_gradients(num_steps, b1, b2))()
    assert gradients.dtype == jnp.float32
    kept = np.count_nonzero(gradients)
    assert kept == 1 + int(np.log(np.finfo(np.float32).max) / np.log(b1 / b2))
    b1, b2 = float(b1), float(b2)
    attained = reference.adam_updates(gradients, b1, b2)[-1]
    bound = stability.exact_max_update_bound(num_steps - 1, b1, b2)
    np.testing.assert_allclose(attained / bound, np.sqrt(1 - (b1**2 / b2) ** kept), rtol=1e-6)


@pytest.mark.parametrize(("dtype", "longest"), [(np.float32, 128), (np.float64, 1024)])
def test_longest_unstable_worst_case_is_the_one_the_error_names(x64, dtype, longest):
    b1, b2 = dtype(0.5), dtype(0.25)
    gradients = jax.jit(lambda: stability.worst_case_gradients(longest, b1, b2))()
    assert np.all(gradients == 2.0 ** np.arange(longest - 1, -1, -1))
    with pytest.raises(ValueError, match=f"at most {longest} .* got {longest + 1}"):
        stability.worst_case_gradients(longest + 1, b1, b2)
    with pytest.raises(ValueError, match=f"at most {longest} "):
        stability.worst_case_gradients(longest + 1, np.array([0.1, 0.5], dtype), b2)


def test_no_sequence_exceeds_the_supremum(x64):
    """Test noise of many sizes, some of it 0, and sequences that rise and fall geometrically."""
    num, n = 1000, np.arange(50)[:, None]
    noise = RNG.choice([-1, 0, 1], (50, num)) * np.exp(RNG.uniform(-14, 7, (50, num)))
    waves = np.exp(n * RNG.uniform(-1, 1, num)) * RNG.choice([-1, 1], num) ** n
    b1, b2 = RNG.uniform(0, 0.99, 2 * num), RNG.uniform(0.01, 0.999, 2 * num)
    updates = np.abs(reference.adam_updates(np.hstack([noise, waves]), b1, b2))
    bound = jax.jit(stability.exact_max_update_bound)(n, b1, b2)
    assert np.all(updates <= bound * (1 + 1e-9))
    assert np.max(updates[1:] / bound[1:]) > 0.99


def test_exact_supremum_is_the_literal_sum():
    for b1, b2, n in [(0.9, 0.999, 20), (0.9, 0.5, 20), (0.0, 0.5, 5), (0.5, 0.25, 7)]:
        b1, b2 = Fraction(b1), Fraction(b2)
        total = sum((b1**2 / b2) ** j for j in range(n + 1))
        squared = (1 - b1) ** 2 / (1 - b2) * total * (1 - b2 ** (n + 1)) / (1 - b1 ** (n + 1)) ** 2
        expected = float(squared) ** 0.5
        assert_golden(np.exp(reference.log_exact_max_update_bound(n, b1, b2)), expected)


# Golden numbers


@bounds
def test_reference_matches_golden(golden, name, bound, log_reference):
    del bound
    for pair in golden("stability")["pairs"]:
        for n, expected in pair[f"log_{name}"].items():
            actual = log_reference(int(n), *exact_decays(pair))
            assert (actual is None) == (expected is None)
            if expected is not None:
                assert_golden(actual, expected)


@bounds
def test_golden_bounds_and_limits_in_float64(x64, golden, name, bound, log_reference):
    del log_reference
    data = golden("stability")
    compared = [pair for pair in data["pairs"] if has_bound(pair, name)]
    assert len(compared) >= len(data["pairs"]) - 5
    rows = []
    for pair in compared:
        decays = pair["b1"], pair["b2"]
        for n in map(str, data["steps"]):
            if pair[f"log_{name}"][n] is not None:
                rows.append((int(n), *decays, pair[f"log_{name}"][n], pair[name][n]))
        limit = pair[f"limit_{name}"]
        if limit is not None or not pair["exact_arithmetic"]:
            rows.append((np.inf, *decays, np.log(np.inf if limit is None else limit), limit))
    *at, log_expected, expected = np.array(rows, float).T  # None becomes NaN
    log_actual, actual = jax.jit(lambda *at: (bound(*at, log=True), bound(*at)))(*at)
    assert_golden(log_actual, log_expected)
    assert_golden(actual, np.where(np.isnan(expected), np.inf, expected))


@bounds
def test_float32_bounds(golden, name, bound, log_reference):
    """The reference at the rounded b; golden too, where rounding moves 1-b by less than rtol."""
    data = golden("stability")
    pairs = [
        pair
        for pair in data["pairs"]
        if name != "max_update_bound" or (pair["b1"] and pair["exact_arithmetic"] != "C=0")
    ]
    decays = np.array([(pair["b1"], pair["b2"]) for pair in pairs])
    rounded = decays.astype(np.float32).astype(np.float64)
    both = jax.jit(lambda n: (bound(n, *decays.T, log=True), bound(n, *decays.T)))
    log_actual, actual = both(np.array(data["steps"])[:, None])
    assert log_actual.dtype == actual.dtype == jnp.float32
    expected = [[log_reference(n, *pair) for pair in rounded] for n in data["steps"]]
    # The logarithm's absolute error is the bound's relative one.
    np.testing.assert_allclose(log_actual, expected, rtol=1e-3, atol=1e-3)
    kept = np.all(abs(rounded - decays) < 1e-3 * (1 - decays), axis=1)
    values = [[pair[name][str(n)] for pair in pairs] for n in data["steps"]]
    values = np.nan_to_num(np.array(values, float), nan=np.inf)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(actual[:, kept], values[:, kept].astype(np.float32), rtol=1e-3)


def test_golden_coefficients_rates_and_regions(x64, golden):
    for pair in golden("stability")["pairs"]:
        decays = pair["b1"], pair["b2"]
        assert_golden(stability.growth_rate(*decays), pair["growth_rate"])
        assert_golden(stability.exact_growth_rate(*decays), pair["exact_growth_rate"])
        if pair["b1"]:
            assert_golden(stability.stability_coefficient(*decays), pair["C"])
        # On a boundary that floats can only come close to, the sign is that of the rounding.
        if pair["exact_arithmetic"] is None and pair["b1"]:
            assert stability.is_stable(*decays) == pair["is_stable"]
        if pair["exact_arithmetic"] != "b1^2=b2" or Fraction(pair["b1"]) ** 2 == pair["b2"]:
            assert stability.is_exactly_stable(*decays) == pair["is_exactly_stable"]


def test_golden_worst_cases(x64, golden):
    for case in golden("stability")["worst_case"]:
        num, *decays = case["num_steps"], case["b1"], case["b2"]
        gradients = np.array(jax.jit(partial(stability.worst_case_gradients, num))(*decays))
        assert_golden(gradients / gradients[-1], case["gradients_over_last"])
        attained = reference.adam_updates(gradients, *decays)[-1]
        assert_golden(attained, case["attained"])
        assert_golden(stability.exact_max_update_bound(num - 1, *decays), case["attained"])


# Curves


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_golden_curves(golden, precision):
    data = golden("stability")
    rtol = {"float32": 1e-6, "float64": 1e-12}[precision]
    with jax.enable_x64(precision == "float64"):
        for case in data["normal_curves"]:
            b1s, b2s = stability.normal_curve(**case["through"], num=case["num"])
            assert b1s.dtype == precision
            assert_golden(b1s, case["b1"], rtol)
            assert_golden(b2s, case["b2"], rtol)
        for case in data["level_curves"]:
            b1s, b2s = stability.level_curve(case["c"], case["num"])
            assert_golden(b1s, case["b1"], rtol)
            assert_golden(b2s, case["b2"], rtol)


THROUGH = [(0.9, 0.999), (0.5, 0.5), (0.1, 0.99), (0.99, 0.01), (0.01, 0.02), (0.999, 0.9999)]


@pytest.mark.parametrize("direction", ["unstable", "stable", "both"])
@pytest.mark.parametrize(("b1", "b2"), THROUGH)
def test_normal_curve_is_uniform_and_monotone(x64, b1, b2, direction):
    b1s, b2s = stability.normal_curve(b1, b2, 17, direction=direction)
    constant = 2 * b2**3 + b1**3
    assert np.all((b1s > 0) & (b1s < 1) & (b2s > 0) & (b2s < 1))
    np.testing.assert_allclose(2 * b2s**3 + b1s**3, constant, rtol=1e-12)

    stable_end = (np.cbrt(constant - 2), 1) if constant > 2 else (0, np.cbrt(constant / 2))
    unstable_end = (1, np.cbrt((constant - 1) / 2)) if constant > 1 else (np.cbrt(constant), 0)
    before, after = {
        "unstable": ([], unstable_end),
        "stable": ([], stable_end),
        "both": (stable_end, unstable_end),
    }[direction]
    ends = np.array([*zip(b1s, b2s, strict=True), after])
    ends = np.vstack([np.reshape(before, (-1, 2)), ends])
    lengths = reference.arc_lengths(
        *ends.T,
        lambda y: reference.normal_curve_b1(y, constant),
        lambda x: reference.normal_curve_b2(x, constant),
    )
    np.testing.assert_allclose(lengths, lengths.mean(), rtol=1e-9)

    rises = np.diff(stability.stability_coefficient(b1s, b2s)) > 0
    assert np.all(rises == (direction == "stable"))
    if direction != "both":
        np.testing.assert_allclose((b1s[0], b2s[0]), (b1, b2), rtol=1e-12)


@pytest.mark.parametrize("c", [-14.3, -3.0, -1.0, -0.02, 0.0, 0.2212, 2.0, 50.0])
def test_level_curve_is_uniform(x64, c):
    b1s, b2s = stability.level_curve(c, 17)
    np.testing.assert_allclose(stability.stability_coefficient(b1s, b2s), c, atol=1e-12, rtol=1e-12)
    stop = (2 / (2 + c), 1) if c >= 0 else (1, 1 / (1 - c))
    ends = np.array([(0, 0), *zip(b1s, b2s, strict=True), stop])
    lengths = reference.arc_lengths(
        *ends.T,
        lambda y: reference.level_curve_b1(y, c),
        lambda x: reference.level_curve_b2(x, c),
    )
    np.testing.assert_allclose(lengths, lengths.mean(), rtol=1e-9)


@pytest.mark.parametrize(("b1", "b2"), THROUGH)
def test_curves_cross_at_right_angles(x64, b1, b2):
    """Along the normal curve C falls straight downhill, along the level curve not at all."""
    # The chord around a point is parallel to the tangent there, to second order in its length.
    (x0, x, x1), (y0, y, y1) = np.array(stability.normal_curve(b1, b2, 1000))[:, :3]
    along_normal = np.array([x1 - x0, y1 - y0])
    along_normal /= np.linalg.norm(along_normal)
    uphill = np.array(jax.grad(stability.stability_coefficient, (0, 1))(x, y))
    uphill /= np.linalg.norm(uphill)
    np.testing.assert_allclose(along_normal, -uphill, atol=1e-4)

    levels = np.array(stability.level_curve(stability.stability_coefficient(x, y), 1000))
    nearest = np.argmin(np.linalg.norm(levels.T - [x, y], axis=1)[1:-1]) + 1
    along_level = levels[:, nearest + 1] - levels[:, nearest - 1]
    along_level /= np.linalg.norm(along_level)
    np.testing.assert_allclose(along_level @ along_normal, 0, atol=1e-2)


def test_crossings_of_the_papers_curve(x64, golden):
    expected = golden("stability")["normal_curve_crossings_through_b1_0_9_b2_0_999"]
    b1s, b2s = stability.normal_curve(0.9, 0.999, 2000)
    for name, height in [
        ("C_zero", stability.stability_coefficient(b1s, b2s)),
        ("b1_squared_equals_b2", jnp.log(b2s) - 2 * jnp.log(b1s)),
    ]:
        crossing = np.interp(0, height[::-1], b2s[::-1])
        np.testing.assert_allclose(crossing, expected[name], rtol=1e-8)


# Arrays, transformations, dtypes

ELEMENTWISE = {
    "stability_coefficient": stability.stability_coefficient,
    "is_stable": stability.is_stable,
    "is_exactly_stable": stability.is_exactly_stable,
    "growth_rate": stability.growth_rate,
    "exact_growth_rate": stability.exact_growth_rate,
    "max_update_bound": lambda b1, b2: stability.max_update_bound(7, b1, b2),
    "integral": lambda b1, b2: stability.max_update_bound(7, b1, b2, form="integral", log=True),
    "exact_max_update_bound": lambda b1, b2: stability.exact_max_update_bound(7, b1, b2),
    "worst_case_gradients": lambda b1, b2: stability.worst_case_gradients(3, b1, b2)[0],
}

NEEDS_MOMENTUM = [
    "stability_coefficient",
    "is_stable",
    "max_update_bound",
    "integral",
    "normal_curve",
]


@pytest.mark.parametrize("fn", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_broadcasting_jit_and_vmap_agree_with_single_points(fn):
    b1, b2 = np.float32([0.2, 0.9, 0.99]), np.float32([[0.1], [0.95]])
    single = [[fn(x, y) for x in b1] for y in b2[:, 0]]
    for together in jax.jit(
        lambda *traced: [
            fn(b1, b2),
            fn(*traced),
            jax.vmap(lambda y: jax.vmap(lambda x: fn(x, y))(b1))(b2[:, 0]),
        ]
    )(b1, b2):
        assert together.shape == (2, 3)
        np.testing.assert_allclose(together, single, rtol=1e-5, atol=1e-6)


def test_steps_broadcast_too():
    steps = np.arange(4)[:, None, None]
    b1, b2 = np.array([0.2, 0.9, 0.99]), np.array([[0.1], [0.95]])

    def shape(fn, *args):
        return jax.eval_shape(lambda: fn(*args)).shape

    for bound in (stability.max_update_bound, stability.exact_max_update_bound):
        assert shape(bound, steps, b1, b2) == (4, 2, 3)
        assert shape(bound, steps, 0.9, 0.999) == (4, 1, 1)
    assert shape(stability.worst_case_gradients, 5, b1, b2) == (5, 2, 3)
    b1s, b2s = stability.normal_curve(b1, b2, 4)
    assert b1s.shape == b2s.shape == (2, 3, 4)
    np.testing.assert_array_equal(b1s[1, 2], stability.normal_curve(0.99, 0.95, 4)[0])
    levels, _ = stability.level_curve(np.array([-1.0, 0.5]), 4)
    np.testing.assert_array_equal(levels[1], stability.level_curve(0.5, 4)[0])


def test_dtype_follows_the_decays(x64):
    assert stability.stability_coefficient(0.9, 0.999).dtype == jnp.float64
    assert stability.max_update_bound(np.int64(3), 0.9, 0.999).dtype == jnp.float64
    assert stability.stability_coefficient(np.float32(0.9), 0.999).dtype == jnp.float32
    assert stability.stability_coefficient(jnp.bfloat16(0.9), 0.5).dtype == jnp.float32
    with jax.enable_x64(False):
        assert stability.exact_max_update_bound(3, 0.9, np.float64(0.999)).dtype == jnp.float32


# Derivatives and rounding, close to differences that vanish

FORMS = {
    "exact": (stability.exact_max_update_bound, reference.exact_terms),
    "theorem": (stability.max_update_bound, reference.paper_terms),
    "integral": (
        partial(stability.max_update_bound, form="integral"),
        partial(reference.paper_terms, form="integral"),
    ),
}
COUNTS = [0, 1, 2, 10, 1000, 116_917, 10**9, np.inf]
# Derivatives in (b1, b2), then in (step, b1, b2).
ORDERS = [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2)]
STEP_ORDERS = [(1, 0, 0), (1, 1, 0), (1, 0, 1), (2, 0, 0)]


def pairs_next_to_boundaries(dtype):
    """Decays off both boundaries, on them, and at distances from 1e-1 to 1e-16 on either side.

    Those that are not close are float32 numbers, for which both precisions share the reference.
    """
    single = np.float32
    pairs = [
        (single(b1), single(b2)) for b1 in (1e-4, 0.5, 0.9999) for b2 in (1e-4, 0.3, 0.95, 0.9999)
    ]
    for exponent in (1, 3, 5, 7, 8, 11, 13, 16):
        kind = single if exponent < 7 else dtype
        for distance in (0, 10**-exponent, -(10**-exponent)):
            b1 = (0.1, 0.5, 0.9, 0.99, 0.999)[exponent % 5]
            pairs += [(kind(b1), kind(b1**2 * (1 + distance)))]
            pairs += [(kind(b1), kind(1 / (2 / b1 - 1 - distance)))]
    return list(dict.fromkeys((dtype(b1), dtype(b2)) for b1, b2 in pairs if dtype(b2) < 1))


def cases(form, dtype):
    """(step, b1, b2) at which the form's logarithm is finite and differentiable."""
    pairs = pairs_next_to_boundaries(dtype)
    if form == "exact":
        pairs += [(dtype(0), dtype(b2)) for b2 in (1e-3, 0.3, 0.5, 0.7, 0.9, 0.999, 0.3, 0.9)]
    for i, (b1, b2) in enumerate(pairs):
        c = reference.stability_coefficient(float(b1), float(b2))
        gap = float(b2) - float(b1) ** 2 if form == "exact" else c
        step = COUNTS[i % 8]
        if step == np.inf and gap < 1e-12:
            continue  # no bound, or one that only the last digits decide
        if form == "theorem" and abs(c) < 1e-12:
            continue  # it jumps there
        if form == "integral" and step == 0:
            continue  # √0, a test of its own
        yield step, b1, b2


# First and second derivatives: backward and forward, in one precision each.
MODES = {"float32": (jax.grad, jax.jacfwd), "float64": (jax.jacfwd, jax.jacrev)}


def every_derivative(bound, modes, point):
    """Value, first and second derivatives: in the decays (6,), and with the step (4,)."""
    log, (first, second) = partial(bound, log=True), modes
    slopes = first(log, (0, 1, 2))

    def again(*point):
        return slopes(*point), slopes(*point)

    curvature, slope = second(again, (0, 1, 2), has_aux=True)(*point)
    decays = [log(*point), *slope[1:], curvature[1][1], curvature[1][2], curvature[2][2]]
    return jnp.array(decays), jnp.array(
        [slope[0], curvature[1][0], curvature[0][2], curvature[0][0]]
    )


def vanishing(form, b1, b2):
    """γ²/β - 1 or C, over the terms whose difference it is."""
    if form == "exact":
        return float(1 - Fraction(float(b1)) ** 2 / Fraction(float(b2))) / math.log(b2)
    c = reference.stability_coefficient(float(b1), float(b2))
    return float(c * Fraction(float(b2)) / (1 - Fraction(float(b2))))


def rounding_scale(terms, point, order):
    """The size of a derivative's terms, with those of powers."""
    _, scale = reference.derivative(terms, point, order)
    for i in (-2, -1):
        if order[i] and point[i]:
            lower = tuple(o - (j == i % len(order)) for j, o in enumerate(order))
            scale += abs(order[i] * rounding_scale(terms, point, lower) / float(point[i]))
    return scale


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("form", FORMS)
def test_derivatives_at_ends_and_next_to_boundaries(form, precision):
    bound, terms = FORMS[form]
    dtype = np.dtype(precision).type
    rtol, eps = {"float32": 5e-6, "float64": 1e-12}[precision], float(np.finfo(dtype).eps)
    points = list(cases(form, dtype))
    assert len(points) > 25
    with jax.enable_x64(precision == "float64"):
        columns = tuple(np.array(column, dtype) for column in zip(*points, strict=True))
        over = {"float32": jax.vmap, "float64": lambda fn: partial(jax.lax.map, fn)}[precision]
        derivatives = partial(every_derivative, bound, MODES[precision])
        values, step_values = jax.jit(over(derivatives))(columns)
    for point, value, step_value in zip(
        points, np.array(values), np.array(step_values), strict=True
    ):
        step, b1, b2 = point
        # The difference that vanishes on the boundary keeps 20 bits, or all, of the terms that
        # cancel.
        left = abs(vanishing(form, b1, b2))
        lost = eps / left if left > 2**20 * eps else 0
        compared = list(zip(ORDERS, value, strict=True))
        if 0 < step < np.inf and b1 > 0:
            compared += zip(STEP_ORDERS, step_value, strict=True)
        for order, actual in compared:
            expected, _ = reference.derivative(terms, point, order)
            # At step 0 the sums are 1, and step 1 gives the scale of what cancels.
            scale = rounding_scale(terms, (step or 1, b1, b2), order)
            tiny = np.finfo(dtype).eps * (sum(order) == 0) + 1e-37
            np.testing.assert_allclose(
                actual,
                expected,
                rtol=0,
                atol=(rtol + 8 * lost) * scale + tiny,
                err_msg=f"{point}, {order}",
            )


@pytest.mark.parametrize("form", FORMS)
def test_bound_and_its_logarithm_differentiate_alike(x64, form):
    bound, _ = FORMS[form]
    log = partial(bound, log=True)

    @jax.jit
    @jax.vmap
    def slopes_at(*at):
        every = jax.jacfwd(bound, (0, 1, 2)), jax.grad(bound, (0, 1, 2)), jax.grad(log, (0, 1, 2))
        return bound(*at), *(jnp.array(slopes(*at)) for slopes in every)

    infinite = (
        [(np.inf, 0.5, 0.25), (np.inf, 0.9, 0.5)] if form == "exact" else [(np.inf, 0.9, 0.5)]
    )
    rows = [(0.0, 0.9, 0.97), (10.0, 0.9, 0.97), (np.inf, 0.9, 0.97), *infinite]
    for at, value, slopes, backward, log_slopes in zip(
        rows, *slopes_at(*np.array(rows).T), strict=True
    ):
        if at in infinite:  # the logarithm has very large slopes
            by_step, by_b1, by_b2 = log_slopes
            assert value == np.inf
            assert 0 <= by_step < 1
            assert by_b1 > 1e100
            assert by_b2 < -1e100
            continue
        np.testing.assert_allclose(backward, slopes, rtol=1e-12)
        assert np.all(np.isfinite(slopes[1:]))
        if form == "integral" and at[0] == 0:
            assert value == 0
            assert np.all(slopes[1:] == 0)
            assert slopes[0] > 1e300  # √n at 0
            # What multiplies √n is differentiable.
            terms = partial(reference.paper_terms, form="integral")
            for order, slope in [((1, 0), log_slopes[1]), ((0, 1), log_slopes[2])]:
                expected, _ = reference.derivative(terms, (1e-14, 0.9, 0.97), (0, *order))
                np.testing.assert_allclose(slope, expected, rtol=1e-9)
        else:
            np.testing.assert_allclose(slopes, value * log_slopes, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_rates_differentiate_at_their_ends(precision):
    b1, b2 = np.array([(0.0, 0.1), (-0.0, 0.1), (0.9, 0.999), (0.9, 0.5)]).T
    for rate, beyond in [
        (stability.growth_rate, (1 / 0.9**2, -1 / (2 * 0.5**2))),
        (stability.exact_growth_rate, (1 / 0.9, -1 / (2 * 0.5))),
    ]:
        with jax.enable_x64(precision == "float64"):
            values, backward, forward, curvatures = (
                np.array(jax.jit(jax.vmap(fn))(b1, b2))
                for fn in (rate, *(m(rate, (0, 1)) for m in (jax.grad, jax.jacfwd, jax.hessian)))
            )
        assert np.all(values[:2] == 0)
        assert np.all(curvatures[..., :2] == 0)
        for slopes in (backward, forward):
            assert np.all(slopes[:, :3] == 0)
            np.testing.assert_allclose(slopes[:, 3], beyond, rtol=2e-6)


def test_worst_cases_differentiate_where_gradients_are_left_out():
    @jax.jit
    def derivatives(b1, b2):
        def last(b1, b2):
            return stability.worst_case_gradients(2000, b1, b2)[-3:].sum()

        def least(b1):
            return stability.worst_case_gradients(2000, b1, b2).min()

        return jax.grad(last, (0, 1))(b1, b2), jax.jacfwd(last, (0, 1))(b1, b2), jax.grad(least)(b1)

    for b1 in (0.0, 0.5):
        ratio = b1 / 0.26
        *both, of_least = derivatives(b1, 0.26)
        for slopes in both:
            expected = (1 + 2 * ratio) / 0.26, -(ratio + 2 * ratio**2) / 0.26
            np.testing.assert_allclose(slopes, expected, rtol=1e-5)
        assert np.isfinite(of_least)


@pytest.mark.parametrize("kind", [np.float32, float])
def test_float32_bounds_keep_their_digits_next_to_boundaries(kind):
    """float32 decays at face value; Python floats before their rounding, which moves 1-b too."""
    for step in (1, 1000, 116_917, 10**9):
        for exponent in range(1, 17):
            for distance in (10**-exponent, -(10**-exponent)):
                b1 = kind((0.1, 0.5, 0.9, 0.75)[exponent % 4])
                for form, b2 in [
                    ("exact", float(b1) ** 2 * (1 + distance)),
                    ("integral", 1 / (2 / float(b1) - 1 - distance)),
                ]:
                    bound, terms = FORMS[form]
                    at = step, b1, kind(b2)
                    expected, _ = reference.derivative(terms, at, (0, 0))
                    if expected < 88:  # beyond it float32 has no bound
                        rtol = {np.float32: 2e-5, float: 3e-4}[kind]
                        for fn in (bound, jax.jit(bound)) if step == 1000 else (bound,):
                            actual = fn(*at) if fn is bound or kind is np.float32 else bound(*at)
                            np.testing.assert_allclose(
                                np.log(actual), expected, atol=rtol, rtol=0, err_msg=f"{form}, {at}"
                            )


def test_boundaries_are_told_apart_to_the_last_digit():
    above = np.nextafter(np.float32(0.25), np.float32(1))
    assert stability.is_exactly_stable(np.float32(0.5), above)
    assert not stability.is_exactly_stable(np.float32(0.5), np.float32(0.25))
    for b1 in np.float32([0.3, 0.77, 0.9, 0.99, 0.9999]):
        for fraction, criterion in [
            (Fraction(float(b1)) ** 2, stability.is_exactly_stable),
            (1 / (2 / Fraction(float(b1)) - 1), stability.is_stable),
        ]:
            for b2 in np.float32(float(fraction)) + np.float32([-6e-8, 0, 6e-8]):
                expected = Fraction(float(b2)) > fraction
                assert criterion(b1, b2) == jax.jit(criterion)(b1, b2) == expected
    assert stability.is_exactly_stable(0.9, 0.81 + 1e-12)
    assert not stability.is_exactly_stable(0.9, 0.81 - 1e-12)


@pytest.mark.parametrize("size", [1e3, 1e8, 1e16, 1e30, 1e100, 1e155, 1e300])
@pytest.mark.parametrize("sign", [1, -1])
def test_steep_and_flat_level_curves(x64, sign, size):
    b1s, b2s = stability.level_curve(sign * size, 5)
    for b1, b2 in zip(b1s.tolist(), b2s.tolist(), strict=True):
        c = reference.stability_coefficient(b1, b2)
        assert abs(c / Fraction(sign * size) - 1) < 1e-14
    if size >= 1e16:  # all but a corner runs along an axis
        np.testing.assert_allclose(b2s if sign > 0 else b1s, np.arange(1, 6) / 6, rtol=1e-12)
    with jax.enable_x64(False):
        if size > 1e38:
            with pytest.raises(ValueError, match=r"^c must give 5 points inside \(0, 1\) once"):
                stability.level_curve(sign * size, 5)
        else:
            for low, high in zip(stability.level_curve(sign * size, 5), (b1s, b2s), strict=True):
                np.testing.assert_allclose(low, high, rtol=1e-7)


def test_points_that_round_to_the_border_are_refused():
    stability.normal_curve(0.9, 1 - 1e-7, 1)
    for b1, b2, direction in [(0.9, 1 - 1e-9, "unstable"), (1e-40, 0.5, "unstable")]:
        with pytest.raises(ValueError, match=r"^b1 and b2 must give .* float32, got .*; move away"):
            stability.normal_curve(b1, b2, 3, direction=direction)


def test_curves_of_many_points_and_of_none(x64):
    """Many are computed in pieces."""
    many, few = (stability.level_curve(0.5, num) for num in (4099, 40))
    np.testing.assert_allclose(np.array(many)[:, 99::100], few, rtol=1e-12)
    many, few = (stability.normal_curve(0.5, 0.6, num) for num in (4100, 41))
    np.testing.assert_allclose(np.array(many)[:, ::100], few, rtol=1e-12)
    empty = np.zeros((0, 2))
    assert stability.level_curve(empty, 3)[0].size == 0
    assert stability.normal_curve([], 0.5, 3)[0].size == 0
    assert stability.exact_max_update_bound(3, empty, 0.5).shape == (0, 2)
    assert stability.worst_case_gradients(3, empty, 0.5).shape == (3, 0, 2)


CALLS = {
    **ELEMENTWISE,
    "level_curve": lambda b1, b2: stability.level_curve(b1, 3)[0],
    "normal_curve": lambda b1, b2: stability.normal_curve(b1 + 0.1, b2, 3)[0],
}


@pytest.mark.parametrize("name", CALLS)
def test_jax_settings_change_nothing(name):
    """NaN checks, eager execution, strict promotion, also where b1=0 or step=0 makes 0/0."""
    b1 = 0.5 if name in (*NEEDS_MOMENTUM, "level_curve") else 0.0
    fn = CALLS[name]
    expected = fn(np.float32(b1), np.float32(0.25))
    with jax.debug_nans(True), jax.disable_jit(), jax.numpy_dtype_promotion("strict"):
        np.testing.assert_allclose(fn(np.float32(b1), np.float32(0.25)), expected, rtol=1e-6)
        if "curve" not in name and "stable" not in name:
            slopes = jax.grad(lambda *b: fn(*b).sum(), (0, 1))(b1, 0.25)
            assert np.all(np.isfinite(slopes))
        if "bound" in name:
            bound = getattr(stability, name)
            for step in (0.0, jnp.inf):
                jax.grad(bound, (0, 1, 2))(step, b1, 0.9)


# Errors

TAKE_DECAYS = ELEMENTWISE | {"normal_curve": lambda b1, b2: stability.normal_curve(b1, b2, 3)}


@pytest.mark.parametrize("bad", [-0.5, 1.0, 1.5, float("nan"), [0.5, 2.0]])
@pytest.mark.parametrize("fn", TAKE_DECAYS.values(), ids=TAKE_DECAYS)
def test_decays_outside_the_interval_are_named(fn, bad):
    bad = np.array(bad)
    shown = str(bad.flat[-1])
    with pytest.raises(ValueError, match=rf"b1 must be in .*, got {shown}$"):
        fn(bad, 0.5)
    with pytest.raises(ValueError, match=rf"b2 must be in \(0, 1\).* got {shown}$"):
        fn(0.5, jnp.asarray(bad))
    with pytest.raises(ValueError, match=r"b2 must be in \(0, 1\).* got 0\.0$"):
        fn(0.5, 0.0)


@pytest.mark.parametrize("bad", [True, "0.5", 0.5j, None, Fraction(1, 2), [None], lambda: 0.5])
@pytest.mark.parametrize("fn", TAKE_DECAYS.values(), ids=TAKE_DECAYS)
def test_decays_of_other_kinds_are_refused(fn, bad):
    with pytest.raises(TypeError, match=r"^b1 must be real numbers"):
        fn(bad, 0.5)
    with pytest.raises(TypeError, match=r"^b2 must be real numbers"):
        fn(0.5, bad)


@pytest.mark.parametrize("fn", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_decays_that_xla_flushes_to_zero_are_zero(fn):
    with pytest.raises(ValueError, match=r"^b2 must be in \(0, 1\) once rounded to float32, where"):
        fn(0.5, 1e-40)
    if fn in [ELEMENTWISE[name] for name in NEEDS_MOMENTUM if name in ELEMENTWISE]:
        with pytest.raises(ValueError, match=r"^b1 must be in \(0, 1\) once rounded"):
            fn(1e-40, 0.5)
    else:
        assert fn(1e-40, 0.5) == fn(0.0, 0.5)


@pytest.mark.parametrize("name", TAKE_DECAYS)
def test_zero_b1_is_for_the_exact_theory(name):
    if name in NEEDS_MOMENTUM:
        with pytest.raises(ValueError, match=r"b1 must be in \(0, 1\).* got 0\.0$"):
            TAKE_DECAYS[name](0.0, 0.5)
    else:
        assert np.all(np.isfinite(TAKE_DECAYS[name](0.0, 0.5)))


def test_decays_that_round_to_one_are_errors():
    assert stability.is_stable(0.9, 1 - 1e-7)
    with pytest.raises(ValueError, match=r"b2 must be in .* once rounded to float32"):
        stability.is_stable(0.9, 1 - 1e-9)
    with jax.enable_x64(True):
        assert stability.is_stable(0.9, 1 - 1e-9)


@pytest.mark.parametrize("fn", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_traced_decays_are_not_checked(fn):
    jax.eval_shape(fn, 2.0, -1.0)
    jax.eval_shape(jax.vmap(fn), jnp.array([2.0, 0.0]), jnp.array([1.0, 0.5]))


def test_concrete_decays_are_checked_inside_jit():
    with pytest.raises(ValueError, match="b1 must be in"):
        jax.jit(lambda n: stability.exact_max_update_bound(n, 1.5, 0.9))(3)
    with pytest.raises(ValueError, match="num_steps must be at most"):
        jax.jit(lambda: stability.worst_case_gradients(10**4, 0.9, 0.5))()


@pytest.mark.parametrize("step", [-1, np.array([3, -1]), float("nan")])
def test_negative_steps_are_errors(step):
    for bound in (stability.max_update_bound, stability.exact_max_update_bound):
        with pytest.raises(ValueError, match=r"step must be at least 0, got (-1|nan)$"):
            bound(step, 0.9, 0.999)


@pytest.mark.parametrize(
    ("length", "error", "message"),
    [
        (0, ValueError, "at least 1, got 0"),
        (-3, ValueError, "at least 1, got -3"),
        (2**31, ValueError, r"below 2\*\*31, got"),
        (2.0, TypeError, "a Python int, got 2.0"),
        (True, TypeError, "a Python int, got True"),
        (None, TypeError, "a Python int, got None"),
    ],
)
def test_lengths_are_positive_ints(length, error, message):
    for call, name in [
        (lambda: stability.worst_case_gradients(length, 0.9, 0.999), "num_steps"),
        (lambda: stability.level_curve(0.5, length), "num"),
        (lambda: stability.normal_curve(0.9, 0.999, length), "num"),
    ]:
        with pytest.raises(error, match=f"^{name} must be {message}"):
            call()


def test_unknown_choices_are_listed():
    with pytest.raises(ValueError, match=r"form must be one of theorem, integral, got 'sum'"):
        stability.max_update_bound(3, 0.9, 0.999, form="sum")
    with pytest.raises(ValueError, match=r"direction must be one of .*, both, got 'up'"):
        stability.normal_curve(0.9, 0.999, 3, direction="up")


def test_curves_need_concrete_finite_values():
    for c in (np.inf, np.nan):
        with pytest.raises(ValueError, match="c must be finite"):
            stability.level_curve(c, 3)
    with pytest.raises(TypeError, match="c must be concrete, got a traced"):
        jax.jit(lambda c: stability.level_curve(c, 3))(0.5)
    with pytest.raises(TypeError, match="b1 must be concrete"):
        jax.jit(lambda b1: stability.normal_curve(b1, 0.9, 3))(0.5)
