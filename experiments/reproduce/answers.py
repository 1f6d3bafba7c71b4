"""The page's words: the answer to each question, and which part of each claim holds.

Everything here is a function of judgments, so no sentence can differ from the verdicts.
"""

import collections
import math
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from experiments.core.claims import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, Judgment
from experiments.core.stats import Estimate

NOT_RUN = "not run"
CORRECTED = "holds with a correction"
GROUPS = {
    "holds": "supported",
    CORRECTED: "corrected",
    "does not hold": "not-supported",
    "not decided": "inconclusive",
    NOT_RUN: "inconclusive",
}
"""The page's words for a claim's verdict, in this order, and the CSS class that colors it.
A claim that is not supported holds with a correction if the claim that corrects it is supported."""


def groups(judgments: Collection[Judgment]) -> dict[str, str]:
    """Return the group of each claim, by its id."""
    supported = {found.claim.id for found in judgments if found.verdict == SUPPORTED}
    return {judgment.claim.id: _group(judgment, supported) for judgment in judgments}


def _group(judgment: Judgment, supported: Container[str]) -> str:
    if judgment.remark == NOT_RUN:
        return NOT_RUN
    if judgment.verdict == NOT_SUPPORTED and judgment.claim.corrected_by in supported:
        return CORRECTED
    return {
        SUPPORTED: "holds",
        NOT_SUPPORTED: "does not hold",
        INCONCLUSIVE: "not decided",
    }[judgment.verdict]


def counts(of: Iterable[str]) -> str:
    """Return the number of claims in each group that has any.

    >>> counts(["does not hold", "holds", "holds"])
    '2 hold, 1 does not hold'
    >>> counts(["not decided"])
    '1 is not decided'
    """
    number = collections.Counter(of)
    return ", ".join(
        f"{number[group]} {_said(number[group], group)}" for group in GROUPS if number[group]
    )


def _said(number: int, group: str) -> str:
    said = f"is {group}" if group in ("not decided", NOT_RUN) else group
    if number == 1:
        return said
    return said.replace("holds", "hold").replace("does", "do").replace("is not", "are not")


ALONE = " (no interval)"
"""What follows a formula's value, a count or a maximum over all members."""


class Answer(NamedTuple):
    """An answer to a question.

    Attributes:
      sentence: One sentence, with the numbers and intervals of the claims that it quotes.
      quoted: These claims' judgments.
    """

    sentence: str
    quoted: tuple[Judgment, ...]


def answer(judgments: Sequence[Judgment], phrases: Mapping[str, str]) -> Answer:
    """Answer a question by the claims that decide it.

    "Yes" if all of them are supported; "In part" if some are; "No" if none is and more than half
    are not supported; else the question is not decided. The sentence quotes claims of the kind that
    gave this answer, the first one and another of its figure, and after "In part" also the first
    one that is not supported or not decided.

    Args:
      judgments: Those of the deciding claims, in the order in which they may be quoted.
      phrases: By claim, the words around its number, `{}`; "" for a claim that is not quoted.
    """
    by_verdict = {
        kind: [judgment for judgment in judgments if judgment.verdict == kind]
        for kind in (SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE)
    }
    yes, no, undecided = by_verdict.values()
    if not judgments:
        return Answer("", ())
    if all(judgment.remark == NOT_RUN for judgment in judgments):
        return Answer("Not run.", ())
    if len(yes) == len(judgments):
        lead, kinds = "Yes", [yes]
    elif yes:
        lead, kinds = "In part", [yes, [*no, *undecided]]
    elif 2 * len(no) > len(judgments):
        lead, kinds = "No", [no]
    else:
        lead, kinds = "Not decided at this scale", [undecided]
    deciding, *others = [[found for found in kind if phrases[found.claim.id]] for kind in kinds]
    first = [found for found in deciding if found.claim.figure == deciding[0].claim.figure]
    parts = [part for part in (first[:2], *(other[:1] for other in others)) if part]
    clauses = [
        " and ".join(_clause(judgment, phrases[judgment.claim.id]) for judgment in part)
        for part in parts
    ]
    quoted = tuple(judgment for part in parts for judgment in part)
    return Answer(f"{lead}: {', but '.join(clauses)}." if clauses else f"{lead}.", quoted)


def _clause(judgment: Judgment, phrase: str) -> str:
    """Return a claim's phrase with its number, and what the claim needs."""
    estimate = measured(judgment.estimate, 3).removesuffix(ALONE)
    return f"{phrase.format(estimate)} (needed: {needed(judgment.claim.accept)})"


def holding(judgment: Judgment) -> str:
    """Return what holds in place of a claim's statement, in a sentence."""
    if judgment.remark == NOT_RUN:
        return "Not run."
    if judgment.remark:
        return f"Not decided {judgment.remark}."
    if judgment.verdict == SUPPORTED:
        return "As stated."
    if judgment.verdict == NOT_SUPPORTED:
        return judgment.correction or "Not as stated."
    if judgment.estimate.n == 0:
        return (
            "Not decided: data that it needs are missing, or the condition under which it is "
            "judged is not met."
        )
    more = more_observations(judgment)
    return f"Open: only part of the interval lies in the range it needs{more and '; ' + more}."


