"""The reference has every public name, with the parameters of its signature, and an example that is run."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import griffe
import pytest
import yaml

import ipal
from tests.conftest import PROJECT
from tests.snippets import blocks

DIRECTIVE = re.compile(r"^::: (\S+)\n((?: {4}.*\n?)*)", re.MULTILINE)
PAGES = sorted((PROJECT / "docs" / "api").glob("*.md"))
LEARNERS = [name for name in ipal.__all__ if inspect.isclass(one := getattr(ipal, name)) and hasattr(one, "_method")]
Documented = griffe.Object | griffe.Alias


def directives() -> dict[str, list[str]]:
    """What the pages name, and the members that they ask for; none for all."""
    found = [block for page in PAGES for block in DIRECTIVE.findall(page.read_text(encoding="utf-8"))]
    return {name: (yaml.safe_load(options) or {}).get("options", {}).get("members", []) for name, options in found}


@pytest.fixture(scope="module")
def reference() -> dict[str, Documented]:
    """Every object that the pages show, with its docstring as numpydoc."""
    package = griffe.load("ipal", search_paths=[PROJECT / "src"], docstring_parser="numpy")

    def found(name: str) -> Documented:
        module, _, last = name.rpartition(".")
        return package[f"{module}.{last}".removeprefix("ipal.")]

    def named(name: str, members: list[str]) -> Iterator[tuple[str, Documented]]:
        one = found({"ipal.load_dataset": "ipal.data.datasets.load"}.get(name, name))
        yield name, one
        for member in members or [key for key in one.members if not one.is_function and not key.startswith("_")]:
            yield f"{name}.{member}", one.all_members[member]

    # What a learner shows is made of its settings; test_surface.py looks at it.
    asked = {name: members for name, members in directives().items() if name.removeprefix("ipal.") not in LEARNERS}
    return {path: one for name, members in asked.items() for path, one in named(name, members)}


def sections(one: Documented, *kinds: str) -> list[Any]:
    parsed = one.docstring.parsed if one.docstring else []
    return [value for section in parsed if section.kind.value in kinds for value in section.value]


def raised(one: Documented) -> set[str]:
    """Errors that the function itself raises."""
    return set(re.findall(r"^ +raise (\w+Error)\b", one.source or "", re.MULTILINE))


def test_every_public_name_is_in_the_reference() -> None:
    shown = directives()
    documented = {name.removeprefix("ipal.") for name in [*shown, *shown["ipal.errors"]]}
    assert set(ipal.__all__) - {"__version__"} - documented == set()
    assert shown["ipal.Learner"] == [], "all of it"
    errors = {name for name, one in vars(ipal.errors).items() if inspect.isclass(one) and issubclass(one, Exception)}
    assert errors - set(shown["ipal.errors"]) == set()


def test_docstrings_have_the_parameters_of_the_signature(reference: dict[str, Documented]) -> None:
    assert len(reference) > 200
    lacking = []
    for path, one in reference.items():
        if one.is_attribute:
            declared = one.annotation is not None or "property" in one.labels
            lacking += [path] if declared and one.docstring is None else []
        elif one.docstring is None:
            lacking.append(path)
        elif one.is_function or ("__init__" in one.members and "dataclass" not in one.labels and "Error" not in path):
            signature = [parameter.name for parameter in one.parameters if parameter.name not in {"self", "cls"}]
            said = sections(one, "parameters")
            if [parameter.name.lstrip("*") for parameter in said] != signature:
                lacking.append(f"{path}: {signature}, but the docstring has {[parameter.name for parameter in said]}")
            lacking += [f"{path}: {one.name}" for one in said if not one.description]
    assert not lacking, "\n".join(lacking)


def test_what_functions_return_and_raise_is_said(reference: dict[str, Documented]) -> None:
    lacking = []
    for path, one in ((path, one) for path, one in reference.items() if one.is_function):
        if str(one.returns) != "None" and not sections(one, "returns"):
            lacking.append(f"{path}: returns {one.returns}")
        if unsaid := raised(one) - {str(error.annotation) for error in sections(one, "raises")}:
            lacking.append(f"{path}: raises {unsaid}")
        for value in sections(one, "parameters", "returns"):
            what = str(value.annotation)
            if re.match(r"(nd)?array|Tensor", what) and "shape" not in what:
                lacking.append(f"{path}: the shape of {value.name or what}")
    assert not lacking, "\n".join(lacking)


def test_every_public_name_is_in_an_example_that_is_run() -> None:
    pages = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
    code = "\n".join(block.text for page in pages for block in blocks(page) if block.kind in {"run", "write"})
    members = {f"Learner.{name}" for name in dir(ipal.Learner) if not name.startswith("_")}
    names = (set(ipal.__all__) - {"__version__"} - set(LEARNERS)) | members
    lacking = sorted(name for name in names if not re.search(rf"(\.|import ){name.rpartition('.')[2]}\b", code))
    assert not lacking, "\n".join(lacking)
