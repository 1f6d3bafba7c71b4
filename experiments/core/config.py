"""Configurations: frozen dataclasses, typed overrides from the command line, JSON and a digest.

Every figure has a configuration class and three instances of it, its presets. A field is documented
in its line under `Attributes:`; `python -m experiments run NAME --help` prints these lines.
"""

import contextlib
import dataclasses
import difflib
import hashlib
import itertools
import json
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING
from typing import Any, TypeVar

from experiments.core.errors import ConfigError

LIMIT = 2**31
"""An upper bound: JAX's sizes and indices are below it."""
PRESETS = ("smoke", "laptop", "evening", "paper")
""""smoke" runs in seconds and decides nothing; "laptop" runs in minutes on two cores; "evening"
runs for up to 2.5 hours there, with enough seeds or steps for claims that "laptop" leaves open;
"paper" needs an accelerator and has the paper's own sizes. Not every figure has "evening"."""


@dataclasses.dataclass(frozen=True)
class FigureConfig:
    """The inputs of a figure's computation; subclass it and add fields with defaults."""


def require(holds: bool, rule: str, got: object) -> None:
    """Raise a ConfigError that states the rule, unless it holds."""
    if not holds:
        raise ConfigError(f"{rule}, got {got}")


def check_least(config: FigureConfig, **least: float) -> None:
    """Raise ConfigError if a field is below its least value."""
    for name, value in least.items():
        found = getattr(config, name)
        require(found >= value, f"{name} must be at least {value}", found)


def check_between(config: FigureConfig, **fields: tuple[float, float]) -> None:
    """Raise ConfigError unless each field is between its two ends, without the ends."""
    for name, (low, high) in fields.items():
        found = getattr(config, name)
        ends = f"between {low} and {high}" if high < math.inf else f"finite and above {low}"
        require(low < found < high, f"{name} must be {ends}", found)


def check_rising(**fields: Sequence[float]) -> None:
    """Raise ConfigError unless every field has two or more finite numbers rising from above 0."""
    for name, values in fields.items():
        rule = f"{name} must be two or more finite numbers that increase from above 0"
        require(len(values) >= 2 and rises(0, *values, math.inf), rule, list(values))


def check_names(config: FigureConfig, name: str, known: Iterable[str], *needed: str) -> None:
    """Raise ConfigError unless a field has distinct known names, at least one, with all needed."""
    names, known = getattr(config, name), list(known)
    including = f", including {' and '.join(needed)}" if needed else ""
    rule = f"{name} must be distinct names from {', '.join(known)}{including}"
    holds = bool(names) and len({*names}) == len(names) and {*needed} <= {*names} <= {*known}
    require(holds, rule, names)


def check_ks(ks: Sequence[int]) -> None:
    """Raise ConfigError unless numbers of stages begin with Adam's 1 and rise."""
    holds = ks[:1] == (1,) and len(ks) >= 2 and rises(*ks)
    require(holds, "ks must be 1 followed by larger integers in increasing order", ks)


def rises(*values: float) -> bool:
    """Whether every number is above the one before; false where a neighbor is NaN.

    >>> rises(0, 1, 3), rises(0, 0), rises(0, float("nan"))
    (True, False, False)
    """
    return all(low < high for low, high in itertools.pairwise(values))


ConfigT = TypeVar("ConfigT")


def preset_of(presets: Mapping[str, ConfigT], name: str, owner: str) -> ConfigT:
    """Return a preset of `owner`.

    >>> preset_of({"smoke": 1, "paper": 2}, "evening", "toy")
    Traceback (most recent call last):
    ...
    experiments.core.errors.ConfigError: toy has no preset evening; it has smoke, paper
    """
    if name not in presets:
        raise ConfigError(f"{owner} has no preset {name}; it has {', '.join(presets)}")
    return presets[name]


def override(config: ConfigT, assignments: Sequence[str], prog: str = "--set") -> ConfigT:
    """Replace fields of `config` by `assignments`, each `"field=value"` or `"a.b=value"`.

    Values are parsed with the field's type: `learning_rate=1e-30`, `model.width=64`,
    `levels=-1,0,1` for a tuple, `dropout=None` where None is allowed.

    Args:
      config: The preset to start from, which gives the types and all other values.
      assignments: A string for each field; a later one wins.
      prog: The command whose `--help` messages refer to.

    Returns:
      A new configuration of the same class.

    Raises:
      SystemExit: With code 2, after a message on stderr that names the field whose value does not
        have its type.
      ConfigError: If a field is unknown (the message names a similar one), a number is not finite
        (comparisons would let it through), an integer is too large for an array's size, or a text
        is not a field or not a value.

    >>> from experiments.training.config import TrainingConfig
    >>> override(TrainingConfig(), ["eps=1e-8", "model.width=64", "model.num_heads=1"]).model.width
    64
    """
    arguments = []
    for assignment in assignments:
        field, _, value = assignment.partition("=")
        _check_field(config, field, assignment)
        arguments += [f"--{field}", *_words(config, field, value)]
    parsed = _parse(config, arguments, prog)
    for name, (value, _) in changes(parsed, config).items():
        for number in _numbers(value):
            if not math.isfinite(number):
                raise ConfigError(f"{name}={_text(value)}: give finite numbers")
            if isinstance(number, int) and abs(number) >= LIMIT:
                raise ConfigError(
                    f"{name}={number}: give integers below 2^31, the limit of JAX's indices"
                )
    return parsed


