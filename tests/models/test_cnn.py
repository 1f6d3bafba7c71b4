"""Tests of the image classifier: size, convolutions, BatchNorm's state, and learning."""

import dataclasses
import functools
import json
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from models.cnn import CNN, CNNConfig, convolution
from models.functional import functional

SMALL = CNNConfig(width=1 / 16)
KEY = jax.random.key(0)
IMAGES = jax.random.normal(jax.random.key(1), (8, 32, 32, 3))
LABELS = jnp.arange(8)
SGD, ADAM = optax.sgd(1e-2), optax.adam(3e-3)


@functools.cache
def build(**changes):
    """`apply` of a small model, compiled once for the whole file."""
    config = dataclasses.replace(SMALL, **changes)
    _, apply = functional(lambda rngs: CNN(config, rngs=rngs))
    return jax.jit(apply, static_argnames="train")


@functools.cache
def initial():
    """Parameters and state of the small model, for any dtype and convolution."""
    init, _ = functional(lambda rngs: CNN(SMALL, rngs=rngs))
    return jax.jit(init)(KEY)


@functools.partial(jax.jit, static_argnames=("apply", "train"))
def loss_and_gradient(apply, params, state, images, train=True):
    def loss(params):
        logits, new_state = apply(params, state, images, train=train)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, LABELS)
        return losses.mean(), new_state

    return jax.value_and_grad(loss, has_aux=True)(params)


@functools.partial(jax.jit, static_argnames=("optimizer", "num_steps"))
def train(params, state, optimizer, num_steps):
    """Return losses, parameters and state of a run on one batch."""

    def step(carry, _):
        params, state, opt_state = carry
        (loss, state), grads = loss_and_gradient(build(), params, state, IMAGES)
        updates, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, updates), state, opt_state), loss

    carry, losses = jax.lax.scan(step, (params, state, optimizer.init(params)), length=num_steps)
    return losses, *carry[:2]


def is_convolution_bias(path):
    keys = [entry.key for entry in path]
    return keys[0] == "blocks" and keys[2:] == ["bias"]


def plain_convolution(x, kernel):
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)


def test_the_defaults_are_the_papers_6575370_parameters():
    init, _ = functional(lambda rngs: CNN(CNNConfig(), rngs=rngs))
    params, state = jax.eval_shape(init, KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 6_575_370
    # Two statistics for each of the channels that have a scale and a bias.
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) == 2 * (64 + 3 * 128 + 256 + 3 * 512)
    chex.assert_trees_all_equal_dtypes(*jax.tree.leaves((params, state)), jnp.float32(0))


@pytest.mark.parametrize(
    ("width", "first", "last"), [(1 / 64, 1, 8), (0.125, 8, 64), (2, 128, 1024)]
)
def test_width_multiplies_every_layers_channels(width, first, last):
    config = CNNConfig(width=width, num_classes=7)
    params, _ = jax.eval_shape(functional(lambda rngs: CNN(config, rngs=rngs)).init, KEY)
    shapes = [params["blocks"][i]["kernel"].shape for i in range(8)]
    inputs = (3, *(first * factor for factor in (1, 2, 2, 2, 4, 8, 8)))
    assert shapes == [(3, 3, *pair) for pair in zip(inputs, [*inputs[1:], last], strict=True)]
    assert params["weights"].shape == (last, 7)


def test_a_configuration_survives_json():
    assert CNNConfig(**json.loads(json.dumps(dataclasses.asdict(SMALL)))) == SMALL


