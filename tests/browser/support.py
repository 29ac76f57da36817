"""Plain helpers for tests in a browser."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

RULES = {"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}


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
