"""Takes the pictures of the report page in docs/figures: light, dark, and on a phone.

    ipal run --dataset cs && ipal report cs-ipal-seed0 --html -o page.html
    python scripts/screenshots.py page.html

Needs Playwright (pip install 'ipal[dev]') and Chromium (apt-get install chromium).
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(__file__).parents[1] / "docs" / "figures"


@dataclass(frozen=True)
class Picture:
    name: str
    width: int
    height: int
    scheme: str
    at: str
    """What stands at the top."""


PICTURES = (
    Picture("page-light.png", 1280, 1160, "light", "body"),
    Picture("page-dark.png", 1280, 960, "dark", "#training"),
    Picture("page-phone.png", 390, 844, "light", "#chart-matrix"),
)


def take(browser: Browser, page: Path, picture: Picture, folder: Path) -> Path:
    size = {"width": picture.width, "height": picture.height}
    context = browser.new_context(viewport=size, color_scheme=picture.scheme)  # type: ignore[arg-type]
    tab = context.new_page()
    tab.goto(page.resolve().as_uri())
    tab.wait_for_selector("html[data-drawn=all]")
    tab.evaluate("place => document.querySelector(place).scrollIntoView()", picture.at)
    tab.wait_for_timeout(300)  # the section in view is marked a moment later
    path = folder / picture.name
    tab.screenshot(path=path)
    context.close()
    return path


def main(page: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for picture in PICTURES:
            path = take(browser, page, picture, FOLDER)
            print(f"{path} ({path.stat().st_size / 1000:.0f} kB)")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
