"""One HTML page: claims first, then every figure with its numbers, command and provenance."""

import base64
import collections
import json
import math
import operator
import re
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import xarray as xr

from experiments.core.claims import (
    INCONCLUSIVE,
    NOT_SUPPORTED,
    SUPPORTED,
    Judgment,
    judge,
    rules_digest,
    settings,
)
from experiments.core.config import difference
from experiments.core.errors import DamagedFile, Failed, say
from experiments.core.figure import Figure
from experiments.core.questions import QUESTIONS
from experiments.core.stats import NOTHING, Estimate
from experiments.core.store import atomic
from experiments.reproduce.pipeline import Place, draw, owned, place, read

NOT_RUN = "not run"
DEFAULT = "laptop"
"""The preset whose page has the plain name."""
ORIGINS = {
    False: "computed in this run",
    True: "reused, finished before this run",
    None: "read from disk",
}
SCALES = {
    "smoke": ": too small to decide anything; it shows that everything runs",
    "laptop": ": small networks (transformers of one or two layers of width 64, a feed-forward "
    "network, narrow CNNs) for a few hundred steps, minutes on two cores. Larger networks may "
    "differ; every figure states its size",
    "paper": ": the paper's own sizes where it has the experiment, text from the embedded corpus",
}
"""The page's opening sentence, by preset."""
STATED = ("rules", "claims_commit", "git_commit", "command", "date", "wall_seconds", "device")
"""Attributes of a dataset that the page needs."""
WITH_THE_CODE = "committed with the code, not run here"
CORRECTED = "hold with a correction"
GROUPS = {
    "hold": SUPPORTED,
    CORRECTED: "corrected",
    "do not hold": NOT_SUPPORTED,
    "are not decided at this scale": INCONCLUSIVE,
    "are not run": INCONCLUSIVE,
}
"""Groups of claims on the first screen, in this order, and the verdict that gives them their color.
A claim that is not supported holds with a correction if the claim that corrects it is supported."""
ONE = {
    "hold": "holds",
    CORRECTED: "with a correction",
    "do not hold": "does not hold",
    "are not decided at this scale": "not decided",
    "are not run": "not run",
}
"""The label of a claim in each group."""


@dataclass(frozen=True)
class Section:
    """The page's section about a figure.

    Attributes:
      place: The figure and where its files are.
      problem: The reason why there is no dataset, or "".
      origin: One of `ORIGINS`, or `WITH_THE_CODE`.
      attrs: The dataset's attributes.
      overrides: Fields that differ from the current preset.
      caption: The caption with the configuration's values filled in.
      numbers: Label, value with its interval, and units of every scalar in the dataset and of
        every variable over only `end`.
      images: PNGs as data URIs.
      judgments: The judgments of its claims.
    """

    place: Place
    problem: str = ""
    origin: str = ""
    attrs: Mapping[str, Any] | None = None
    overrides: Sequence[str] = ()
    caption: str = ""
    numbers: tuple[tuple[str, str, str], ...] = ()
    images: tuple[str, ...] = ()
    judgments: tuple[Judgment, ...] = ()

    @property
    def new_rules(self) -> bool:
        """Whether the claims' rules or words have changed since the dataset was computed."""
        return bool(self.attrs) and self.attrs["rules"] != rules_digest(self.place.figure.claims)

    @property
    def command(self) -> str:
        """The command that makes this figure."""
        return self.attrs["command"] if self.attrs else self.place.base_command


def write_report(
    results: Path,
    figures: Mapping[str, Figure],
    preset: str,
    *,
    reused: Mapping[str, bool] = {},
) -> Path:
    """Write `<results>/report.html`, or `report-<preset>.html` for presets other than laptop.

    Args:
      results: The results folder.
      figures: All figures; for one without a dataset the committed one is shown, if there is one,
        and else the command that makes it.
      preset: The preset whose datasets are read.
      reused: For the figures of this run, whether their datasets were finished before it.

    Returns:
      The page's path; the page needs no other file.
    """
    sections = [
        _section(place(results, figure, preset), ORIGINS[reused.get(name)])
        for name, figure in figures.items()
    ]
    page = results / ("report.html" if preset == DEFAULT else f"report-{preset}.html")
    with atomic(page) as temporary:
        html = render(sections, preset)
        temporary.write_text(html, encoding="utf-8", errors="backslashreplace")  # odd paths
    return page


def render(sections: Collection[Section], preset: str) -> str:
    """Return the page as HTML, with every value escaped."""
    judgments = [judgment for section in sections for judgment in section.judgments]
    groups = _groups(judgments)
    origins = collections.defaultdict(list)
    for section in sections:
        origins[section.origin or NOT_RUN].append(section)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("experiments.reproduce"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "interval": interval,
        "acceptable": acceptable,
        "words": words,
    }
    return environment.get_template("report.html").render(
        sections=sections,
        preset=preset,
        scales=SCALES,
        origins=origins,
        groups=groups,
        corrected=next(group for title, _, group in groups if title == CORRECTED),
        questions=_questions([section.place.figure for section in sections]),
        verdicts=ONE,
    )


def _questions(figures: Collection[Figure]) -> dict[str, list[Figure]]:
    """Return the figures that answer each question, `QUESTIONS` first."""
    asked = dict.fromkeys([*QUESTIONS, *(figure.question for figure in figures)])
    answering = {question: [f for f in figures if f.question == question] for question in asked}
    return {question: found for question, found in answering.items() if question and found}


