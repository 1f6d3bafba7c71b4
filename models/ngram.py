"""A feed-forward language model that predicts a token from a fixed number of tokens before it.

An example is a single prediction, so that a batch of 512 examples costs about as much as a few
sequences cost a transformer.

Names end in their shape: B batch, L length, E embedding size, W width, V vocabulary.
"""

import dataclasses
from numbers import Integral

import jax
import jax.numpy as jnp
from flax import nnx

from models.sizes import check_sizes


@dataclasses.dataclass(frozen=True)
class NGramConfig:
    """The shape of an `NGram`.

    Attributes:
      vocab_size: number of tokens.
      context: number of tokens that the model sees.
      embedding_size: numbers that represent a token.
      width: size of the hidden layer.

    Raises:
      ValueError: if a size is not an integer of at least 1, or an array would have 2^31 entries or
        more.
    """

    vocab_size: int = 256
    context: int = 8
    embedding_size: int = 16
    width: int = 64

    def __post_init__(self):
        for name in ("vocab_size", "context", "embedding_size", "width"):
            if not (isinstance(value := getattr(self, name), Integral) and value >= 1):
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
        check_sizes(
            vocab_size_and_embedding_size=(self.vocab_size, self.embedding_size),
            context_and_embedding_size_and_width=(self.context, self.embedding_size, self.width),
            vocab_size_and_width=(self.vocab_size, self.width),
        )


class NGram(nnx.Module):
    """The concatenated embeddings of the tokens, one hidden tanh layer, and logits.

    Example:

      >>> import jax
      >>> from models.functional import functional
      >>> from models.ngram import NGram, NGramConfig
      >>> config = NGramConfig(vocab_size=256, context=8, embedding_size=16, width=64)
      >>> init, apply = functional(lambda rngs: NGram(config, rngs=rngs))
      >>> params, state = jax.jit(init)(jax.random.key(0))
      >>> tokens = jax.random.randint(jax.random.key(1), (4, 8), 0, 256)
      >>> logits, state = jax.jit(apply)(params, state, tokens)
      >>> logits.shape
      (4, 256)

    References:
      Bengio, Ducharme, Vincent and Jauvin, A Neural Probabilistic Language Model, 2003
    """

    def __init__(self, config: NGramConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.embedding = nnx.Embed(config.vocab_size, config.embedding_size, rngs=rngs)
        self.hidden = nnx.Linear(config.context * config.embedding_size, config.width, rngs=rngs)
        self.logits = nnx.Linear(config.width, config.vocab_size, rngs=rngs)

    def __call__(self, tokens: jax.Array, *, rngs: nnx.Rngs | None = None) -> jax.Array:
        """Predict the token that follows.

        Args:
          tokens: integers in [0, vocab_size), (batch, context).
          rngs: unused; nothing here is random.

        Returns:
          Logits, (batch, vocab_size).

        Raises:
          ValueError: if `tokens` are not integers of that shape.
        """
        del rngs
        context = self.config.context
        if tokens.shape[1:] != (context,) or not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise ValueError(
                f"tokens must be integers (batch, {context}), got {tokens.dtype} {tokens.shape}."
            )
        x_BxLE = self.embedding(tokens).reshape(len(tokens), -1)
        return self.logits(jnp.tanh(self.hidden(x_BxLE)))
