"""Tests of the site: its links, its reference and, where it is built, how a browser shows it."""

import importlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from experiments.figures import discover
from experiments.reproduce.pipeline import COMMITTED

ROOT = Path(__file__).parents[1]
DOCS, BUILT = ROOT / "docs", ROOT / "build" / "docs"
FACES = ("kadam_jax", "kadam_jax.flow", "kadam_jax.invariance")
GUIDE = DOCS / "guides" / "experiments.md"
REFERENCE = (DOCS / "api" / "index.rst").read_text()
LISTED = re.findall(r"^   ([A-Za-z][\w.]*)$", REFERENCE, re.M)
TEXTS = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *DOCS.glob("[a-z]*/*.md")])
# Pages that the build writes.
WRITTEN = {DOCS / "gallery" / f"{name}.md" for name in ("index", *discover())}
PAGES = [page for page in TEXTS if page not in WRITTEN]
# Labels can be linked to from every page.
LABELS = {
    label
    for page in PAGES
    for pair in re.findall(r"^\(([\w-]+)\)=$|^:label: (\S+)$", page.read_text(), re.M)
    for label in pair
}
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def test_every_public_symbol_has_one_page():
    modules = [importlib.import_module(face) for face in FACES]
    names = {
        f"{face}.{name}": getattr(module, name)
        for face, module in zip(FACES, modules, strict=True)
        for name in module.__all__
        if not name.startswith("__")
    }
    shown = [names[f"kadam_jax.{name}"] for name in LISTED]
    missing = [name for name, symbol in names.items() if not any(symbol is one for one in shown)]
    assert missing == []
    assert len({id(symbol) for symbol in shown}) == len(LISTED)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    targets = re.findall(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)", text)
    targets += [(link, "") for link in re.findall(r"^:link: (\S+)$", text, re.M)]
    broken = []
    for link, heading in targets:
        path = (page.parent / link).resolve() if link else page
        if path.suffix == "" and path.with_suffix(".md") in {*TEXTS, *WRITTEN}:
            path = path.with_suffix(".md")
        if not path.exists() and path not in WRITTEN:
            broken.append(link)
        elif heading and path.suffix == ".md" and path not in WRITTEN:
            found = heading in LABELS or heading in headings(path.read_text())
            broken += [] if found else [f"{link}#{heading}"]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_table_has_a_header(page):
    for table in re.findall(r"(?:^|\n\n)(\|.*(?:\n\|.*)*)", page.read_text()):
        assert re.fullmatch(r"[|: -]+", table.splitlines()[1]), table


def headings(text):
    """Return the headings of a page as links to them name them."""
    lines = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def test_examples_that_the_build_does_not_run_can_be_run(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
    exec(example, {})
    assert "mean_ratio" in capsys.readouterr().out


def test_notebooks_are_texts_without_outputs():
    assert list(DOCS.rglob("*.ipynb")) == []


needs_the_site = pytest.mark.skipif(
    not (BUILT / "index.html").exists(), reason="`make docs` builds the site"
)
in_a_browser = pytest.mark.skipif(
    BROWSER is None, reason="no chromium: `apt-get install chromium` adds it"
)


@needs_the_site
def test_no_built_page_loads_anything_from_a_server():
    loaded = r'<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//[^"]*"'
    linked = r'<link[^>]*href="(?:https?:)?//[^"]*"'
    found = {
        str(page.relative_to(BUILT)): outside
        for page in BUILT.rglob("*.html")
        if (outside := re.findall(f"{loaded}|{linked}", page.read_text()))
    }
    assert found == {}


@needs_the_site
def test_claims_have_their_verdicts_at_evening():
    for name, figure in discover().items():
        also = (COMMITTED / "evening" / f"{name}.nc").exists()
        page = (BUILT / "gallery" / f"{name}.html").read_text()
        assert page.count("At <code") == also * len(figure.claims), name


def browse(url, folder):
    """Return the page after its scripts have run, messages on its console, and the hosts asked."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    flags += ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=10000"]
    flags += [f"--user-data-dir={folder / 'user'}", f"--log-net-log={folder / 'net.json'}"]
    done = subprocess.run(
        [BROWSER, *flags, "--dump-dom", url], capture_output=True, text=True, timeout=120
    )
    console = re.findall(r"CONSOLE.*", done.stderr)
    hosts = re.findall(r'"url":"https?://([^/"]+)', (folder / "net.json").read_text())
    return done.stdout, console, set(hosts)


@pytest.fixture(scope="module")
def browsers_own(tmp_path_factory):
    """Hosts that the browser contacts on its own."""
    return browse("about:blank", tmp_path_factory.mktemp("blank"))[2]


@needs_the_site
@in_a_browser
@pytest.mark.parametrize("page", ["index", "api/generated/kadam_jax.kadam", "gallery/max_update"])
def test_a_browser_without_network_shows_a_page(tmp_path, browsers_own, page):
    shown, console, hosts = browse((BUILT / f"{page}.html").as_uri(), tmp_path)
    assert [line for line in console if "[PST]" not in line] == []  # the theme states its mode
    assert hosts <= browsers_own
    formulas = (BUILT / f"{page}.html").read_text().count("math notranslate")
    assert shown.count("<mjx-container") >= formulas
    assert "<mjx-merror" not in shown
