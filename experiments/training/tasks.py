"""A task: model, data and loss as pure functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.core.errors import ConfigError
from experiments.data import Corpus, sample_batch
from models.cnn import CNN, CNNConfig
from models.functional import functional
from models.nanogpt import GPTConfig, NanoGPT, next_token_loss
from models.ngram import NGramConfig


class Task(NamedTuple):
    """A model with its loss and data; every function is pure and traceable.

    Figures draw batches inside the compiled program, by `sample`; if batches come from outside, as
    for the `train` command, a task has no data.
    """

    init: Callable[[jax.Array], tuple[Any, Any]]
    """`init(key) -> (params, state)`."""
    loss: Callable[[Any, Any, Any, jax.Array], tuple[jax.Array, Any]]
    """`loss(params, state, batch, key) -> (mean loss, state)`, with the model in training mode."""
    metrics: Callable[[Any, Any, Any, jax.Array], dict[str, jax.Array]] | None = None
    """`metrics(params, state, batch, weights) -> sums` over a batch whose examples have `weights`,
    shape (batch,): the sum of the weights as "weight", and weighted sums to be divided by it, with
    the model in evaluation mode."""
    loss_on: Callable[[int], Callable[..., tuple[jax.Array, Any]]] | None = None
    """`loss_on(devices)` is `loss` for a batch that is spread over that many devices; None if
    `loss` itself serves any number."""
    token_losses: Callable[[Any, Any, jax.Array], jax.Array] | None = None
    """`token_losses(params, state, tokens)`, the loss of each target of a text, (batch, context),
    with the model in evaluation mode."""
    sample: Callable[[jax.Array], Any] | None = None
    """`sample(key) -> batch` from the training split."""
    sample_heldout: Callable[[jax.Array], Any] | None = None
    """`sample_heldout(key) -> batch` from the held-out split."""

    def evaluate(self, params: Any, state: Any, tokens: jax.Array) -> jax.Array:
        """Return the mean loss of a batch, with the model in evaluation mode."""
        weights = jnp.full(len(tokens), 1 / len(tokens))
        return self.metrics(params, state, tokens, weights)["loss"]


def text_task(model: GPTConfig, *, loss_parts: int = 1) -> Task:
    """Return next-token prediction with nanoGPT on batches (batch, context + 1) of int32 tokens.

    Args:
      model: The network.
      loss_parts: Equal parts of a batch, of which only one's logits are in memory at a time.

    Returns:
      The task, without data; its loss is the mean cross-entropy in nats per token, and the "loss"
      of its metrics is that of a sequence.

    Raises:
      ConfigError: If the model's attention needs a GPU and there is none.

    >>> config = GPTConfig(vocab_size=8, context=4, num_layers=1, num_heads=1, width=8)
    >>> task = text_task(config)
    >>> params, state = jax.jit(task.init)(jax.random.key(0))
    >>> tokens, weights = jnp.zeros((2, 5), jnp.int32), jnp.array([1.0, 0.0])
    >>> sums = jax.jit(task.metrics)(params, state, tokens, weights)
    >>> {name: round(float(value)) for name, value in sums.items()}  # ln 8 = 2.08
    {'loss': 2, 'weight': 1}
    """
    if model.attention == "cudnn" and jax.default_backend() != "gpu":
        raise ConfigError(
            f"model.attention=cudnn needs an NVIDIA GPU, and JAX runs on {jax.default_backend()}; "
            "model.attention=plain runs anywhere"
        )
    init, apply = functional(lambda rngs: NanoGPT(model, rngs=rngs))

    def losses(of_logits, params, state, tokens, key=None, **how):
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if loss_parts > 1:
            how |= {"targets": targets, "loss_parts": loss_parts}
            return apply(params, state, inputs, key, **how)
        logits, state = apply(params, state, inputs, key, **how)
        return of_logits(logits, targets), state

    def loss_on(devices):
        def loss(*inputs):
            values, state = losses(next_token_loss, *inputs, train=True, devices=devices)
            return values.mean(), state

        return loss

    def metrics(params, state, tokens, weights):
        values, _ = losses(jax.vmap(next_token_loss), params, state, tokens)
        return {"loss": weights @ values, "weight": weights.sum()}

    def token_losses(params, state, tokens):
        logits, _ = apply(params, state, tokens[:, :-1])
        return jax.vmap(jax.vmap(next_token_loss))(logits, tokens[:, 1:])

    return Task(init, loss_on(1), metrics, loss_on, token_losses)


def image_task(model: CNNConfig) -> Task:
    """Return classification with the CNN on batches of "image" and "label".

    Args:
      model: The network.

    Returns:
      The task, without data, for batches {"image": (batch, 32, 32, 3), "label": (batch,)}; its loss
      is the mean cross-entropy in nats, and its metrics are "loss" and "accuracy".
    """
    init, apply = functional(lambda rngs: CNN(model, rngs=rngs))

    def loss(params, state, batch, key):
        logits, state = apply(params, state, batch["image"], key, train=True)
        return _cross_entropy(logits, batch["label"]).mean(), state

    def metrics(params, state, batch, weights):
        logits, _ = apply(params, state, batch["image"])
        return {
            "loss": weights @ _cross_entropy(logits, batch["label"]),
            "accuracy": weights @ (logits.argmax(-1) == batch["label"]).astype(weights.dtype),
            "weight": weights.sum(),
        }

    return Task(init, loss, metrics)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the cross-entropy of each example, in nats."""
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels)


