"""Tests of the worst case of any optimizer: weights, suprema and what follows from them."""

import functools
import math
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import kadam_jax
from kadam_jax import (
    WorstCase,
    dead_gradient_growth,
    exact_max_update_bound,
    impulse_response,
    kadam,
    max_travel,
    steps_until_update,
    worst_case,
)
from kadam_jax.worst_cases import _continued, _derivatives, _measured_impulses, _slope, _Weights

ademamix = optax.contrib.ademamix
simplified_ademamix = optax.contrib.simplified_ademamix


def averages(num_steps, *decays):
    """Return weights (1-d) d^j of an average that is not corrected, for each decay."""
    lag = np.arange(num_steps)
    return [(1 - d) * d**lag for d in decays]


def adam_weights(num_steps, b1, b2):
    m, v = averages(num_steps, b1, b2)
    return m / (1 - b1**num_steps), v / (1 - b2**num_steps)


def adams_supremum(num_steps):
    """The supremum of Adam's update by the formula, which compiles nothing."""
    a, b = adam_weights(num_steps, 0.9, 0.999)
    return np.sqrt(np.sum(a**2 / b))


def nadam_weights(num_steps, b1, b2):
    m, v = averages(num_steps, b1, b2)
    a = b1 * m / (1 - b1 ** (num_steps + 1))
    a[0] += (1 - b1) / (1 - b1**num_steps)
    return a, v / (1 - b2**num_steps)


def ademamix_weights(num_steps, b1, b2, b3, alpha):
    m, v, slow = averages(num_steps, b1, b2, b3)
    return m / (1 - b1**num_steps) + alpha * slow, v / (1 - b2**num_steps)


def simplified_ademamix_weights(num_steps, b1, b2, alpha):
    lag = np.arange(num_steps)
    a = b1 ** lag.astype(float)
    a[0] += alpha
    return a, averages(num_steps, b2)[0] / (1 - b2**num_steps)


