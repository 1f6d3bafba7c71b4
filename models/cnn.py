"""A residual convolutional network, the paper's image classifier (App. H).

Details that the paper leaves open follow PyTorch, whose layers its drawing names: convolutions with
biases, weights and biases initially uniform in ±1/√inputs, BatchNorm with epsilon 1e-5 and running
averages that keep nine tenths at every step.

Names end in their shape: B batch, Y and X the position in the image, C channels.
"""

import dataclasses
import itertools
import math
from numbers import Integral
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from models.dtypes import Dtype, check_dtype, check_enabled
from models.sizes import check_sizes

IMAGE_SHAPE = (32, 32, 3)
CHANNELS = (64, 128, 128, 128, 256, 512, 512, 512)
"""Channels of the convolutions at width 1, in the order drawn."""
NHWC = ("NHWC", "HWIO", "NHWC")


@dataclasses.dataclass(frozen=True)
class CNNConfig:
    """The shape of a `CNN`; the defaults are the paper's, 6,575,370 parameters (App. H).

    Attributes:
      num_classes: number of logits.
      width: factor on the number of channels of every layer; a multiple of 1/64.
      dtype: dtype of activations, convolutions and logits. Parameters, BatchNorm's statistics and
        their running averages are float32.
      conv: "auto" is `convolution`, which is as fast inside a loop as outside; "lax" leaves the
        gradients to JAX, so that forward-mode differentiation works too, but they are slow in a
        loop on a CPU.

    Raises:
      ValueError: if there is no class, `width` is not a positive multiple of 1/64, or `dtype` or
        `conv` is unknown.
    """

    num_classes: int = 10
    width: float = 1.0
    dtype: Dtype = "float32"
    conv: Literal["auto", "lax"] = "auto"

    def __post_init__(self):
        if not (isinstance(self.num_classes, Integral) and self.num_classes >= 1):
            raise ValueError(
                f"num_classes must be an integer of at least 1, got {self.num_classes!r}."
            )
        if not (self.width > 0 and float(64 * self.width).is_integer()):
            raise ValueError(f"width must be a positive multiple of 1/64, got {self.width}.")
        widest = max(self.channels)
        check_sizes(width=(9, widest, widest), width_and_num_classes=(widest, self.num_classes))
        check_dtype(self.dtype)
        if self.conv not in ("auto", "lax"):
            raise ValueError(f"conv must be 'auto' or 'lax', got {self.conv!r}.")

    @property
    def channels(self) -> tuple[int, ...]:
        """Number of output channels of each convolution."""
        return tuple(int(self.width * channels) for channels in CHANNELS)


def _plain_convolution(x_BxYxXxC: jax.Array, kernel_3x3xCxD: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x_BxYxXxC, kernel_3x3xCxD, (1, 1), ((1, 1), (1, 1)), dimension_numbers=NHWC
    )


@jax.custom_vjp
def convolution(x_BxYxXxC: jax.Array, kernel_3x3xCxD: jax.Array) -> jax.Array:
    """Convolve 3 x 3 at stride 1 with a border of zeros, also fast inside loops on CPUs.

    This is `jax.lax.conv_general_dilated`, but on CPUs its gradients are written as convolutions in
    the same layout, with the transpositions spelled out. XLA's CPU backend brings convolutions into
    that layout only at a program's top level; those with another layout in the body of a `scan` or
    `map`, such as the gradients that JAX derives, miss its fast path and take ten to a hundred
    times as long.

    Args:
      x_BxYxXxC: images, (batch, height, width, channels).
      kernel_3x3xCxD: (3, 3, channels, new channels), of the same dtype.

    Returns:
      (batch, height, width, new channels). Only reverse-mode differentiation works.

    Example:

      >>> import jax.numpy as jnp
      >>> x = jnp.ones((1, 3, 3, 1))
      >>> print(convolution(x, jnp.ones((3, 3, 1, 1)))[0, :, :, 0])
      [[4. 6. 4.]
       [6. 9. 6.]
       [4. 6. 4.]]
    """
    return _plain_convolution(x_BxYxXxC, kernel_3x3xCxD)


def _convolution_forward(x, kernel):
    return _plain_convolution(x, kernel), (x, kernel)


def _convolution_backward(inputs, cotangent):
    return jax.lax.platform_dependent(
        *inputs, cotangent, cpu=_canonical_gradients, default=_plain_gradients
    )


def _plain_gradients(x, kernel, cotangent):
    return jax.vjp(_plain_convolution, x, kernel)[1](cotangent)


def _canonical_gradients(x_BxYxXxC, kernel_3x3xCxD, cotangent_BxYxXxD):
    x_grad = _plain_convolution(cotangent_BxYxXxD, kernel_3x3xCxD[::-1, ::-1].swapaxes(2, 3))
    # Channels and batch swap places, so that the sum is over the batch.
    kernel_grad_Cx3x3xD = _plain_convolution(
        x_BxYxXxC.transpose(3, 1, 2, 0), cotangent_BxYxXxD.transpose(1, 2, 0, 3)
    )
    return x_grad, kernel_grad_Cx3x3xD.transpose(1, 2, 0, 3)


