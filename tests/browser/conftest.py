"""A real browser for the tests of pages: one Chromium a session, a fresh tab each; skipped where there is none."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.support import FLAGS, Tab, opened

OpenTab = Callable[..., Tab]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium without a window."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture
def open_tab(browser: Browser) -> Iterator[OpenTab]:
    """Open an address in a tab of its own; options are those of a Playwright context (viewport, color_scheme, …)."""
    with ExitStack() as stack:
        yield lambda address, **options: stack.enter_context(opened(browser, address, **options))
