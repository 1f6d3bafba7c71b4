"""One HTML page: answers first, then all claims, then every figure with its numbers and origin."""

import base64
import collections
import concurrent.futures
import contextlib
import importlib
import io
import json
import multiprocessing
import operator
import signal
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
import xarray as xr
from PIL import Image, ImageOps

from experiments.core.claims import INCONCLUSIVE, Judgment, rules_digest, settings
from experiments.core.config import PRESETS, difference
from experiments.core.errors import DamagedFile, Failed, say
from experiments.core.figure import Figure
from experiments.core.plot import write_palette
from experiments.core.processes import num_cores
from experiments.core.questions import by_question
from experiments.core.stats import NOTHING, Estimate
from experiments.core.store import atomic
from experiments.reproduce.answers import (
    GROUPS,
    NOT_RUN,
    answer,
    counts,
    groups,
    holding,
    measured,
    needed,
    number,
    scale,
)
from experiments.reproduce.pipeline import (
    Place,
    draw,
    drawn,
    folder_of,
    owned,
    picture_key,
    place,
    read,
    redraw,
)

SMOKE, DEFAULT = "smoke", "laptop"
"""The preset that decides nothing, and the one whose page has the plain name."""
ORIGINS = {
    False: "computed in this run",
    True: "reused, finished before this run",
    None: "read from disk",
}
SCALES = {
    "smoke": "too small to decide anything; it shows that everything runs",
    "laptop": "small networks for a few hundred steps, minutes on two cores. Larger networks may "
    "differ",
    "evening": "figures with claims that laptop leaves open, with more seeds, more steps or larger "
    "networks, up to 2.5 hours on two cores",
    "paper": "the paper's own sizes where it has the experiment, text from C4",
}
"""The meaning of a preset's size."""
STATED = ("rules", "claims_commit", "git_commit", "command", "date", "wall_seconds", "device")
"""Attributes of a dataset that the page needs."""
WITH_THE_CODE = "committed with the code, not run here"
THUMBNAIL = 400, 300
"""A thumbnail's size in pixels: half that of the corner, about a panel, that it shows."""
PIXELS = 1.5
"""Pixels of a picture for each pixel of the page."""
WORTH_PROCESSES = 4
"""The fewest figures whose drawing takes longer than starting processes to draw them."""


class Picture(NamedTuple):
    """A PNG as a data URI, with the size at which its letters are those of small text."""

    uri: str
    width: int
    height: int


