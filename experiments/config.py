"""Configurations: frozen dataclasses, typed overrides from the command line, JSON and a digest.

Every figure has one configuration class and three instances of it, its presets. A field's meaning
is its line under `Attributes:`; `python -m experiments run NAME --help` prints it.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import tyro

from models.nanogpt import GPTConfig

PRESETS = ("smoke", "laptop", "paper")
"""smoke runs in seconds and decides nothing; laptop in minutes on two cores; paper needs an
accelerator and has the paper's own sizes."""

LAPTOP_MODEL = GPTConfig(vocab_size=256, context=32, num_layers=1, num_heads=1, width=64)
"""One layer with a head of the paper's size; the smallest network that verdicts rest on."""
SMOKE_MODEL = dataclasses.replace(LAPTOP_MODEL, context=16, width=16)
LAPTOP_MINIMUM = {
    "model.num_layers": 1,
    "model.width": 64,
    "model.context": 32,
    "batch": 8,
    "num_steps": 400,
    "num_seeds": 5,
}
"""The least that verdicts of figures on text rest on."""


class ConfigError(ValueError):
    """A configuration that cannot be computed; the message names the field."""


@dataclasses.dataclass(frozen=True)
class FigureConfig:
    """What a figure is computed from; subclass it and add fields with defaults."""


@dataclasses.dataclass(frozen=True)
class TrainingConfig(FigureConfig):
    """The fields shared by figures that train nanoGPT members.

    Attributes:
      corpus: Where the bytes come from: "embedded" is CPython's own documentation.
      model: The network; a vocabulary larger than the corpus uses has rows without a gradient.
      batch: Sequences in a batch.
      num_steps: Optimizer steps of every member.
      num_seeds: Seeds 0, 1, ... for every point: initial weights, batches and dropout differ.
      learning_rate: Constant learning rate.
      eps: Added to the bias-corrected root mean square.
      chunk_size: Members between two writes to disk: what Ctrl-C can lose at most.
    """

    corpus: Literal["embedded"] = "embedded"
    model: GPTConfig = dataclasses.field(default_factory=GPTConfig)
    batch: int = 8
    num_steps: int = 400
    num_seeds: int = 5
    learning_rate: float = 1e-3
    eps: float = 1e-30
    chunk_size: int = 8

    @property
    def seeds(self) -> range:
        """The seeds of every point."""
        return range(self.num_seeds)

    def __post_init__(self):
        check_least(self, batch=1, num_steps=1, num_seeds=1, chunk_size=1)
        for name in ("learning_rate", "eps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} must be finite and not negative, got {getattr(self, name)}"
                )


@dataclasses.dataclass(frozen=True)
class ScheduledConfig(TrainingConfig):
    """The same with a warm-up and a cosine: learning rates are the schedule's highest.

    Attributes:
      warmup_steps: Steps in which the learning rate rises from 0, linearly; a cosine follows.
      final_rate: Learning rate at the cosine's end, as a share of the highest.
    """

    warmup_steps: int = 40
    final_rate: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        if not self.learning_rate > 0:
            raise ConfigError(f"learning_rate must be above 0, got {self.learning_rate}")
        if not 0 <= self.warmup_steps < self.num_steps:
            raise ConfigError(
                f"warmup_steps must be from 0 to below num_steps={self.num_steps}, got "
                f"{self.warmup_steps}"
            )
        if not 0 <= self.final_rate <= 1:
            raise ConfigError(f"final_rate must be from 0 to 1, got {self.final_rate}")


@dataclasses.dataclass(frozen=True)
class ContendersConfig(ScheduledConfig):
    """The same where optimizers are compared, each with its own epsilon: eps stays as it is.

    Attributes:
      eval_batches: Batches of crops of each held-out split, the same for all members.
    """

    eval_batches: int = 32

    def __post_init__(self):
        super().__post_init__()
        check_least(self, eval_batches=1)
        if self.eps != TrainingConfig.eps:
            raise ConfigError(f"eps has no effect, every optimizer has its own; got {self.eps}")


@dataclasses.dataclass(frozen=True)
class ImagesConfig(FigureConfig):
    """The fields shared by figures that train on images.

    Attributes:
      dataset: "digits" is scikit-learn's, upsampled; "cifar10" is downloaded; else the folder or
        the .tar.gz file of CIFAR-10's binary release.
      cache: Folder for downloads.
    """

    dataset: str = "digits"
    cache: str = "~/.cache/kadam_jax"


def check_least(config: FigureConfig, **least: float) -> None:
    """Raises ConfigError if a field is below its least value."""
    for name, value in least.items():
        if getattr(config, name) < value:
            raise ConfigError(f"{name} must be at least {value}, got {getattr(config, name)}")


def check_rising(**fields: Sequence[float]) -> None:
    """Raises ConfigError unless every field has two or more finite numbers rising from above 0."""
    for name, values in fields.items():
        if len(values) < 2 or not rises(0, *values, math.inf):
            raise ConfigError(
                f"{name} must be two or more finite numbers that increase from above 0, got "
                f"{list(values)}"
            )


