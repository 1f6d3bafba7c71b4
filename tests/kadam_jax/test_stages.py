"""Normalization stages around other optimizers, and what they bound."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax.contrib import scale_by_muon

from kadam_jax import (
    scale_by_adaptive_normalization,
    scale_by_coarse_grained_normalization,
    scale_to_rms,
)
from tests.kadam_jax.support.scanning import jit_updates

B1, B2, EPS, RMS = 0.95, 0.9, 1e-8, 0.2
SIZES = np.logspace(3, 6, 8)[:, None, None]  # where an epsilon of 1e-8 makes no difference
GRADIENTS = np.random.default_rng(0).standard_normal((8, 6, 4)) * SIZES


def orthogonalized(matrix):
    """Five steps of Muon's iteration, in NumPy."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / (np.linalg.norm(x) + 1e-8)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if is_tall else x


def reference(momentum, direction, axes):
    """The published algorithms: momentum, orthogonalization, a second moment, one size."""
    m, v = np.zeros((6, 4)), 0.0
    for g in GRADIENTS:
        m = momentum(m, g)
        o = orthogonalized(direction(m))
        v = B2 * v + (1 - B2) * np.mean(o**2, axis=axes, keepdims=True)
        u = o / (np.sqrt(v) + EPS)
        yield RMS * np.sqrt(u.size) / np.linalg.norm(u) * u


def test_adamuon_is_a_chain(x64):
    ours = optax.chain(
        optax.trace(B1),
        optax.scale_by_sign(),
        scale_by_muon(beta=0, nesterov=False),
        scale_by_adaptive_normalization(0, B2, EPS),
        scale_to_rms(RMS),
    )
    theirs = [*reference(lambda m, g: B1 * m + g, np.sign, ())]
    np.testing.assert_allclose(jit_updates(ours, GRADIENTS), theirs, rtol=1e-6, atol=1e-9)


def test_normuon_is_a_chain(x64):
    ours = optax.chain(
        scale_by_muon(beta=B1, nesterov=False),
        scale_by_adaptive_normalization(0, B2, EPS, axes=(0,)),
        scale_to_rms(RMS),
    )
    theirs = [*reference(lambda m, g: B1 * m + (1 - B1) * g, lambda m: m, 0)]
    np.testing.assert_allclose(jit_updates(ours, GRADIENTS), theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("axes", [None, (0,), (0, 1)], ids=str)
def test_shared_second_moments_are_the_coarse_grained_ones(axes):
    stages = scale_by_adaptive_normalization, scale_by_coarse_grained_normalization
    ours, theirs = (
        jit_updates(stage(b1=B1, b2=B2, axes=axes), np.float32(GRADIENTS)) for stage in stages
    )
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("axes", "count"), [((), 1), ((0,), 6), (None, 24)], ids=str)
def test_without_momentum_the_supremum_is_attained(x64, axes, count):
    steps = 5
    stage = scale_by_adaptive_normalization(0, B2, axes=axes)
    supremum = np.sqrt(count * (1 - B2**steps) / (1 - B2))
    impulse = np.zeros((steps, 6, 4))
    impulse[-1, 2, 3] = -7.0
    np.testing.assert_allclose(np.abs(jit_updates(stage, impulse)).max(), supremum, rtol=1e-12)
    assert np.abs(jit_updates(stage, GRADIENTS[:steps])[-1]).max() < supremum


def test_second_moments_have_one_entry_for_each_slice():
    params = {"up": jnp.ones((6, 4), jnp.bfloat16), "scale": jnp.ones(4)}
    stage = scale_by_adaptive_normalization(axes=lambda path, _: (0,) if path == "up" else ())
    state = stage.init(params)
    assert jax.tree.map(jnp.shape, state.rms) == {"up": (1, 4), "scale": (4,)}
    assert state.rms["up"].dtype == state.mu["up"].dtype == jnp.float32


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("axes", [None, (0,), ()], ids=str)
def test_every_slice_gets_the_same_rms(axes, scale):
    update = jnp.asarray(GRADIENTS[0] * scale, jnp.float32)
    scaled, state = scale_to_rms(0.25, axes).update({"w": update}, optax.EmptyState())
    over = (0, 1) if axes is None else axes
    np.testing.assert_allclose(np.sqrt(np.mean(scaled["w"] ** 2, axis=over)), 0.25, rtol=1e-6)
    np.testing.assert_array_equal(np.sign(scaled["w"]), np.sign(update))
    assert state == optax.EmptyState()


def test_no_entry_exceeds_the_root_of_the_size():
    update = jnp.zeros(100).at[3].set(-1e-12)
    scaled, _ = scale_to_rms(0.2).update(update, optax.EmptyState())
    np.testing.assert_allclose(jnp.abs(scaled).max(), 0.2 * 10, rtol=1e-6)


def test_zeros_none_complex_and_half_precision_pass():
    updates = {
        "zero": jnp.zeros(3),
        "none": None,
        "complex": jnp.array([3j, 4.0]),
        "half": jnp.array([3.0, -4.0], jnp.bfloat16),
        "empty": jnp.zeros((0, 2)),
    }
    scaled, _ = jax.jit(lambda t, u: scale_to_rms(t).update(u, optax.EmptyState()))(1.0, updates)
    assert jax.tree.map(jnp.result_type, scaled) == jax.tree.map(jnp.result_type, updates)
    assert not scaled["zero"].any()
    np.testing.assert_allclose(scaled["complex"], np.array([3j, 4]) / np.sqrt(12.5), rtol=1e-6)
    np.testing.assert_allclose(
        np.float32(scaled["half"]), np.array([3, -4]) / np.sqrt(12.5), rtol=1e-2
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: scale_to_rms(-1.0), ValueError, "target must be"),
        (lambda: scale_to_rms("big"), TypeError, "target must be"),
        (
            lambda: scale_to_rms(1.0, (2,)).update(jnp.ones((2, 2)), optax.EmptyState()),
            ValueError,
            "axes must be distinct axes of a leaf",
        ),
        (
            lambda: scale_to_rms(1.0).update({"w": jnp.ones(2, int)}, optax.EmptyState()),
            TypeError,
            r"updates\['w'\] must be",
        ),
        (
            lambda: scale_by_adaptive_normalization(axes=(1,)).init(jnp.ones(2)),
            ValueError,
            "axes must be distinct axes of a leaf",
        ),
        (
            lambda: scale_by_adaptive_normalization(axes="in").init(jnp.ones(2)),
            TypeError,
            "axes must be None, a sequence of ints",
        ),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
