"""A task: model, data and loss as pure functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.config import ConfigError
from experiments.data import Corpus, sample_batch
from models.functional import functional
from models.nanogpt import GPTConfig, NanoGPT, next_token_loss


class Task(NamedTuple):
    """What `train_member` needs to know of a problem; every function is pure and traceable."""

    init: Callable[[jax.Array], tuple[Any, Any]]
    """`init(key) -> (params, state)`."""
    sample: Callable[[jax.Array], Any]
    """`sample(key) -> batch` of the training split."""
    loss: Callable[[Any, Any, Any, jax.Array], tuple[jax.Array, Any]]
    """`loss(params, state, batch, key) -> (mean loss, state)`, dropout on."""
    sample_heldout: Callable[[jax.Array], Any]
    """`sample_heldout(key) -> batch` of the held-out split."""
    evaluate: Callable[[Any, Any, Any], jax.Array]
    """`evaluate(params, state, batch) -> mean loss`, dropout off."""


def language_task(model: GPTConfig, corpus: Corpus, batch: int) -> Task:
    """Next-token prediction with nanoGPT, the mean cross-entropy in nats per token.

    Args:
      model: The network; its context is the crops' length.
      corpus: Its training split is trained on; the rows of tokens it never uses get a gradient from
        the logits alone, which vanishes as their probability does (section 3.2).
      batch: Sequences in a batch.

    Returns:
      The task.

    Raises:
      ConfigError: If the model's vocabulary is smaller than the corpus's, or a split is shorter
        than one crop.

    >>> from experiments.data import load_corpus
    >>> tiny = GPTConfig(vocab_size=256, context=8, num_layers=1, num_heads=1, width=8)
    >>> task = language_task(tiny, load_corpus("embedded"), batch=2)
    >>> params, state = task.init(jax.random.key(0))
    >>> loss = task.evaluate(params, state, task.sample_heldout(jax.random.key(1)))
    >>> 5 < float(loss) < 6  # about ln 256
    True
    """
    if model.vocab_size < corpus.vocab_size:
        raise ConfigError(
            f"model.vocab_size={model.vocab_size} is below the corpus's {corpus.vocab_size} tokens"
        )
    shortest = min(len(corpus.tokens_train), len(corpus.tokens_heldout))
    if shortest <= model.context:
        raise ConfigError(
            f"model.context={model.context} needs {model.context + 1} tokens, but a split of the "
            f"corpus has {shortest}"
        )
    init, apply = functional(lambda rngs: NanoGPT(model, rngs=rngs))

    def sampler(tokens):
        return lambda key: sample_batch(jnp.asarray(tokens), key, batch, model.context)

    def loss(params, state, tokens, key, train=True):
        logits, state = apply(params, state, tokens[:, :-1], key, train)
        return next_token_loss(logits, tokens[:, 1:]), state

    return Task(
        init=init,
        sample=sampler(corpus.tokens_train),
        loss=loss,
        sample_heldout=sampler(corpus.tokens_heldout),
        evaluate=lambda params, state, tokens: loss(params, state, tokens, None, train=False)[0],
    )