def _groups(judgments: Sequence[Judgment]) -> list[tuple[str, str, list[Judgment]]]:
    """Return a title, a CSS class and the judgments of each group on the first screen."""
    groups: dict[str, list[Judgment]] = {title: [] for title in GROUPS}
    supported = {found.claim.id for found in judgments if found.verdict == SUPPORTED}
    for judgment in judgments:
        groups[_group(judgment, supported)].append(judgment)
    return [(title, GROUPS[title].replace(" ", "-"), group) for title, group in groups.items()]


def _group(judgment: Judgment, supported: Container[str]) -> str:
    if judgment.remark == NOT_RUN:
        return "are not run"
    if judgment.verdict == NOT_SUPPORTED and judgment.claim.corrected_by in supported:
        return CORRECTED
    return {
        SUPPORTED: "hold",
        NOT_SUPPORTED: "do not hold",
        INCONCLUSIVE: "are not decided at this scale",
    }[judgment.verdict]


def words(claim: str) -> str:
    """Return a claim's id in readable form; exponents keep their sign.

    >>> words("flow-tracks-adam-at-1e-4")
    'flow tracks adam at 1e-4'
    """
    return re.sub(r"(?<!\de)-", " ", claim)


def number(value: float) -> str:
    """Return four significant digits, or a dash if there is no number.

    >>> number(2 / 3), number(math.nan)
    ('0.6667', '—')
    """
    return "—" if math.isnan(value) else f"{value:.4g}"


def interval(estimate: Estimate) -> str:
    """Return `[low, high]`, "exact" if nothing was sampled, or "no observations".

    >>> interval(Estimate(2.0, 1.5, 2.5, 5)), interval(Estimate(1.0, 1.0, 1.0, 9))
    ('[1.5, 2.5]', 'exact')
    >>> interval(NOTHING)
    'no observations'
    """
    if estimate.n == 0:
        return "no observations"
    if estimate.low == estimate.high == estimate.value:
        return "exact"
    return f"[{number(estimate.low)}, {number(estimate.high)}]"


def acceptable(accept: tuple[float, float]) -> str:
    """Return a claim's rule in words.

    >>> acceptable((1.0, 1.0)), acceptable((-math.inf, 3.5)), acceptable((0.9, 1.1))
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


def _section(where: Place, origin: str) -> Section:
    """Return a figure's section from a single dataset, which a run may replace in the meantime."""
    section, seen = None, None
    while section is None or seen != _version(where):
        seen = _version(where)
        section = _section_now(where, origin)
    return section


def _version(where: Place) -> tuple[Path, int, int] | None:
    """Identify the file that is shown; a new file has another inode or time."""
    try:
        stat = where.shown.stat()
    except FileNotFoundError:
        return None
    return where.shown, stat.st_ino, stat.st_mtime_ns


def _section_now(where: Place, origin: str) -> Section:
    figure = where.figure
    if where.shown == where.committed:
        origin = WITH_THE_CODE
    try:
        with read(where) as dataset:
            operator.itemgetter(*STATED)(dataset.attrs)  # or a KeyError
            section = Section(
                where,
                origin=origin,
                attrs=dataset.attrs,
                overrides=difference(
                    json.loads(dataset.attrs["config"]), figure.presets[where.preset]
                ),
                caption=figure.caption.format_map(vars(settings(dataset))),
                numbers=_numbers(dataset),
                judgments=tuple(judge(claim, dataset, figure.minimum) for claim in figure.claims),
            )
            if origin == WITH_THE_CODE or not _is_drawn(where):
                _draw(where, dataset)
    except (FileNotFoundError, DamagedFile) as error:
        missing = tuple(Judgment(claim, NOTHING, INCONCLUSIVE, NOT_RUN) for claim in figure.claims)
        return Section(where, problem=str(error), judgments=missing)
    images = map(_data_uri, filter(Path.is_file, sorted(where.folder.glob("*.png"))))
    return replace(section, images=tuple(images))


def _draw(where: Place, dataset: xr.Dataset) -> None:
    try:
        with owned(where):
            draw(where, dataset)
    except Failed as error:
        say(f"{error}; the report has the existing images")


def _is_drawn(where: Place) -> bool:
    """Whether there are images, none older than the dataset, which may be a copy from elsewhere.

    A pipe, a folder or a broken link is not an image: reading a pipe would block.
    """
    images = list(where.folder.glob("*.png"))
    if not images or not all(path.is_file() for path in images):
        return False
    return min(path.stat().st_mtime_ns for path in images) >= where.dataset.stat().st_mtime_ns


def _numbers(dataset: xr.Dataset) -> tuple[tuple[str, str, str], ...]:
    """Return scalars, and values with an interval."""
    stated = [array for array in dataset.data_vars.values() if array.dims in ((), ("end",))]
    return tuple(
        (array.attrs["long_name"], _stated(array.values), array.attrs.get("units", ""))
        for array in stated
    )


def _stated(values: np.ndarray) -> str:
    """Return a number, with its interval if it has one.

    >>> _stated(np.array(2.0)), _stated(np.array([2.0, 1.5, 2.5]))
    ('2', '2 [1.5, 2.5]')
    """
    value, *ends = map(number, values.ravel().tolist())
    return f"{value} [{', '.join(ends)}]" if ends else value


def _data_uri(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
