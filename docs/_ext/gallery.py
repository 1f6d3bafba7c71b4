"""The gallery: a page for each figure, drawn and judged from the committed datasets."""

import json
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from experiments.core import plot as plotting
from experiments.core.claims import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, judge, settings
from experiments.core.questions import QUESTIONS
from experiments.figures import discover
from experiments.reproduce.pipeline import code_of, folder_of, place, read
from experiments.reproduce.report import acceptable, interval, number

DOCS = Path(__file__).parents[1]
GALLERY = DOCS / "gallery"
CORRECTED = "holds with a correction"
WORDS = {
    SUPPORTED: ("holds", "hold"),
    CORRECTED: (CORRECTED, "hold with a correction"),
    NOT_SUPPORTED: ("does not hold", "do not hold"),
    INCONCLUSIVE: ("is not decided", "are not decided"),
}
"""Verdicts in the order in which they are counted, for one claim and for several."""


def make(name: str) -> dict:
    """Draw a figure's committed dataset unless it is drawn already, and judge its claims."""
    figure = discover()[name]
    where = place(GALLERY / "drawn", figure, "laptop")
    where.folder.mkdir(parents=True, exist_ok=True)
    folder = folder_of(figure)
    sources = [
        where.committed,
        Path(__file__),
        Path(plotting.__file__),
        *code_of(folder),
        *folder.glob("*.py"),
        *folder.parent.glob("*.py"),
    ]
    page = where.folder / "page.json"
    if page.exists() and page.stat().st_mtime > max(file.stat().st_mtime for file in sources):
        return json.loads(page.read_text())
    with read(where) as dataset:
        found = {
            "name": name,
            "title": figure.title,
            "paper": figure.paper,
            "question": figure.question,
            "caption": figure.caption.format_map(vars(settings(dataset))),
            "command": where.base_command,
            "attrs": {key: str(value) for key, value in dataset.attrs.items()},
            "claims": [as_row(judge(claim, dataset, figure.minimum)) for claim in figure.claims],
            "images": draw(where, dataset),
        }
    page.write_text(json.dumps(found))
    return found


def draw(where, dataset) -> list[str]:
    """Draw a figure as PNG, with a thumbnail of the first, and return the files' names."""
    with plotting.style():
        names = []
        for suffix, canvas in where.figure.plot(dataset).items():
            names.append(f"{where.figure.name}{suffix and '_' + suffix}.png")
            plotting.mend_empty_axes(canvas)
            canvas.savefig(GALLERY / names[-1])
    with Image.open(GALLERY / names[0]) as picture:
        picture.thumbnail((640, 480))
        picture.convert("RGB").save(GALLERY / f"{where.figure.name}_thumbnail.png", optimize=True)
    return names


def as_row(judgment) -> dict:
    """Return what the site says about a claim."""
    claim = judgment.claim
    return {
        "id": claim.id,
        "statement": claim.statement,
        "section": claim.section,
        "quantity": claim.quantity,
        "reason": claim.reason,
        "acceptable": acceptable(claim.accept),
        "value": number(judgment.estimate.value),
        "interval": interval(judgment.estimate),
        "n": judgment.estimate.n,
        "verdict": judgment.verdict,
        "remark": judgment.remark,
        "correction": judgment.correction,
        "corrected_by": claim.corrected_by,
    }


def write_gallery(app):
    """Write the pages that have changed, and the gallery's index."""
    GALLERY.mkdir(exist_ok=True)
    # The site's own process must not start threads: Sphinx forks it.
    with ProcessPoolExecutor(max(app.parallel, 1), get_context("spawn")) as pool:
        figures = list(pool.map(make, discover()))
    supported = {
        claim["id"]
        for figure in figures
        for claim in figure["claims"]
        if claim["verdict"] == SUPPORTED
    }
    for figure in figures:
        for claim in figure["claims"]:
            if claim["verdict"] == NOT_SUPPORTED and claim["corrected_by"] in supported:
                claim["verdict"] = CORRECTED
        verdicts = [claim["verdict"] for claim in figure["claims"]]
        figure["counts"] = [
            (verdicts.count(key), words[verdicts.count(key) > 1], key.replace(" ", "-"))
            for key, words in WORDS.items()
            if key in verdicts
        ]
    asked = list(dict.fromkeys([*QUESTIONS, *(figure["question"] for figure in figures)]))
    figures.sort(key=lambda figure: asked.index(figure["question"]))
    environment = Environment(
        loader=FileSystemLoader(DOCS / "_templates" / "gallery"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["plain"] = plain
    environment.globals |= {
        "words": WORDS,
        "figures_of": {
            claim["id"]: figure["name"] for figure in figures for claim in figure["claims"]
        },
    }
    questions = [
        (question, list(group))
        for question, group in groupby(figures, lambda figure: figure["question"])
    ]
    texts = {"index": environment.get_template("index.md").render(questions=questions)}
    for figure in figures:
        texts[figure["name"]] = environment.get_template("figure.md").render(figure=figure)
    for page in GALLERY.glob("*.md"):
        if page.stem not in texts:
            page.unlink()
    for name, text in texts.items():
        page = GALLERY / f"{name}.md"
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


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
