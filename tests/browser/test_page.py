"""The report page in a real browser, opened from disk: looked at, used by mouse and keyboard, on a phone, on paper."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from ipal.config import run_config
from ipal.data.datasets import Dataset
from ipal.runs import runner
from ipal.runs.run_folder import RunStore
from tests.browser.conftest import OpenTab
from tests.browser.support import Tab, bring_into_view, cut_off, opened, overflow, pale, point_at, serious
from tests.report.support import page_of, write_whole_run
from tests.report.test_page import HOSTILE
from tests.support import Watcher

DRAWN = "html[data-drawn=all]"
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def one_run(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the page of a real run."""
    runs = tmp_path_factory.mktemp("runs")
    resolved = runner.resolve(run_config({"dataset": tiny.name, "train": {"epochs": 3}}), dataset=tiny)
    folder = RunStore(runs).folder_for(resolved.config)
    runner.run(resolved, folder, Watcher())
    return page_of([folder], folder.path / "report.html").as_uri()


@pytest.fixture(scope="module")
def tab(browser: Browser, one_run: str) -> Iterator[Tab]:
    """One tab for all tests that leave it as they found it: the page is loaded once."""
    with opened(browser, one_run, color_scheme="light") as tab:
        tab.page.wait_for_selector(DRAWN)
        yield tab
        tab.calm()


def _column(page: Page, key: str, at: int) -> list[str]:
    cells = page.locator(f"table[data-key={key}] tbody tr td:nth-child({at + 1})")
    return [text.strip() for text in cells.all_inner_texts()]


def test_all_charts_are_drawn_and_nothing_is_complained_of(tab: Tab):
    figures = tab.page.locator("figure[data-chart]")
    assert figures.count() == 5
    assert tab.page.locator("figure .plot > svg").count() == figures.count()
    tab.calm()


def test_the_heat_map_says_in_words_what_is_under_the_pointer(tab: Tab):
    tip = tab.page.locator("#tip")
    assert not tip.is_visible()
    # The fourth cell: row by row, nothing above the diagonal.
    point_at(tab.page.locator("#chart-matrix svg rect").nth(3), {"x": 9, "y": 9})
    tip.wait_for()
    assert "After learning task 3:" in str(tip.text_content())
    assert "% on task 1" in str(tip.text_content())
    tab.page.mouse.move(0, 0)
    assert not tip.is_visible()


def test_all_loss_terms_of_an_epoch_are_said_together(tab: Tab):
    chart = tab.page.locator("#chart-losses svg")
    bring_into_view(chart)
    box = chart.bounding_box()
    assert box
    tab.page.mouse.move(box["x"] + box["width"] - 25, box["y"] + 100)
    said = str(tab.page.locator("#tip").text_content())
    assert len(set(said.splitlines())) > 1
    assert all(line.endswith("in epoch 9") for line in said.splitlines())
    tab.page.mouse.move(0, 0)


