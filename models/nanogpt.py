"""A decoder-only transformer, the paper's language model (App. H), and its loss.

Details that the paper leaves open follow nanoGPT: tied embeddings, no biases, a LayerNorm with only
a scale before each branch, the erf GELU, and initial weights N(0, 0.02²), divided by √(2
num_layers) where a matrix writes to the residual stream.

Names end in their shape: B batch, L length, N = B·L, W width, H heads, D head size, V vocabulary.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from models.dtypes import Dtype, check_dtype, check_enabled
from models.parts import interleaved
from models.sizes import MOST_LAYERS, check_sizes

INIT_SCALE = 0.02


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """The shape of a `NanoGPT`; the defaults are the paper's, 30.02 million parameters (App. H).

    Attributes:
      vocab_size: number of tokens, the rows of the embedding, which also gives the logits.
      context: the longest sequence, in tokens.
      num_layers: pairs of attention and MLP.
      num_heads: attention heads of a layer; must divide `width`.
      width: size of the residual stream.
      dropout: share of entries dropped in training, after the embeddings, from the attention
        weights and from both branches of a block; 0 leaves no trace in the program.
      qk_norm: whether to LayerNorm each head's queries and keys, with a scale of size width /
        num_heads that a layer's heads share. The loss is then invariant to a positive factor on any
        head's query or key matrix (Section 4.1), exactly in the limit of `qk_norm_eps` to 0.
      norm_eps: epsilon of the LayerNorms before the branches and the logits.
      qk_norm_eps: epsilon of the query and key LayerNorms.
      dtype: dtype of activations, matrix products and logits. Parameters are float32; LayerNorm,
        softmax and loss are computed in at least float32.
      attention: "plain" writes attention out, which on CPUs is a tenth faster than
        `jax.nn.dot_product_attention`. "cudnn" is that function's flash attention, whose memory
        does not grow with the square of the length, for a half-precision `dtype` on NVIDIA GPUs;
        calls that drop attention weights still use the plain form.
      remat: whether the backward pass recomputes a block's activations instead of keeping them; XLA
        does so on accelerators, but its CPU backend keeps them anyway.

    Raises:
      ValueError: if a size is not an integer or is below 1, `width` is not a multiple of
        `num_heads`, `dropout` is outside [0, 1), an epsilon is negative or infinite, `dtype` is
        unknown, or `attention` is unknown or incompatible with `dtype`.
    """

    vocab_size: int = 50257
    context: int = 256
    num_layers: int = 6
    num_heads: int = 6
    width: int = 384
    dropout: float = 0.2
    qk_norm: bool = False
    norm_eps: float = 1e-5
    qk_norm_eps: float = 1e-5
    dtype: Dtype = "float32"
    attention: Literal["plain", "cudnn"] = "plain"
    remat: bool = False

    def __post_init__(self):
        for name in ("vocab_size", "context", "num_layers", "num_heads", "width"):
            if not (isinstance(value := getattr(self, name), Integral) and value >= 1):
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
        if self.num_layers > MOST_LAYERS:
            raise ValueError(f"num_layers must be at most {MOST_LAYERS}, got {self.num_layers}.")
        check_sizes(
            vocab_size_and_width=(self.vocab_size, self.width),
            context_and_width=(self.context, self.width),
            width=(4, self.width, self.width),
        )
        for name in ("norm_eps", "qk_norm_eps"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {value}.")
        if self.width % self.num_heads:
            raise ValueError(
                f"width must be a multiple of num_heads={self.num_heads}, got {self.width}."
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}.")
        check_dtype(self.dtype)
        if self.attention not in ("plain", "cudnn"):
            raise ValueError(f"attention must be 'plain' or 'cudnn', got {self.attention!r}.")
        if self.attention == "cudnn" and jnp.dtype(self.dtype).itemsize != 2:
            raise ValueError(
                f"attention='cudnn' needs dtype bfloat16 or float16, got {self.dtype!r}."
            )

    @property
    def head_size(self) -> int:
        """Size of one head's queries, keys and values."""
        return self.width // self.num_heads

    @property
    def residual_scale(self) -> float:
        """Initial standard deviation of the matrices that write to the residual stream."""
        return INIT_SCALE / math.sqrt(2 * self.num_layers)