def more_observations(judgment: Judgment) -> str:
    """Say how many observations would decide an open claim, if the estimate stays where it is.

    An interval's half-width h falls like 1/√n. The claim is decided once h is at most the distance
    d from the estimate to the ends of the needed range that the interval contains: at n (h/d)².

    >>> claim = SimpleNamespace(accept=(0.0, math.inf))
    >>> more_observations(Judgment(claim, Estimate(1.0, -1.0, 3.0, 5), INCONCLUSIVE, ""))
    'about 4 times as many observations would decide it if the estimate stays the same'
    """
    estimate, ends = judgment.estimate, judgment.claim.accept
    within = [end for end in ends if math.isfinite(end) and estimate.low <= end <= estimate.high]
    if not within or estimate.value in within:
        return ""
    # The interval may be longer on one side; what matters is the side on which the end lies.
    ratios = [
        (estimate.value - (estimate.low if end < estimate.value else estimate.high))
        / (estimate.value - end)
        for end in within
    ]
    factor = max(ratios) ** 2
    if factor == math.inf:  # `Estimate.opened`
        return "whatever lies beyond the edge of a grid could decide it"
    if factor >= 99.5:
        return "more than a hundred times as many observations would be needed"
    many = f"about {factor:.2g} times as many observations"
    return f"{many} would decide it if the estimate stays the same"


def measured(estimate: Estimate, digits: int = 4) -> str:
    """Return a value with its interval, all to the last digit that the interval's width decides.

    Without an interval, `ALONE` says so.

    Args:
      estimate: The value with its interval.
      digits: Significant digits of an exact value; the width of an interval has one less.

    >>> measured(Estimate(-0.041, -0.05123, -0.03, 5), 3), measured(Estimate(1.0, 1.0, 1.0, 9))
    ('-0.041 [-0.051, -0.030]', '1 (no interval)')
    >>> measured(Estimate(7.13e-8, 4.84e-8, 1.1e-7, 5))
    '7.13e-08 [4.84e-08, 1.10e-07]'
    >>> measured(Estimate(math.nan, math.nan, math.nan, 0))
    '— (no observations)'
    """
    value, low, high = estimate.value, estimate.low, estimate.high
    if estimate.n == 0:
        return f"{number(value, digits)} (no observations)"
    if low == high == value:
        return f"{number(value, digits)}{ALONE}"
    value, low, high = _alike((value, low, high), digits - 1)
    return f"{value} [{low}, {high}]"


def _alike(values: Sequence[float], digits: int) -> list[str]:
    """Return numbers to the same last digit, the one that gives their range `digits` digits."""
    finite = [value for value in values if math.isfinite(value)]
    width, largest = np.ptp(finite or [0]), max(map(abs, finite), default=0)
    if not width:
        return [number(value, digits + 1) for value in values]
    if not 1e-4 <= largest < 1e6:
        style = f".{digits - 1}e"
    else:
        style = f".{max(0, digits - 1 - math.floor(math.log10(width)))}f"
    return [number(value) if not math.isfinite(value) else f"{value:z{style}}" for value in values]


def number(value: float, digits: int = 4) -> str:
    """Return a number to so many significant digits, or a dash if there is none.

    >>> number(2 / 3), number(math.nan), number(-math.inf)
    ('0.6667', '—', '−∞')
    """
    if math.isinf(value):  # browsers break a line between a hyphen and ∞
        return "\N{MINUS SIGN}∞" if value < 0 else "∞"
    return "—" if math.isnan(value) else f"{value:.{digits}g}"


def needed(accept: tuple[float, float]) -> str:
    """Return a claim's rule in words.

    >>> needed((1.0, 1.0)), needed((-math.inf, 3.5)), needed((0.9, 1.1))
    ('1', 'at most 3.5', '0.9 to 1.1')
    """
    low, high = accept
    if low == high:
        return number(low)
    if low == -math.inf:
        return f"at most {number(high)}"
    if high == math.inf:
        return f"at least {number(low)}"
    return f"{number(low)} to {number(high)}"


NETWORKS = {
    "num_layers": "transformer",
    "embedding_size": "feed-forward network",
    "num_classes": "CNN",
    "": "no network",
}
"""The kind of network that a configuration trains, by a field of its `model`."""


def scale(configurations: Iterable[SimpleNamespace]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return, for each kind of network, the ranges of the sizes that decide its figures' scale.

    >>> model = SimpleNamespace(num_layers=2, width=64, context=32)
    >>> config = SimpleNamespace(model=model, batch=8, num_steps=100, num_seeds=5)
    >>> scale([config, config])[0][1][-2:]
    [('steps', '100'), ('tokens in a run', '25,600')]
    >>> scale([SimpleNamespace(num_steps=20)])
    [('no network', [('figures', '1'), ('steps', '20')])]
    """
    kinds = collections.defaultdict(list)
    for config in configurations:
        model = vars(getattr(config, "model", SimpleNamespace()))
        kinds[next(kind for field, kind in NETWORKS.items() if field in ("", *model))].append(
            config
        )
    return [(kind, _ranges(kinds[kind])) for kind in NETWORKS.values() if kinds[kind]]


def _ranges(configs: Sequence[SimpleNamespace]) -> list[tuple[str, str]]:
    found = collections.defaultdict(list)
    for config in configs:
        model, steps = getattr(config, "model", None), getattr(config, "num_steps", None)
        batch = getattr(config, "batch", None)
        examples = batch and steps and batch * steps
        context = getattr(model, "context", None)
        width = getattr(model, "width", None)
        rows = {
            "layers": getattr(model, "num_layers", None),
            "width": width if isinstance(width, int) else None,
            "share of the paper's width": width if isinstance(width, float) else None,
            "context": context,
            "seeds": getattr(config, "num_seeds", None),
            "steps": steps,
            "tokens in a run": context and examples and examples * context,
            "images in a run": None if context else examples,
        }
        for name, value in rows.items():
            found[name] += [] if value is None else [value]
    ranges = [("figures", f"{len(configs)}")]
    return ranges + [(name, _range(values)) for name, values in found.items() if values]


def _range(values: Sequence[Any]) -> str:
    ends = [
        f"{end:,.4g}" if isinstance(end, float) else f"{end:,}"
        for end in (min(values), max(values))
    ]
    return " to ".join(dict.fromkeys(ends))
