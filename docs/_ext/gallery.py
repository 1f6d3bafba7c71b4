"""The gallery: a page for each figure, drawn and judged from the committed datasets."""

import json
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from experiments.core import plot as plotting
from experiments.core.claims import Judgment, settings
from experiments.core.config import digest
from experiments.core.questions import by_question
from experiments.core.stats import Estimate
from experiments.core.store import file_sha256
from experiments.figures import discover
from experiments.reproduce import answers
from experiments.reproduce.pipeline import folder_of, picture_key, place, read

DOCS = Path(__file__).parents[1]
GALLERY = DOCS / "gallery"
THUMBNAIL = 640, 480


def make(name: str) -> dict[str, Any]:
    """Draw a figure's committed dataset and judge its claims, unless nothing has changed."""
    figure = discover()[name]
    where = place(GALLERY / "drawn", figure, "laptop")
    where.folder.mkdir(parents=True, exist_ok=True)
    folder, made = folder_of(figure), where.folder / "made.json"
    telling = [Path(__file__), *sorted([*folder.glob("*.py"), *folder.parent.glob("*.py")])]
    key = digest(picture_key(where), *map(file_sha256, telling))
    if made.exists() and (found := json.loads(made.read_text()))["key"] == key:
        return found
    with read(where) as dataset:
        found = {
            "key": key,
            "caption": figure.caption.format_map(vars(settings(dataset))),
            "command": where.base_command,
            "attrs": {key: str(value) for key, value in dataset.attrs.items()},
            "judged": [as_data(judgment) for judgment in figure.judge(dataset)],
            "pictures": draw(where, dataset),
        }
    made.write_text(json.dumps(found))
    return found


def as_data(judgment: Judgment) -> tuple:
    """Return a judgment without its claim, which contains functions."""
    return tuple(map(float, astuple(judgment.estimate))), judgment.verdict, judgment.remark


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
    judgments = {
        claim.id: Judgment(claim, Estimate(*values[:3], int(values[3])), verdict, remark)
        for name, figure in figures.items()
        for claim, (values, verdict, remark) in zip(
            figure.claims, made[name]["judged"], strict=True
        )
    }
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
        "colors": answers.GROUPS,
        "counts": lambda figure: answers.counts(groups[claim.id] for claim in figure.claims),
    }
    asking = by_question(figures.values())
    environment.globals["asked"] = [*asking]
    questions = [(question, answer(of, judgments), of) for question, of in asking.items()]
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
    """Answer a question by the claims of its figures that decide it."""
    phrases = {claim: text for figure in figures for claim, text in figure.decided_by.items()}
    return answers.answer([judgments[claim] for claim in phrases], phrases).sentence


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