class Attention(nnx.Module):
    """Causal self-attention; `qkv[:, 0, h]` and `qkv[:, 1, h]` are head h's query and key."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        self.config = config
        self.qkv = _weights(rngs, (config.width, 3, config.num_heads, config.head_size))
        self.out = _weights(rngs, (config.width, config.width), config.residual_scale)
        if config.qk_norm:
            self.query_norm = _layer_norm(config, config.head_size, config.qk_norm_eps, rngs)
            self.key_norm = _layer_norm(config, config.head_size, config.qk_norm_eps, rngs)

    def __call__(self, x_NxW: jax.Array, length: int, rngs: nnx.Rngs | None) -> jax.Array:
        """Mix each sequence's positions: x and the result are (batch * length, width)."""
        config = self.config
        qkv_BxLx3xHxD = _dense(x_NxW, self.qkv).reshape(-1, length, *self.qkv.shape[1:])
        q_BxLxHxD, k_BxLxHxD, v_BxLxHxD = jnp.moveaxis(qkv_BxLx3xHxD, 2, 0)
        if config.qk_norm:
            q_BxLxHxD, k_BxLxHxD = self.query_norm(q_BxLxHxD), self.key_norm(k_BxLxHxD)
        dropped = rngs is not None and config.dropout > 0
        if config.attention == "cudnn" and not dropped:
            mixed_BxLxHxD = jax.nn.dot_product_attention(
                q_BxLxHxD, k_BxLxHxD, v_BxLxHxD, is_causal=True, implementation="cudnn"
            )
        else:
            mixed_BxLxHxD = self._plain(q_BxLxHxD, k_BxLxHxD, v_BxLxHxD, rngs)
        return _dense(mixed_BxLxHxD.reshape(x_NxW.shape), self.out)

    def _plain(self, q_BxLxHxD, k_BxLxHxD, v_BxLxHxD, rngs):
        config, length = self.config, q_BxLxHxD.shape[1]
        scores_BxHxLxL = jnp.einsum(
            "bqhd,bkhd->bhqk",
            q_BxLxHxD,
            k_BxLxHxD,
            preferred_element_type=jnp.promote_types(config.dtype, jnp.float32),
        ) / math.sqrt(config.head_size)
        causal = jnp.tril(jnp.ones((1, 1, length, length), bool))
        weights_BxHxLxL = jax.nn.softmax(jnp.where(causal, scores_BxHxLxL, -jnp.inf))
        weights_BxHxLxL = _dropout(weights_BxHxLxL.astype(config.dtype), config.dropout, rngs)
        return jnp.einsum("bhqk,bkhd->bqhd", weights_BxHxLxL, v_BxLxHxD)


