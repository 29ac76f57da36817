"""The documentation as it is built: complete, by itself, and without a network."""

import importlib
import inspect
import re
import zlib
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
import yaml

from ipal.estimator.registry import METHODS
from ipal.estimator.settings import own_settings
from tests.conftest import PROJECT
from tests.snippets import blocks, commands


def pages(tree: object) -> Iterator[str]:
    """All pages that the navigation names."""
    for part in tree if isinstance(tree, list) else tree.values() if isinstance(tree, dict) else []:
        yield from [part] if isinstance(part, str) else pages(part)


# What names Python objects (icons, extensions) is of no interest here.
NAVIGATION = list(pages(yaml.safe_load((PROJECT / "mkdocs.yml").read_text())["nav"]))


TARGET = re.compile(r"""<[^>]*?\s(?:href|src)=("[^"]*"|[^\s>]+)""")
ANCHOR = re.compile(r"""\s(?:id|name)=("[^"]*"|[^\s>]+)""")


def text(site: Path, name: str) -> str:
    return (site / name).with_suffix(".html").read_text(encoding="utf-8")


def test_every_page_is_built_and_in_the_navigation(site: Path) -> None:
    written = {path.relative_to(PROJECT / "docs").as_posix() for path in (PROJECT / "docs").rglob("*.md")}
    assert set(NAVIGATION) == written
    for name in NAVIGATION:
        assert "<h1" in text(site, name), name


def test_no_link_and_no_picture_is_dead(site: Path) -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html") if path.name != "404.html"}
    anchors = {path: {name.strip('"') for name in ANCHOR.findall(html)} for path, html in pages.items()}
    targets = [(path, unescape(target.strip('"'))) for path, html in pages.items() for target in TARGET.findall(html)]
    dead, here = [], [(path, target) for path, target in targets if not re.match(r"\w+:|//", target)]
    for path, (address, anchor) in ((path, urldefrag(unquote(target))) for path, target in here):
        found = (path.parent / address).resolve() if address else path
        if not found.is_file() or anchor not in {"", *anchors.get(found, {anchor})}:
            dead.append(f"{path.relative_to(site)}: {address}#{anchor}")
    assert len(here) > 3000
    assert not dead, "\n".join(sorted(set(dead)))


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        html = path.read_text(encoding="utf-8")
        for tag in re.findall(r"<(?:script|link|img|iframe|source|use)\b[^>]*>", html):
            assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag), f"{path.name}: {tag}"
    for path in site.glob("assets/*.css"):
        assert "@import" not in path.read_text()


def reference(site: Path) -> set[str]:
    """All names that are described, by the module that defines them."""
    inventory = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    return {line.split(" ")[0] for line in inventory.splitlines()}


def test_what_pages_and_examples_import_is_in_the_reference(site: Path) -> None:
    documented = reference(site)
    sources = [block.text for page in (PROJECT / "docs").rglob("*.md") for block in blocks(page)]
    sources += [path.read_text() for path in (PROJECT / "examples").glob("*.py")]
    lines = {
        found for text in sources for found in re.findall(r"^from (ipal\.[\w.]+) import (.+)$", text, re.MULTILINE)
    }
    assert len(lines) > 5
    for module, names in sorted(lines):
        for name in names.split(","):
            member = getattr(importlib.import_module(module), name.strip())
            full_name = f"{inspect.getmodule(member).__name__}.{member.__qualname__}"
            assert full_name in documented, f"{module}.{name}"


def test_parameters_are_in_tables(site: Path) -> None:
    assert text(site, "api/index.md").count("Parameters:") > 10
    assert text(site, "api/methods.md").count("Parameters:") == len(METHODS)
    for page in (site / "api").glob("*.html"):
        assert '--parameters"' not in page.read_text(), "a heading: the docstring was not read as numpydoc"


def test_every_command_and_setting_is_listed(site: Path) -> None:
    page = text(site, "commands.md")
    assert {f"ipal {name}" for name in commands()} <= set(re.findall(r"ipal [a-z-]+", page))
    assert "--html" in page
    page = text(site, "settings.md")
    for name, method in METHODS.items():
        for setting in own_settings(method):
            row = re.search(rf"<code>{name}\.{setting}</code></td>.*?</tr>", page, re.DOTALL)
            assert row, f"{name}.{setting}"
            assert len(re.sub(r"<[^>]+>|\s", "", row[0])) > len(f"{name}.{setting}") + 15, f"{row[0]} says nothing"


def test_every_formula_is_drawn(site: Path) -> None:
    fences = [block for block in blocks(PROJECT / "docs" / "equations.md") if block.language == "math"]
    page = text(site, "equations.md")
    assert page.count("<math ") == len(fences) > 40
    assert "language-math" not in page
    assert text(site, "api/extensions.md").count("<math ") == 2  # those of docstrings


def test_links_to_files_of_the_repository_are_paths(site: Path) -> None:
    page = text(site, "results.md")
    assert "<code>experiments/table1-cs.yaml</code>" in page
    assert 'href="../experiments' not in page


def test_the_drawing_of_the_method_stands_in_the_page_with_its_words(site: Path) -> None:
    page = text(site, "method.md")
    (drawing,) = re.findall(r'<div class="drawing"><svg role="img" aria-label="(.*?)"', page)
    assert "prototypes" in drawing
    for number in (3, 4, 9, 10, 11, 13):  # the equations it names
        assert f"Eq. {number}" in page


@pytest.mark.parametrize("name", ["commands.md", "settings.md", "examples.md"])
def test_generated_pages_are_generated(name: str, site: Path) -> None:
    assert len(text(site, name)) > 20_000
    assert "make docs" not in re.search(r"<article.*</article>", text(site, name), re.DOTALL)[0]
