"""Pages whose text is a file in the root of the repository, with links turned into the site's."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXTS = {"paper": "PAPER.md", "changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md"}
"""The file of each page."""


def link_within_site(text: str) -> str:
    """Turn the links of a file in the root into those of a page in docs.

    Symbols lead to their pages, figures and claims to the gallery, and pages of docs to themselves.
    Other files are not part of the site: the link's text names them.

    >>> link_within_site("[`kadam_jax.kadam`](kadam_jax/optimizer.py)")
    '{py:obj}`~kadam_jax.kadam`'
    >>> link_within_site("[`trajectories`](experiments/figures/flow/trajectories)")
    '[`trajectories`](gallery/trajectories.md)'
    >>> link_within_site("0.998 (`a-claim-of-it`)")
    '0.998 ([`a-claim-of-it`](#a-claim-of-it))'
    >>> link_within_site("[a guide](docs/guides/index.md#start), [rules](pyproject.toml)")
    '[a guide](guides/index.md#start), rules'
    """
    text = re.sub(r"\[`(kadam_jax[\w.]*)`\]\(kadam_jax/[^)]*\)", r"{py:obj}`~\1`", text)
    text = re.sub(r"\]\(experiments/figures/\w+/(\w+)/?\)", r"](gallery/\1.md)", text)
    text = re.sub(r"\(`([a-z\d]+(?:-[a-z\d]+)+)`\)", r"([`\1`](#\1))", text)
    text = re.sub(r"\]\(docs/([^)]+)\)", r"](\1)", text)
    for page, file in TEXTS.items():
        text = text.replace(f"]({file}", f"]({page}.md")
    ours = r"(?!https?:|#|gallery/|guides/|theory/|api/|\w+\.md)"
    return re.sub(r"\[([^\]]+)\]\(" + ours + r"[^)]+\)", r"\1", text)


def read_from_root(app, docname, source):
    """Give a page the text of its file, after the page's own front matter."""
    if docname in TEXTS and (ROOT / TEXTS[docname]).exists():
        app.env.note_dependency(str(ROOT / TEXTS[docname]))
        front = re.match(r"(---\n.*?\n---\n)?", source[0], re.S)[0]
        source[0] = front + link_within_site((ROOT / TEXTS[docname]).read_text())


def setup(app):
    """Connect to Sphinx."""
    app.connect("source-read", read_from_root)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
