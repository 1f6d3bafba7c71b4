"""Configuration of the site; `make docs` builds it, into build/docs, without a network."""

import hashlib
import os
import sys
from pathlib import Path

import kadam_jax

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent / "_ext"))
# For notebooks: what they print depends on the platform, and must not on a user's own settings.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
profile = ROOT / "build" / "ipython" / "profile_default"
profile.mkdir(parents=True, exist_ok=True)
(profile / "ipython_kernel_config.json").write_text('{"IPKernelApp": {"log_level": 40}}')
os.environ["IPYTHONDIR"] = str(profile.parent)

# A notebook runs again if its cells change or any code of the repository does.
code = (
    path
    for folder in ("kadam_jax", "models", "experiments")
    for path in (ROOT / folder).rglob("*.py")
)
code_digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(code))).hexdigest()[:16]

project = "kadam_jax"
author = "The kadam_jax authors"
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
    "gallery",
    "root_pages",
]
exclude_patterns = ["**/.ipynb_checkpoints"]
templates_path = ["_templates"]
nitpicky = True
# Equations of the theory are numbered by page, so that a number names one.
numfig = True
# Single backticks mark code, and a link if they name a public symbol.
default_role = "py:obj"
suppress_warnings = ["config.cache"]

autosummary_generate = True
autosummary_generate_overwrite = True
autodoc_typehints = "none"
autodoc_preserve_defaults = True
add_module_names = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_use_param = False

myst_enable_extensions = ["amsmath", "dollarmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "notebooks" / code_digest)
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
html_show_copyright = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "show_toc_level": 2,
    "navbar_persistent": [],
    "use_download_button": False,
    "use_fullscreen_button": False,
    "home_page_in_toc": True,
    "show_navbar_depth": 1,
}
