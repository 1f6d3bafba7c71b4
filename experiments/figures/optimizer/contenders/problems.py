"""What is trained: text with a network, a budget and a batch of several sizes; images."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.core.errors import ConfigError
from experiments.core.run import Run
from experiments.data import sample_batch
from experiments.training.tasks import Task, heldout_halves, image_task, language_task
from experiments.training.train import train_member

EVAL_IMAGES = 100
"""Images evaluated at once; it divides every split."""


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

    @property
    def unit(self) -> str:
        """The unit of the score."""
        return "nat/token" if self.is_text else "% of images"


TASKS: dict[str, Setting] = {
    "text": Setting("text"),
    "images": Setting("images", "cnn"),
    "text_long": Setting("text, 4 times the steps", steps=4),
    "text_batch": Setting("text, 4 times the batch", batch=4),
    "text_deep": Setting("text, the deep network", "deep_model"),
}
"""The tasks by name."""

Measure = Callable[[Any, Any], tuple[jax.Array, jax.Array]]
"""`measure(params, state)` returns a split's mean loss in nats and its score."""


class Problem(NamedTuple):
    """A task with its data and its measures."""

    task: Task
    num_steps: int
    chance: float
    """Loss of a uniform guess, in nats."""
    validation: Measure
    test: Measure
    course: Measure
    """A cheaper measure on the validation split, for the course of a run."""


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
    return make(config, setting, run)._replace(num_steps=config.num_steps * setting.steps)


def _text(config: Any, setting: Setting, run: Run) -> Problem:
    model = getattr(config, setting.model)
    task = language_task(model, run.corpus, config.batch * setting.batch)
    validation, test = heldout_halves(run.corpus, model)

    def measure(tokens, num_batches):
        keys = jax.random.split(jax.random.key(0), num_batches)

        def of(params, state):
            def loss(key):
                crops = sample_batch(jnp.asarray(tokens), key, config.batch, model.context)
                return task.evaluate(params, state, crops)

            mean = jax.lax.map(loss, keys).mean()
            return mean, mean

        return of

    return Problem(
        task,
        num_steps=0,
        chance=float(np.log(model.vocab_size)),
        validation=measure(validation, config.eval_batches),
        test=measure(test, config.eval_batches),
        course=measure(validation, config.course_batches),
    )


def _images(config: Any, setting: Setting, run: Run) -> Problem:
    if run.images is None:
        raise ConfigError("images must be images to train on, got None")
    model = getattr(config, setting.model)
    train = _in_program(run.images.train)

    def sample(key):
        return train[jax.random.randint(key, (config.image_batch,), 0, len(train))]

    task = image_task(model)._replace(sample=sample)

    def measure(split):
        pixels = _in_program(split)
        places = np.arange(len(split)).reshape(-1, EVAL_IMAGES)

        def of(params, state):
            def sums(at):
                return task.metrics(params, state, pixels[at], jnp.ones(EVAL_IMAGES))

            means = {
                key: x.sum() / len(split)
                for key, x in jax.lax.map(sums, jnp.asarray(places)).items()
            }
            return means["loss"], 100 * (1 - means["accuracy"])

        return of

    validation, test = (measure(run.images.heldout[name]) for name in ("validation", "test"))
    return Problem(
        task,
        num_steps=0,
        chance=float(np.log(model.num_classes)),
        validation=validation,
        test=test,
        course=validation,
    )


def _in_program(split: Any) -> Any:
    """Return the split for traced indices: the program holds the pixels as bytes."""
    return dataclasses.replace(
        split, pixels=jnp.asarray(split.pixels), labels=jnp.asarray(split.labels)
    )


def train(
    of: Problem,
    optimizer: optax.GradientTransformation,
    seed: jax.Array,
    num_points: int,
    evaluated: Callable[[Any, Any], Any],
) -> dict[str, jax.Array]:
    """Train one member, measuring it at equally many steps from each other.

    Args:
      of: The problem.
      optimizer: May be built from tracers.
      seed: Decides initial weights, batches and dropout.
      num_points: How often the loss is measured; it divides the number of steps.
      evaluated: `evaluated(opt_state, params)` returns the parameters that are measured.

    Returns:
      `course`, (num_points,), the loss of `Problem.course`; `validation`, the loss at the end; and
      `loss` and `score` on the test split.
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
        return carry, of.course(measured, result.state)[0]

    params, state = of.task.init(jax.random.key(seed))
    start = params, state, optimizer.init(params)
    end, course = jax.lax.scan(part, start, jnp.arange(num_points))
    params, state, opt_state = end
    params = evaluated(opt_state, params)
    loss, score = of.test(params, state)
    validation, _ = of.validation(params, state)
    return {"course": course, "validation": validation, "loss": loss, "score": score}