def _check_field(config: Any, field: str, assignment: str) -> None:
    """Raise ConfigError unless `config` has the field; tyro would call it `--FIELD`."""
    if not re.fullmatch(r"[A-Za-z_][\w.-]*", field, re.ASCII):
        raise ConfigError(f"--set {assignment!r}: write the name of a field, =, and its value")
    if field not in (fields := flatten(config)):
        near = difflib.get_close_matches(field, fields, n=1)
        hint = f"did you mean {near[0]}?" if near else "--help lists all fields"
        raise ConfigError(f"--set {assignment!r}: {field} is not a field; {hint}")


def _numbers(value: Any) -> Iterator[float]:
    """Yield the numbers in a field's value, including those in lists."""
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def print_help(config: Any, prog: str) -> None:
    """Print every field with its type, meaning and value in `config`."""
    with contextlib.suppress(SystemExit):
        _parse(config, ["--help"], prog)


def _parse(config: ConfigT, arguments: Sequence[str], prog: str) -> ConfigT:
    import tyro  # it takes a sixth of a second, which `list` need not wait for

    flags = (tyro.conf.FlagConversionOff,)
    return tyro.cli(
        type(config),
        default=config,
        args=arguments,
        prog=prog,
        use_underscores=True,
        config=flags,
    )


def _words(config: Any, field: str, value: str) -> list[str]:
    """Convert `value` to tyro's form: a tuple's items as separate words, booleans capitalized."""
    is_tuple = isinstance(get(config, field), tuple)
    words = value.replace(",", " ").split() if is_tuple else [value]
    for word in words:
        if (word.startswith("-") and not _is_number(word)) or not _is_utf8(word):
            raise ConfigError(f"--set {field}={value!r}: {word!r} is not a value")
    return [word.capitalize() if word in ("true", "false", "none") else word for word in words]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_utf8(text: str) -> bool:
    """Whether a text can be written to a file; bytes of another encoding and NUL cannot."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def flatten(config: Any) -> dict[str, Any]:
    """Return every field by its dotted name as in JSON: nested ones are opened, tuples are lists.

    Args:
      config: A dataclass, or the content of its JSON.

    >>> from experiments.training.config import TrainingConfig
    >>> flatten(TrainingConfig())["model.width"]
    384
    >>> flatten({"k": 2, "model": {"width": 64}})
    {'k': 2, 'model.width': 64}
    """
    if dataclasses.is_dataclass(config):
        config = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    flat = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            flat |= {f"{name}.{inner}": leaf for inner, leaf in flatten(value).items()}
        else:
            flat[name] = value
    return flat


def changes(config: Any, base: Any) -> dict[str, tuple[Any, Any]]:
    """Return both values of every field in which two configurations differ, or MISSING.

    Args:
      config, base: As in `flatten`.

    >>> changes({"k": 2, "model": {"width": 64}}, {"k": 1, "model": {"width": 64}})
    {'k': (2, 1)}
    """
    ours, theirs = flatten(config), flatten(base)
    pairs = {name: (ours.get(name, MISSING), theirs.get(name, MISSING)) for name in theirs | ours}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def difference(config: Any, base: Any) -> list[str]:
    """Return the assignments that `override` needs to get from `base` to `config`.

    Args:
      config, base: As in `flatten`; JSON from another version may have other fields.

    >>> from experiments.training.config import TrainingConfig
    >>> difference(TrainingConfig(eps=1e-8), TrainingConfig())
    ['eps=1e-08']
    """
    return [
        f"{name} is not a field of it" if value is MISSING else f"{name}={_text(value)}"
        for name, (value, _) in changes(config, base).items()
    ]


def _text(value: Any) -> str:
    return ",".join(map(_text, value)) if isinstance(value, list) else str(value)


def get(config: Any, field: str) -> Any:
    """Return the value of a dotted field name: `get(config, "model.width")`."""
    return operator.attrgetter(field)(config)


def shortfalls(config: Any, minimum: Mapping[str, float]) -> tuple[str, ...]:
    """Return the fields of `config` below `minimum`, each as `"num_steps=20 < 400"`."""
    found = ((field, get(config, field), least) for field, least in minimum.items())
    return tuple(f"{field}={value} < {least}" for field, value, least in found if value < least)


def to_json(config: FigureConfig) -> str:
    """Return all fields, nested ones too, as JSON with sorted keys."""
    return json.dumps(dataclasses.asdict(config), sort_keys=True)


def digest(*parts: str) -> str:
    """Return twelve hexadecimal digits that identify `parts`."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
