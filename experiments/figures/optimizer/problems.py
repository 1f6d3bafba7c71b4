"""What is trained: text, with several networks, budgets and batches, and images."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.core.run import Run
from experiments.data import Corpus, sample_batch
from experiments.training.tasks import Task, heldout_halves, language_task
from experiments.training.train import train_member
from experiments.training.trials import EVAL_BATCH, drawn_image_task, in_program
from models.nanogpt import GPTConfig


class Setting(NamedTuple):
    """A row of the table of tasks."""

    label: str
    model: str = "model"
    """The configuration's field with the network."""
    steps: int = 1
    """Multiplies the configuration's number of steps."""
    batch: int = 1
    """Multiplies the batch of text."""

    @property
    def is_text(self) -> bool:
        """Whether the network reads text."""
        return self.model != "cnn"


TASKS: dict[str, Setting] = {
    "text": Setting("text"),
    "images": Setting("images", "cnn"),
    "text_long": Setting("text, 4 times the steps", steps=4),
    "text_batch": Setting("text, 4 times the batch", batch=4),
    "text_deep": Setting("text, the deep network", "deep_model"),
}
"""The tasks by name."""


class Problem(NamedTuple):
    """A task with its data and its measures."""

    task: Task
    setting: Setting
    num_steps: int
    chance: float
    """Loss of a uniform guess, in nats."""
    course: Callable[[Any, Any], jax.Array]
    """`course(params, state)` returns a validation loss that is cheap enough to follow a run."""
    measure: Callable[[Any, Any], dict[str, jax.Array]]
    """`measure(params, state)` returns the losses `validation` and, on the test split, `loss`, in
    nats, and the `score` there."""


def problem(config: Any, name: str, run: Run) -> Problem:
    """Return a task of the table.

    Args:
      config: The figure's configuration.
      name: A name in `TASKS`.
      run: The figure's run, with text and images.

    Raises:
      ConfigError: If the data are missing, or too few for the network.
    """
    setting = TASKS[name]
    make = _text if setting.is_text else _images
    return make(config, setting, config.num_steps * setting.steps, run)


def _text(config: Any, setting: Setting, num_steps: int, run: Run) -> Problem:
    model = getattr(config, setting.model)
    task = language_task(model, run.corpus, config.batch * setting.batch)
    crops = text_crops(config, model, run.corpus)

    def losses(params, state, batches):
        return jax.lax.map(lambda tokens: task.evaluate(params, state, tokens), batches)

    def measure(params, state):
        both = losses(params, state, jnp.asarray(crops.reshape(-1, *crops.shape[2:])))
        validation, test = both.reshape(2, -1).mean(1)
        return {"validation": validation, "loss": test, "score": test}

    def course(params, state):
        return losses(params, state, jnp.asarray(crops[0, : config.course_batches])).mean()

    chance = float(np.log(model.vocab_size))
    return Problem(task, setting, num_steps, chance, course, measure)


def text_crops(config: Any, model: GPTConfig, corpus: Corpus | None) -> np.ndarray:
    """Return the held-out text on which every member is measured.

    Args:
      config: Has `eval_batches`, the batches of each half, and `batch`, the crops of each.
      model: The network, whose context is the crops' length.
      corpus: The corpus.

    Returns:
      Tokens of the validation half and of the test half, (2, eval_batches, batch, context + 1).
    """
    keys = jax.random.split(jax.random.key(0), config.eval_batches)

    def drawn(tokens):
        return jax.vmap(lambda key: sample_batch(tokens, key, config.batch, model.context))(keys)

    return np.stack([drawn(jnp.asarray(half)) for half in heldout_halves(corpus, model)])


def _images(config: Any, setting: Setting, num_steps: int, run: Run) -> Problem:
    model = getattr(config, setting.model)
    task = drawn_image_task(model, run.images, config.image_batch)
    validation, test = (run.images.heldout[name] for name in ("validation", "test"))
    both = dataclasses.replace(
        test,
        pixels=np.concatenate([validation.pixels, test.pixels]),
        labels=np.concatenate([validation.labels, test.labels]),
    )

    metrics: Any = task.metrics

    def means(params, state, places):
        """Return loss and error of every EVAL_BATCH images at the places."""

        def mean(at):
            ones = jnp.ones(EVAL_BATCH)
            sums = metrics(params, state, in_program(both)[at], ones / EVAL_BATCH)
            return sums["loss"], 100 * (1 - sums["accuracy"])

        return jax.lax.map(mean, jnp.asarray(places.reshape(-1, EVAL_BATCH)))

    def measure(params, state):
        losses, errors = means(params, state, np.arange(len(both)))
        parts = len(validation) // EVAL_BATCH
        return {
            "validation": losses[:parts].mean(),
            "loss": losses[parts:].mean(),
            "score": errors[parts:].mean(),
        }

    def course(params, state):
        return means(params, state, np.arange(len(validation)))[0].mean()

    chance = float(np.log(model.num_classes))
    return Problem(task, setting, num_steps, chance, course, measure)


def train_measured(
    of: Problem,
    optimizer: optax.GradientTransformation,
    seed: jax.Array,
    num_points: int,
    evaluated: Callable[[Any, Any], Any],
) -> dict[str, jax.Array]:
    """Train one member, measuring it at equal distances in steps.

    Args:
      of: The problem.
      optimizer: May be built from tracers.
      seed: Decides initial weights, batches and dropout.
      num_points: How often the loss is measured; it divides the number of steps.
      evaluated: `evaluated(opt_state, params)` returns the parameters that are measured.

    Returns:
      `course`, (num_points,), the loss of `Problem.course`, and `Problem.measure` at the end.
    """

    def part(carry, index):
        params, state, opt_state = carry
        result = train_member(
            of.task._replace(init=lambda key: (params, state)),
            optax.GradientTransformationExtraArgs(lambda params: opt_state, optimizer.update),
            seed=seed * num_points + index,
            num_steps=of.num_steps // num_points,
        )
        measured = evaluated(result.opt_state, result.params)
        carry = result.params, result.state, result.opt_state
        return carry, of.course(measured, result.state)

    params, state = of.task.init(jax.random.key(seed))
    start = params, state, optimizer.init(params)
    end, course = jax.lax.scan(part, start, jnp.arange(num_points))
    params, state, opt_state = end
    return {"course": course, **of.measure(evaluated(opt_state, params), state)}