@pytest.mark.parametrize("training", [True, False])
def test_logits_and_statistics_equal_a_literal_transcription(x64, training):
    # Scales, biases and running averages differ from their initial ones and zeros.
    params, state = arrays = jax.tree.map(
        lambda x: np.asarray(x, float) + 0.3 * np.abs(np.sin(np.arange(x.size))).reshape(x.shape),
        initial(),
    )
    new_averages = {}

    def block(i, x):
        weights, averages = arrays[0]["blocks"][i], arrays[1]["blocks"][i]["norm"]
        batch, height, width, _ = x.shape
        bordered = np.zeros((batch, height + 2, width + 2, x.shape[3]))
        bordered[:, 1:-1, 1:-1] = x
        y = np.zeros((batch, height, width, len(weights["bias"]))) + weights["bias"]
        for row in range(3):
            for column in range(3):
                shifted = bordered[:, row : row + height, column : column + width]
                y += shifted @ weights["kernel"][row, column]
        mean, var = averages["mean"], averages["var"]
        if training:
            mean, var = y.mean((0, 1, 2)), y.var((0, 1, 2))
            new_averages[i] = {
                "mean": 0.9 * averages["mean"] + 0.1 * mean,
                "var": 0.9 * averages["var"] + 0.1 * var,
            }
        normed = (y - mean) / np.sqrt(var + 1e-5)
        return np.maximum(normed * weights["norm"]["scale"] + weights["norm"]["bias"], 0)

    def max_pool(x, size):
        rows = range(0, x.shape[1], size)
        pooled = [[x[:, r : r + size, c : c + size].max((1, 2)) for c in rows] for r in rows]
        return np.moveaxis(np.array(pooled), 2, 0)

    x = max_pool(block(1, block(0, np.asarray(IMAGES, np.float64))), 2)
    x = x + block(3, block(2, x))
    x = max_pool(block(5, max_pool(block(4, x), 2)), 2)
    x = x + block(7, block(6, x))
    x = max_pool(x, 4).reshape(len(IMAGES), -1)
    expected = x @ arrays[0]["weights"] + arrays[0]["bias"]

    logits, new_state = build(dtype="float64")(params, state, IMAGES, train=training)
    np.testing.assert_allclose(logits, expected, rtol=1e-9, atol=1e-9)
    if training:
        averages = {"blocks": {i: {"norm": value} for i, value in new_averages.items()}}
        chex.assert_trees_all_close(new_state, averages, rtol=1e-9)
    else:
        chex.assert_trees_all_equal(new_state, state)


@pytest.mark.parametrize("shape", [(2, 5, 7, 3, 4), (1, 1, 2, 1, 1)])
def test_the_convolution_and_its_gradients_are_those_of_lax(x64, shape):
    batch, height, width, inputs, outputs = shape
    keys = jax.random.split(KEY, 3)
    x = jax.random.normal(keys[0], (batch, height, width, inputs))
    kernel = jax.random.normal(keys[1], (3, 3, inputs, outputs))
    cotangent = jax.random.normal(keys[2], (batch, height, width, outputs))

    @functools.partial(jax.jit, static_argnums=0)
    def value_and_gradients(convolve):
        value, backward = jax.vjp(convolve, x, kernel)
        return value, backward(cotangent)

    plain, ours = map(value_and_gradients, (plain_convolution, convolution))
    chex.assert_trees_all_close(ours, plain, rtol=1e-12, atol=1e-12)


def test_the_convolutions_gradients_can_be_differentiated(x64):
    kernel = jax.random.normal(KEY, (3, 3, 3, 2))

    images = jax.random.normal(KEY, (1, 5, 6, 3))

    @functools.partial(jax.jit, static_argnums=0)
    def curvature_product(convolve):
        def gradient(kernel):
            return jax.grad(lambda k: jnp.sum(convolve(images, k) ** 4))(kernel)

        forward = jax.jvp(gradient, (kernel,), (jnp.cos(kernel),))[1]
        return forward, jax.vjp(gradient, kernel)[1](jnp.cos(kernel))[0]

    chex.assert_trees_all_close(*map(curvature_product, (convolution, plain_convolution)))
    chex.assert_trees_all_close(*curvature_product(convolution))


def convolution_layouts(conv, platform):
    """Return the layout of each convolution in the program of a gradient."""
    traced = loss_and_gradient.trace(build(conv=conv), *initial(), IMAGES)
    program = traced.lower(lowering_platforms=(platform,)).as_text()
    lines = [line for line in program.splitlines() if "stablehlo.convolution" in line]
    return sorted(line.split("dim_numbers = ")[1].split(", window")[0] for line in lines)


def test_on_a_cpu_convolutions_have_the_fast_layout():
    canonical = "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
    # There are eight layers with three convolutions each, but images get no gradient.
    assert convolution_layouts("auto", "cpu") == [canonical] * 23
    assert convolution_layouts("lax", "cpu").count(canonical) == 8


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_on_an_accelerator_convolutions_are_jaxs_own(platform):
    assert convolution_layouts("auto", platform) == convolution_layouts("lax", platform)


@pytest.mark.parametrize("mapping", [jax.vmap, lambda fn: functools.partial(jax.lax.map, fn)])
def test_members_equal_separate_runs(mapping):
    def run(member):
        return train(*member, SGD, num_steps=3)

    members = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), initial())
    together = jax.jit(mapping(run))(members)
    for i in range(2):
        mine, start = jax.tree.map(lambda x, i=i: x[i], (together, members))
        chex.assert_trees_all_close(mine, run(start), rtol=1e-3, atol=1e-4)
    assert not np.allclose(*together[0], rtol=0.1)


