"""Scale-invariant weights: norm, direction, assumptions, and Assumption 2 as a stage."""

from functools import partial

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from kadam_jax import kadam, scale_by_adaptive_normalization
from kadam_jax.flow import solve_flow
from kadam_jax.invariance import (
    direction_residual,
    momentum_factor,
    predicted_squared_norm,
    radial_inner_products,
    record_squared_norm,
    scale_by_coarse_grained_normalization,
    squared_norm_average,
)
from tests.kadam_jax.support.derivatives import check_derivatives
from tests.kadam_jax.support.scanning import feed, jit_feed, jit_updates

CASES = range(7)
COARSE = scale_by_coarse_grained_normalization()


def invariant_loss(w, target):
    """The golden data's loss: one minus a cosine."""
    return 1 - w @ target / (jnp.linalg.norm(w) * jnp.linalg.norm(target))


def follow(stage, w, targets, *, learning_rate, weight_decay=0.0):
    """Run `stage` on `invariant_loss`: W_0..W_N, then g, u and the recorded norms of each step."""
    recorder = record_squared_norm(learning_rate, weight_decay)

    def step(carry, target):
        w, stage_state, record = carry
        g = jax.grad(invariant_loss)(w, target)
        u, stage_state = stage.update(g, stage_state)
        _, record = recorder.update(u, record, w)
        w = w - learning_rate * (u + weight_decay * w)
        return (w, stage_state, record), (w, g, u, record)

    carry = (w, stage.init(w), recorder.init(w))
    _, (ws, *others) = jax.lax.scan(step, carry, targets)
    return jnp.concatenate([w[None], ws]), *others


jit_follow = partial(jax.jit, static_argnums=0)(follow)


def appendix_i_sum(phi_0, f, *, eta, lam):
    """φ_n = φ_0 e^{-2λnΔt} + Δt Σ_{m<n} e^{-2λ(n-m)Δt} f_m with Δt = η, n = 0..N, as printed."""
    return [
        phi_0 * np.exp(-2 * lam * n * eta)
        + eta * sum(np.exp(-2 * lam * (n - m) * eta) * f[m] for m in range(n))
        for n in range(len(f) + 1)
    ]


