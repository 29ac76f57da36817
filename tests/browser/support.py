"""Plain helpers for tests in a browser."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

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
RULES = {
    "preload": False,
    "resultTypes": ["violations"],
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
}
HERE = ("file:", "data:", "blob:", "http://127.0.0.1:")


@dataclass
class Tab:
    """An open page, with everything it complained of or asked the network for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def calm(self) -> None:
        """Nothing went wrong, and nothing but files of this machine was asked for."""
        assert not self.complaints
        assert not [url for url in self.requests if not url.startswith(HERE)]


@contextmanager
def opened(browser: Browser, address: str, **options: Any) -> Iterator[Tab]:
    """A tab of its own; options are those of a Playwright context."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    tab = Tab(context.new_page())
    tab.page.set_default_timeout(30_000)
    tab.page.on("pageerror", lambda error: tab.complaints.append(f"error: {error}"))
    tab.page.on("dialog", lambda dialog: (tab.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    tab.page.on(
        "console",
        lambda message: tab.complaints.append(message.text) if message.type in {"error", "warning"} else None,
    )
    tab.page.on("request", lambda request: tab.requests.append(request.url))
    tab.page.goto(address)
    yield tab
    context.close()


def serious(page: Page) -> list[str]:
    """What axe finds serious or critical on a page, one line for each place; empty is good."""
    found = Axe().run(page, options=RULES).response["violations"]
    return [
        f"{violation['id']}: {node['target']} {node['html'][:120]}"
        for violation in found
        if violation["impact"] in {"serious", "critical"}
        for node in violation["nodes"]
    ]


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