def test_in_evaluation_images_are_independent():
    apply = build()
    params, state = initial()
    _, trained = apply(params, state, IMAGES, train=True)
    logits, unchanged = apply(params, trained, IMAGES)
    chex.assert_trees_all_equal(unchanged, trained)
    alone, _ = apply(params, trained, IMAGES[:1])
    chex.assert_trees_all_close(logits[:1], alone, rtol=1e-4, atol=1e-5)
    in_training, _ = apply(params, trained, IMAGES, train=True)
    assert jnp.abs(logits - in_training).max() > 0.1


def test_every_parameter_gets_a_gradient_but_biases_cancel():
    evaluated, trained = (
        loss_and_gradient(build(), *initial(), IMAGES, train=training)[1]
        for training in (False, True)
    )
    pairs = zip(jax.tree.leaves_with_path(evaluated), jax.tree.leaves(trained), strict=True)
    for (path, in_evaluation), in_training in pairs:
        chex.assert_tree_all_finite((in_evaluation, in_training))
        assert jnp.any(in_evaluation != 0), path
        if is_convolution_bias(path):
            assert jnp.abs(in_training).max() < 1e-3 * jnp.abs(in_evaluation).max(), path
        else:
            assert jnp.mean(in_training != 0) > 0.9, path


def test_both_convolutions_give_the_same_losses_and_gradients():
    results = [loss_and_gradient(build(conv=conv), *initial(), IMAGES) for conv in ("auto", "lax")]
    chex.assert_trees_all_close(*results, rtol=1e-3, atol=1e-4)


def test_a_sharded_batch_has_the_statistics_of_the_whole():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(IMAGES, NamedSharding(mesh, PartitionSpec("data")))
    replicated = jax.device_put(initial(), NamedSharding(mesh, PartitionSpec()))
    alone = jax.device_get(loss_and_gradient(build(), *initial(), IMAGES))
    together = jax.device_get(loss_and_gradient(build(), *replicated, spread))
    chex.assert_trees_all_close(together, alone, rtol=1e-3, atol=1e-4)


def test_the_initial_loss_is_of_the_order_of_uniform_guesses():
    (loss, _), _ = loss_and_gradient(build(), *initial(), IMAGES)
    assert 0.5 * math.log(10) < loss < 2 * math.log(10)


def test_it_overfits_one_batch():
    losses, params, state = train(*initial(), ADAM, num_steps=40)
    assert losses[-1] < 0.05 < losses[0]
    logits, _ = build()(params, state, IMAGES)
    assert jnp.all(logits.argmax(-1) == LABELS)  # the running averages have followed


def test_with_bfloat16_activations_the_rest_stays_float32():
    apply = build(dtype="bfloat16")
    assert jax.eval_shape(apply, *initial(), IMAGES)[0].dtype == jnp.bfloat16
    (_, new_state), grads = loss_and_gradient(apply, *initial(), IMAGES)
    chex.assert_trees_all_equal_dtypes(*jax.tree.leaves((new_state, grads)), jnp.float32(0))
    (_, exact_state), _ = loss_and_gradient(build(), *initial(), IMAGES)
    chex.assert_trees_all_close(new_state, exact_state, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_classes": 0}, "num_classes must be an integer of at least 1, got 0"),
        ({"num_classes": 2.5}, "num_classes must be an integer of at least 1, got 2.5"),
        ({"num_classes": 2**31}, "width and num_classes must be smaller"),
        ({"width": 2**31}, "width must be smaller: .* shape 9 x 1099511627776 x 1099511627776"),
        ({"width": 1e300}, "width must be smaller"),
        ({"width": 0}, "width must be a positive multiple of 1/64, got 0"),
        ({"width": 0.1}, "width must be a positive multiple of 1/64, got 0.1"),
        ({"width": math.inf}, "width must be a positive multiple of 1/64, got inf"),
        ({"width": math.nan}, "width must be a positive multiple of 1/64, got nan"),
        ({"conv": "fft"}, "conv must be 'auto' or 'lax', got 'fft'"),
    ],
)
def test_an_impossible_configuration_raises(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **changes)


@pytest.mark.parametrize("shape", [(32, 32, 3), (1, 3, 32, 32), (1, 28, 28, 1)])
def test_images_of_another_shape_raise_before_compilation(shape):
    with pytest.raises(ValueError, match=r"images must be \(batch, 32, 32, 3\), got \("):
        jax.eval_shape(build(), *initial(), jnp.zeros(shape))
