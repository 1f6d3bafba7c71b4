"""The two kinds of training of the `train` command, with their presets."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from experiments.core.errors import ConfigError
from experiments.data.images import NUM_CLASSES, flip_and_crop, load_images
from experiments.data.loading import Data
from experiments.data.text import load_text
from experiments.data.tokenizers import TOKENIZERS
from experiments.train.config import ImageTraining, TextTraining
from experiments.training.tasks import Task, image_task, text_task
from models.cnn import CNNConfig
from models.nanogpt import GPTConfig


class Training(NamedTuple):
    """A kind of training."""

    presets: Mapping[str, Any]
    """Configurations by name."""
    load: Callable[[Any], Data]
    """`load(config) -> data`."""
    task: Callable[[Any], Task]
    """`task(config)` returns the model and its loss."""
    augment: Callable[[Any], Any]
    """`augment(config)` returns a function that changes training examples at random, or None."""
    unit: str
    """The unit in which speed is counted, in the plural."""
    units_per_example: Callable[[Any], int]
    """Number of units in an example."""


def _load_text(config: TextTraining) -> Data:
    vocab_size = TOKENIZERS[config.tokenizer].vocab_size
    _check_at_least("model.vocab_size", config.model.vocab_size, vocab_size, "tokens")
    return load_text(
        config.corpus,
        tokenizer=config.tokenizer,
        context=config.model.context,
        cache=config.cache,
        num_shards=config.num_shards,
    )


def _load_images(config: ImageTraining) -> Data:
    _check_at_least("model.num_classes", config.model.num_classes, NUM_CLASSES, "classes")
    return load_images(config.dataset, cache=config.cache)


def _check_at_least(field: str, value: int, least: int, what: str) -> None:
    if value < least:
        raise ConfigError(f"{field}={value} is below the {least} {what} that the data has")


TEXT = {
    "smoke": TextTraining(
        model=GPTConfig(vocab_size=256, context=32, num_layers=1, num_heads=2, width=32),
        num_steps=20,
        batch_size=8,
        warmup_steps=5,
        eval_every=10,
        eval_batches=4,
        save_every=10,
    ),
    "laptop": TextTraining(
        model=GPTConfig(
            vocab_size=256, context=64, num_layers=2, num_heads=4, width=128, dropout=0.0
        ),
        num_steps=600,
        batch_size=32,
        warmup_steps=50,
    ),
    # Appendices H and P on C4, which do not mention a schedule. Three shards have the
    # tokens of 20,000 batches.
    "paper": TextTraining(
        corpus="c4",
        tokenizer="gpt2",
        num_shards=3,
        model=GPTConfig(),
        num_steps=20_000,
        batch_size=64,
        learning_rate=1e-3,
        schedule="constant",
        warmup_steps=0,
        weight_decay=1e-2,
        eval_batches=200,
        save_every=1000,
    ),
}

IMAGES = {
    "smoke": ImageTraining(
        model=CNNConfig(width=1 / 16),
        num_steps=20,
        batch_size=16,
        warmup_steps=5,
        eval_every=10,
        eval_batches=4,
        save_every=10,
    ),
    "laptop": ImageTraining(
        model=CNNConfig(width=1 / 8),
        num_steps=300,
        batch_size=64,
        learning_rate=2e-3,
        warmup_steps=30,
    ),
    # Appendix H: 100 epochs, warm-up during the first 2, evaluation every 5.
    "paper": ImageTraining(
        dataset="cifar10",
        model=CNNConfig(),
        num_steps=8789,
        batch_size=512,
        learning_rate=1e-3,
        warmup_steps=176,
        weight_decay=1e-4,
        eval_every=439,
        save_every=439,
    ),
}

TRAININGS: Mapping[str, Training] = {
    "text": Training(
        presets=TEXT,
        load=_load_text,
        task=lambda config: text_task(config.model, loss_parts=config.loss_parts),
        augment=lambda config: None,
        unit="tokens",
        units_per_example=lambda config: config.model.context,
    ),
    "images": Training(
        presets=IMAGES,
        load=_load_images,
        task=lambda config: image_task(config.model),
        augment=lambda config: flip_and_crop if config.augment else None,
        unit="images",
        units_per_example=lambda config: 1,
    ),
}