@dataclass(frozen=True)
class Section:
    """The page's section about a figure.

    Attributes:
      place: The figure and where its files are.
      problem: The reason why there is no dataset, or "".
      origin: One of `ORIGINS`, or `WITH_THE_CODE`.
      attrs: The dataset's attributes.
      config: The configuration that it was computed from.
      overrides: Fields that differ from the current preset.
      caption: The caption with the configuration's values filled in.
      numbers: Label, value with its interval, and units of every scalar in the dataset and of
        every variable over only `end`.
      pictures: The figure's drawings.
      thumbnail: The first of them, small, if an answer may quote one of its claims.
      judgments: The judgments of its claims.
    """

    place: Place
    problem: str = ""
    origin: str = ""
    attrs: Mapping[str, Any] | None = None
    config: Any = None
    overrides: Sequence[str] = ()
    caption: str = ""
    numbers: tuple[tuple[str, str, str], ...] = ()
    pictures: tuple[Picture, ...] = ()
    thumbnail: Picture | None = None
    judgments: tuple[Judgment, ...] = ()

    @property
    def family(self) -> str:
        """The folder of figures that this one belongs to."""
        return folder_of(self.place.figure).parent.name

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

    Figures whose dataset or code has changed since they were drawn are drawn first.

    Args:
      results: The results folder.
      figures: All figures; for one without a dataset, the committed one is shown or, if there is
        none, the command that makes it.
      preset: The preset whose datasets are read.
      reused: For each figure of this run, whether its dataset was finished before the run.

    Returns:
      The page's path; the page needs no other file.
    """
    having = [figure for figure in figures.values() if preset in figure.presets]
    places = [place(results, figure, preset) for figure in having]
    _draw_in_processes(places)
    sections = [_section(where, ORIGINS[reused.get(where.figure.name)]) for where in places]
    page = results / ("report.html" if preset == DEFAULT else f"report-{preset}.html")
    others = {
        other: judged(place(results, figure, other) for figure in figures.values())
        for other in PRESETS
        if SMOKE not in (preset, other) and other != preset
    }
    with atomic(page) as temporary:
        shown = {name: found for name, found in others.items() if found}
        html = render(sections, preset, shown, figures.values())
        temporary.write_text(html, encoding="utf-8", errors="backslashreplace")  # odd paths
    return page


def judged(places: Iterable[Place]) -> dict[str, Judgment]:
    """Judge the claims of datasets that exist, by id; damaged ones are named and left out."""
    found = {}
    for where in places:
        if where.preset not in where.figure.presets or not where.shown.exists():
            continue
        try:
            with read(where) as dataset:
                judgments = where.figure.judge(dataset)
        except (FileNotFoundError, DamagedFile) as error:
            say(f"{error}; the page leaves it out")
        else:
            found |= {judgment.claim.id: judgment for judgment in judgments}
    return found


def render(
    sections: Collection[Section],
    preset: str,
    others: Mapping[str, Mapping[str, Judgment]] = {},
    figures: Iterable[Figure] = (),
) -> str:
    """Return the page as HTML, with every value escaped.

    Args:
      sections: The figures.
      preset: Their preset.
      others: The judgments by claim at other presets, where they have a dataset.
      figures: All figures, also those without this preset; by default those of the sections.
    """
    own = {j.claim.id: j for section in sections for j in section.judgments}
    group_of = groups(own.values())
    # A claim that corrects another may belong to a figure that the other preset does not have.
    elsewhere = {name: groups((own | found).values()) for name, found in others.items()}
    origins = collections.defaultdict(list)
    for section in sections:
        origins[section.origin or NOT_RUN].append(section.place.figure)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("experiments.reproduce"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "tally": lambda claims, of=group_of: counts(of[claim] for claim in claims),
        "holding": holding,
        "measured": measured,
        "needed": needed,
        "number": number,
    }
    return environment.get_template("report.html").render(
        sections=sorted(sections, key=lambda section: section.family),
        preset=preset,
        scales=SCALES,
        scale=scale(section.config for section in sections if section.config),
        origins=origins,
        css=GROUPS,
        judgments=own,
        group_of=group_of,
        others=others,
        columns=[f"At {name}" for name in others],
        elsewhere=elsewhere,
        questions=_questions(sections, others, figures or [x.place.figure for x in sections]),
    )


class Question(NamedTuple):
    """A question, its answer, and the evidence for it."""

    text: str
    answer: str
    thumbnail: Section | None
    deciding: tuple[str, ...]
    claims: tuple[str, ...]
    elsewhere: tuple[tuple[str, int, str], ...]
    """Other presets, the number of deciding claims that each has, and its answer."""


def _questions(
    sections: Collection[Section],
    others: Mapping[str, Mapping[str, Judgment]],
    figures: Iterable[Figure],
) -> list[Question]:
    """Return the questions that the sections' figures answer, `QUESTIONS` first."""
    section_of = {section.place.figure.name: section for section in sections}
    found = []
    for text, asking in by_question(figures).items():
        of = [section_of[figure.name] for figure in asking if figure.name in section_of]
        own = {j.claim.id: j for section in of for j in section.judgments}
        phrases = {k: v for figure in asking for k, v in figure.decided_by.items()}
        deciding = tuple(claim for claim in phrases if claim in own)
        said = answer([own[claim] for claim in deciding], phrases)
        drawn_first = [j.claim.figure for j in said.quoted] + [x.place.figure.name for x in of]
        pictured = {x.place.figure.name: x for x in of if x.thumbnail}
        shown = next((pictured[name] for name in drawn_first if name in pictured), None)
        elsewhere = []
        for name, its in others.items():
            has = [its[claim] for claim in phrases if claim in its]
            if (there := answer(has, phrases)).quoted:
                elsewhere.append((name, len(has), there.sentence))
        found.append(Question(text, said.sentence, shown, deciding, tuple(own), tuple(elsewhere)))
    return found


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
        key = picture_key(where)
        with read(where) as dataset:
            operator.itemgetter(*STATED)(dataset.attrs)  # or a KeyError
            config = settings(dataset)
            section = Section(
                where,
                origin=origin,
                attrs=dataset.attrs,
                config=config,
                overrides=difference(
                    json.loads(dataset.attrs["config"]), figure.presets[where.preset]
                ),
                caption=figure.caption.format_map(vars(config)),
                numbers=_numbers(dataset),
                judgments=figure.judge(dataset),
            )
            paths = drawn(where, key) or _draw(where, dataset, key)
    except (FileNotFoundError, DamagedFile) as error:
        missing = tuple(Judgment(claim, NOTHING, INCONCLUSIVE, NOT_RUN) for claim in figure.claims)
        return Section(where, problem=str(error), judgments=missing)
    pngs = [path for path in paths if path.suffix == ".png" and path.is_file()]
    return replace(
        section,
        pictures=tuple(_picture(path.read_bytes()) for path in pngs),
        thumbnail=_thumbnail(pngs[0]) if any(figure.decided_by.values()) and pngs else None,
    )