def check_corpus(
    corpus: Corpus | None, model: GPTConfig | NGramConfig, *, heldout_parts: int = 1
) -> Corpus:
    """Return the corpus if a model can be trained on it.

    Args:
      corpus: The corpus of a configuration; None if it names none.
      model: The model, whose context is the tokens of a crop without the last target.
      heldout_parts: How many splits the held-out text is divided into.

    Returns:
      `corpus`.

    Raises:
      ConfigError: If there is no corpus, its vocabulary is larger than the model's, or a split is
        shorter than one crop.
    """
    if corpus is None:
        raise ConfigError("corpus must be a corpus to train on, got None")
    check_vocabulary(model, corpus.vocab_size)
    shortest = min(len(corpus.tokens_train), len(corpus.tokens_heldout) // heldout_parts)
    if shortest <= model.context:
        raise ConfigError(
            f"model.context={model.context} needs {model.context + 1} tokens, but a split of the "
            f"corpus has {shortest}; give a longer text"
        )
    return corpus


def check_vocabulary(model: GPTConfig | NGramConfig, size: int) -> None:
    """Raise ConfigError if a corpus of so many tokens has more than a model."""
    if model.vocab_size < size:
        raise ConfigError(
            f"model.vocab_size={model.vocab_size} is below the corpus's {size} tokens; give "
            f"model.vocab_size={size}"
        )


def heldout_halves(
    corpus: Corpus | None, model: GPTConfig | NGramConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Return the held-out text's first half, for validation, and its second half, for the test.

    Raises:
      ConfigError: As for `check_corpus`, for each half.
    """
    tokens = check_corpus(corpus, model, heldout_parts=2).tokens_heldout
    return tokens[: len(tokens) // 2], tokens[len(tokens) // 2 :]


def language_task(model: GPTConfig, corpus: Corpus | None, batch: int) -> Task:
    """Return next-token prediction with nanoGPT, with the mean cross-entropy in nats per token.

    Args:
      model: The network, whose context is the crops' length.
      corpus: The corpus whose training split is trained on; rows of tokens that it never uses get a
        gradient only from the logits, and this gradient vanishes with their probability (Section
        3.2).
      batch: Sequences in a batch.

    Returns:
      The task.

    Raises:
      ConfigError: As for `check_corpus`.

    >>> from experiments.data import load_corpus
    >>> tiny = GPTConfig(vocab_size=256, context=8, num_layers=1, num_heads=1, width=8)
    >>> task = language_task(tiny, load_corpus("embedded"), batch=2)
    >>> params, state = jax.jit(task.init)(jax.random.key(0))
    >>> loss = jax.jit(task.evaluate)(params, state, task.sample_heldout(jax.random.key(1)))
    >>> 5 < float(loss) < 6  # about ln 256
    True
    """
    corpus = check_corpus(corpus, model)

    def sampler(tokens):
        return lambda key: sample_batch(jnp.asarray(tokens), key, batch, model.context)

    return text_task(model)._replace(
        sample=sampler(corpus.tokens_train), sample_heldout=sampler(corpus.tokens_heldout)
    )