def check_ks(ks: Sequence[int]) -> None:
    """Raises ConfigError unless these are Adam's 1 and larger numbers of stages that rise."""
    if ks[:1] != (1,) or len(ks) < 2 or not rises(*ks):
        raise ConfigError(f"ks must be 1 and larger integers that increase, got {ks}")


def rises(*values: float) -> bool:
    """Whether every number is above the one before; beside NaN none is.

    >>> rises(0, 1, 3), rises(0, 0), rises(0, float("nan"))
    (True, False, False)
    """
    return all(low < high for low, high in itertools.pairwise(values))


ConfigT = TypeVar("ConfigT")


def override(config: ConfigT, assignments: Sequence[str], prog: str = "--set") -> ConfigT:
    """`config` with fields replaced by `assignments`, each `"field=value"` or `"a.b=value"`.

    Values are parsed with the field's type: `learning_rate=1e-30`, `model.width=64`,
    `levels=-1,0,1` for a tuple, `dropout=None` where None is allowed.

    Args:
      config: The preset to start from; it gives the types and all other values.
      assignments: One string for each field; a later one wins.
      prog: The command that messages refer to for its `--help`.

    Returns:
      A new configuration of the same class.

    Raises:
      SystemExit: With code 2, after a message on stderr that names the field and, for an unknown
        field, names near it.
      ConfigError: If a number is not finite; comparisons let NaN through.

    >>> override(TrainingConfig(), ["eps=1e-8", "model.width=64", "model.num_heads=1"]).model.width
    64
    """
    arguments = []
    for assignment in assignments:
        field, _, value = assignment.partition("=")
        arguments += [f"--{field}", *_words(config, field, value)]
    parsed = _parse(config, arguments, prog)
    for item in difference(parsed, config):
        if {"nan", "inf", "-inf"} & set(item.partition("=")[2].split(",")):
            raise ConfigError(f"{item}: give finite numbers")
    return parsed


def print_help(config: Any, prog: str) -> None:
    """Prints every field with its type, meaning and value in `config`."""
    with contextlib.suppress(SystemExit):
        _parse(config, ["--help"], prog)


def _parse(config: ConfigT, arguments: Sequence[str], prog: str) -> ConfigT:
    flags = (tyro.conf.FlagConversionOff,)
    return tyro.cli(type(config), default=config, args=arguments, prog=prog, config=flags)


def _words(config: Any, field: str, value: str) -> list[str]:
    """`value` as tyro wants it: a tuple's items apart, booleans capitalised."""
    try:
        is_tuple = isinstance(get(config, field), tuple)
    except AttributeError:
        is_tuple = False  # tyro names the unknown field
    words = value.replace(",", " ").split() if is_tuple else [value]
    return [word.capitalize() if word in ("true", "false", "none") else word for word in words]


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Every field by its dotted name, nested dataclasses opened.

    >>> flatten(TrainingConfig())["model.width"]
    384
    """
    flat = {}
    for field in dataclasses.fields(config):
        name, value = prefix + field.name, getattr(config, field.name)
        flat |= flatten(value, f"{name}.") if dataclasses.is_dataclass(value) else {name: value}
    return flat


def difference(config: ConfigT, base: ConfigT) -> list[str]:
    """The assignments that `override` needs to get from `base` to `config`.

    >>> difference(TrainingConfig(eps=1e-8), TrainingConfig())
    ['eps=1e-08']
    """
    base_fields = flatten(base)
    return [
        f"{name}={_text(value)}"
        for name, value in flatten(config).items()
        if value != base_fields[name]
    ]


def _text(value: Any) -> str:
    return ",".join(map(_text, value)) if isinstance(value, tuple | list) else str(value)


def get(config: Any, field: str) -> Any:
    """The value of a dotted field name: `get(config, "model.width")`."""
    return operator.attrgetter(field)(config)


def shortfalls(config: Any, minimum: Mapping[str, float]) -> tuple[str, ...]:
    """The fields of `config` below `minimum`, each as `"num_steps=20 < 400"`; empty if none."""
    found = ((field, get(config, field), least) for field, least in minimum.items())
    return tuple(f"{field}={value} < {least}" for field, value, least in found if value < least)


def to_json(config: FigureConfig) -> str:
    """All fields, nested ones too, as JSON with sorted keys."""
    return json.dumps(dataclasses.asdict(config), sort_keys=True)


def json_difference(text: str, base: FigureConfig) -> list[str]:
    """As `difference`, of a configuration in JSON, which may have fields that `base` has not.

    >>> json_difference(to_json(TrainingConfig(eps=1e-8)), TrainingConfig())
    ['eps=1e-08']
    """
    fields, base_fields = (_leaves(json.loads(config)) for config in (text, to_json(base)))
    names = [*base_fields, *(name for name in fields if name not in base_fields)]
    return [
        f"{name}={_text(fields[name])}" if name in fields else f"{name} is no field of it"
        for name in names
        if name not in fields or name not in base_fields or fields[name] != base_fields[name]
    ]


def _leaves(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for field, value in config.items():
        name = prefix + field
        flat |= _leaves(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


def digest(*parts: str) -> str:
    """Twelve hexadecimal digits that identify `parts`."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
