"""A real browser for the tests of pages: one Chromium a session, a fresh tab each; skipped where there is none."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

# No sandbox: tests may run as root. The rest keeps Chromium from calling home.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Tab:
    """An open page, with everything it complained of or asked the network for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def calm(self) -> None:
        """Nothing went wrong, and nothing but files of this machine was asked for."""
        assert not self.complaints
        assert not [
            url for url in self.requests if not url.startswith(("file:", "data:", "blob:", "http://127.0.0.1:"))
        ]


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
    contexts = []

    def open_(address: str, **options: object) -> Tab:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})  # type: ignore[arg-type]
        contexts.append(context)
        tab = Tab(context.new_page())
        tab.page.set_default_timeout(10_000)
        tab.page.on("pageerror", lambda error: tab.complaints.append(f"error: {error}"))
        tab.page.on(
            "console",
            lambda message: tab.complaints.append(message.text) if message.type in {"error", "warning"} else None,
        )
        tab.page.on("request", lambda request: tab.requests.append(request.url))
        tab.page.goto(address)
        return tab

    yield open_
    for context in contexts:
        context.close()