FAMILIES = {
    "adam": (optax.adam(1.0, 0.8, 0.95), adam_weights, (0.8, 0.95)),
    "adamw": (optax.adamw(1.0, 0.8, 0.95), adam_weights, (0.8, 0.95)),
    "scale_by_adam": (optax.scale_by_adam(0.8, 0.95), adam_weights, (0.8, 0.95)),
    "kadam": (kadam(1.0, 1, b1=0.8, b2=0.95), adam_weights, (0.8, 0.95)),
    "unstable": (optax.adam(1.0, 0.95, 0.851), adam_weights, (0.95, 0.851)),
    "nadam": (optax.nadam(1.0, 0.8, 0.95), nadam_weights, (0.8, 0.95)),
    "ademamix": (ademamix(1.0), ademamix_weights, (0.9, 0.999, 0.9999, 5.0)),
    "simplified_ademamix": (
        simplified_ademamix(1.0),
        simplified_ademamix_weights,
        (0.99, 0.95, 0.0),
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_are_those_of_the_formula(name):
    optimizer, weights, decays = FAMILIES[name]
    a, b = weights(60, *decays)
    response = impulse_response(optimizer, 60)
    np.testing.assert_allclose(response.denominator, b / b[0], rtol=1e-10)
    np.testing.assert_allclose(response.numerator, a / np.sqrt(b[0]), rtol=1e-10)
    np.testing.assert_allclose(response.ratio, a / np.sqrt(b), rtol=1e-10)


@pytest.mark.parametrize("name", FAMILIES)
def test_supremum_is_attained(name):
    optimizer, weights, decays = FAMILIES[name]
    a, b = weights(60, *decays)
    result = worst_case(optimizer, 60)
    assert result.exact
    np.testing.assert_allclose(result.supremum, np.sqrt(np.sum(a**2 / b)), rtol=1e-10)
    np.testing.assert_allclose(result.attained, result.supremum, rtol=1e-9)
    shape = a[::-1] / b[::-1]
    np.testing.assert_allclose(
        result.gradients / result.gradients[-1], shape / shape[-1], rtol=1e-9
    )


@pytest.mark.parametrize("num_steps", [1, 2, 30, 700, 5000])
def test_weights_read_from_adam_give_the_exact_bound(num_steps):
    rng = np.random.default_rng(num_steps)
    b1, b2 = rng.uniform(0, 1, 50), rng.uniform(0.01, 1, 50)
    b1[:10] = 1 - 10 ** rng.uniform(-4, -1, 10)  # slow averages
    b2[:20] = 1 - 10 ** rng.uniform(-4, -1, 20)
    with jax.enable_x64(True):
        read = jax.jit(jax.vmap(lambda b1, b2: _derivatives(optax.adam(1.0, b1, b2), num_steps)()))
        pairs = zip(*map(np.asarray, read(b1, b2)), strict=True)
        exact = np.asarray(exact_max_update_bound(num_steps - 1, b1, b2, log=True))
    for (a, b), log_bound in zip(pairs, exact, strict=True):
        weights = _Weights(*_continued(a), _continued(b)[1])
        np.testing.assert_allclose(
            np.logaddexp.reduce(2 * weights.log_ratio) / 2, log_bound, rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize(
    ("optimizer", "supremum"),
    [(ademamix(1.0), 1674), (optax.adam(1.0), adams_supremum(20_000))],
)
def test_supremum_after_twenty_thousand_steps(optimizer, supremum):
    result = worst_case(optimizer, 20_000)
    assert result.exact
    np.testing.assert_allclose(result.supremum, supremum, rtol=3e-4)
    np.testing.assert_allclose(result.attained, result.supremum, rtol=1e-3)


GOLDEN = {
    "adam": optax.adam,
    "nadam": optax.nadam,
    "ademamix": ademamix,
    "simplified_ademamix": lambda rate, b1, b2, alpha: simplified_ademamix(
        rate, b1, b2, alpha=alpha
    ),
    "rmsprop": optax.rmsprop,
}


@pytest.mark.parametrize("number", range(16))
def test_weights_and_suprema_are_those_of_sixty_digits(golden, number):
    case = golden("worst_case")[number]
    optimizer = GOLDEN[case["family"]](1.0, *case["decays"])
    response = impulse_response(optimizer, case["num_steps"])
    supremum = np.hypot.reduce(response.ratio)  # whose squares may overflow
    np.testing.assert_allclose(supremum, case["supremum"], rtol=1e-9)
    for name in ("numerator", "denominator"):
        np.testing.assert_allclose(getattr(response, name)[case["lags"]], case[name], rtol=1e-9)


def test_suprema_beyond_float64_are_still_exact():
    result = worst_case(simplified_ademamix(1.0), 50_000)
    assert result.exact
    assert result.supremum == math.inf


@pytest.mark.parametrize("name", FAMILIES)
def test_all_steps_at_once_give_each_steps_supremum(name):
    optimizer, weights, decays = FAMILIES[name]
    each = [
        np.linalg.norm(np.divide(a, np.sqrt(b)))
        for a, b in (weights(n, *decays) for n in range(1, 41))
    ]
    np.testing.assert_allclose(max_travel(optimizer, 1.0, 40), sum(each), rtol=1e-10)


def switching(other, at):
    """Return Adam, except that the update of one step is another optimizer's."""
    pair = optax.adam(1.0), other

    def update(gradient, state, params=None):
        count, *states = state
        updates, states = zip(*[o.update(gradient, s) for o, s in zip(pair, states)])  # noqa: B905
        update = jax.tree.map(lambda x, y: jnp.where(count == at, y, x), *updates)
        return update, (count + 1, *states)

    return optax.GradientTransformation(lambda x: (0, *(o.init(x) for o in pair)), update)


def test_travel_counts_a_step_of_other_weights_and_refuses_one_of_another_form():
    b2s = np.where(np.arange(12) == 7, 0.95, 0.999)
    exact = jnp.sum(exact_max_update_bound(np.arange(12), 0.9, b2s))
    travel = max_travel(switching(optax.adam(1.0, b2=0.95), 7), 1.0, 12)
    assert travel == pytest.approx(float(exact), rel=1e-5)
    with pytest.raises(ValueError, match=r"at all steps, got at step 7: .* not a weighted sum"):
        max_travel(switching(optax.adabelief(1.0), 7), 1.0, 12)
    with pytest.raises(ValueError, match=r"got at step 0: .* no bound"):
        max_travel(optax.radam(1.0), 1.0, 12)


def test_travel_needs_no_epsilon_and_has_steps_that_do_not_move():
    plain = max_travel((0.9, 0.999), 1.0, 8)
    assert max_travel(optax.adam(1.0, eps=0.0), 1.0, 8) == pytest.approx(plain, rel=1e-6)
    warmup = optax.linear_schedule(0.0, 1.0, 4)
    inside, outside = max_travel(optax.adam(warmup), 1.0, 8), max_travel((0.9, 0.999), warmup, 8)
    assert inside == pytest.approx(outside, rel=1e-6)


def test_an_infinite_supremum_has_gradients_that_go_far():
    result = worst_case(optax.adam(1.0, b2=0.0), 8)
    assert (result.supremum, result.exact) == (math.inf, True)
    assert 1e100 < result.attained < math.inf
    assert np.isfinite(result.gradients).all()
    assert dead_gradient_growth(optax.adam(1.0, b2=0.0), num_steps=8) == math.inf
    assert steps_until_update(optax.adam(1.0, b2=0.0), 1e50, num_steps=8) == 1
    assert worst_case(optax.adam(1.0, b1=0.0, b2=0.0), 8).supremum == pytest.approx(1.0, rel=1e-12)


@functools.cache
def adams():
    return worst_case(optax.adam(1.0), 20)


single = jnp.float32
SAME_AS_ADAM = {
    "float32 decays": optax.adam(1.0, single(0.9), single(0.999)),
    "NumPy's float32 decays": optax.adam(np.float32(1.0), np.float32(0.9), np.float32(0.999)),
    "injected": optax.inject_hyperparams(optax.adam)(1.0),
    "injected float32": optax.inject_hyperparams(optax.adam, hyperparam_dtype=single)(1.0),
    "weight decay": optax.adamw(1.0, weight_decay=0.7),
    "more weight decay": optax.adamw(1.0, weight_decay=3.0),
    "negative weight decay": optax.adamw(1.0, weight_decay=-1.0),
}


@pytest.mark.parametrize("name", SAME_AS_ADAM)
def test_precision_and_weight_decay_leave_adam_exact(name):
    result = worst_case(SAME_AS_ADAM[name], 20, search_steps=1)
    assert result.exact, result.reason
    assert result.supremum == pytest.approx(adams().supremum, rel=1e-5)
    assert result.attained == pytest.approx(result.supremum, rel=1e-9)


OTHERS = {
    "momentum after normalization": (optax.rmsprop(1.0, momentum=0.9), "not a weighted sum"),
    "another second moment": (optax.adabelief(1.0), "not a weighted sum"),
    "maximum": (optax.amsgrad(1.0, b2=0.9), "not a weighted sum"),
    "sign": (optax.lion(1.0), "not a weighted sum"),
    "stages": (kadam(1.0, 2), "not a weighted sum"),
    "clipped": (optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1.0)), "other coordinates"),
    "orthogonalized": (optax.contrib.muon(1.0), "other coordinates"),
    "trust ratio": (optax.lamb(1.0), "parameters"),
    "averaged iterates": (optax.contrib.schedule_free_adamw(1.0), "not a weighted sum"),
    "not normalized": (optax.sgd(1.0), "no bound"),
    "updates clipped just below their supremum": (
        optax.chain(optax.adam(1.0), optax.clip(1.04)),
        "not a weighted sum",
    ),
    "updates clipped next to their supremum": (
        optax.chain(optax.adam(1.0), optax.clip(adams_supremum(12) - 1e-8)),
        "not a weighted sum",
    ),
    "from a start": (optax.contrib.madgrad(1.0), "parameters"),
    "large epsilon": (optax.adam(1.0, eps=1e55), "scale"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_forms_are_not_called_exact(name):
    optimizer, words = OTHERS[name]
    result = worst_case(optimizer, 12, search_steps=2)
    assert not result.exact
    assert words in result.reason


@pytest.mark.parametrize(("b1", "b2"), [(0.5, 0.6), (0.5, 0.9)])
def test_search_reaches_the_last_stages_supremum(b1, b2):
    result = worst_case(kadam(1.0, 2, b1=(b1, b1), b2=(b2, b2), eps=0.0), 60, search_steps=150)
    with jax.enable_x64(True):
        bound = float(exact_max_update_bound(59, b1, b2))
    assert 0.995 * bound < result.attained <= bound * (1 + 1e-9)
    assert result.supremum == result.attained


def test_search_finds_more_than_impulses_show():
    optimizer = optax.rmsprop(1.0, momentum=0.9)
    norm = np.linalg.norm(impulse_response(optimizer, 60).ratio)
    assert norm < 7.3  # the limit is 7.26
    assert worst_case(optimizer, 60, search_steps=20).attained > 3 * norm


@pytest.mark.parametrize(
    ("optimizer", "growth"),
    [
        (optax.adam(1.0, 0.95, 0.851), math.log(0.95 / math.sqrt(0.851))),
        (optax.adam(1.0), math.log(0.9 / math.sqrt(0.999))),
        (ademamix(1.0), math.log(0.9999 / math.sqrt(0.999))),
        (simplified_ademamix(1.0), math.log(0.99 / math.sqrt(0.95))),
        (optax.rmsprop(1.0), -math.inf),
        (optax.lion(1.0), 0.0),
        (optax.sgd(1.0), math.nan),  # not normalized
    ],
)
def test_growth_without_gradients(optimizer, growth):
    np.testing.assert_allclose(dead_gradient_growth(optimizer, num_steps=600), growth, rtol=2e-6)


def test_steps_until_an_update_are_those_of_a_run():
    optimizer = optax.scale_by_adam(0.95, 0.85, eps=0.0)
    for size in (2.0, 30.0):
        count = steps_until_update(optimizer, size, num_steps=400)
        updates = impulse_response(optimizer, 400).ratio
        assert updates[int(count)] >= size > updates[int(count) - 1]
    beyond = steps_until_update(optimizer, 1e30, num_steps=100)
    assert beyond == pytest.approx(steps_until_update(optimizer, 1e30, num_steps=2000), abs=1)
    assert steps_until_update(optax.adam(1.0), 1e3, num_steps=100) == math.inf


@pytest.mark.parametrize(
    ("optimizer", "steps"),
    [
        (optax.sgd(1.0), math.nan),
        (optax.sgd(1.0, momentum=0.9), math.nan),
        (optax.set_to_zero(), math.inf),
    ],
    ids=["sgd", "momentum", "zero"],
)
def test_steps_until_an_update_without_a_size_of_its_own(optimizer, steps):
    np.testing.assert_equal(steps_until_update(optimizer, 10.0, num_steps=4), steps)


def test_travel_is_the_sum_of_rates_times_suprema():
    schedule = optax.cosine_decay_schedule(1e-2, 30)
    from_decays = max_travel((0.8, 0.95), schedule, 30)
    bounds = [float(exact_max_update_bound(n, 0.8, 0.95)) for n in range(30)]
    expected = sum(float(schedule(n)) * bound for n, bound in enumerate(bounds))
    assert from_decays == pytest.approx(expected, rel=1e-5)
    assert max_travel(optax.adam(1.0, 0.8, 0.95), schedule, 30) == pytest.approx(from_decays)


def test_no_gradients_carry_a_parameter_farther_than_its_travel():
    optimizer = optax.adam(1e-2, 0.8, 0.95)
    param = start = jnp.zeros(200)
    state = optimizer.init(param)
    for step in range(40):
        key = jax.random.key(step)
        gradient = jnp.exp(4 * jax.random.normal(key, (200,)))
        updates, state = optimizer.update(gradient, state)
        param = optax.apply_updates(param, updates)
    traveled = float(jnp.abs(param - start).max())
    assert 0.3 < traveled / max_travel((0.8, 0.95), 1e-2, 40) < 1


def test_learning_rate_divides_updates_out():
    scaled = worst_case(optax.adam(3e-4), 20, learning_rate=3e-4)
    assert scaled.supremum == pytest.approx(adams().supremum, rel=1e-12)
    schedule = optax.linear_schedule(1.0, 0.1, 20)
    response = impulse_response(optax.adam(schedule), 20, learning_rate=schedule)
    np.testing.assert_allclose(
        response.ratio, impulse_response(optax.adam(1.0), 20).ratio, rtol=1e-6
    )


@np.errstate(divide="ignore")
def test_geometric_tails_are_detected_and_only_those():
    lag = np.arange(3000)
    for log_values in (lag * math.log(0.7), -1e-3 * lag - 100, 0.2 * lag - 200):
        sign, log = _continued(-np.exp(np.where(lag < 900, log_values, -np.inf)))
        np.testing.assert_allclose(log, log_values, rtol=1e-10, atol=1e-10)
        assert (sign == -1).all()
    bent = np.where(lag < 900, np.exp(-0.01 * lag - 1e-6 * lag**2), 0.0)
    assert np.isneginf(_continued(bent)[1][900:]).all()
    assert _slope(np.log(bent[:900])) == pytest.approx(-0.01 - 1e-6 * (899 + 835))


def test_measured_impulses_are_interpolated_where_they_are_geometric():
    with jax.enable_x64(True):
        measured = _measured_impulses(optax.adam(1.0, 0.999, 0.9999), 5000)
    exact = impulse_response(optax.adam(1.0, 0.999, 0.9999), 5000).ratio
    np.testing.assert_allclose(measured, exact, rtol=1e-8)


def test_results_do_not_depend_on_the_callers_settings():
    expected = adams()
    with (
        jax.enable_x64(True),
        jax.debug_nans(True),
        jax.debug_infs(True),
        jax.disable_jit(),
        jax.numpy_dtype_promotion("strict"),
        np.errstate(all="raise"),
    ):
        inside = worst_case(optax.adam(1.0), 20)
    np.testing.assert_array_equal(inside.gradients, expected.gradients)
    assert inside.gradients.dtype == np.float64
    assert inside.supremum == expected.supremum
    assert jnp.zeros(1).dtype == np.float32


def test_threads_and_pickles_keep_a_result():
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: worst_case(optax.adam(1.0), 20), range(2)))
    for result in [*results, pickle.loads(pickle.dumps(adams()))]:
        assert isinstance(result, WorstCase)
        jax.tree.map(np.testing.assert_array_equal, result, adams())


QUESTIONS = {
    "worst_case": lambda optimizer: worst_case(optimizer, 8).supremum,
    "impulse_response": lambda optimizer: impulse_response(optimizer, 8).ratio.sum(),
    "dead_gradient_growth": lambda optimizer: dead_gradient_growth(optimizer, num_steps=8),
    "steps_until_update": lambda optimizer: steps_until_update(optimizer, 0.1, num_steps=8),
    "max_travel": lambda optimizer: max_travel(optimizer, 1.0, 8),
}


@pytest.mark.parametrize("name", ["worst_case", "max_travel"])
def test_known_hyperparameters_are_answered_while_jax_traces(name):
    ask = QUESTIONS[name]
    inside = jax.jit(lambda x: x * ask(optax.adam(1.0)))(1.0)
    assert float(inside) == pytest.approx(float(ask(optax.adam(1.0))), rel=1e-6)


@pytest.mark.parametrize("name", QUESTIONS)
def test_traced_hyperparameters_are_refused(name):
    ask = QUESTIONS[name]
    for transform in (jax.jit, jax.grad, lambda f: lambda x: jax.vmap(f)(jnp.full(2, x))):
        with pytest.raises(TypeError, match=r"optimizer must have .* known numbers.*outside"):
            transform(lambda x: ask(optax.adam(1.0, b1=x)))(0.9)


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (lambda x: worst_case(optax.adam(1.0), 4, learning_rate=x), "learning_rate"),
        (lambda x: steps_until_update(optax.adam(1.0), x, num_steps=4), "size"),
        (lambda x: max_travel((x, 0.9), 1.0, 4), "b1"),
        (lambda x: max_travel((0.9, x), 1.0, 4), "b2"),
        (lambda x: max_travel((0.9, 0.99), x, 4), "schedule"),
        (lambda x: max_travel((0.9, 0.99), lambda _: x, 4), "schedule's rates"),
    ],
)
def test_traced_numbers_are_named(ask, name):
    with pytest.raises(TypeError, match=rf"^{name} must be (a )?known numbers?, got .*outside of"):
        jax.jit(ask)(0.5)


