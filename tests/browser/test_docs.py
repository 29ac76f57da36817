"""The documentation in a real browser, opened from disk: navigation, search, colours, phone width, accessibility."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import OpenTab
from tests.browser.support import Tab, opened, overflow, serious

# Text and code, a drawing, tables, figures, notebooks, and what was made from docstrings.
PAGES = ("index", "method", "results", "drift", "examples", "api/index", "api/methods", "api/extensions")
PHONE = {"viewport": {"width": 390, "height": 844}}


def address(site: Path, name: str) -> str:
    return (site / f"{name}.html").as_uri()


def scheme(page: Page) -> str | None:
    return page.locator("body").get_attribute("data-md-color-scheme")


@pytest.fixture(scope="module")
def tab(browser: Browser, site: Path) -> Iterator[Tab]:
    """One tab at the first page, for tests that begin by going somewhere."""
    with opened(browser, address(site, "index"), color_scheme="light") as tab:
        yield tab
        tab.calm()


def search(page: Page, words: str, title: str) -> None:
    """Type words, and wait until a page or section of this title is among the answers."""
    page.locator(".md-search__input").press_sequentially(words)
    page.locator(".md-search-result__item :is(h1, h2)").filter(has_text=title).first.wait_for()


def test_one_finds_ones_way_by_the_navigation(tab: Tab, site: Path):
    tab.page.goto(address(site, "index"))
    tab.page.locator(".md-tabs").get_by_role("link", name="Extend").click()
    assert tab.page.locator("h1").inner_text().startswith("A first hour")
    tab.page.locator(".md-nav--primary").get_by_role("link", name="Add a method and more").click()
    tab.page.locator(".md-sidebar--secondary").get_by_role("link", name="A metric").click()
    assert tab.page.url.endswith("extend.html#a-metric")
    tab.page.locator("article").get_by_role("heading", name="A metric").wait_for()


def test_search_answers_from_disk_while_one_types(tab: Tab, site: Path):
    tab.page.goto(address(site, "index"))
    tab.page.keyboard.press("/")  # the key that opens it
    assert tab.page.evaluate("document.activeElement.classList.contains('md-search__input')")
    search(tab.page, "differential privacy", "Privacy")
    tab.page.locator(".md-search-result__link").first.click()
    tab.page.wait_for_url("**/*h=*")
    assert tab.page.locator("article mark").count() > 0  # what was looked for is marked


def test_colours_follow_the_system_and_the_switch(open_tab: OpenTab, site: Path):
    tab = open_tab(address(site, "method"), color_scheme="dark")
    ink = "getComputedStyle(document.querySelector('.method text')).fill"
    assert scheme(tab.page) == "slate"
    dark = tab.page.evaluate(ink)
    tab.page.locator("label[title='Switch to light']").click()
    assert scheme(tab.page) == "default"
    assert tab.page.evaluate(ink) != dark  # the drawing comes along
    tab.page.goto(address(site, "concepts"))
    assert scheme(tab.page) == "default"  # the choice is kept
    tab.calm()


def test_formulas_are_drawn_by_the_browser_itself(tab: Tab, site: Path):
    tab.page.goto(address(site, "equations"))
    drawn = "[...document.querySelectorAll('.formula math')].map(formula => formula.getBoundingClientRect().height)"
    heights = tab.page.evaluate(drawn)
    assert len(heights) > 40
    assert min(heights) > 10
    fraction = tab.page.locator(".formula mfrac").first
    assert fraction.bounding_box()["height"] > 25  # one line above the other
    assert serious(tab.page) == []


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing_serious(open_tab: OpenTab, site: Path, colours: str):
    tab = open_tab(address(site, PAGES[0]), color_scheme=colours)
    for name in PAGES:
        tab.page.goto(address(site, name))
        assert serious(tab.page) == [], name
    tab.calm()


def test_a_phone_shows_all_of_it(open_tab: OpenTab, site: Path):
    tab = open_tab(address(site, "index"), **PHONE)
    for name in (*PAGES, "commands", "settings", "equations", "performance"):
        tab.page.goto(address(site, name))
        assert overflow(tab.page) == 0, name
    for name in ("results", "method"):  # what is wider scrolls by itself, by keyboard, too
        tab.page.goto(address(site, name))
        assert overflow(tab.page) == 0, name
        wide = tab.page.locator("[aria-label$='scrolls sideways']").first
        wide.focus()
        tab.page.keyboard.press("ArrowRight")
        tab.page.wait_for_function("element => element.scrollLeft > 0", arg=wide.element_handle())
        assert serious(tab.page) == [], name
    tab.page.locator(".md-header label[for=__drawer]").click()
    tab.page.locator(".md-nav--primary").get_by_text("Reference").first.wait_for()
    tab.calm()