class Block(nnx.Module):
    """Attention, then an MLP four times as wide inside, each added to the residual stream."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        self.config = config
        self.attention_norm = _layer_norm(config, config.width, config.norm_eps, rngs)
        self.attention = Attention(config, rngs)
        self.mlp_norm = _layer_norm(config, config.width, config.norm_eps, rngs)
        self.up = _weights(rngs, (config.width, 4 * config.width))
        self.down = _weights(rngs, (4 * config.width, config.width), config.residual_scale)

    def __call__(self, x_NxW: jax.Array, length: int, rngs: nnx.Rngs | None) -> jax.Array:
        """Add both branches to x, (batch * length, width)."""
        branch_NxW = self.attention(self.attention_norm(x_NxW), length, rngs)
        x_NxW = x_NxW + _dropout(branch_NxW, self.config.dropout, rngs)
        hidden_Nx4W = jax.nn.gelu(_dense(self.mlp_norm(x_NxW), self.up), approximate=False)
        return x_NxW + _dropout(_dense(hidden_Nx4W, self.down), self.config.dropout, rngs)


class NanoGPT(nnx.Module):
    """The decoder-only transformer of the paper's experiments (App. H).

    Activations inside are (batch * length, width): on a CPU, the weight gradient of a product with
    a three-dimensional array misses the fast path.

    Example:

      >>> import jax
      >>> from models.functional import functional
      >>> from models.nanogpt import GPTConfig, NanoGPT, next_token_loss
      >>> config = GPTConfig(vocab_size=256, context=16, num_layers=1, num_heads=2, width=32)
      >>> init, apply = functional(lambda rngs: NanoGPT(config, rngs=rngs))
      >>> params, state = jax.jit(init)(jax.random.key(0))
      >>> tokens = jax.random.randint(jax.random.key(1), (4, 17), 0, 256)
      >>> logits, _ = jax.jit(apply)(params, state, tokens[:, :-1])
      >>> logits.shape
      (4, 16, 256)
      >>> loss = next_token_loss(logits, tokens[:, 1:])
      >>> bool(abs(loss - jax.numpy.log(256)) < 0.1)
      True

    References:
      Gould and Tanaka, `Continuous-Time Analysis of Adaptive Optimization and Normalization`,
      §4.1, Appendix H.
    """

    def __init__(self, config: GPTConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.embedding = _weights(rngs, (config.vocab_size, config.width))
        self.positions = _weights(rngs, (config.context, config.width))
        self.blocks = nnx.List([Block(config, rngs) for _ in range(config.num_layers)])
        self.norm = _layer_norm(config, config.width, config.norm_eps, rngs)

    def __call__(
        self,
        tokens: jax.Array,
        *,
        targets: jax.Array | None = None,
        loss_parts: int = 1,
        devices: int = 1,
        rngs: nnx.Rngs | None = None,
    ) -> jax.Array:
        """Predict the next token at every position.

        Args:
          tokens: integers in [0, vocab_size), (batch, length), length at most `config.context`.
          targets: the next tokens, of the same shape, if their loss is wanted.
          loss_parts: number of equal parts of the batch, of which only one's logits are in memory
            at a time; they are computed again for the gradient.
          devices: number of devices over which the batch is spread; each then adds its gradients of
            the embedding from both its uses before they are added over devices.
          rngs: its `dropout` stream draws the dropout masks; None for no dropout.

        Returns:
          Logits, (batch, length, vocab_size); with `targets` the mean cross-entropy in nats of
          each sequence, (batch,).

        Raises:
          ValueError: if `tokens` is not a matrix of integers, is empty, or is longer than the
            context, or if its sequences cannot be cut into equal parts.
        """
        check_enabled(self.config.dtype)
        if tokens.ndim != 2 or not tokens.size or not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise ValueError(
                f"tokens must be integers (batch, length), got {tokens.dtype} {tokens.shape}."
            )
        length = tokens.shape[1]
        if length > self.config.context:
            raise ValueError(
                f"tokens must be at most context={self.config.context} long, got {length}; "
                "crop them or build the model with a longer context."
            )
        parts = devices * (1 if targets is None else loss_parts)
        if len(tokens) % parts:
            raise ValueError(
                f"a batch of {len(tokens)} sequences cannot be cut into {parts} equal parts "
                f"(devices={devices}; with targets, times loss_parts={loss_parts}); choose numbers "
                "that divide it."
            )
        with_embedding = _with_copies(self.embedding.astype(self.config.dtype), devices)
        positions_LxW = self.positions[:length].astype(self.config.dtype)
        embedded_BxLxW = with_embedding(lambda matrix_VxW, tokens: matrix_VxW[tokens], tokens)
        x_NxW = (embedded_BxLxW + positions_LxW[None]).reshape(-1, self.config.width)
        x_NxW = _dropout(x_NxW, self.config.dropout, rngs)
        run = nnx.remat(_run_block, static_argnums=2) if self.config.remat else _run_block
        for block in self.blocks:
            x_NxW = run(block, x_NxW, length, rngs)
        x_NxW = self.norm(x_NxW)

        def logits(x):
            return with_embedding(lambda matrix_VxW, x: x @ matrix_VxW.T, x)

        if targets is None:
            return logits(x_NxW).reshape(*tokens.shape, -1)

        @jax.checkpoint
        def losses(part):
            x_BxLxW, targets_BxL = part
            return jax.vmap(next_token_loss)(logits(x_BxLxW), targets_BxL)

        parts = interleaved((x_NxW.reshape(*tokens.shape, -1), targets), loss_parts)
        return jax.lax.map(losses, parts).swapaxes(0, 1).reshape(-1)


def query_key_slices(params: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Return each head's query and key matrix, the scale-invariant weights (§4.1).

    With `qk_norm`, a positive factor on any one of them does not change the loss.

    Args:
      params: parameters of a `NanoGPT`, or a tree like them, such as gradients or updates.

    Returns:
      A dictionary from "layer/head/query" and "layer/head/key" to a matrix (width, head_size),
      layer by layer.

    Example:

      >>> from models.functional import functional
      >>> config = GPTConfig(vocab_size=16, context=4, num_layers=1, num_heads=2, width=8)
      >>> params, _ = functional(lambda rngs: NanoGPT(config, rngs=rngs)).init(jax.random.key(0))
      >>> {label: matrix.shape for label, matrix in query_key_slices(params).items()}
      {'0/0/query': (8, 4), '0/0/key': (8, 4), '0/1/query': (8, 4), '0/1/key': (8, 4)}

    References:
      Gould and Tanaka, Continuous-Time Analysis of Adaptive Optimization and Normalization, §4.1
    """
    heads = {layer: block["attention"]["qkv"] for layer, block in params["blocks"].items()}
    return {
        f"{layer}/{head}/{name}": qkv_Wx3xHxD[:, place, head]
        for layer, qkv_Wx3xHxD in sorted(heads.items())
        for head in range(qkv_Wx3xHxD.shape[2])
        for place, name in enumerate(("query", "key"))
    }