@pytest.mark.parametrize("function", [impulse_response, worst_case])
@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((optax.adam, 3), {}, TypeError, "optimizer must be an optax.GradientTransformation"),
        ((optax.adam(1.0), 0), {}, ValueError, "num_steps must be at least 1, got 0"),
        ((optax.adam(1.0), 2.0), {}, TypeError, "num_steps must be a Python int"),
        ((optax.adam(1.0), 2), {"learning_rate": 0.0}, ValueError, "learning_rate must be"),
        ((optax.adam(1.0, mu_dtype=jnp.float32), 8), {}, ValueError, "finite updates.*mu_dtype"),
        ((optax.adam(1.0, b2=jnp.bfloat16(0.999)), 8), {}, ValueError, "no decay is 1"),
        ((optax.polyak_sgd(), 2), {}, ValueError, "gradients and parameters alone"),
        ((optax.MultiSteps(optax.adam(1.0), 2), 2), {}, TypeError, "give the optimizer inside it"),
        (
            (optax.MultiSteps(optax.adam(1.0), 2).gradient_transformation(), 4),
            {},
            ValueError,
            "give the optimizer inside it",
        ),
    ],
)
def test_questions_without_an_answer_are_refused(function, arguments, options, error, words):
    with pytest.raises(error, match=words):
        function(*arguments, **options)


def test_travel_is_refused_without_an_exact_supremum():
    with pytest.raises(ValueError, match="exact worst cases"):
        max_travel(optax.lion(1.0), 1.0, 5)
    for rate in (-1.0, math.nan, np.ones(2)):
        with pytest.raises(ValueError, match="schedule's rates must"):
            max_travel((0.9, 0.99), lambda _, rate=rate: jnp.asarray(rate), 5)
    with pytest.raises(TypeError, match="optimizer_or_decays must be"):
        max_travel(0.9, 1.0, 5)
    with pytest.raises(ValueError, match="b2 must be"):
        max_travel((0.9, 1.0), 1.0, 5)


def test_the_package_exports_every_function():
    assert set(sys.modules["kadam_jax.worst_cases"].__all__) <= set(kadam_jax.__all__)
