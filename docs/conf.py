"""Configuration of the site; `make docs` builds it, into build/docs, without a network."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
# Kernels of notebooks inherit these: figures have one size, and programs run on the CPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])
)

import kadam_jax

project = "kadam_jax"
author = "The kadam_jax authors"
copyright = author
version = release = kadam_jax.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinxcontrib.bibtex",
    "myst_nb",
    "offline_math",
    "symbols",
    "root_pages",
]
exclude_patterns = ["README.md", "_build", "**/.ipynb_checkpoints"]
templates_path = ["_templates"]
nitpicky = True
# What single backticks name is code, and a link if it is a public symbol.
default_role = "py:obj"
suppress_warnings = ["config.cache"]

autosummary_generate = True
autosummary_generate_overwrite = True
autodoc_typehints = "none"
autodoc_preserve_defaults = True
add_module_names = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_param = False

myst_enable_extensions = ["amsmath", "dollarmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "plain"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "sphinx_book_theme"
html_title = "kadam_jax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "home_page_in_toc": True,
    "show_navbar_depth": 1,
}