def next_token_loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Compute the mean cross-entropy in nats: mean of logsumexp(logits) - logits[target].

    Args:
      logits: (..., vocab_size); cast to float32 if less precise.
      targets: integers in [0, vocab_size), (...).

    Returns:
      A scalar, at least float32.

    Example:

      >>> import jax.numpy as jnp
      >>> print(f"{next_token_loss(jnp.zeros((2, 3, 256)), jnp.zeros((2, 3), int)):.4f}")
      5.5452
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    # An indexed read is faster on a CPU, but makes an accelerator copy the logits to a new layout.
    target_logits = jax.lax.platform_dependent(
        logits, targets, cpu=_indexed_logits, default=_selected_logits
    )
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - target_logits)


def _indexed_logits(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]


def _selected_logits(logits: jax.Array, targets: jax.Array) -> jax.Array:
    is_target = jax.nn.one_hot(targets, logits.shape[-1], dtype=bool)
    return jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)


def _with_copies(matrix: jax.Array, devices: int) -> Callable[..., jax.Array]:
    """Return `use(fn, batch)`, which applies `fn(matrix, examples)`.

    On several devices, each one's part of the batch has a copy of the matrix, so that gradients of
    all uses of the matrix are added on a device before they are added over devices.
    """
    if devices == 1:
        return lambda fn, batch: fn(matrix, batch)
    copies = jnp.broadcast_to(matrix, (devices, *matrix.shape))

    def use(fn, batch):
        results = jax.vmap(fn)(copies, batch.reshape(devices, -1, *batch.shape[1:]))
        return results.reshape(-1, *results.shape[2:])

    return use


def _run_block(block: Block, x_NxW: jax.Array, length: int, rngs: nnx.Rngs | None) -> jax.Array:
    return block(x_NxW, length, rngs)


def _weights(rngs: nnx.Rngs, shape: tuple[int, ...], scale: float = INIT_SCALE) -> nnx.Param:
    return nnx.Param(scale * jax.random.normal(rngs.params(), shape, jnp.float32))


def _layer_norm(config: GPTConfig, size: int, eps: float, rngs: nnx.Rngs) -> nnx.LayerNorm:
    # Two-pass variance: the cancellation in the fast one would break qk-norm's scale invariance.
    return nnx.LayerNorm(
        size, epsilon=eps, use_bias=False, use_fast_variance=False, dtype=config.dtype, rngs=rngs
    )


def _dense(x: jax.Array, weights: nnx.Param) -> jax.Array:
    """Multiply (N, inputs) by (inputs, ...) as one matrix product."""
    return x @ weights.reshape(weights.shape[0], -1).astype(x.dtype)


def _dropout(x: jax.Array, rate: float, rngs: nnx.Rngs | None) -> jax.Array:
    if rngs is None or rate == 0:
        return x
    return nnx.Dropout(rate)(x, rngs=rngs)
