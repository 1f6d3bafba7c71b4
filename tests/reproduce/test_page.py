"""The page in a real browser: what it shows, filters and prints, and for whom."""

import json
import math
import re
import shutil

import jax
import numpy as np
import optax
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from experiments.figures import discover
from experiments.reproduce.pipeline import place, run_figure
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
from tests.figures.contract import CLAIMS

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
in_a_browser = pytest.mark.skipif(
    BROWSER is None, reason="no chromium: `apt-get install chromium` adds it"
)
FIGURES = discover()
PLANE = FIGURES["stability_plane"]
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The smoke page, with one figure that was run."""
    results = tmp_path_factory.mktemp("results")
    run_figure(place(results, PLANE, "smoke"), PLANE.presets["smoke"], jax.devices()[:1])
    return write_report(results, FIGURES, "smoke")


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def opened(page, browser):
    """`opened(hash="", **options)` is the page in a new tab; consoles must stay silent."""
    messages = []

    def open_tab(hash="", **options):
        tab = browser.new_page(**{"viewport": WIDE, **options})
        tab.on("console", lambda message: messages.append(message.text))
        tab.on("pageerror", lambda error: messages.append(str(error)))
        tab.goto(page.as_uri() + hash)
        return tab

    yield open_tab
    assert messages == []


@pytest.fixture(scope="module")
def explorer(opened):
    """`explorer(**values)` is what the explorer shows for a link with these values."""
    tab = opened()
    follow = """hash => new Promise(done => {
      addEventListener("hashchange", () => done(Object.fromEntries(
        Array.from(document.querySelectorAll("[data-value]"),
          found => [found.name || found.dataset.strategy, found.dataset.value]))), {once: true});
      location.hash = hash;
    })"""
    return lambda **values: tab.evaluate(
        follow, "explore?" + "&".join(f"{name}={value!s}" for name, value in values.items())
    )


def random_points():
    """30 points (γ, β, n, k): the far corners of what can be typed, and others between them."""
    ends = (1e-6, 1 - 1e-6)
    corners = [(b1, b2, n, k) for b1 in ends for b2 in ends for n, k in ((1, 100), (10**9, 1))]
    rng = np.random.default_rng(0)
    decays = 1 / (1 + np.exp(rng.uniform(-13, 13, (22, 2))))
    sizes = np.exp(rng.uniform(0, np.log([1e9, 100]), (22, 2))).astype(int)
    return corners + [(*map(float, d), *map(int, s)) for d, s in zip(decays, sizes, strict=True)]


@in_a_browser
def test_the_explorer_agrees_with_the_library(explorer):
    for b1, b2, n, k in random_points():
        found = explorer(b1=b1, b2=b2, n=n, k=k)
        with jax.enable_x64(True):
            expected = {
                "C": stability_coefficient(b1, b2),
                "growth_rate": growth_rate(b1, b2),
                "exact_growth_rate": exact_growth_rate(b1, b2),
                "theorem": max_update_bound(n, b1, b2, log=True),
                "exact": exact_max_update_bound(n, b1, b2, log=True),
            }
        for name, value in expected.items():
            np.testing.assert_allclose(
                float(found[name]), value, rtol=1e-9, atol=1e-9, err_msg=f"{name} {b1, b2, n, k}"
            )
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
def test_the_explorer_knows_other_optimizers(explorer, family):
    optimizer, growth = FAMILIES[family]
    found = explorer(b1=0.9, b2=0.95, n=79, b3=0.99, alpha=3, batch=32, family=family)
    np.testing.assert_allclose(
        math.exp(float(found["supremum"])), worst_case(optimizer, 80).supremum
    )
    np.testing.assert_allclose(float(found["dead_growth"]), growth)
    slowest = 0.99 if family == "ademamix" else 0.9
    np.testing.assert_allclose(float(found["critical_batch"]), critical_batch(slowest, 0.95, 32))


@in_a_browser
def test_the_explorer_bounds_rmsprop_with_momentum(explorer):
    bound = math.exp(float(explorer(b2=0.9, n=39, momentum=0.8, family="rmsprop")["supremum"]))
    reached = worst_case(optax.rmsprop(1.0, momentum=0.8), 40, search_steps=100).attained
    assert 0.98 * bound < reached <= bound * (1 + 1e-9)


@in_a_browser
def test_three_points_lie_in_three_regions(explorer):
    points = (0.9, 0.999), (0.25, 0.1), (0.99, 0.9)  # in B₊, up to γ² = β, and beyond
    assert len({explorer(b1=b1, b2=b2)["region"] for b1, b2 in points}) == 3


def shown(tab):
    """Return the ids of the claims that can be seen, in their order."""
    tab.evaluate("new Promise(done => setTimeout(done))")  # after the event of a changed address
    rows = tab.locator("#claims tbody tr")
    return rows.evaluate_all("all => all.filter(row => row.offsetHeight).map(row => row.id)")


@in_a_browser
def test_claims_are_searched_filtered_and_sorted(opened):
    tab = opened()
    everything = [f"claim-{claim.id}" for claim in CLAIMS]
    assert sorted(shown(tab)) == sorted(everything)
    own = [f"claim-{claim.id}" for claim in PLANE.claims]
    tab.select_option("[name=verdict]", "not decided")  # at smoke size
    assert shown(tab) == own
    assert tab.locator("[name=count]").inner_text() == f"{len(own)} of {len(everything)}"
    tab.fill("[name=q]", "normal PERPENDICULAR")
    assert shown(tab) == ["claim-normal-curves-perpendicular"]
    assert tab.url.endswith("#claims?q=normal+PERPENDICULAR&verdict=not+decided")
    tab.fill("[name=q]", "")
    tab.select_option("[name=sort]", "claim")
    assert shown(tab) == sorted(own)
    tab.select_option("#filter [name=family]", "optimizer")
    assert shown(tab) == []


@in_a_browser
def test_links_lead_to_the_claims_that_they_name(opened):
    tab = opened("#claims?family=flow&sort=claim&unknown=1")
    of_flow = (*FIGURES["solver_cost"].claims, *FIGURES["trajectories"].claims)
    flow = [f"claim-{claim.id}" for claim in of_flow]
    assert shown(tab) == sorted(flow)
    tab.evaluate("location.hash = 'claim-beta-above-gamma'")  # hidden until then
    tab.wait_for_function("document.querySelector(':target')?.offsetHeight")
    assert len(shown(tab)) == len(CLAIMS)
    tab.click("#stability_plane [data-asked]")
    assert shown(tab) == [f"claim-{claim.id}" for claim in PLANE.claims]
    tab.click("#questions article:nth-child(4) [data-asked]")
    assert shown(tab) == flow


@in_a_browser
@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "dark"), (NARROW, "light")])
def test_the_page_is_for_everybody(opened, size, scheme):
    tab = opened(viewport=size, color_scheme=scheme)
    for width in (size["width"], 480, 1000, 1100):
        tab.set_viewport_size({**size, "width": width})
        assert tab.evaluate("document.documentElement.scrollWidth") == width
    tab.set_viewport_size(size)
    light = tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (scheme == "light")
    found = Axe().run(tab, options={"resultTypes": ["violations"]}).response["violations"]
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in found] == []
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Answers"


@in_a_browser
def test_without_scripts_claims_are_a_plain_table(browser, page):
    tab = browser.new_context(java_script_enabled=False).new_page()
    tab.goto(page.as_uri())
    assert tab.locator("#claims tbody tr:visible").count() == len(CLAIMS)
    assert not tab.locator("#filter").is_visible()


@in_a_browser
def test_the_print_has_claims_and_figures_on_white(opened):
    tab = opened(color_scheme="dark")
    tab.emulate_media(media="print", color_scheme="dark")
    for part in ("nav", "#filter", "#explorer"):
        assert not tab.locator(part).is_visible()
    assert tab.locator("#stability_plane img").is_visible()
    body = tab.evaluate(
        "(({color, backgroundColor}) => [color, backgroundColor])(getComputedStyle(document.body))"
    )
    assert body == ["rgb(28, 31, 36)", "rgb(255, 255, 255)"]
    assert len(re.findall(rb"/Subtype ?/Image", tab.pdf())) == tab.locator("img").count() == 1


def test_the_page_needs_no_other_file(page):
    html = page.read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", html)
    assert "@import" not in html
    assert "fetch(" not in html