def random_updates(num_steps=40, *shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal((num_steps, *shape)).astype(dtype)


# Golden data


@pytest.fixture(params=CASES)
def case(request, golden):
    return golden("invariance")["cases"][request.param]


@jax.jit
def predictions(u, w, rates):
    """Theorem 2 and the full form, in one batch and in one pass."""
    inner = jax.vmap(lambda w, u: radial_inner_products(w, u).inner)
    predict = partial(predicted_squared_norm, w[0] @ w[0], **rates)
    recorder = record_squared_norm(**rates)

    def step(record, now):
        _, record = recorder.update(now[0], record, now[1])
        return record, (record.theorem, record.full)

    _, (theorem, full) = jax.lax.scan(step, recorder.init(w[0]), (u, w[:-1]))
    return {
        "squared_norm": [inner(w, w)],
        "inner_W_u": [inner(w[:-1], u)],
        "theorem2": [predict(u), predict(jnp.sum(u**2, axis=1)), jnp.append(w[0] @ w[0], theorem)],
        "full": [predict(u, radial=inner(w[:-1], u)), jnp.append(w[0] @ w[0], full)],
    }


def check_predictions(case, dtype, **tolerance):
    rates = {name: dtype(case[name]) for name in ("learning_rate", "weight_decay")}
    u, w = (np.array(case[name], dtype) for name in ("u", "W"))
    for name, results in predictions(u, w, rates).items():
        for result in results:
            if name in case:
                np.testing.assert_allclose(result, case[name], err_msg=name, **tolerance)


def test_golden_norms(x64, case):
    check_predictions(case, np.float64, rtol=1e-12, atol=1e-12)


def test_golden_norms_in_float32(case):
    check_predictions(case, np.float32, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("index", [i for i in CASES if i > 2])
def test_golden_trajectories_and_inner_products(x64, golden, index):
    case = golden("invariance")["cases"][index]
    axes = () if case["name"] == "scale_invariant_adam" else None
    stage = scale_by_coarse_grained_normalization(axes, case["b1"], case["b2"], case["eps"])
    rates = {name: case[name] for name in ("learning_rate", "weight_decay")}
    w, targets = jnp.array(case["W0"]), jnp.array(case["targets"])
    ws, grads, updates, _ = jit_follow(stage, w, targets, **rates)
    products = jax.vmap(partial(radial_inner_products, ws[-1]))(grads)
    close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
    close(ws, case["W"])
    close(grads, case["grads"])
    close(updates, case["u"])
    close(products.inner, case["inner_W_final_with_grads"])
    close(products.cosine, case["cosine_W_final_with_grads"])


# Scale invariance


def logits(qkv, x, norm=True):
    """z = LN(x W_Q)ᵀ LN(x W_K) of each head, LayerNorm's own epsilon 0, or without LN; and x W_V.

    `qkv` is laid out as in `models.nanogpt`, (width, 3, heads, head_size).
    """

    def layer_norm(y):
        y = y - y.mean(-1, keepdims=True)
        return y / jnp.sqrt(jnp.mean(y**2, -1, keepdims=True))

    query, key, value = jnp.einsum("lw,wihd->ilhd", x, qkv)
    if norm:
        query, key = layer_norm(query), layer_norm(key)
    return jnp.einsum("qhd,khd->hqk", query, key), value


@partial(jax.jit, static_argnames="norm")
def attention_loss(qkv, x, norm=True):
    z, value = logits(qkv, x, norm)
    mixed = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(z), value)
    return jnp.sum(jnp.sin(3 * mixed))


def test_qk_norm_keeps_only_the_sign_of_a_factor(x64):
    qkv, x = random_updates(6, 3, 2, 4, dtype=np.float64), random_updates(5, 6, seed=1)
    for i in range(2):
        for factor in (1e-6, 7.0, 1e6, -0.3, -1.0):
            scaled = qkv.copy()
            scaled[:, i, 1] *= factor  # the query, or key, of one head
            z, expected = logits(scaled, x)[0], logits(qkv, x)[0]
            np.testing.assert_allclose(z[0], expected[0], rtol=1e-12)
            np.testing.assert_allclose(z[1], np.sign(factor) * expected[1], rtol=1e-9)
            change = abs(attention_loss(scaled, x) - attention_loss(qkv, x))
            assert change < 1e-9 if factor > 0 else change > 0.01


def test_only_qk_norm_makes_gradients_orthogonal_to_weights(x64):
    qkv, x = random_updates(6, 3, 2, 4, dtype=np.float64), random_updates(5, 6, seed=1)
    for norm in (True, False):
        grads = jax.grad(attention_loss)(qkv, x, norm)
        cosines = np.abs(radial_inner_products(qkv, grads, axes=(0, 3)).cosine)
        assert cosines.shape == (3, 2)  # queries, keys and values of two heads
        assert (cosines[:2].max() < 1e-13) == norm
        assert cosines[2].min() > 1e-3


def test_the_inner_product_is_the_derivative_along_the_scaling(x64):
    """Appendix K with e^s W: d/ds L(e^s W) = ⟨W, g⟩ at s=0, whatever the loss."""
    w = random_updates(1, 6, dtype=np.float64)[0]

    def loss(w):
        return jnp.sum(jnp.sin(w) * jnp.arange(6.0))

    slope = jax.jvp(lambda s: loss(jnp.exp(s) * w), (0.0,), (1.0,))[1]
    np.testing.assert_allclose(radial_inner_products(w, jax.grad(loss)(w)).inner, slope, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_chance_is_the_rms_cosine_of_random_directions(dtype):
    w, g = random_updates(2, 4000, 9, seed=1)
    if dtype == "complex64":
        w, g = w + 1j * w[::-1], g + 1j * g[::-1]
    products = radial_inner_products(w, g, axes=(1,))
    rms = jnp.sqrt(jnp.mean(products.cosine**2))
    np.testing.assert_allclose(rms, products.chance[0], rtol=0.03)


@pytest.mark.parametrize("exponent", [-100, 100])
def test_cosines_survive_squares_that_overflow(exponent):
    w, g = random_updates(2, 9)
    tiny = radial_inner_products(w, np.ldexp(g, exponent))
    expected = radial_inner_products(w, g)
    assert tiny.cosine == expected.cosine
    np.testing.assert_array_equal(tiny.inner, np.ldexp(expected.inner, exponent))
    assert radial_inner_products(w, 0 * g).cosine == 0


# ‖W‖² along a run


def test_the_full_form_is_exact_on_discrete_steps_without_decay(x64):
    u, w = random_updates(30, 5, dtype=np.float64), jnp.arange(5.0)
    schedule = optax.cosine_decay_schedule(0.3, 40)
    optimizer = optax.chain(record_squared_norm(schedule), optax.scale_by_learning_rate(schedule))
    ws, _, (records, _) = feed(optimizer, u, w)
    np.testing.assert_allclose(records.full, jnp.sum(ws**2, axis=1), rtol=1e-13)
    assert np.all(np.abs(records.theorem - jnp.sum(ws**2, axis=1))[1:] > 1e-3)


def test_running_and_batch_forms_are_the_printed_sum(x64):
    """Test a tree, by slices, with a constant rate and with a schedule."""
    u = {"a": random_updates(20, 3, 4, dtype=np.float64), "b": random_updates(20, 5, seed=1)}
    w = jax.tree.map(lambda x: 2 * x[::-1] + 0.5, u)  # any W_n will do

    def axes(path, leaf):
        return (-1,) if path == "a" else None

    @partial(jax.jit, static_argnums=0)
    def both(learning_rate, rates):
        recorder = record_squared_norm(learning_rate, 0.7, axes=axes)
        start = recorder.init(jax.tree.map(lambda x: x[0], w))

        def step(record, now):
            _, record = recorder.update(now[0], record, now[1])
            return record, (record.theorem, record.full)

        inner = jax.vmap(partial(radial_inner_products, axes=axes))(w, u).inner
        predict = partial(predicted_squared_norm, learning_rate=rates, weight_decay=0.7)
        batch = (
            jax.tree.map(predict, start.decayed, u),
            jax.tree.map(lambda *x: predict(x[0], x[1], radial=x[2]), start.decayed, u, inner),
        )
        return jax.lax.scan(step, start, (u, w))[1], batch, inner

    schedule = optax.linear_schedule(0.3, 0.0, 20)
    for rate, rates in ((0.1, 0.1), (schedule, schedule(jnp.arange(20)))):
        running, batch, inner = both(rate, rates)
        for x, y in zip(jax.tree.leaves(running), jax.tree.leaves(batch), strict=True):
            np.testing.assert_allclose(x, y[1:], rtol=1e-5)
        if rate == 0.1:
            for name, rtol in (("a", 1e-12), ("b", 1e-5)):  # float64 and float32
                f = 0.1 * np.sum(u[name] ** 2, axis=-1) - 2 * inner[name]
                assert f.shape[1:] == ((3,) if name == "a" else ())
                full = batch[1][name]
                printed = appendix_i_sum(full[0], f, eta=0.1, lam=0.7)
                np.testing.assert_allclose(full, np.array(printed), rtol=rtol)


def test_rates_may_be_traced_and_differentiated():
    u = random_updates(10, 4)
    predict = jax.jit(
        lambda rate, decay: predicted_squared_norm(2.0, u, learning_rate=rate, weight_decay=decay)
    )
    rates, decays = jnp.array([0.1, 0.2]), jnp.array([0.0, 1.0])
    for i, row in enumerate(jax.vmap(predict)(rates, decays)):
        np.testing.assert_allclose(row, predict(rates[i], decays[i]), rtol=1e-6)
    slope = jax.grad(lambda rate: predict(rate, 0.0)[-1])(0.1)
    np.testing.assert_allclose(slope, 2 * 0.1 * np.sum(u**2), rtol=1e-5)


def test_the_slices_of_a_leaf_are_the_leaves_of_a_tree():
    w, u = random_updates(2, 8, 3, 2, 4)
    joint = radial_inner_products(w, u, axes=(0, 3))
    for i in range(3):
        for h in range(2):
            alone = radial_inner_products(w[:, i, h], u[:, i, h])
            for x, y in zip(joint, alone, strict=True):
                np.testing.assert_allclose(x[i, h], y, rtol=1e-5)


@pytest.mark.parametrize("axes", [(), None], ids=["elementwise", "coarse"])
def test_noise_makes_the_norm_grow_by_the_momentum_factor(axes):
    """300 discrete steps of Adam on gradients that are noise, orthogonal to W_n."""
    targets = jax.random.normal(jax.random.key(0), (300, 4096))
    w = 0.02 * jax.random.normal(jax.random.key(1), (4096,))
    b1 = jnp.array([0.0, 0.5, 0.8, 0.9])

    def growths(b1):
        stage = scale_by_coarse_grained_normalization(axes, b1)
        ws, _, _, record = follow(stage, w, targets, learning_rate=1e-3)
        return ws[-1] @ ws[-1] - w @ w, record.growth[-1]

    true, theorem = jax.jit(jax.vmap(growths))(b1)
    np.testing.assert_allclose(true / theorem, momentum_factor(b1), rtol=0.15)


def test_the_momentum_factor_is_exact_near_one():
    """Where float32's γ is not: 0.9998 is 1.3e-4 off in 1-γ."""
    for b1 in (0.9998, 1 - 1e-9, [0.9998]):
        exact = (1 + np.array(b1)) / (1 - np.array(b1))
        np.testing.assert_allclose(momentum_factor(b1), exact, rtol=1e-6)


# ‖W‖² and Ŵ on the flow


@partial(jax.jit, static_argnums=0)
def flow_growths(num_steps, b1, w, targets):
    """‖W‖²-‖W_0‖² on the flow at its end, true and as the three forms have it."""
    rate = 1e-3

    def statistics(state):
        w, u, velocity = state.params, state.updates[-1], state.velocity
        return w @ u, u @ u, velocity @ velocity

    solution = solve_flow(
        lambda w, target: jax.grad(invariant_loss)(w, target),
        w,
        learning_rate=rate,
        num_steps=num_steps,
        b1=b1,
        batches=targets,
        integrand=statistics,
        save=lambda state: (state.params @ state.params, state.integral),
    )
    squared_norms, integrals = solution.saved
    inner, update, velocity = (jnp.diff(integral) / rate for integral in integrals)
    predict = partial(
        predicted_squared_norm, squared_norms[0], learning_rate=rate, weight_decay=0.0
    )
    forms = (predict(update), predict(update, radial=inner), predict(velocity, radial=inner))
    return [x[-1] - squared_norms[0] for x in (squared_norms, *forms)]


@pytest.mark.parametrize("b1", [0.01, 0.5, 0.8, 0.9])
def test_the_full_form_on_the_flow(x64, b1):
    """Gradients are noise, the hardest case: u jumps the most at a change of minibatch."""
    rng = np.random.default_rng(0)
    w, targets = 0.01 * rng.standard_normal(1024), rng.standard_normal((300, 1024))
    true, theorem, full, with_velocity = flow_growths(300, b1, w, targets)
    assert true > 0.05 * (w @ w)
    assert abs(with_velocity / true - 1) < 0.05
    assert (abs(full / true - 1) < 0.01) == (b1 >= 0.8)
    assert abs(theorem / true - 1) > 0.05


@jax.jit
def rayleigh_gradient(w):
    """Return the gradient of ŴᵀAŴ, which is smooth and ignores ‖W‖."""
    rng = np.random.default_rng(5)
    matrix = rng.standard_normal((32, 32))
    return jax.grad(lambda w: w @ (matrix + matrix.T) @ w / (w @ w))(w)


def final_state(learning_rate, weight_decay, b1=0.9):
    w = random_updates(1, 32, seed=6, dtype=np.float64)[0]
    return solve_flow(
        rayleigh_gradient,
        3 * w / np.linalg.norm(w),
        learning_rate=learning_rate,
        num_steps=round(0.3 / learning_rate),
        substeps=20,
        b1=b1,
        weight_decay=weight_decay,
    ).state


@partial(jax.jit, static_argnames="form")
def relative_residual(state, learning_rate, weight_decay, form):
    """Return the residual of Proposition 3 on the flow, over ‖u‖/r."""
    w, velocity, u = state.params, state.velocity, state.updates[-1]
    acceleration = -2 / learning_rate * (weight_decay * w + velocity + u)
    residual = direction_residual(
        w, velocity, acceleration, u, learning_rate=learning_rate, form=form
    )
    return jnp.linalg.norm(residual) * jnp.linalg.norm(w) / jnp.linalg.norm(u)


def test_only_the_form_with_the_radial_term_becomes_exact(x64):
    """Residuals at t = 0.3 regressed on η."""
    rates = np.array([2e-3, 1e-3, 5e-4])
    states = [final_state(rate, 0.1) for rate in rates]

    def slope(form):
        sizes = [
            relative_residual(state, rate, 0.1, form)
            for state, rate in zip(states, rates, strict=True)
        ]
        return np.polyfit(np.log(rates), np.log(sizes), 1)[0], sizes[-1]

    order, size = slope("radial")
    assert order > 0.5
    for form in ("paper", "without_r"):
        other_order, other_size = slope(form)
        assert other_order < 0.1
        assert other_size > 100 * size


def test_the_residual_of_the_radial_form_is_known(x64):
    """-η (dr/dt / r) dŴ/dt, for any state and λ, where W obeys its equation."""
    w, velocity, u = random_updates(3, 7, dtype=np.complex128) + 0.3j
    acceleration = -2 / 0.01 * (0.4 * w + velocity + u)
    residual = direction_residual(w, velocity, acceleration, u, learning_rate=0.01)
    r = np.linalg.norm(w)
    r_dot = np.vdot(w, velocity).real / r
    hat_dot = (velocity - r_dot * w / r) / r
    np.testing.assert_allclose(residual, -0.01 * r_dot / r * hat_dot, rtol=1e-9)


def test_the_forms_differ_in_lambda_alone(x64):
    w, velocity, acceleration, u = random_updates(4, 7, dtype=np.float64)
    paper, without_r, radial = (
        direction_residual(w, velocity, acceleration, u, learning_rate=0.1, form=form)
        for form in ("paper", "without_r", "radial")
    )
    r = np.linalg.norm(w)
    hat = w / r
    hat_dot = (velocity - hat * (hat @ velocity)) / r
    np.testing.assert_allclose(paper - without_r, 0.05 * (r - 1) * hat_dot @ hat_dot * hat)
    np.testing.assert_allclose(without_r - radial, hat @ u / r * hat)


def test_residuals_are_taken_by_slice():
    trees = [{"w": x} for x in random_updates(4, 6, 3)]
    joint = direction_residual(*trees, learning_rate=0.1, axes=(0,))["w"]
    for i in range(3):
        alone = direction_residual(*(x["w"][:, i] for x in trees), learning_rate=0.1)
        np.testing.assert_allclose(joint[:, i], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("exponent", [-100, 100])
def test_residuals_survive_squares_that_overflow(exponent):
    """They do not depend on the unit in which W is measured."""
    trees = random_updates(4, 9)
    expected = direction_residual(*trees, learning_rate=0.1)
    scaled = direction_residual(*np.ldexp(trees, exponent), learning_rate=0.1)
    np.testing.assert_array_equal(scaled, expected)


# ‖W‖² as a moving average


def test_with_decay_the_norm_is_a_moving_average(x64):
    """η/(2λ) times an average with decay α; its distance to Theorem 2 at t=4 falls like η."""
    distances, rates = [], np.array([0.04, 0.02, 0.01])
    for rate in rates:
        num_steps = round(4 / rate)
        squares = 2 + np.sin(rate * np.arange(num_steps))
        theorem = predicted_squared_norm(0.05, squares, learning_rate=rate, weight_decay=0.5)
        decay, weight, gain = map(float, squared_norm_average(rate, 0.5))
        np.testing.assert_allclose(gain, rate / (2 * 0.5), rtol=1e-12)
        np.testing.assert_allclose(weight, gain * (1 - decay), rtol=1e-9)
        average = 0.05
        for square in squares:
            average = decay * average + weight * square
        distances.append(abs(average / float(theorem[-1]) - 1))
    slope = np.polyfit(np.log(rates), np.log(distances), 1)[0]
    assert 0.9 < slope < 1.1


def test_the_decay_has_the_kernel_of_weight_decay(x64):
    """(1-α)/(ηα) = 2λ."""
    rates, decays = jnp.array([1e-3, 0.1]), jnp.array([1e-2, 3.0])
    decay = squared_norm_average(rates, decays).decay
    np.testing.assert_allclose((1 - decay) / (rates * decay), 2 * decays, rtol=1e-9)


def test_without_decay_the_norm_is_a_sum():
    decay, weight, gain = squared_norm_average(0.1, 0.0)
    assert decay == 1
    assert np.isinf(gain)
    squares = np.arange(1.0, 9.0, dtype=np.float32)
    predicted = predicted_squared_norm(3.0, squares, learning_rate=0.1, weight_decay=0.0)
    np.testing.assert_allclose(predicted[1:], 3 + weight * np.cumsum(squares), rtol=1e-6)


# Assumption 2 as a stage


def test_a_power_of_two_on_all_gradients_changes_no_bit():
    gradients = random_updates(12, 3, 7)
    expected = jit_updates(scale_by_coarse_grained_normalization((1,)), gradients)
    stage = scale_by_coarse_grained_normalization((1,))
    for exponent in (-60, -20, 1, 60, 100):
        updates = jit_updates(stage, np.ldexp(gradients, exponent))
        np.testing.assert_array_equal(updates, expected, err_msg=f"2^{exponent}")


@pytest.mark.parametrize("decays", [(0.9, 0.999), (0.0, 0.9), (0.7, 0.0)])
def test_slices_of_one_entry_give_adaptive_normalization(decays):
    gradients = random_updates(30, 6) * (random_updates(30, 6, seed=1) > 0)
    expected = jit_updates(scale_by_adaptive_normalization(*decays), gradients)
    for axes, shape in (((), (30, 6)), ((1,), (30, 6, 1))):
        stage = scale_by_coarse_grained_normalization(axes, *decays)
        updates = jit_updates(stage, gradients.reshape(shape)).reshape(30, 6)
        np.testing.assert_array_equal(updates, expected)


def test_a_rotation_of_the_gradients_rotates_the_updates(x64):
    """With an elementwise second moment it does not."""
    gradients = random_updates(20, 6, dtype=np.float64)
    rotation, _ = np.linalg.qr(random_updates(6, 6, seed=1, dtype=np.float64))
    for stage, rotates in ((COARSE, True), (scale_by_adaptive_normalization(), False)):
        updates, rotated = jit_updates(stage, gradients), jit_updates(stage, gradients @ rotation)
        assert np.allclose(rotated, updates @ rotation, rtol=1e-12, atol=1e-12) == rotates


def test_without_momentum_updates_are_orthogonal_to_the_weight(x64):
    w, targets = np.split(random_updates(21, 6, dtype=np.float64), [1])
    for axes, orthogonal in ((None, True), ((), False)):
        stage = scale_by_coarse_grained_normalization(axes, b1=0.0)
        ws, _, u, _ = jit_follow(stage, w[0], targets, learning_rate=0.01)
        cosines = np.abs(jax.vmap(radial_inner_products)(ws[:-1], u).cosine)
        assert (cosines.max() < 1e-12) == orthogonal


def test_the_second_moment_is_the_mean_square_of_a_slice():
    gradients = random_updates(1, 4, 3, 2, 5)
    stage = scale_by_coarse_grained_normalization((0, 3), b1=0.0, b2=0.0)
    _, updates, state = feed(stage, gradients)
    assert state.rms.shape == (1, 1, 3, 2, 1)
    np.testing.assert_allclose(jnp.mean(updates**2, axis=(1, 4)), 1, rtol=1e-6)
    np.testing.assert_allclose(updates * state.rms, gradients, rtol=1e-6)


def test_where_leaves_the_values_elementwise():
    gradients = {"qkv": random_updates(8, 4, 3, 2, 5), "out": random_updates(8, 4, seed=1)}
    queries_and_keys = np.array([True, True, False]).reshape(3, 1, 1)
    stage = scale_by_coarse_grained_normalization(
        lambda path, leaf: (0, 3) if path == "qkv" else (),
        where=lambda path, leaf: queries_and_keys if path == "qkv" else True,
    )
    updates = jit_updates(stage, gradients)
    elementwise = jit_updates(scale_by_adaptive_normalization(), gradients)
    sliced = jit_updates(scale_by_coarse_grained_normalization((0, 3)), gradients["qkv"])
    close = partial(np.testing.assert_allclose, rtol=2e-6, atol=1e-7)
    close(updates["out"], elementwise["out"])
    close(updates["qkv"][:, :, 2], elementwise["qkv"][:, :, 2])
    close(updates["qkv"][:, :, :2], sliced[:, :, :2])


def test_where_across_a_slice_leaves_entries_out_of_its_mean():
    gradients = random_updates(8, 5)
    mask = np.array([True, False, True, False, True])
    updates = jit_updates(scale_by_coarse_grained_normalization(where=mask), gradients)
    close = partial(np.testing.assert_allclose, rtol=2e-6, atol=1e-7)
    close(updates[:, mask], jit_updates(COARSE, gradients[:, mask]))
    elementwise = jit_updates(scale_by_adaptive_normalization(), gradients)
    close(updates[:, ~mask], elementwise[:, ~mask])


def test_it_works_in_chains_and_sweeps():
    """Members with their own traced numbers, a second stage, masks, decay: as if run alone."""
    w, targets = random_updates(1, 6)[0], random_updates(15, 6, seed=1)

    def train(b1, learning_rate):
        optimizer = optax.chain(
            optax.masked(scale_by_coarse_grained_normalization(b1=b1), True),
            scale_by_adaptive_normalization(0.0, 0.99),
            record_squared_norm(learning_rate, 0.1),
            optax.add_decayed_weights(0.1),
            optax.scale_by_learning_rate(learning_rate),
        )

        def step(carry, target):
            w, state = carry
            updates, state = optimizer.update(jax.grad(invariant_loss)(w, target), state, w)
            return (optax.apply_updates(w, updates), state), None

        (last, state), _ = jax.lax.scan(step, (w, optimizer.init(w)), targets)
        return last, state[2].full

    b1s, rates = jnp.array([0.0, 0.5, 0.9]), jnp.array([1e-3, 1e-2, 1e-1])
    swept = jax.jit(jax.vmap(train))(b1s, rates)
    for i in range(3):
        for x, y in zip(swept, train(b1s[i], rates[i]), strict=True):
            np.testing.assert_allclose(x[i], y, rtol=1e-4, atol=1e-5)


def test_adam_with_recording_is_adam():
    gradients, w = random_updates(10, 4), jnp.ones(4)
    optimizer = optax.chain(
        scale_by_coarse_grained_normalization(()),
        record_squared_norm(0.1),
        optax.scale_by_learning_rate(0.1),
    )
    expected = jit_feed(kadam(0.1, k=1), gradients, w)[0]
    np.testing.assert_allclose(jit_feed(optimizer, gradients, w)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_spoils_only_its_slice(bad):
    gradients = random_updates(6, 3, 4)
    gradients[2, 1, 0] = bad
    updates = np.isfinite(jit_updates(scale_by_coarse_grained_normalization((1,)), gradients))
    assert updates[:2].all()
    assert updates[:, [0, 2]].all()
    assert not updates[2:, 1].any()


def test_a_norm_that_overflows_stays_infinite():
    predicted = predict(1e4, np.float32([1, 1, 0]), learning_rate=1e30)
    np.testing.assert_array_equal(predicted, np.float32([1e4, np.inf, np.inf, np.inf]))


def test_dead_slices_have_zero_updates_and_finite_derivatives():
    def total(gradients):
        return jnp.sum(feed(scale_by_coarse_grained_normalization((1,)), gradients)[1])

    gradients = random_updates(5, 3, 4)
    gradients[:, 1] = 0
    stage = scale_by_coarse_grained_normalization((1,))
    assert not np.any(jit_updates(stage, gradients)[:, 1])
    slopes = jax.jit(jax.grad(total))(gradients)
    assert np.isfinite(slopes).all()
    assert np.any(slopes[:, 0])


def test_derivatives_are_those_of_the_formula(x64):
    gradients = random_updates(1, 5, dtype=np.float64)[0]

    def by_stage(g):
        return scale_by_coarse_grained_normalization(b1=0.0, b2=0.0).update(g, COARSE.init(g))[0]

    def by_formula(g):
        return g / jnp.sqrt(jnp.mean(g**2))

    jacobians = [jax.jit(jax.jacobian(f))(gradients) for f in (by_stage, by_formula)]
    np.testing.assert_allclose(*jacobians, rtol=1e-12, atol=1e-12)


def test_a_phase_goes_through(x64):
    gradients = random_updates(10, 5, dtype=np.complex128) + 1j * random_updates(10, 5, seed=1)
    phase = np.exp(0.7j)
    np.testing.assert_allclose(
        jit_updates(COARSE, 3 * phase * gradients), phase * jit_updates(COARSE, gradients)
    )


def test_low_precision_is_accumulated_in_float32():
    gradients = random_updates(10, 5).astype(jnp.bfloat16)
    _, updates, state = jit_feed(COARSE, gradients)
    assert updates.dtype == jnp.bfloat16
    assert state.mu.dtype == state.rms.dtype == jnp.float32
    expected = jit_updates(COARSE, gradients.astype(np.float32))
    np.testing.assert_array_equal(updates, expected.astype(jnp.bfloat16))


def test_parameters_without_gradients_are_left_alone():
    """A network may also hold functions, and arrays that have no gradients."""
    recorder, trained = record_squared_norm(0.1), {"w": ONES, "f": None, "n": None}
    _, expected = recorder.update(trained, recorder.init(trained), trained)
    network = trained | {"f": jnp.tanh, "n": jnp.arange(3)}
    _, found = recorder.update(trained, recorder.init(trained), network)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    with pytest.raises(ValueError, match="structure of the parameters"):
        recorder.update(trained, recorder.init(trained), {"f": ONES, "n": None})


@pytest.mark.parametrize("axes", [None, (0,)])
def test_empty_leaves_pass(axes):
    stage = scale_by_coarse_grained_normalization(axes)
    recorder = record_squared_norm(0.1, axes=axes)

    @jax.jit
    def everything(tree):
        updates, _ = stage.update(tree, stage.init(tree))
        _, record = recorder.update(tree, recorder.init(tree), tree)
        return updates, record, radial_inner_products(tree, tree, axes=axes)

    tree = {"none": jnp.zeros((0, 3)), "one": jnp.ones((2, 3))}
    results = everything(tree)
    assert jax.tree.map(jnp.shape, results[0]) == jax.tree.map(jnp.shape, tree)
    for leaf in jax.tree.leaves(results):
        assert np.isfinite(leaf).all()


def test_empty_trees_pass():
    assert COARSE.update({}, COARSE.init({}))[0] == {}
    empty = predicted_squared_norm(2.0, np.zeros((0, 3)), learning_rate=0.1, weight_decay=0.0)
    assert empty.tolist() == [2.0]


# Arguments

ONES = np.ones(3, np.float32)


def predict(initial=1.0, updates=ONES, **overrides):
    return predicted_squared_norm(
        initial, updates, **{"learning_rate": 0.1, "weight_decay": 0.0, **overrides}
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: predict(-1.0), ValueError, "initial must be finite and at least 0, got -1"),
        (lambda: predict(1j), TypeError, "initial must be real"),
        (lambda: predict("a"), TypeError, "initial must be real"),
        (lambda: predict(updates=1j * ONES), TypeError, "updates_or_statistics must be real"),
        (lambda: predict(updates=-ONES), ValueError, "must be ‖u‖², at least 0"),
        (lambda: predict(radial=1j * ONES), TypeError, "radial must be real"),
        (lambda: predict(np.ones(2)), ValueError, "updates_or_statistics must have shape"),
        (lambda: predict(1.0, 2.0), ValueError, "updates_or_statistics must have shape"),
        (lambda: predict(radial=np.ones(4)), ValueError, r"radial must have shape \(3,\)"),
        (lambda: predict(learning_rate=np.ones(2)), ValueError, "learning_rate must be a scalar"),
        (lambda: predict(learning_rate=-0.1), ValueError, "learning_rate must be finite"),
        (lambda: predict(learning_rate=np.inf), ValueError, "learning_rate must be finite"),
        (lambda: predict(learning_rate=None), TypeError, "learning_rate must be real"),
        (lambda: predict(weight_decay=np.nan), ValueError, "weight_decay must be finite"),
        (lambda: predict(weight_decay=ONES), TypeError, "weight_decay must be a single number"),
        (lambda: record_squared_norm(-0.1), ValueError, "learning_rate must be finite"),
        (lambda: record_squared_norm(ONES), TypeError, "learning_rate must be a single number"),
        (lambda: record_squared_norm(0.1, -1.0), ValueError, "weight_decay must be finite"),
        (lambda: record_squared_norm(0.1, ONES), TypeError, "weight_decay must be a single number"),
        (
            lambda: record_squared_norm(0.1).update(ONES, record_squared_norm(0.1).init(ONES)),
            ValueError,
            "record_squared_norm needs params",
        ),
        (lambda: momentum_factor(1.0), ValueError, r"b1 must be in \[0, 1\), got 1"),
        (lambda: momentum_factor(0.5j), TypeError, "b1 must be real"),
        (lambda: momentum_factor(jnp.array(0.5j)), TypeError, "b1 must be real"),
        (lambda: squared_norm_average(0.1, -1.0), ValueError, "weight_decay must be finite"),
        (lambda: squared_norm_average(0.1j, 1.0), TypeError, "learning_rate must be real"),
        (
            lambda: direction_residual(*[ONES] * 4, learning_rate=ONES),
            TypeError,
            "learning_rate must be a single number",
        ),
        (
            lambda: direction_residual(*[ONES] * 4, learning_rate=0.1, form="r"),
            ValueError,
            "form must be one of paper, without_r, radial, got 'r'",
        ),
        (
            lambda: radial_inner_products({"w": ONES}, {"w": ONES}, axes=(1,)),
            ValueError,
            r"axes must be distinct axes of a leaf, got \(1,\) for leaf 'w' of shape \(3,\)",
        ),
        (lambda: radial_inner_products(ONES, ONES, axes=(0, -1)), ValueError, "distinct axes"),
        (lambda: radial_inner_products(ONES, ONES[:1]), ValueError, "the same shapes"),
        (lambda: radial_inner_products([ONES], [None]), ValueError, "leaves, got None for '0'"),
        *(
            (
                lambda axes=axes: radial_inner_products({"w": ONES}, {"w": ONES}, axes=axes),
                TypeError,
                "axes must be None, a sequence of ints .* for leaf 'w'",
            )
            for axes in (0, "0", (0.0,), (False,), iter((0,)), lambda path, leaf: 0)
        ),
        (lambda: scale_by_coarse_grained_normalization(0.9).init(ONES), TypeError, "axes must be"),
        (
            lambda: scale_by_coarse_grained_normalization(b1=ONES / 2),
            TypeError,
            "b1 must be a single number",
        ),
        (lambda: scale_by_coarse_grained_normalization(b1=1.0), ValueError, "b1 must be in"),
        (lambda: scale_by_coarse_grained_normalization(b2=-0.1), ValueError, "b2 must be in"),
        (lambda: scale_by_coarse_grained_normalization(eps=-1.0), ValueError, "eps must be finite"),
        (
            lambda: COARSE.update(np.arange(3), COARSE.init(ONES)),
            TypeError,
            "updates must be floating point or complex, got int",
        ),
        (
            lambda: scale_by_coarse_grained_normalization(where=ONES[:2] > 0).init(ONES),
            ValueError,
            "where must broadcast to leaf",
        ),
        *(
            (
                lambda where=where: scale_by_coarse_grained_normalization(where=where).init(ONES),
                TypeError,
                "where must be True, False or an array of bools",
            )
            for where in (1, ONES, "q", None, {"w": True})
        ),
    ],
)
def test_bad_arguments_say_what_would_be_right(call, error, message):
    with pytest.raises(error, match=message):
        call()


# Long runs in float32


def exact_squared_norm(initial, num_steps, learning_rate, weight_decay, square, radial):
    """The parts of φ_N from constant ‖W_0‖², ‖u‖² and ⟨W, u⟩, which are geometric series."""
    delta, powers = 2 * weight_decay * learning_rate, num_steps
    if delta > 0:
        powers = np.exp(-delta) * np.expm1(-delta * num_steps) / np.expm1(-delta)
    growth, radial = learning_rate**2 * square * powers, -2 * learning_rate * radial * powers
    return initial * np.exp(-delta * num_steps), growth, radial


LONG_RUNS = pytest.mark.parametrize(
    ("num_steps", "learning_rate", "weight_decay", "square", "radial"),
    [
        (10**6, 1e-4, 0.0, 1e2, 0.0),  # each step is 1e-10 of ‖W‖²
        (10**5, 1e-5, 1e-2, 0.0, 0.0),  # 2% of decay, 2e-7 a step
        (10**5, 1e-3, 0.2, 5.0, 1e-3),
        (10**5, 1.0, 0.6, 5.0, 1e-2),
    ],
)


@LONG_RUNS
def test_float32_predicts_long_runs(num_steps, learning_rate, weight_decay, square, radial):
    predicted = predicted_squared_norm(
        1e4,
        jnp.full(num_steps, square),
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        radial=jnp.full(num_steps, radial),
    )
    assert predicted.dtype == jnp.float32
    numbers = num_steps, learning_rate, weight_decay, square, radial
    exact = sum(exact_squared_norm(1e4, *numbers))
    np.testing.assert_allclose(predicted[-1], exact, rtol=5e-7)
    change = np.float64(predicted[-1]) - 1e4
    np.testing.assert_allclose(change, exact - 1e4, rtol=1e-6, atol=1e-3)  # float32's step at 1e4


@LONG_RUNS
def test_float32_records_long_runs(num_steps, learning_rate, weight_decay, square, radial):
    """W and u are two numbers that do not change."""
    w, u = jnp.array([100.0, 0.0]), jnp.array([radial / 100, np.sqrt(square - (radial / 100) ** 2)])
    recorder = record_squared_norm(learning_rate, weight_decay)

    @jax.jit
    def run(state):
        def step(state, _):
            return recorder.update(u, state, w)[1], None

        return jax.lax.scan(step, state, length=num_steps)[0]

    state = run(recorder.init(w))
    numbers = num_steps, learning_rate, weight_decay, square, radial
    exact = exact_squared_norm(1e4, *numbers)
    rtol = 1e-6 + 2e-7 * (2 * learning_rate * weight_decay * num_steps)  # of λη, rounded
    for term, value in zip((state.decayed, state.growth, state.radial), exact, strict=True):
        np.testing.assert_allclose(term, value, rtol=rtol)
    np.testing.assert_allclose(state.full, sum(exact), rtol=5e-7)


# Derivatives


def spread(x):
    """A scalar in which no symmetry hides a derivative."""
    x, _ = jax.flatten_util.ravel_pytree(x)
    return jnp.sum(jnp.sin(x * jnp.arange(1, x.size + 1)))


def norms(x):
    """Both ways to ‖W‖², given ‖W_0‖², η, λ, W, two updates and two ⟨W, u⟩."""
    recorder = record_squared_norm(x[1], x[2])
    w, updates, radial = x[3:5], x[5:9].reshape(2, 2), x[9:]

    def step(state, u):
        return recorder.update(u, state, w)[1], None

    state, _ = jax.lax.scan(step, recorder.init(w), updates)
    predicted = predicted_squared_norm(
        x[0], updates, learning_rate=x[1], weight_decay=x[2], radial=radial
    )
    return spread((predicted, state.decayed, state.growth, state.radial, state.full))


def directions(x):
    """Return residuals, given W, dW/dt, d²W/dt², u and η."""
    *trees, (rate,) = jnp.split(x, [3, 6, 9, 12])
    residuals = [
        direction_residual(*trees, learning_rate=rate, form=form)
        for form in ("paper", "without_r", "radial")
    ]
    return spread((residuals, radial_inner_products(trees[0], trees[-1])))


def closed_forms(x):
    return spread((momentum_factor(x[0]), squared_norm_average(x[1], x[2])[:2]))


def coarse_updates(x):
    """Return updates, given γ, β, ε and two gradients: of a slice, and with an entry left out."""
    gradients = x[3:].reshape(2, 3)
    masks = True, np.array([True, False, True])
    stages = [scale_by_coarse_grained_normalization(None, *x[:3], where=mask) for mask in masks]
    return spread([feed(stage, gradients)[1] for stage in stages])


@pytest.mark.parametrize(
    ("f", "points"),
    [
        (
            norms,
            [
                [2.0, 0.3, 0.0, 0.0, 0.5, 0.0, 0.0, 0.7, -0.3, 0.2, -0.1],  # λ = 0
                [0.0, 0.9, 0.9, 0.2, 0.0, 0.5, 0.0, 0.0, -0.3, 0.0, 0.4],
            ],
        ),
        (directions, [[0.5, 0.0, -0.3, 0.0, 1.0, 0.7, 0.4, 0.0, 0.2, 0.0, 0.1, -0.2, 0.0]]),
        (closed_forms, [[0.0, 0.3, 0.0], [0.5, 0.0, 0.5]]),
        (
            coarse_updates,
            [
                [0.5, 0.9, 0.1, 0.5, 0.1, -0.3, 0.0, 0.2, 0.0],
                [0.2, 0.9, 0.0, 0.5, 0.6, 0.0, 0.0, 0.0, 0.4],
            ],
        ),
    ],
    ids=["norms", "directions", "closed forms", "coarse"],
)
def test_derivatives_are_those_of_finite_differences(x64, f, points):
    check_derivatives(f, points, twice=[64])


def test_coarse_updates_differentiate_at_b1_zero(x64):
    """Compare with differences to one side: below 0 there is no decay."""
    step, weights = 1e-4, np.array([-11, 18, -9, 2]) / 6
    point = jnp.array([0.0, 0.9, 0.0, 0.5, 0.6, 0.0, 0.0, 0.0, 0.4])
    moved = point[None] + step * jnp.arange(4.0)[:, None] * jnp.eye(9)[:1]
    expected = float(weights @ jax.jit(jax.vmap(coarse_updates))(moved)) / step
    for mode in (jax.jacfwd, jax.jacrev):
        assert float(jax.jit(mode(coarse_updates))(point)[0]) == pytest.approx(expected, rel=1e-6)


def test_a_slice_that_is_zero_has_no_slope_and_no_nan():
    """‖x‖ has a kink at 0; everything here has the derivative 0 there."""
    zeros, w = np.zeros(3), np.array([0.5, 0.0, -0.3])
    pairs = np.array([(zeros, w), (w, zeros), (zeros, zeros)], np.float32)

    @jax.jit
    @jax.vmap
    def derivatives(pair):
        cosine = lambda pair: radial_inner_products(pair[0], pair[1]).cosine  # noqa: E731
        return jax.grad(cosine)(pair), jax.hessian(cosine)(pair)

    slopes, curvatures = derivatives(pairs)
    np.testing.assert_array_equal(slopes[:, 0], 0)
    assert jnp.isfinite(slopes).all()
    assert jnp.isfinite(curvatures).all()