def test_a_table_is_sorted_by_mouse_and_by_keyboard(tab: Tab):
    page = tab.page
    head = page.locator("table[data-key=accuracy-3] th").nth(1)
    button = head.get_by_role("button")
    button.click()
    up = [float(text.replace("−", "-")) for text in _column(page, "accuracy-3", 1)]
    assert up == sorted(up)
    assert head.get_attribute("aria-sort") == "ascending"
    button.focus()
    page.keyboard.press("Enter")
    down = [float(text.replace("−", "-")) for text in _column(page, "accuracy-3", 1)]
    assert down == sorted(down, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    page.locator("table[data-key=accuracy-3] th").first.get_by_role("button").click()
    assert _column(page, "accuracy-3", 0) == sorted(_column(page, "accuracy-3", 0), key=str.lower)
    assert head.get_attribute("aria-sort") == "none"


def test_another_moment_can_be_chosen(tab: Tab):
    page = tab.page
    page.locator("#pick-confusion").select_option(label="after task 2")
    cells = page.locator("#chart-confusion svg text[data-on]")
    assert cells.count() == 24, "two of the six classes have not come yet"
    page.locator("#chart-confusion summary").click()
    page.locator("table[data-key=confusion] tbody tr").nth(3).wait_for()
    assert len(_column(page, "confusion", 0)) == 24
    page.locator("#pick-confusion").select_option(label="after task 3")
    assert cells.count() == len(_column(page, "confusion", 0)) == 36
    page.locator("#chart-confusion summary").click()
    rows = page.locator("table[data-key=losses] tbody tr")
    assert rows.count() == 0, "a table waits until it is opened"
    page.locator("#chart-losses summary").click()
    rows.nth(10).wait_for()
    page.locator("#chart-losses summary").click()


def test_lines_can_be_hidden(tab: Tab):
    page = tab.page
    legend, hidden = (page.locator(f"#chart-curve svg [role=button]{more}") for more in ("", "[aria-pressed=false]"))
    legend.first.click()
    assert hidden.count() == 1
    legend.first.press("Enter")
    assert hidden.count() == 0
    assert page.evaluate("document.activeElement.getAttribute('role')") == "button", "the keyboard stays where it was"
    legend.nth(1).dblclick()
    assert hidden.count() == legend.count() - 1, "one line alone"
    legend.nth(1).press("Enter")
    for place in range(legend.count()):
        legend.nth(place).press("Enter")


def test_both_themes_and_no_serious_finding(tab: Tab):
    page = tab.page
    ink = "getComputedStyle(document.querySelector('#chart-matrix text:not([data-on])')).fill"
    light = page.evaluate(ink)
    assert not serious(page)
    assert not pale(page)
    page.get_by_role("button", name="Dark theme").click()
    page.wait_for_selector("html[data-theme=dark][data-drawn=all]")
    assert page.evaluate(ink) != light, "charts follow the theme"
    assert not serious(page)
    assert not pale(page)
    page.get_by_role("button", name="Light theme").click()
    page.wait_for_selector(DRAWN)
    assert page.evaluate(ink) == light


def test_downloads(tab: Tab, tmp_path: Path):
    page = tab.page

    def saved(selector: str) -> Path:
        with page.expect_download() as download:
            page.locator(selector).click()
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        return path

    table = saved("#chart-confusion [data-save=csv]")
    assert table.name.endswith("-confusion.csv")
    lines = table.read_text().splitlines()
    assert lines[0] == "true class,predicted class,% of the row,nodes"
    assert len(lines) == 1 + 6 * 6, "of the moment that is shown"
    assert "task 3,task 1," in saved("#chart-matrix [data-save=csv]").read_text()
    assert saved("#chart-matrix [data-save=png]").read_bytes().startswith(b"\x89PNG")
    drawing = saved("#chart-losses [data-save=svg]").read_text()
    assert drawing.startswith("<svg")
    assert "contrast" in drawing


def test_the_keyboard_reaches_everything(tab: Tab):
    page = tab.page
    page.locator(".skip").focus()
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "focus can be seen"
    page.locator("nav a[href='#training']").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("nav a[href='#training'][aria-current]")


def test_on_paper_it_is_light_and_whole(tab: Tab):
    page = tab.page
    page.get_by_role("button", name="Dark theme").click()
    page.emulate_media(media="print")
    page.wait_for_selector("html[data-theme=light]")
    assert not page.locator("nav.sections").is_visible()
    assert not page.locator(".downloads").first.is_visible()
    widths = page.eval_on_selector_all(".plot svg", "all => all.map(one => one.getBoundingClientRect().width)")
    assert max(widths) <= 690
    page.emulate_media(media="screen")
    page.wait_for_selector("html[data-theme=dark]")
    page.get_by_role("button", name="Light theme").click()
    page.wait_for_selector(DRAWN)
    assert page.evaluate("document.querySelector('#chart-matrix svg').getBoundingClientRect().width") > 700


def test_on_a_phone_nothing_is_wider_than_the_window(open_tab: OpenTab, one_run: str):
    tab = open_tab(one_run, viewport=PHONE, color_scheme="dark", has_touch=True)
    page = tab.page
    page.wait_for_selector(DRAWN)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark", "as the system asks"
    assert overflow(page) == 0
    assert not cut_off(page)
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    page.locator("table[data-key=confusion] tbody tr").nth(30).wait_for()
    assert overflow(page) == 0
    assert not cut_off(page)
    wide = page.locator(".scroll.after + .hint").first
    assert wide.is_visible()
    box = page.locator("table[data-key=setup-1]").locator("..")
    box.evaluate("box => box.scrollTo(10_000, 0)")
    page.wait_for_selector(".before:not(.after) > table[data-key=setup-1]")
    tab.calm()


def test_several_runs_are_compared(open_tab: OpenTab, tmp_path: Path):
    folders = [write_whole_run(tmp_path / "runs", seed=seed, gain=3.0 * seed) for seed in range(2)]
    folders += [write_whole_run(tmp_path / "runs", method="ewc", seed=seed, gain=-5) for seed in range(2)]
    folders.append(write_whole_run(tmp_path / "runs", protocol={"accuracy": "micro"}))
    address = page_of(folders, tmp_path / "several.html").as_uri()
    tab = open_tab(address)
    page = tab.page
    page.wait_for_selector(DRAWN)
    page.locator("table[data-key=comparison1-1] th button").nth(1).click()
    assert _column(page, "comparison1-1", 0) == ["EWC", "IPAL"]
    page.keyboard.press("Enter")
    assert _column(page, "comparison1-1", 0) == ["IPAL", "EWC"]
    with page.expect_download() as download:
        page.locator("#comparison1 .table [data-save=csv]").first.click()
    head, first, _ = download.value.path().read_text().splitlines()
    assert head.startswith("method,AP ↑,AP ↑ (standard deviation),AF ↑")
    assert first.startswith("IPAL,74.83")
    assert not serious(page)
    assert not pale(page)
    tab.calm()
    phone = open_tab(address, viewport=PHONE).page
    phone.wait_for_selector(DRAWN)
    assert overflow(phone) == 0
    assert not cut_off(phone)


def test_hostile_names_are_shown_and_not_run(open_tab: OpenTab, tmp_path: Path):
    folder = write_whole_run(tmp_path / "runs", HOSTILE)
    address = page_of([folder], tmp_path / "page.html").as_uri()
    tab = open_tab(address)
    page = tab.page
    page.wait_for_selector(DRAWN)
    assert page.locator("img").count() == 0
    names = page.locator("#chart-recall svg text").all_text_contents()
    assert {"<img src=x onerror=alert(…", HOSTILE[2], HOSTILE[3]} < set(names)
    point_at(page.locator("#chart-recall svg rect").nth(3), {"x": 9, "y": 9})
    assert page.locator("#tip").inner_text().startswith(f"90.0 % of class {HOSTILE[1]}"), "read as it is"
    tab.calm()
    phone = open_tab(address, viewport=PHONE).page
    phone.wait_for_selector(DRAWN)
    assert not cut_off(phone), "long names, too"
