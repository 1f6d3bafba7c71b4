"""Noise of known size in training: in the gradients, in the labels, and from small batches."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from experiments.data import Corpus, sample_batch
from experiments.training.tasks import Task, check_corpus, heldout_halves
from experiments.training.train import train_member
from models.functional import functional
from models.nanogpt import next_token_loss
from models.ngram import NGram, NGramConfig

NOISE_CHILD = 2
"""Child of a seed's key for the noise; `train_member` takes the children 0 and 1."""


class AddRelativeNoiseState(NamedTuple):
    """State of `add_relative_noise`."""

    count: jax.Array
    """shape=(), int32."""


def add_relative_noise(level: ArrayLike, key: jax.Array) -> optax.GradientTransformation:
    """Add normal noise as large as the gradient times a level; put this before an optimizer.

    ĝ = g + level ‖g‖/√N z with z ~ N(0, 1) for each of the N entries. `optax.add_noise` sets the
    noise's own variance, and noise that is small compared with an early gradient buries a late one;
    k-Adam does not see its gradients' scale, so its steps depend on the ratio.

    Args:
      level: Root mean square of the noise over that of the gradient; 0 adds no noise. May be
        traced.
      key: Determines the noise of a step, together with the step's number.

    Returns:
      The transformation.

    >>> noise = add_relative_noise(3.0, jax.random.key(0))
    >>> grads = jnp.full(10_000, 0.01)
    >>> noisy, _ = noise.update(grads, noise.init(grads))
    >>> print(f"{jnp.std(noisy):.3f}")
    0.030
    """

    def init_fn(params):
        del params
        return AddRelativeNoiseState(jnp.zeros((), jnp.int32))

    def update_fn(updates, state, params=None):
        del params

        def add(updates):
            # In one piece: every call of the generator adds to the time that compilation takes.
            grad, unravel = ravel_pytree(updates)
            noise = jax.random.normal(jax.random.fold_in(key, state.count), grad.shape, grad.dtype)
            scale = jnp.asarray(level, grad.dtype) * jnp.sqrt(jnp.mean(grad**2))
            return unravel(grad + scale * noise)

        # With this, members that run in turn draw no noise unnecessarily.
        noisy = jax.lax.cond(jnp.asarray(level) > 0, add, lambda updates: updates, updates)
        return noisy, AddRelativeNoiseState(optax.safe_increment(state.count))

    return optax.GradientTransformation(init_fn, update_fn)


def ngram_task(
    model: NGramConfig, corpus: Corpus | None, batch: int, label_noise: ArrayLike = 0.0
) -> Task:
    """Return the task of predicting the next token, one per example, in nats per token.

    Args:
      model: The network.
      corpus: The corpus whose training split is trained on.
      batch: Examples in a batch.
      label_noise: Share of the training labels that are replaced by tokens drawn uniformly from the
        model's vocabulary; held-out labels stay as they are. May be traced; the crops of a key
        are the same at any share.

    Returns:
      The task; its batches are (batch, context + 1) tokens, and the last one is the label.

    Raises:
      ConfigError: As for `check_corpus`.

    >>> from experiments.data import load_corpus
    >>> task = ngram_task(NGramConfig(width=8), load_corpus("embedded"), batch=512, label_noise=0.5)
    >>> clean = ngram_task(NGramConfig(width=8), load_corpus("embedded"), batch=512)
    >>> changed = task.sample(jax.random.key(0)) != clean.sample(jax.random.key(0))
    >>> [round(float(share), 1) for share in changed.mean(0)]
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5]
    """
    corpus = check_corpus(corpus, model)
    init, apply = functional(lambda rngs: NGram(model, rngs=rngs))

    def sample(key):
        crop_key, share_key, label_key = jax.random.split(key, 3)
        tokens = sample_batch(jnp.asarray(corpus.tokens_train), crop_key, batch, model.context)
        replaced = jax.random.bernoulli(share_key, label_noise, (batch,))
        labels = jax.random.randint(label_key, (batch,), 0, model.vocab_size)
        return tokens.at[:, -1].set(jnp.where(replaced, labels, tokens[:, -1]))

    def loss(params, state, tokens, key):
        logits, state = apply(params, state, tokens[:, :-1], key, train=True)
        return next_token_loss(logits, tokens[:, -1]), state

    return Task(init, loss, sample=sample)


def noisy_trial(
    model: NGramConfig,
    corpus: Corpus | None,
    make_optimizer: Callable[[jax.Array], optax.GradientTransformation],
    *,
    batch: int,
    num_steps: int,
    eval_examples: int,
) -> Callable[[Mapping[str, jax.Array]], dict[str, jax.Array]]:
    """Return a function that trains a member with its own noise; validation is on the first half.

    Args:
      model: The network.
      corpus: The corpus that is trained on.
      make_optimizer: Makes the optimizer for a learning rate, which is traced.
      batch: Examples in a batch.
      num_steps: Optimizer steps.
      eval_examples: Predictions in each half of the held-out text that are measured, drawn once.

    Returns:
      A function from a member, `seed`, `learning_rate`, `gradient_noise` and `label_noise`, to its
      mean losses at the end, `validation` and `test`. Members of one seed see the same crops at any
      noise, and the same noise with any optimizer.
    """
    halves = heldout_halves(corpus, model)

    def fn(member):
        task = ngram_task(model, corpus, batch, member["label_noise"])
        noise_key = jax.random.fold_in(jax.random.key(member["seed"]), NOISE_CHILD)
        optimizer = optax.chain(
            add_relative_noise(member["gradient_noise"], noise_key),
            make_optimizer(member["learning_rate"]),
        )
        end = train_member(task, optimizer, seed=member["seed"], num_steps=num_steps)

        def loss(half):
            key = jax.random.key(0)
            tokens = sample_batch(jnp.asarray(half), key, eval_examples, model.context)
            return task.loss(end.params, end.state, tokens, None)[0]  # nothing here is random

        validation, test = map(loss, halves)
        return {"validation": validation, "test": test}

    return fn
