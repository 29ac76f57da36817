"""What the documentation says of the source tree is true."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.conftest import PROJECT

SOURCE = PROJECT / "src" / "ipal"
PAGE = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
PAGES = [*(PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "examples/README.md"))]
PAGES += sorted((PROJECT / "docs").rglob("*.md"))
FOLDERS = "|".join(["src", "tests", "docs", "benchmarks", "scripts", "faults", "examples", "experiments", "ipal"])


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_files_of_the_repository_named_in_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(rf"(?<![\w./-])(?:{FOLDERS})/[\w/-]+\.(?:py|md|yaml)\b", text):
        assert (PROJECT / name).exists() or (PROJECT / "src" / name).exists(), name
    for name in re.findall(r"`([a-z_]+/[\w/]+\.py)`", text):
        assert (PROJECT / name).exists() or list(SOURCE.rglob(name)) or (PROJECT / "src" / name).exists(), name


def test_what_is_named_in_the_architecture_and_for_contributors_is_in_the_code() -> None:
    """Names of functions and classes, and in which file they are, where that is said."""
    code = {path: path.read_text() for folder in ("src", "faults") for path in (PROJECT / folder).rglob("*.py")}
    words = {word for text in code.values() for word in re.findall(r"\w+", text)}
    contributing = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`([A-Za-z]+(?:_[A-Za-z]+)+|[A-Z][a-z]+[A-Z]\w*|[A-Z]{4,})`", PAGE + contributing)
    assert len(named) > 10
    assert set(named) - words == set()
    pairs = re.findall(r"`([\w/]+\.py): (\w+)`", PAGE)
    pairs += [
        (file, name) for name, file in re.findall(r"`(\w+)`(?: of| in| \()+`((?:\w+/)*\w+\.py)`", PAGE + contributing)
    ]
    assert len(pairs) > 5
    for file, name in pairs:
        assert any(re.search(rf"\b{name}\b", text) for path, text in code.items() if path.match(file)), (file, name)


def test_the_layout_stays_small() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 5
    assert len(layers()) <= 16