def _draw(where: Place, dataset: xr.Dataset, key: str) -> list[Path]:
    try:
        with owned(where):
            return draw(where, dataset, key)
    except Failed as error:
        say(f"{error}; the report shows the existing pictures")
        return sorted(where.folder.glob("*.png"))


def _draw_in_processes(places: Collection[Place]) -> None:
    """Draw what has changed on all cores; the page draws what fails again, and reports it."""
    changed = []
    for where in places:
        package = where.figure.compute.__module__.rpartition(".")[0]
        named = getattr(sys.modules.get(package), "FIGURE", None) is where.figure
        if named and where.shown.is_file() and not drawn(where, picture_key(where)):
            changed.append((package, where.folder, where.preset))
    if changed:
        say(f"figures to draw, because their dataset or code is new: {len(changed)}")
    if len(changed) < WORTH_PROCESSES:
        return
    spawn = multiprocessing.get_context("spawn")  # JAX's threads do not survive a fork
    quiet = signal.signal, (signal.SIGINT, signal.SIG_IGN)  # this process says that it was stopped
    # A machine may have no semaphores, allow no more processes, or kill one for its memory.
    with (
        contextlib.suppress(OSError, concurrent.futures.BrokenExecutor),
        concurrent.futures.ProcessPoolExecutor(num_cores(), spawn, *quiet) as pool,
    ):
        list(pool.map(_redraw, *zip(*changed, strict=True)))


def _redraw(package: str, folder: Path, preset: str) -> None:
    """Draw a figure that another process names by its package."""
    where = Place(folder, importlib.import_module(package).FIGURE, preset)
    with contextlib.suppress(Failed, FileNotFoundError, DamagedFile):
        redraw(where)


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
    ('2', '2.00 [1.50, 2.50]')
    """
    value, *ends = values.ravel().tolist()
    return measured(Estimate(value, *ends, n=1)) if ends else number(value)


def _picture(png: bytes) -> Picture:
    width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))  # in every PNG's header
    uri = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return Picture(uri, round(width / PIXELS), round(height / PIXELS))


def _thumbnail(path: Path) -> Picture:
    small = io.BytesIO()
    with Image.open(path) as picture:
        corner = map(min, picture.size, (2 * THUMBNAIL[0], 2 * THUMBNAIL[1]))
        shown = picture.convert("RGB").crop((0, 0, *corner))
        write_palette(ImageOps.fit(shown, THUMBNAIL, centering=(0, 0)), small)
    return _picture(small.getvalue())
