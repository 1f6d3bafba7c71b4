"""MathJax as a part of the site: the files that it loads, from the package that contains them."""

import shutil
from importlib.util import find_spec
from pathlib import Path

FILES = ("tex-chtml.js", "output/chtml/fonts")


def copy_mathjax(app, exception):
    """Copy MathJax next to the site's other scripts."""
    if exception is None:
        source = Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
        for path in (
            found for file in FILES for found in [source / file, *(source / file).rglob("*")]
        ):
            if path.is_file():
                target = Path(app.outdir) / "_static" / "mathjax" / path.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


def setup(app):
    """Connect to Sphinx."""
    app.setup_extension("sphinx.ext.mathjax")
    app.config.mathjax_path = "mathjax/tex-chtml.js"
    app.connect("build-finished", copy_mathjax)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
