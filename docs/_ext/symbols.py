"""Public symbols: their pages, references by short names, and docstrings as Sphinx needs them."""

import ast
import inspect
import io
import re
import textwrap
import tokenize
from pathlib import Path

import kadam_jax
import kadam_jax.flow
import kadam_jax.invariance

FACES = (kadam_jax, kadam_jax.flow, kadam_jax.invariance)
PAGES = {
    name: f"{face.__name__}.{name}"
    for face in reversed(FACES)
    for name in face.__all__
    if not name.startswith("__")
}
"""The full name of each public symbol, whose page has it, by the name's last part."""
PAPER = re.compile(r"`(Continuous-Time Analysis[^`<]*)`")
# Markup that is left alone: quoted code and mathematics, doctests, formulas that stand alone.
QUOTED = re.compile(
    r"(`+[^`]+`+|^ *(?:>>>|\.\.\.) .*$|\.\. math::\n(?:\n|(?: {3,}|\t).*\n?)+)", re.M
)


def resolve_short_name(app, env, node, contnode):
    """Link `solve_flow` or `kadam_jax.stability.is_stable` to the page of the symbol.

    Other names in docstrings are code, not references; in the site's own pages a reference that
    leads nowhere is an error.
    """
    from sphinx.util.nodes import make_refnode  # the rest of this module needs no Sphinx

    if node.get("refdomain") != "py":
        return None
    first, _, last = node["reftarget"].rpartition(".")
    if last in PAGES and (not first or first.startswith("kadam_jax")):
        domain = env.get_domain("py")
        for name, entry in domain.find_obj(env, None, None, PAGES[last], "obj", 0):
            args = (node["refdoc"], entry.docname, entry.node_id, contnode, name)
            return make_refnode(app.builder, *args)
    return contnode if node["refdoc"].startswith("api/") else None


def fields(cls) -> list[tuple[str, str]]:
    """Return the fields of a named tuple with the comments after them.

    >>> fields(kadam_jax.WorstCase)[0]
    ('supremum', 'exact, or what a search reached: a lower bound')
    """
    source = textwrap.dedent(inspect.getsource(cls))
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    body = ast.parse(source).body[0].body
    return [
        (item.target.id, comments.get(item.lineno, ""))
        for item in body
        if isinstance(item, ast.AnnAssign)
    ]


def as_rst(text: str) -> str:
    r"""Escape what only looks like markup, and link the paper's title.

    >>> as_rst("the largest |u_n|, shape (*b1.shape, 2), of **both** `|a|`")
    'the largest \\|u_n\\|, shape (\\*b1.shape, 2), of **both** `|a|`'
    """
    text = PAPER.sub(r"`\1 <https://arxiv.org/abs/2411.05746>`__", text)
    parts = QUOTED.split(text)
    parts[::2] = [
        re.sub(r"(?<!\\)\||(?<![\\*])\*(?!\*)", lambda mark: "\\" + mark[0], part)
        for part in parts[::2]
    ]
    return "".join(parts)


def table(name: str, mapping) -> list[str]:
    """Describe a public table, which has no docstring, by its keys and its source.

    >>> table("METHODS", kadam_jax.flow.METHODS)[0]
    'Table with the keys ``euler`` and ``exponential``.'
    """
    *most, last = [f"``{key}``" for key in mapping]
    source = next(
        ast.get_source_segment(text, node)
        for file in sorted(Path(kadam_jax.__file__).parent.rglob("*.py"))
        for text in [file.read_text()]
        for node in ast.parse(text).body
        if isinstance(node, ast.AnnAssign) and node.target.id == name
    )
    code = textwrap.indent(source, "   ").split("\n")
    return [f"Table with the keys {', '.join(most)} and {last}.", "", "::", "", *code, ""]


def rewrite_docstring(app, what, name, obj, options, lines):
    """Rewrite a docstring's markup; add a named tuple's fields and a table's keys."""
    if what == "data":
        lines[:] = table(name.rpartition(".")[2], obj)
        return
    lines[:] = as_rst("\n".join(lines)).split("\n")
    if what == "class" and issubclass(obj, tuple) and "Attributes:" not in lines:
        lines += ["", "Attributes:"]
        lines += [f"  {field}: {as_rst(text)}" for field, text in fields(obj)] + [""]


def setup(app):
    """Connect to Sphinx; napoleon reads the lines after `rewrite_docstring`."""
    app.connect("autodoc-process-docstring", rewrite_docstring, priority=400)
    app.connect("missing-reference", resolve_short_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
