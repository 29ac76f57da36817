"""The pages of `ipal serve` in a real browser: colours, phone width, accessibility."""

from pathlib import Path

import pytest

from ipal.deploy.serving.page import front_page
from tests.browser.conftest import OpenTab
from tests.browser.support import overflow, serious

FACTS = {
    "method": "analytic",
    "version": "0123456789ab",
    "classes": [f"a class with a long name, number {number}" for number in range(60)],
    "features": 6805,
    "feature_names": [f"a feature with a long name, number {number}" for number in range(6805)],
    "hops": 2,
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_front_page_is_read_by_all(open_tab: OpenTab, tmp_path: Path, scheme: str, width: int) -> None:
    file = tmp_path / "front.html"
    file.write_text(front_page(FACTS, "127.0.0.1:8000", guarded=True))
    tab = open_tab(file.as_uri(), color_scheme=scheme, viewport={"width": width, "height": 844})
    assert serious(tab.page) == []
    assert overflow(tab.page) <= 0
    tab.page.screenshot(path=tmp_path / "front.png", full_page=True)
    tab.calm()
