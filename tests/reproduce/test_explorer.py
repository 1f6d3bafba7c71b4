"""The report's explorer in a real browser: its numbers are those of the library."""

import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser

import jax
import numpy as np
import optax
import pytest

from experiments.figures import discover
from experiments.reproduce.report import write_report
from kadam_jax import critical_batch, worst_case
from kadam_jax.stability import (
    exact_growth_rate,
    exact_max_update_bound,
    growth_rate,
    max_update_bound,
    stability_coefficient,
)
from kadam_jax.strategies import STRATEGIES, per_stage_decays

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
in_a_browser = pytest.mark.skipif(
    BROWSER is None, reason="no chromium: `apt-get install chromium` adds it"
)
POINTS = [(0.9, 0.999, 1000, 2), (0.25, 0.1, 3000, 3), (0.99, 0.9, 10, 10)]
"""γ, β, n, k in each region: inside B₊, between C = 0 and γ² = β, and beyond."""


class Values(HTMLParser):
    """`data-value` of every element, by its name or strategy."""

    def __init__(self, text):
        super().__init__()
        self.found = {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if "data-value" in attrs:
            self.found[attrs.get("name") or attrs["data-strategy"]] = attrs["data-value"]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_report(tmp_path_factory.mktemp("results"), discover(), "smoke")


def shown(page, folder, hash=""):
    """Return the page after its script has run, and the browser's console."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    done = subprocess.run(
        [BROWSER, *flags, f"--user-data-dir={folder}", "--dump-dom", f"{page.as_uri()}{hash}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout, re.findall(r".*CONSOLE.*", done.stderr)


@in_a_browser
@pytest.mark.parametrize("point", POINTS)
def test_the_explorer_agrees_with_the_library(page, tmp_path, point):
    b1, b2, n, k = point
    html, console = shown(page, tmp_path, f"#explore?b1={b1}&b2={b2}&n={n}&k={k}")
    assert console == []
    found = Values(html).found
    with jax.enable_x64(True):
        expected = {
            "C": stability_coefficient(b1, b2),
            "growth_rate": growth_rate(b1, b2),
            "exact_growth_rate": exact_growth_rate(b1, b2),
            "theorem": max_update_bound(n, b1, b2, log=True),
            "exact": exact_max_update_bound(n, b1, b2, log=True),
        }
    for name, value in expected.items():
        np.testing.assert_allclose(float(found[name]), value, rtol=1e-9, atol=1e-12, err_msg=name)
    for name in STRATEGIES:
        stage = [decays[0] for decays in per_stage_decays(b1, b2, k, name)]
        np.testing.assert_allclose(json.loads(found[name]), stage, rtol=1e-6, err_msg=name)


FAMILIES = {
    "adam": (optax.adam(1.0, 0.9, 0.95), math.log(0.9) - math.log(0.95) / 2),
    "nadam": (optax.nadam(1.0, 0.9, 0.95), math.log(0.9) - math.log(0.95) / 2),
    "ademamix": (
        optax.contrib.ademamix(1.0, 0.9, 0.95, 0.99, alpha=3.0),
        math.log(0.99) - math.log(0.95) / 2,
    ),
    "simplified_ademamix": (
        optax.contrib.simplified_ademamix(1.0, 0.9, 0.95, alpha=3.0),
        math.log(0.9) - math.log(0.95) / 2,
    ),
}


@in_a_browser
@pytest.mark.parametrize("family", FAMILIES)
def test_the_explorer_knows_other_optimizers(page, tmp_path, family):
    optimizer, growth = FAMILIES[family]
    asked = f"#explore?b1=0.9&b2=0.95&n=79&b3=0.99&alpha=3&batch=32&family={family}"
    html, console = shown(page, tmp_path, asked)
    assert console == []
    found = Values(html).found
    np.testing.assert_allclose(
        math.exp(float(found["supremum"])), worst_case(optimizer, 80).supremum
    )
    np.testing.assert_allclose(float(found["dead_growth"]), growth)
    slowest = 0.99 if family == "ademamix" else 0.9
    np.testing.assert_allclose(float(found["critical_batch"]), critical_batch(slowest, 0.95, 32))


@in_a_browser
def test_the_explorer_bounds_rmsprop_with_momentum(page, tmp_path):
    html, _ = shown(page, tmp_path, "#explore?b2=0.9&n=39&momentum=0.8&family=rmsprop")
    bound = math.exp(float(Values(html).found["supremum"]))
    reached = worst_case(optax.rmsprop(1.0, momentum=0.8), 40, search_steps=100).attained
    assert 0.98 * bound < reached <= bound * (1 + 1e-9)


@in_a_browser
def test_three_points_lie_in_three_regions(page, tmp_path):
    regions = {
        Values(shown(page, tmp_path, f"#explore?b1={b1}&b2={b2}")[0]).found["region"]
        for b1, b2, _, _ in POINTS
    }
    assert len(regions) == 3


def test_the_page_needs_no_other_file(page):
    html = page.read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", html)
    assert "@import" not in html
    assert "fetch(" not in html
