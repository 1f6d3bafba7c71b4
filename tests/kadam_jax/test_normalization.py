"""One stage: its symmetries, what it becomes at the edges of (b1, b2), and tiny gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from kadam_jax import scale_by_adaptive_normalization, scale_by_kadam
from tests.kadam_jax.support import reference
from tests.kadam_jax.support.scanning import feed, jit_feed, jit_updates

STEPS, ENTRIES = 30, 5
DTYPES = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
USUAL = scale_by_adaptive_normalization()


def random_gradients(seed=0, shape=(STEPS, ENTRIES), spread=2.0):
    """Either sign, magnitudes over several decades, an entry that is often 0."""
    rng = np.random.default_rng(seed)
    gradients = rng.standard_normal(shape) * np.exp(spread * rng.standard_normal(shape))
    gradients[..., 0] *= rng.random(shape[:-1]) < 0.4
    return gradients.astype(np.float32)


@pytest.fixture(scope="module")
def gradients():
    return random_gradients()


@pytest.fixture(params=DTYPES)
def dtype(request):
    """Each dtype, with x64 where it needs it."""
    with jax.enable_x64(request.param in ("float64", "complex128")):
        yield jnp.dtype(request.param)


@partial(jax.jit, static_argnums=0)
def last_stage(k, b1s, b2s, eps, gradients):
    return feed(scale_by_kadam(k, b1s, b2s, eps), gradients)[1]


# Symmetries


@pytest.fixture(scope="module", params=[1, 2, 5])
def at_scale(request):
    """Updates of k stages for golden's base gradients times 2^s, in float32 under jit."""
    return partial(jit_updates, scale_by_kadam(request.param))


def test_a_power_of_two_on_all_gradients_changes_no_bit(golden, at_scale):
    base = np.array(golden("tiny_gradients")["base_gradients"], np.float32)
    base = np.concatenate([base, random_gradients(1, (len(base), 8), spread=1.0)], axis=1)
    expected = np.array(at_scale(base))
    for s in range(-60, 101):
        np.testing.assert_array_equal(at_scale(np.ldexp(base, s)), expected, err_msg=f"2^{s}")


def test_storing_the_second_moment_would_not_pass(golden):
    base = np.array(golden("tiny_gradients")["base_gradients"], np.float32)
    adam = optax.scale_by_adam(eps=1e-30)
    for s in (-60, 100):
        assert not np.allclose(jit_updates(adam, np.ldexp(base, s)), jit_updates(adam, base))


def test_a_sign_or_a_phase_goes_through(x64, gradients):
    """A_{γ,β}(cg) = c/|c| A_{γ,β}(g), complex c included."""
    factors = np.array([1, -1, 1j, 3 * np.exp(0.7j)])
    expected, *updates = np.moveaxis(jit_updates(USUAL, gradients[..., None] * factors), -1, 0)
    for factor, update in zip(factors[1:], updates, strict=True):
        np.testing.assert_allclose(update, expected * factor / abs(factor), rtol=1e-12)


def test_real_gradients_are_complex_with_no_imaginary_part(gradients):
    updates = jit_updates(USUAL, gradients.astype(np.complex64))
    np.testing.assert_allclose(updates, jit_updates(USUAL, gradients), rtol=1e-5, atol=1e-6)


