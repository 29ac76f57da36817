"""What the documentation says of the source tree is true."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.conftest import PROJECT

SOURCE = PROJECT / "src" / "ipal"
PAGE = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
PAGES = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").glob("*.md"))]


def layers() -> list[str]:
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found: list[str] = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return found


def test_the_picture_has_all_rooms_in_the_order_of_the_contract() -> None:
    rooms = [name.strip().removeprefix("ipal.") for layer in layers() for name in layer.split("|")]
    assert {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} <= set(rooms)
    drawn = [word for line in PAGE.split("```")[1].splitlines() for word in re.split(r"  +", line)]
    assert [word for word in dict.fromkeys(drawn) if word in rooms] == [room for room in rooms if room != "_version"]


def test_files_of_the_architecture_exist() -> None:
    for name in re.findall(r"`([\w/]+\.py)\b", PAGE):
        assert list(SOURCE.rglob(name)), name
    for name in re.findall(r"`(\w+)/`", PAGE):
        assert [path for path in SOURCE.rglob(name) if path.is_dir()], name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_the_package_named_in_a_page_exist(page: Path) -> None:
    for name in re.findall(r"\bipal/[\w/]+\.py\b", page.read_text(encoding="utf-8")):
        assert (PROJECT / "src" / name).exists(), name


def test_the_layout_stays_small() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 5
    assert len(layers()) <= 16
