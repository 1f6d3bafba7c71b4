"""Tests of pure modules: plain dictionaries, members under vmap, randomness only on request."""

import chex
import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint
import pytest
from flax import nnx

from models.cnn import CNN, CNNConfig
from models.functional import functional
from models.nanogpt import GPTConfig, NanoGPT


class Tiny(nnx.Module):
    """A dense layer, BatchNorm and dropout: parameters, state and randomness in one module."""

    def __init__(self, rngs):
        self.dense = nnx.Linear(4, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.5)
        self.layers = nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(2)])

    def __call__(self, batch, *, rngs=None):
        x = self.norm(self.dense(batch))
        x = self.dropout(x, deterministic=rngs is None, rngs=rngs)
        for layer in self.layers:
            x = layer(x)
        return x


KEY = jax.random.key(0)
BATCH = jax.random.normal(jax.random.key(1), (16, 4)) + 2.0


def test_parameters_and_state_are_plain_dictionaries_of_arrays():
    params, state = functional(Tiny).init(KEY)
    dense = {"kernel": (3, 3), "bias": (3,)}
    assert jax.tree.map(jnp.shape, params) == {
        "dense": {"kernel": (4, 3), "bias": (3,)},
        "norm": {"scale": (3,), "bias": (3,)},
        "layers": {0: dense, 1: dense},
    }
    assert jax.tree.map(jnp.shape, state) == {"norm": {"mean": (3,), "var": (3,)}}
    assert all(type(leaf) is type(BATCH) for leaf in jax.tree.leaves((params, state)))


def test_initial_parameters_are_those_of_the_module_itself():
    params, _ = functional(Tiny).init(KEY)
    module = Tiny(nnx.Rngs(KEY))
    chex.assert_trees_all_equal(params, nnx.to_pure_dict(nnx.state(module, nnx.Param)))
    assert jnp.ptp(params["dense"]["kernel"]) > 0


def test_batch_norm_uses_the_batch_only_in_training():
    init, apply = functional(Tiny)
    params, state = init(KEY)
    hidden = BATCH @ params["dense"]["kernel"] + params["dense"]["bias"][None]

    _, trained = apply(params, state, BATCH, train=True)
    expected = {
        "mean": 0.9 * state["norm"]["mean"] + 0.1 * hidden.mean(0),
        "var": 0.9 * state["norm"]["var"] + 0.1 * hidden.var(0),
    }
    chex.assert_trees_all_close(trained["norm"], expected, rtol=1e-4)

    # In evaluation an example's output does not depend on the others.
    outputs, unchanged = apply(params, trained, BATCH, KEY, train=False)
    chex.assert_trees_all_equal(unchanged, trained)
    alone, _ = apply(params, trained, BATCH[:1], train=False)
    chex.assert_trees_all_close(outputs[:1], alone, rtol=1e-5)


def test_only_a_key_in_training_makes_it_random():
    init, apply = functional(Tiny)
    params, state = init(KEY)

    def outputs(key, train):
        return apply(params, state, BATCH, key, train)[0]

    first, second = jax.random.split(KEY)
    chex.assert_trees_all_equal(outputs(first, True), outputs(first, True))
    assert jnp.any(outputs(first, True) != outputs(second, True))
    assert jnp.any(outputs(first, True) != outputs(None, True))
    chex.assert_trees_all_equal(outputs(first, False), outputs(None, False))


def test_members_under_vmap_equal_separate_runs():
    init, apply = functional(Tiny)
    optimizer = optax.sgd(0.1)

    def train(key):
        params, state = init(key)

        def step(carry, key):
            params, state = carry

            def loss(params):
                outputs, new_state = apply(params, state, BATCH, key, True)
                return jnp.mean(outputs**2), new_state

            (value, state), grads = jax.value_and_grad(loss, has_aux=True)(params)
            updates, _ = optimizer.update(grads, optimizer.init(params))
            return (optax.apply_updates(params, updates), state), value

        return jax.lax.scan(step, (params, state), jax.random.split(key, 5))

    keys = jax.random.split(KEY, 3)
    together = jax.jit(jax.vmap(train))(keys)
    for member, key in enumerate(keys):
        alone = jax.jit(train)(key)
        mine = jax.tree.map(lambda x, member=member: x[member], together)
        chex.assert_trees_all_close(mine, alone, rtol=1e-5, atol=1e-6)
    losses = together[1]  # (num_members, num_steps)
    assert jnp.all(losses[:, -1] < losses[:, 0])
    assert len(set(losses[:, 0].tolist())) == 3


def test_the_module_is_built_once_plus_once_per_init():
    built = []

    def factory(rngs):
        built.append(rngs)
        return Tiny(rngs)

    init, apply = functional(factory)
    params, state = init(KEY)
    assert len(built) == 2
    jitted = jax.jit(chex.assert_max_traces(apply, n=1), static_argnames="train")
    for key in jax.random.split(KEY, 3):
        _, state = jitted(params, state, BATCH, key, train=True)
    assert len(built) == 2


def test_optax_masks_and_checkpoints_accept_the_parameters(tmp_path):
    init, _ = functional(Tiny)
    params, _ = init(KEY)
    matrices = jax.tree.map(lambda x: x.ndim > 1, params)
    decay = optax.masked(optax.add_decayed_weights(1.0), matrices)
    updates, _ = decay.update(jax.tree.map(jnp.zeros_like, params), decay.init(params), params)
    expected = jax.tree.map(lambda x: x if x.ndim > 1 else jnp.zeros_like(x), params)
    chex.assert_trees_all_equal(updates, expected)

    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "params", params)
        checkpointer.wait_until_finished()
        template, _ = jax.eval_shape(init, KEY)
        restored = checkpointer.restore(tmp_path / "params", template)
    chex.assert_trees_all_equal(restored, params)


def test_a_module_with_its_own_random_state_raises():
    with pytest.raises(ValueError, match=r"random state \(\['layers'\]\).*rngs of each call"):
        functional(lambda rngs: nnx.Sequential(nnx.Dropout(0.5, rngs=rngs)))


@pytest.mark.parametrize("config", [GPTConfig, CNNConfig])
@pytest.mark.parametrize("dtype", ["float99", "int32", "complex64", "float8_e4m3fn", "", None])
def test_an_unsupported_dtype_raises(config, dtype):
    with pytest.raises(ValueError, match=f"dtype must be one of float32, .*, got {dtype!r}"):
        config(dtype=dtype)


@pytest.mark.parametrize(
    ("module", "config", "inputs"),
    [
        (NanoGPT, GPTConfig, jnp.zeros((1, 2), jnp.int32)),
        (CNN, CNNConfig, jnp.zeros((1, 32, 32, 3))),
    ],
)
def test_float64_raises_where_it_would_be_float32(module, config, inputs):
    config = config(dtype="float64")  # making the configuration and the module is allowed
    init, apply = functional(lambda rngs: module(config, rngs=rngs))
    abstract = jax.eval_shape(init, jax.random.key(0))
    with pytest.raises(ValueError, match="dtype='float64' needs JAX_ENABLE_X64=1"):
        jax.eval_shape(apply, *abstract, inputs)
    with jax.enable_x64(True):
        assert jax.eval_shape(apply, *abstract, inputs)[0].dtype == jnp.float64
