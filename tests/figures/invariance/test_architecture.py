"""figures/invariance/architecture."""

import types

import jax
import numpy as np
import pytest
from flax import nnx

from experiments.figures.invariance.architecture import FIGURE
from experiments.figures.invariance.architecture.plot import plot
from experiments.figures.invariance.architecture.run import (
    find_layers,
    num_parameters,
)
from models.cnn import CNN, IMAGE_SHAPE, CNNConfig
from tests.figures.contract import Contract

CONFIG = FIGURE.presets["smoke"]


def test_layers_are_those_in_the_papers_figure(data):
    drawn = "image conv conv pool conv conv sum conv pool conv pool conv conv sum pool linear"
    names = {"convolution": "conv", "max-pool": "pool"}
    kinds = data.kind.values.tolist()
    assert [names.get(kind, kind) for kind in kinds] == drawn.split()
    sides = [32, 32, 32, 16, 16, 16, 16, 16, 8, 8, 4, 4, 4, 4, 1, 1]
    assert data.side.values.tolist() == sides
    channels = [48, 64, 128, 128, 128, 128, 128, 256, 256, *[512] * 6, 160]  # of width 1
    assert (16 * data.channels).values.tolist() == channels


def test_sums_add_the_layer_before_and_the_block_input(data):
    for place in np.flatnonzero(data.kind == "sum"):
        assert data.first_input[place] == place - 1
        assert data.second_input[place] == place - 3
        assert data.kind[place - 3] == "max-pool"
    others = data.isel(layer=(data.kind != "sum") & (data.layer > 0))
    np.testing.assert_array_equal(others.first_input, others.layer - 1)
    assert (others.second_input == -1).all()


def test_parameters_are_those_of_the_papers_network():
    """This is at width 1, without running the network."""
    model = nnx.eval_shape(lambda: CNN(CNNConfig(), rngs=nnx.Rngs(0)))
    assert num_parameters(model) == 6_575_370


def test_layers_have_all_parameters(data):
    assert data.num_parameters.sum() == data.total_parameters
    convolutions = data.isel(layer=data.kind == "convolution")
    inputs = [3, *convolutions.channels.values[:-1]]
    for before, layer in zip(inputs, convolutions.layer, strict=True):
        at = convolutions.sel(layer=layer)
        assert at.num_parameters == (9 * before + 3) * at.channels


def test_a_differently_wired_network_is_drawn_differently():
    """One network lacks the first residual sum, and one has an input that cannot be found."""
    images = jax.random.normal(jax.random.key(0), (1, *IMAGE_SHAPE))

    def pass_with(combine):
        def call(self, images):
            blocks = self.blocks
            x = nnx.max_pool(blocks[1](blocks[0](images)), (2, 2), (2, 2))
            x = combine(x, blocks[3](blocks[2](x)))
            for block in blocks[4:6]:
                x = nnx.max_pool(block(x), (2, 2), (2, 2))
            x = nnx.max_pool(blocks[7](blocks[6](x)), (4, 4), (4, 4))[:, 0, 0]
            return x @ self.weights + self.bias[None]

        return types.new_class("Other", (CNN,), exec_body=lambda body: body.update(__call__=call))

    model = pass_with(lambda x, y: y)(CONFIG.model, rngs=nnx.Rngs(0))
    model.eval()
    assert "sum" not in {layer.kind for layer in find_layers(model, images)}
    model = pass_with(lambda x, y: 2 * x + y)(CONFIG.model, rngs=nnx.Rngs(0))
    model.eval()
    with pytest.raises(ValueError, match="not a sum of earlier outputs"):
        find_layers(model, images)


def test_every_layer_is_drawn(data):
    (panel,) = plot(data)[""].axes
    texts = [text.get_text() for text in panel.texts]
    assert texts.count("convolution 3 × 3, BatchNorm, ReLU") == 8
    assert texts.count("max-pool 2 × 2") == 3
    assert f"{data.total_parameters.item():,}" in panel.get_title(loc="left")


CONTRACT = Contract(FIGURE, CONFIG, panels={"": 1}, refused=[{"num_images": 0}])
