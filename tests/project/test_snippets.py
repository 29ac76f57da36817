"""Everything that the documentation tells a reader to type, works."""

import re
import shlex
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.snippets import Visitor, blocks, check_written, commands, named_in_text, parsed

PAGES = sorted((PROJECT / "docs").rglob("*.md"))
NAMES = [page.relative_to(PROJECT / "docs").as_posix() for page in PAGES]
ALL = {name: blocks(page) for name, page in zip(NAMES, PAGES, strict=True)}


@pytest.mark.usefixtures("hurry", "asked")
@pytest.mark.parametrize("name", [name for name in NAMES if any(block.kind != "show" for block in ALL[name])])
def test_a_page_can_be_followed(name: str, visitor: Visitor) -> None:
    for block in ALL[name]:
        if block.kind == "write":
            check_written(block)
        visitor.follow(block)


PRINTED = re.compile(r"\(\w+\.predict\([^()]*\) == [\w.]*(?:y|kind|truth)\b[^)]*\)+\.mean\(\)")


@pytest.mark.parametrize("path", [PROJECT / "README.md", *PAGES], ids=lambda path: path.name)
def test_no_page_counts_right_predictions_of_all_nodes(path: Path) -> None:
    """Those learned from would be among them: `score` with a mask says which nodes count."""
    assert not PRINTED.findall(path.read_text(encoding="utf-8"))


def test_no_snippet_is_left_out() -> None:
    """Every fence is run, resolved, written for another, or no snippet at all; most are run."""
    kinds = Counter(block.kind for found in ALL.values() for block in found)
    assert set(kinds) <= {"run", "resolve", "write", "show"}
    assert kinds["run"] >= 30
    assert kinds["resolve"] < kinds["run"]
    shown = Counter(block.language for found in ALL.values() for block in found if block.kind == "show")
    assert set(shown) <= {"math", "text"}


def test_what_is_written_to_a_file_is_used() -> None:
    for name, found in ALL.items():
        for place, block in enumerate(found):
            if block.kind == "write":
                stem = block.title.removesuffix(".py")
                later = "".join(other.text for other in found[place + 1 :] if other.kind in {"run", "write"})
                used = r"pip install -e \." if block.title == "pyproject.toml" else rf"\b{re.escape(stem)}\b"
                assert re.search(used, later), f"{name}: nobody uses {block.title}"


@pytest.mark.parametrize("name", [*NAMES, "../README.md", "../CONTRIBUTING.md"])
def test_commands_named_in_sentences_exist(name: str) -> None:
    for text in named_in_text(PROJECT / "docs" / name):
        words = shlex.split(text)[1:]
        if len(words) == 1:  # the command as such
            assert words[0] in commands(), text
            continue
        with suppress(Exception):  # an ellipsis stands for options, or for what must be given
            parsed([word for word in words if word != "…"])
            continue
        parsed(["FILE" if word == "…" else word for word in words])
