"""Plain helpers for tests in a browser."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, Position

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


def bring_into_view(locator: Locator) -> None:
    """Scroll there, and wait for the event of it, which a browser sends with its next frame and which hides the tip."""
    locator.scroll_into_view_if_needed()
    locator.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def point_at(locator: Locator, position: Position | None = None) -> None:
    """Rest the pointer on an element that no longer scrolls."""
    bring_into_view(locator)
    locator.hover(position=position)


def serious(page: Page) -> list[str]:
    """What axe finds serious or critical on a page, one line for each place; empty is good."""
    found = Axe().run(page, options=RULES).response["violations"]
    return [
        f"{violation['id']}: {node['target']} {node['html'][:120]}"
        for violation in found
        if violation["impact"] in {"serious", "critical"}
        for node in violation["nodes"]
    ]


PALE = """() => {
  const number = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = (colour) => {
    const linear = number(colour).slice(0, 3).map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const rgb = (hex) => `rgb(${[1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)).join()})`;
  const card = getComputedStyle(document.querySelector(".card")).backgroundColor;
  return [...document.querySelectorAll(".plot svg text")].flatMap((text) => {
    const ground = text.dataset.on ? rgb(text.dataset.on) : card;
    const [light, dark] = [getComputedStyle(text).fill, ground].map(luminance).sort((one, other) => other - one);
    const contrast = (light + 0.05) / (dark + 0.05);
    return contrast >= 4.5 ? [] : [`${text.textContent} in ${text.closest("figure").id}: ${contrast.toFixed(2)}`];
  });
}"""
CUT_OFF = """() => {
  const seen = [...document.querySelectorAll("body *")].filter((one) => one.checkVisibility());
  const goesOn = (one) => one.matches(".large:is(.before, .after)");
  return seen.filter((one) => {
    const box = one.getBoundingClientRect();
    if (one.closest(".unseen, .skip")) return false;
    const frame = one.closest(".plot svg")?.getBoundingClientRect();
    const inside = frame && one.matches("text") && (box.left < frame.left - 1 || box.right > frame.right + 1
      || box.bottom > frame.bottom + 1);
    const out = box.left < -1 || box.right > innerWidth + 1;
    return inside || (out && !(one.closest(".scroll") && goesOn(one.closest(".scroll"))));
  }).map((one) => `${one.tagName} ${one.className} ${one.textContent.slice(0, 60)}`);
}"""


def pale(page: Page) -> list[str]:
    """Texts of charts with a contrast below 4.5 to what lies under them (WCAG 2.1, 1.4.3); axe does not look."""
    return list(page.evaluate(PALE))


def cut_off(page: Page) -> list[str]:
    """What lies outside of the window, but for boxes that scroll and say so; and texts that leave their drawing."""
    return list(page.evaluate(CUT_OFF))


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