convolution.defvjp(_convolution_forward, _convolution_backward)


class Block(nnx.Module):
    """Convolution, BatchNorm and ReLU, in this order.

    In training, BatchNorm removes the convolution's bias again: its gradient is rounding error,
    which an adaptive optimizer turns into steps of full size. They move only the running mean.
    """

    def __init__(self, config: CNNConfig, inputs: int, outputs: int, rngs: nnx.Rngs):
        self.config = config
        self.kernel, self.bias = _affine(rngs, (3, 3, inputs, outputs))
        self.norm = nnx.BatchNorm(
            outputs, momentum=0.9, epsilon=1e-5, dtype=config.dtype, rngs=rngs
        )

    def __call__(self, x_BxYxXxC: jax.Array) -> jax.Array:
        """Map (batch, height, width, inputs) to (batch, height, width, outputs)."""
        convolve = convolution if self.config.conv == "auto" else _plain_convolution
        x_BxYxXxD = convolve(x_BxYxXxC, self.kernel.astype(x_BxYxXxC.dtype))
        bias_D = self.bias.astype(x_BxYxXxC.dtype)
        return jax.nn.relu(self.norm(x_BxYxXxD + bias_D[None, None, None]))


class CNN(nnx.Module):
    """The image classifier of the paper's experiments (App. H, Fig. 10).

    Example:

      >>> from functools import partial
      >>> import jax
      >>> from models.cnn import CNN, CNNConfig
      >>> from models.functional import functional
      >>> init, apply = functional(lambda rngs: CNN(CNNConfig(width=1 / 16), rngs=rngs))
      >>> params, state = jax.jit(init)(jax.random.key(0))
      >>> images = jax.random.normal(jax.random.key(1), (4, 32, 32, 3))
      >>> logits, state = jax.jit(partial(apply, train=True))(params, state, images)
      >>> logits.shape
      (4, 10)

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      Appendix H.
    """

    def __init__(self, config: CNNConfig, *, rngs: nnx.Rngs):
        self.config = config
        channels = itertools.pairwise((IMAGE_SHAPE[-1], *config.channels))
        self.blocks = nnx.List([Block(config, *pair, rngs) for pair in channels])
        self.weights, self.bias = _affine(rngs, (config.channels[-1], config.num_classes))

    def __call__(self, images: jax.Array, *, rngs: nnx.Rngs | None = None) -> jax.Array:
        """Classify images.

        Args:
          images: normalized per channel, (batch, 32, 32, 3).
          rngs: unused; nothing here is random.

        Returns:
          Logits, (batch, num_classes).

        Raises:
          ValueError: if `images` has another shape, or JAX does not compute in `dtype`.
        """
        del rngs
        check_enabled(self.config.dtype)
        if images.ndim != 4 or images.shape[1:] != IMAGE_SHAPE:
            raise ValueError(f"images must be (batch, 32, 32, 3), got {images.shape}.")
        blocks = self.blocks
        x = images.astype(self.config.dtype)
        x = _max_pool(blocks[1](blocks[0](x)), 2)
        x = x + blocks[3](blocks[2](x))
        x = _max_pool(blocks[4](x), 2)
        x = _max_pool(blocks[5](x), 2)
        x = x + blocks[7](blocks[6](x))
        x = _max_pool(x, 4)[:, 0, 0]  # (batch, features)
        return x @ self.weights.astype(x.dtype) + self.bias.astype(x.dtype)[None]


def _affine(rngs: nnx.Rngs, shape: tuple[int, ...]) -> tuple[nnx.Param, nnx.Param]:
    """Return weights of that shape, inputs first, and biases."""
    *input_shape, outputs = shape
    inputs = math.prod(input_shape)
    bound = 1 / math.sqrt(inputs)
    # Drawn together, since every call of the generator adds to the compile time.
    values = jax.random.uniform(rngs.params(), (inputs + 1, outputs), jnp.float32, -bound, bound)
    return nnx.Param(values[:-1].reshape(shape)), nnx.Param(values[-1])


def _max_pool(x_BxYxXxC: jax.Array, size: int) -> jax.Array:
    """Return the maximum of every `size` x `size` window; the first of equals gets the gradient.

    The gradient of `max` asks which pixels equal the maximum and divides by their number, which is
    0 if a compiler computes them twice with different rounding. A choice can't be empty.
    """
    b, y, x, c = x_BxYxXxC.shape
    windows = x_BxYxXxC.reshape(b, y // size, size, x // size, size, c).swapaxes(2, 3)
    windows = windows.reshape(b, y // size, x // size, size * size, c)
    chosen = jax.nn.one_hot(windows.argmax(3), size * size, axis=3, dtype=bool)
    return jnp.where(chosen, windows, 0).sum(3)
