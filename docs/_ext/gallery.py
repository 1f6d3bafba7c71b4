"""The gallery: a page for each figure, drawn and judged from the committed datasets."""

import contextlib
import json
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import xarray as xr
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from experiments.core import plot as plotting
from experiments.core.claims import Judgment, settings
from experiments.core.config import digest
from experiments.core.figure import Figure
from experiments.core.questions import by_question
from experiments.core.stats import Estimate
from experiments.core.store import file_sha256
from experiments.figures import discover
from experiments.reproduce import answers
from experiments.reproduce.pipeline import folder_of, picture_key, place, read

DOCS = Path(__file__).parents[1]
GALLERY = DOCS / "gallery"
THUMBNAIL = 640, 480
DRAWN, LARGER = "laptop", "evening"
"""The presets whose results are drawn, and whose verdicts are shown next to these."""


def make(name: str) -> dict[str, Any]:
    """Draw a figure's committed dataset and judge its claims, unless nothing has changed."""
    figure = discover()[name]
    where, larger = (place(GALLERY / "drawn", figure, preset) for preset in (DRAWN, LARGER))
    places = [its for its in (where, larger) if its.committed.exists()]
    where.folder.mkdir(parents=True, exist_ok=True)
    folder, made = folder_of(figure), where.folder / "made.json"
    telling = [Path(__file__), *sorted([*folder.glob("*.py"), *folder.parent.glob("*.py")])]
    telling += [its.committed for its in places]
    key = digest(picture_key(where), *map(file_sha256, telling))
    if made.exists() and (found := json.loads(made.read_text()))["key"] == key:
        return found
    with contextlib.ExitStack() as stack:
        datasets = {its.preset: stack.enter_context(read(its)) for its in places}
        dataset = datasets[DRAWN]
        found = {
            "key": key,
            "caption": figure.caption.format_map(vars(settings(dataset))),
            "command": where.base_command,
            "attrs": {key: str(value) for key, value in dataset.attrs.items()},
            "judged": {preset: judged(figure, its) for preset, its in datasets.items()},
            "pictures": draw(where, dataset),
        }
    made.write_text(json.dumps(found))
    return found


def judged(figure: Figure, dataset: xr.Dataset) -> list[tuple]:
    """Judge a figure's claims; a judgment is without its claim, which contains functions."""
    return [
        (tuple(map(float, astuple(found.estimate))), found.verdict, found.remark)
        for found in figure.judge(dataset)
    ]


def judgments_of(made: Mapping[str, Any], preset: str) -> dict[str, Judgment]:
    """Return the judgments at a preset, by claim, of all figures that have its results."""
    return {
        claim.id: Judgment(claim, Estimate(*values[:3], int(values[3])), verdict, remark)
        for name, figure in discover().items()
        if preset in made[name]["judged"]
        for claim, (values, verdict, remark) in zip(
            figure.claims, made[name]["judged"][preset], strict=True
        )
    }


def draw(where, dataset) -> list[str]:
    """Draw a figure as PNG, with a thumbnail of the first, and return the files' names."""
    names = []
    with plotting.style():
        for suffix, canvas in where.figure.plot(dataset).items():
            names.append(f"{where.figure.name}{suffix and '_' + suffix}.png")
            plotting.save_png(canvas, GALLERY / names[-1])
    with Image.open(GALLERY / names[0]) as picture:
        small = picture.convert("RGB")
    small.thumbnail(THUMBNAIL)
    plotting.write_palette(small, GALLERY / f"{where.figure.name}_thumbnail.png")
    return names


def write_gallery(app):
    """Write the pages that have changed, and the gallery's index."""
    GALLERY.mkdir(exist_ok=True)
    figures = dict(discover())
    # The site's own process must not start threads: Sphinx forks it.
    with ProcessPoolExecutor(max(app.parallel, 1), get_context("spawn")) as pool:
        made = dict(zip(figures, pool.map(make, figures), strict=True))
    judgments, larger = (judgments_of(made, preset) for preset in (DRAWN, LARGER))
    environment = Environment(
        loader=FileSystemLoader(DOCS / "_templates" / "gallery"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plain": plain, "measured": answers.measured, "needed": answers.needed}
    groups = answers.groups(judgments.values())
    environment.globals |= {
        "judgments": judgments,
        "groups": groups,
        "larger": larger,
        # A claim that corrects another may belong to a figure without results there.
        "larger_groups": answers.groups((judgments | larger).values()),
        "colors": answers.GROUPS,
        "counts": lambda figure: answers.counts(groups[claim.id] for claim in figure.claims),
    }
    asking = by_question(figures.values())
    environment.globals["asked"] = [*asking]
    questions = [
        (question, answer(of, judgments), answer(of, larger), of) for question, of in asking.items()
    ]
    texts = {"index": environment.get_template("index.md").render(questions=questions)}
    for name, figure in figures.items():
        texts[name] = environment.get_template("figure.md").render(figure=figure, **made[name])
    for page in GALLERY.glob("*.md"):
        if page.stem not in texts:
            page.unlink()
    for name, text in texts.items():
        page = GALLERY / f"{name}.md"
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def answer(figures, judgments: Mapping[str, Judgment]) -> str:
    """Answer a question by the judged claims that decide it."""
    phrases = {claim: text for figure in figures for claim, text in figure.decided_by.items()}
    deciding = [judgments[claim] for claim in phrases if claim in judgments]
    return answers.answer(deciding, phrases).sentence


def plain(text: str) -> str:
    r"""Escape what MyST would take for markup.

    >>> plain("|u_n| < 2 * $x$ [a]")
    '\\|u\\_n\\| \\< 2 \\* \\$x\\$ \\[a\\]'
    """
    return "".join(f"\\{c}" if c in r"\`*_{}[]<>#|$~@" else c for c in text)


def setup(app):
    """Connect to Sphinx, before it looks for pages."""
    app.connect("builder-inited", write_gallery, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
