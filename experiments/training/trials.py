"""A run and its measures on a validation and a test split, as a function of an optimizer."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import optax

from experiments.core.errors import ConfigError
from experiments.data import Corpus, sample_batch
from experiments.data.images import Images
from experiments.data.loading import Data
from experiments.training.optimizers import OPTIMIZERS, Member, make_optimizer
from experiments.training.schedules import SCHEDULES
from experiments.training.tasks import Task, heldout_halves, image_task, language_task
from experiments.training.train import train_member
from models.cnn import CNNConfig

EVAL_BATCH = 100
"""Images evaluated at once; it divides every split."""


class Trial(Protocol):
    """A function that trains one member."""

    def __call__(
        self,
        optimizer: optax.GradientTransformation,
        seed: jax.Array,
        evaluated: Callable[[Any, Any], Any] = ...,
    ) -> Mapping[str, jax.Array]:
        """Train the member and measure it; lower is better.

        Args:
          optimizer: May be built from tracers.
          seed: May be traced.
          evaluated: `evaluated(opt_state, params)` returns the parameters that are measured; by
            default those of the last step.

        Returns:
          `validation`, which is compared, `validation_loss`, which breaks ties, and `test`,
          (num_examples,), for each test example.
        """


def text_trial(config: Any, corpus: Corpus | None) -> Trial:
    """Return a function that trains nanoGPT and validates it on half of the held-out text.

    Args:
      config: Has `model`, the network; `batch`, sequences in a batch, for training and for
        evaluation; `num_steps`; and `eval_batches`, batches of each split, drawn once.
      corpus: The corpus that is trained on.

    Returns:
      The function. It measures nats per token on the first half of the held-out text (validation)
      and the second half (test); an example of its `test` is a batch.
    """
    model, batch = config.model, config.batch
    task = language_task(model, corpus, batch)
    halves = heldout_halves(corpus, model)
    keys = jax.random.split(jax.random.key(0), config.eval_batches)

    def trial(optimizer, seed, evaluated=lambda opt_state, params: params):
        result = train_member(task, optimizer, seed=seed, num_steps=config.num_steps)
        params = evaluated(result.opt_state, result.params)

        def losses(tokens):
            def loss(key):
                examples = sample_batch(jnp.asarray(tokens), key, batch, model.context)
                return task.evaluate(params, result.state, examples)

            return jax.lax.map(loss, keys)

        validation, test = map(losses, halves)
        mean = validation.mean()
        return {"validation": mean, "validation_loss": mean, "test": test}

    return trial


def image_trial(
    model: CNNConfig,
    images: Data | None,
    *,
    batch: int,
    num_steps: int,
    measure: Literal["error", "loss"] = "error",
) -> Trial:
    """Return a function that trains the CNN.

    Args:
      model: The network.
      images: The training, validation and test splits.
      batch: Images in a batch, drawn with replacement.
      num_steps: Optimizer steps.
      measure: What `validation` and `test` measure: "error" in percent or "loss" in nats.

    Returns:
      The function; an example of its `test` is an image, whose error is 0, or 100 if it is
      misclassified.

    Raises:
      ConfigError: If there are no images.
    """
    task = drawn_image_task(model, images, batch)

    def trial(optimizer, seed, evaluated=lambda opt_state, params: params):
        result = train_member(task, optimizer, seed=seed, num_steps=num_steps)
        params = evaluated(result.opt_state, result.params)

        def evaluate(split):
            def one(place):  # a metric's sums over a batch of one
                batch = in_program(split)[place[None]]
                return task.metrics(params, result.state, batch, jnp.ones(1))

            places = jnp.arange(len(split)).reshape(-1, EVAL_BATCH)
            sums = jax.lax.map(jax.vmap(one), places)
            return {"loss": sums["loss"].ravel(), "error": 100 * (1 - sums["accuracy"].ravel())}

        validation = evaluate(images.heldout["validation"])
        return {
            "validation": validation[measure].mean(),
            "validation_loss": validation["loss"].mean(),
            "test": evaluate(images.heldout["test"])[measure],
        }

    return trial


def drawn_image_task(model: CNNConfig, images: Data | None, batch: int) -> Task:
    """Return `image_task` on batches of training images, drawn with replacement.

    Raises:
      ConfigError: If there are no images.
    """
    if images is None:
        raise ConfigError("images must be images to train on, got None")
    train = images.train

    def sample(key):
        return in_program(train)[jax.random.randint(key, (batch,), 0, len(train))]

    return image_task(model)._replace(sample=sample)


def in_program(split: Images) -> Images:
    """Return the split for traced indices: the program holds the pixels as bytes."""
    return replace(split, pixels=jnp.asarray(split.pixels), labels=jnp.asarray(split.labels))


def optimizer_trial(
    name: str, trial: Trial, num_steps: int, warmup_steps: int, final_rate: float, **fixed: Any
) -> Callable[[Member], dict[str, jax.Array]]:
    """Return a function that trains one member of an optimizer with a warm-up and measures it.

    Args:
      name: A name in `OPTIMIZERS`; if its learning rate should not fall, it stays at its highest.
      trial: Trains with an optimizer.
      num_steps: Steps of `trial`.
      warmup_steps: As in `warmup_cosine`.
      final_rate: As in `warmup_cosine`.
      fixed: Hyperparameters that all members share, and static ones.

    Returns:
      A function from a member, including its `seed`, to the means `validation` and `test`.
    """
    row = OPTIMIZERS[name]
    after = SCHEDULES["cosine" if row.decays_rate else "constant"]
    shape = after(num_steps, warmup_steps, final_rate)

    def fn(member):
        optimizer = make_optimizer(name, {**fixed, **member}, shape)
        found = trial(optimizer, member["seed"], row.evaluated)
        return {"validation": found["validation"], "test": found["test"].mean()}

    return fn
