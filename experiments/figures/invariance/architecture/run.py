"""The image classifier's architecture, read from the model itself (Fig. 10).

Layers, shapes and parameters are those of the module. Operations between its blocks are found by
running it once on random images: every input is looked up among pooled earlier outputs and pooled
sums of two of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from flax import nnx

from experiments.core.config import FigureConfig, check_least
from experiments.core.run import Run
from experiments.core.store import coordinates, named, over
from models.cnn import CNN, IMAGE_SHAPE, Block, CNNConfig

NONE = -1
"""The second input of layers that have one."""


@dataclass(frozen=True)
class Config(FigureConfig):
    """The network that is drawn.

    Attributes:
      model: The network.
      num_images: Random images that reveal the operations between the blocks.
    """

    model: CNNConfig = field(default_factory=CNNConfig)
    num_images: int = 2

    def __post_init__(self):
        check_least(self, num_images=1)


class Layer(NamedTuple):
    """A box of the diagram."""

    kind: str
    """"image", "convolution", "sum", "max-pool" or "linear"."""
    description: str
    """The text in its box."""
    side: int
    """Pixels on each side of its output; 1 after the last pooling."""
    channels: int
    """Channels of its output."""
    num_parameters: int
    """Its own parameters, BatchNorm's included."""
    inputs: tuple[int, ...]
    """Places of the layers whose outputs it takes as inputs."""


def compute(config: Config, run: Run) -> xr.Dataset:
    """Return the network's layers in the order of the forward pass; `run` is not used."""
    del run
    model = CNN(config.model, rngs=nnx.Rngs(0))
    model.eval()
    images = jax.random.normal(jax.random.key(0), (config.num_images, *IMAGE_SHAPE))
    layers = find_layers(model, images)
    first, second = zip(*((*layer.inputs, NONE, NONE)[:2] for layer in layers), strict=True)
    rows = {
        name: ([getattr(layer, name) for layer in layers], *label)
        for name, label in COLUMNS.items()
    } | {
        "first_input": (first, "place of the layer whose output it takes; -1 for none"),
        "second_input": (second, "place of the layer whose output is added; -1 for none"),
    }
    total = named(num_parameters(model), "parameters of the network")
    return xr.Dataset(
        over("layer", rows) | {"total_parameters": total},
        coordinates(layer=(np.arange(len(layers)), "place in the forward pass")),
    )


COLUMNS = {
    "kind": ("kind of layer",),
    "description": ("what the layer does",),
    "side": ("pixels on each side of the output", "pixel"),
    "channels": ("channels of the output",),
    "num_parameters": ("parameters of the layer, BatchNorm's included",),
}
"""Variables of each layer: long_name, and units where there are any."""


def num_parameters(module: nnx.Module) -> int:
    """Count the numbers that are trained."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module, nnx.Param)))


def find_layers(model: CNN, images: jax.Array) -> list[Layer]:
    """Find the layers of a network in the order of its forward pass.

    Args:
      model: In evaluation mode.
      images: (batch, 32, 32, 3), random.

    Returns:
      The layers, which have all of the network's parameters.

    Raises:
      ValueError: If a block's input is not made of earlier outputs by adding and pooling.
    """
    layers, outputs = [], []

    def add(kind: str, text: str, output: jax.Array, parameters: int, *inputs: int) -> None:
        _, side, _, channels = output.shape
        layers.append(Layer(kind, text, side, channels, parameters, inputs))
        outputs.append(output)

    def lead_to(target: jax.Array) -> int:
        """Add the sum and the pooling between the latest output and `target`."""
        inputs, window = _origin(outputs, target)
        if len(inputs) > 1:
            add("sum", "+", outputs[inputs[0]] + outputs[inputs[1]], 0, *inputs)
        if window > 1:
            add("max-pool", f"max-pool {window} × {window}", target, 0, len(layers) - 1)
        return len(layers) - 1

    add("image", "image", images, 0)
    calls, features = forward(model, images)
    for block, (x, y) in zip(model.blocks, calls, strict=True):
        add("convolution", _description(block), y, num_parameters(block), lead_to(x))
    last = lead_to(features)
    rest = num_parameters(model) - sum(layer.num_parameters for layer in layers)
    logits = model(images)[:, None, None]
    add("linear", "linear", logits, rest, last)
    return layers


def forward(model: CNN, images: jax.Array) -> tuple[list[tuple[jax.Array, jax.Array]], jax.Array]:
    """Return every block's input and output, and the features, (batch, 1, 1, channels).

    The forward pass is the model's own, on an object whose blocks record their inputs and whose
    last layer is the identity.
    """
    calls = []

    def recorded(block):
        def call(x):
            calls.append((x, block(x)))
            return calls[-1][1]

        return call

    channels = model.config.channels[-1]
    watched = SimpleNamespace(
        config=model.config,
        blocks=[recorded(block) for block in model.blocks],
        weights=jnp.eye(channels),
        bias=jnp.zeros(channels),
    )
    features = type(model).__call__(watched, images)
    return calls, features[:, None, None]


def _description(block: Block) -> str:
    height, width, *_ = block.kernel.shape
    return f"convolution {height} × {width}, {type(block.norm).__name__}, ReLU"


def _origin(outputs: Sequence[jax.Array], target: jax.Array) -> tuple[tuple[int, ...], int]:
    """Find the outputs (the latest and perhaps one more) whose sum, after pooling, is `target`, and
    the window of that pooling."""
    *earlier, latest = range(len(outputs))
    candidates = [(latest,), *((latest, other) for other in earlier)]
    window = outputs[latest].shape[1] // target.shape[1]
    for places in candidates:
        terms = [outputs[place] for place in places]
        if len({term.shape for term in terms}) > 1:
            continue
        pooled = nnx.max_pool(sum(terms), (window, window), (window, window))
        if pooled.shape == target.shape and np.allclose(pooled, target, rtol=1e-4, atol=1e-5):
            return places, window
    raise ValueError(f"an input of shape {target.shape} is not a sum of earlier outputs, pooled")