def test_entries_are_independent(gradients):
    updates = jit_updates(USUAL, gradients)
    for i in range(ENTRIES):
        np.testing.assert_allclose(jit_updates(USUAL, gradients[:, i]), updates[:, i], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_spoils_its_entry_alone(gradients, bad):
    spoilt = gradients.copy()
    spoilt[10, 1] = bad
    updates, expected = (np.array(jit_updates(USUAL, g)) for g in (spoilt, gradients))
    assert np.all(np.isnan(updates[10:, 1]))
    updates[10:, 1] = expected[10:, 1]
    np.testing.assert_array_equal(updates, expected)


# Special cases


def test_without_momentum_it_is_rmsprop_with_bias_correction(x64, gradients):
    """App. A's RMSprop has no bias correction; Adam with γ=0 has one."""

    @jax.jit
    @jax.vmap
    def both(b2, eps):
        rmsprop = optax.rmsprop(-1.0, b2, eps, bias_correction=True, eps_in_sqrt=False)
        ours = scale_by_adaptive_normalization(0.0, b2, eps)
        return [feed(optimizer, gradients.astype(float))[1] for optimizer in (ours, rmsprop)]

    ours, theirs = both(*np.array([(0.5, 1e-30), (0.9, 1e-3), (0.999, 1e-30), (0.999, 1e-3)]).T)
    np.testing.assert_allclose(ours, np.where(np.isnan(theirs), 0, theirs), rtol=1e-12)


def test_epsilon_divides_where_only_the_second_moment_vanished(x64):
    gradients = np.array([1.0, *np.zeros(30)])
    ours = jit_updates(scale_by_adaptive_normalization(0.9, 0.0, 1e-3), gradients)
    theirs = jit_updates(optax.scale_by_adam(0.9, 0.0, 1e-3), gradients)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("k", [1, 5])
def test_without_memory_k_stages_are_sign_descent(gradients, k):
    updates = jit_updates(scale_by_kadam(k, 0.0, 0.0), gradients)
    np.testing.assert_allclose(updates, np.sign(gradients), rtol=1e-6)


def test_averages_of_a_stationary_sequence_are_unbiased(x64):
    """App. B. A random sequence started at each of its places in turn is exactly stationary."""
    sequence = 2 + random_gradients(3, (17,)).astype(float)
    shifts = np.array([np.roll(sequence, -n) for n in range(len(sequence))])
    _, _, state = jit_feed(USUAL, shifts)
    n = np.arange(len(shifts))
    mean = np.mean(state.mu, axis=1) / (1 - 0.9 ** (n + 1))
    mean_square = np.mean(np.square(state.rms), axis=1) / (1 - 0.999 ** (n + 1))
    np.testing.assert_allclose(mean, np.mean(sequence), rtol=1e-12)
    np.testing.assert_allclose(mean_square, np.mean(sequence**2), rtol=1e-11)


@pytest.mark.parametrize("k", [1, 3, 10])
def test_the_first_update_is_the_sign_of_the_gradient(k):
    gradient = np.array([[1e-9, -4.0, 0.0, 3e18, -1e-18]], np.float32)
    np.testing.assert_allclose(
        jit_updates(scale_by_kadam(k), gradient), np.sign(gradient), rtol=1e-6 * k
    )


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("b2", [0.9, 1 - 1e-6, 1 - 1e-9])
def test_constant_gradients_give_signs_where_b2_rounds_to_one(k, b2):
    """Scalars come from 1-b2; from a rounded b2, u would be off by 6.6e-3 at 1-b2=1e-6."""
    gradients = np.broadcast_to(np.float32([3e-5, -700.0]), (300, 2))
    updates = jit_updates(scale_by_kadam(k, 0.9, b2, strategy="naive"), gradients)
    np.testing.assert_allclose(updates, np.broadcast_to([1.0, -1.0], (300, 2)), rtol=1e-4)


def test_zero_gradients_give_zero_updates_in_every_dtype(x64):
    zeros = {name: np.zeros((4, 3), jnp.dtype(name)) for name in DTYPES}
    for eps in (0.0, 1e-30):
        updates = last_stage(2, np.array([0.9, 0.0]), np.array([0.999, 0.0]), eps, zeros)
        jax.tree.map(np.testing.assert_array_equal, updates, zeros)


# Dtypes


def test_averages_are_float32_updates_have_the_grads_dtype(dtype, gradients):
    _, updates, state = jit_feed(USUAL, jnp.asarray(gradients, dtype))
    wide = jnp.promote_types(dtype, jnp.float32)
    assert updates.dtype == dtype
    assert state.mu.dtype == wide
    assert state.rms.dtype == jnp.finfo(wide).dtype
    assert state.count.dtype == jnp.int32
    expected = reference.kadam(
        jnp.asarray(gradients, dtype),
        gammas=[0.9],
        betas=[0.999],
        dtype=jnp.promote_types(wide, float),
    )
    # Half of a last place beyond the averages' own error.
    rtol = float(jnp.finfo(dtype).eps) / 2 + 100 * float(jnp.finfo(wide).eps)
    np.testing.assert_allclose(updates.astype(wide), expected.u[:, 0], rtol=rtol, atol=1e-7)


def test_the_second_moment_does_not_stall_in_half_precision():
    """0.999 rounds to 1 in bfloat16; a bfloat16 average would never move."""
    constant = jnp.full((400, 1), 2.0, jnp.bfloat16)
    rms = jit_feed(USUAL, constant)[2].rms[-1, 0]
    np.testing.assert_allclose(rms, 2 * np.sqrt(1 - 0.999**400), rtol=1e-4)


def test_mu_dtype_is_for_mu_alone(gradients):
    narrow = scale_by_adaptive_normalization(mu_dtype=jnp.bfloat16)
    _, updates, state = jit_feed(narrow, gradients)
    assert (state.mu.dtype, state.rms.dtype) == (jnp.bfloat16, jnp.float32)
    error = np.abs(updates - jit_updates(USUAL, gradients))
    assert 0 < np.max(error) < 0.05


def test_epsilon_stands_where_optax_has_it(x64, gradients):
    @jax.jit
    def both(eps):
        optimizers = scale_by_adaptive_normalization(eps=eps), optax.scale_by_adam(eps=eps)
        return [feed(optimizer, gradients.astype(float))[1] for optimizer in optimizers]

    for eps in (1e-8, 1e-2, 10.0):
        ours, theirs = both(eps)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_at_the_papers_epsilon_its_place_does_not_matter():
    literal = partial(reference.kadam, random_gradients(), gammas=[0.9], betas=[0.999])
    for epsilon, same in ((1e-30, True), (1e-2, False)):
        corrected, beside_v = (
            literal(epsilon=epsilon, epsilon_beside=place).u
            for place in ("corrected", "uncorrected")
        )
        assert np.allclose(corrected, beside_v, rtol=1e-12, atol=0) == same


# Golden


@pytest.fixture(params=[False, True], ids=["float32", "float64"])
def updates_of(request):
    """(case, gradients, eps) -> updates, and the tolerance to ask for in this precision."""

    def updates(case, gradients, eps):
        b1s, b2s = (
            jnp.array([reference.per_stage_decay(case[b], case["k"], case["strategy"])] * case["k"])
            for b in ("b1", "b2")
        )
        gradients = jnp.asarray(gradients)
        return jax.device_get(last_stage(case["k"], b1s, b2s, eps, gradients))

    with jax.enable_x64(request.param):
        yield updates, dict(rtol=1e-12, atol=1e-12) if request.param else dict(rtol=1e-4, atol=1e-6)


def test_golden_tiny_gradients(golden, updates_of):
    updates_of, tolerance = updates_of
    data = golden("tiny_gradients")
    for case in data["cases"]:
        for s in data["exponents"]:
            gradients = np.ldexp(data["base_gradients"], s)
            updates = updates_of(case, gradients, 0.0)
            np.testing.assert_allclose(updates, case["u_eps_zero"], **tolerance)
        scaled = np.ldexp(data["base_gradients"], -80)
        updates = updates_of(case, scaled, 1e-30)
        np.testing.assert_allclose(updates, case["u_eps_1e_30"]["-80"], **tolerance)


def test_epsilon_shows_in_tiny_gradients_as_much_as_it_must(golden, updates_of):
    updates_of, _ = updates_of
    data = golden("tiny_gradients")
    for case in data["cases"]:
        base = updates_of(case, data["base_gradients"], 1e-30)
        tiny = updates_of(case, np.ldexp(data["base_gradients"], -80), 1e-30)
        rounding = 8 * case["k"] * jnp.finfo(tiny.dtype).eps  # in units of an update, whatever m is
        effect = case["max_relative_effect_of_eps"]["-80"]
        np.testing.assert_allclose(tiny, base, rtol=effect * 1.0001, atol=rounding)
        assert np.any(np.abs(tiny - base) > 0.5 * effect * np.abs(base))


def test_golden_sequences_of_mixed_scales(golden, updates_of):
    updates_of, tolerance = updates_of
    for case in golden("tiny_gradients")["mixed"]:
        length = len(case["gradients"])
        padded = np.pad(case["gradients"], (0, 61 - length))  # to share programs
        updates = updates_of(case, padded, case["eps"])[:length]
        np.testing.assert_allclose(updates, case["u"], **tolerance, err_msg=case["name"])


def test_golden_dead_gradients_grow_where_v_would_underflow(golden, updates_of):
    _, tolerance = updates_of
    cases = golden("tiny_gradients")["dead_gradient"]
    assert any(min(case["v"]) < jnp.finfo(jnp.float32).tiny for case in cases)
    for case in cases:
        gradients = jnp.zeros(max(case["n"]) + 1).at[0].set(1.0)
        optimizer = scale_by_adaptive_normalization(case["b1"], case["b2"], case["eps"])
        _, updates, state = jit_feed(optimizer, gradients)
        steps = np.array(case["n"])
        rtol = tolerance["rtol"]
        np.testing.assert_allclose(updates[steps], case["u"], rtol=rtol)
        np.testing.assert_allclose(state.rms[steps], case["rms"], rtol=rtol)


# Errors


@pytest.mark.parametrize("make", [scale_by_adaptive_normalization, partial(scale_by_kadam, 2)])
@pytest.mark.parametrize(
    ("argument", "bad"),
    [("b1", 1.0), ("b1", np.nan), ("b2", -0.1), ("b2", 1.5), ("eps", -1e-8), ("eps", np.nan)],
)
def test_values_out_of_range_are_named_before_any_step(make, argument, bad):
    with pytest.raises(ValueError, match=f"{argument} must be .*, got {bad}"):
        make(**{argument: bad})


def test_traced_values_are_not_checked():
    run = partial(jax.eval_shape, lambda b: feed(scale_by_adaptive_normalization(b), np.ones(3)))
    assert run(2.0)[1].shape == (3,)


@pytest.mark.parametrize("bad", [jnp.int32, jnp.bool])
def test_integer_gradients_are_an_error_that_says_what_to_do(bad):
    gradient = jnp.ones(3, bad)
    with pytest.raises(TypeError, match=r"must be floating point or complex.*mask it out"):
        USUAL.update(gradient, USUAL.init(gradient))
