"""The page of equations, from the code: which equation is which function, and which test holds it.

python scripts/equations.py > docs/equations.md
"""

import ast
import importlib
import inspect
import math
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ipal import backend, closed_form, data, engine, estimator, evaluation, methods, nn
from ipal.methods.ipal import IPAL

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Equation:
    """A function or class that is an equation, taken apart from its docstring."""

    name: str
    """As in code: module.function."""
    test_name: str
    """What the names of its tests begin with, after `test_`."""
    doc: str

    @property
    def what(self) -> str:
        return self.doc.splitlines()[0]

    @property
    def math(self) -> str:
        """The `.. math::` block; empty where there is none."""
        block = re.search(r"^\.\. math::(.*(?:\n +.*)*)", self.doc, re.MULTILINE)
        lines = block[1].splitlines() if block else []
        return "\n".join(line.strip() for line in lines if line.strip())

    @property
    def source(self) -> str:
        """The paragraph that says where it is from, on one line; the first one where no source is named."""
        paragraphs = [" ".join(text.split()) for text in self.doc.split("\n\n")]
        return next((text for text in paragraphs if text.startswith("Source:")), paragraphs[0])

    @property
    def origin(self) -> str:
        """The work it is from, empty for the paper; only the first sentence of the source is asked."""
        return "" if "IPAL paper" in self._sentence or self.source == self.what else self._sentence.split(",")[0]

    @property
    def numbers(self) -> list[int]:
        """Equation numbers, ascending: of `Eq. 6, and the products of Eq. 7 and 8` all three. A work may have none."""
        lists = re.findall(r"Eq\. (\d+(?:(?:, | and )\d+)*)", self._sentence)
        return sorted({int(number) for several in lists for number in re.findall(r"\d+", several)})

    @property
    def _sentence(self) -> str:
        """The first sentence of the source, or what stands before its colon. The dots of `Eq.`, `et al.` end none."""
        text = self.source.removeprefix("Source: ")
        return re.split(r"(?<!Eq)(?<!et al)\.\s|:\s", text)[0].removesuffix(".")


def modules() -> Iterator[ModuleType]:
    """Where equations may be: the subpackages that compute, and the measurement of Theorem 1."""
    for room in (data, backend, nn, methods, closed_form, engine, estimator, evaluation):
        for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            yield importlib.import_module(found.name)
    sys.path.insert(0, str(ROOT))  # where this is run as a program
    yield importlib.import_module("scripts.drift")


def equations() -> list[Equation]:
    """All functions, classes and methods that name a source, as they are written, and the whole loss."""
    found = [
        equation(f"{module.__name__}.{name}", name.lower().replace(".", "_"), member)
        for module in modules()
        for name, member in members(module)
        if "Source:" in (inspect.getdoc(member) or "")
    ]
    return [*found, equation("ipal.methods.ipal.IPAL.loss", "ipal_loss", IPAL.loss)]


def members(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Public functions and classes of a module, each class followed by its own methods."""
    for name, member in vars(module).items():
        if not name.startswith("_") and getattr(member, "__module__", None) == module.__name__:
            yield name, member
            if inspect.isclass(member):
                own = vars(member).items()
                yield from ((f"{name}.{of}", one) for of, one in own if inspect.isfunction(one) and of[0] != "_")


def equation(name: str, test_name: str, member: Callable[..., object]) -> Equation:
    return Equation(name.removeprefix("ipal."), test_name, inspect.getdoc(member) or "")


def tests(known: list[Equation]) -> dict[str, list[str]]:
    """Names of tests by equation. A test belongs to the longest name it begins with, so to one equation at most."""
    by_equation: dict[str, list[str]] = {each.test_name: [] for each in known}
    longest_first = sorted(by_equation, key=len, reverse=True)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            for test_name in longest_first:
                if f"{node.name}_".startswith(f"test_{test_name}_"):
                    by_equation[test_name].append(f"{path.relative_to(ROOT).as_posix()}::{node.name}")
                    break
    return by_equation


def listed(tests: list[str]) -> list[str]:
    """The tests of an equation as lines, file by file."""
    by_file: dict[str, list[str]] = {}
    for test in tests:
        file, _, name = test.partition("::")
        by_file.setdefault(file, []).append(f"`{name}`")
    return [line for file, names in by_file.items() for line in ["", f"Tests, in `{file}`: {', '.join(names)}."]]


def anchor(name: str) -> str:
    """Of the section about a function, as Markdown makes it."""
    return name.lower().replace(".", "")


def page() -> str:
    known = equations()
    tested = tests(known)
    # A work whose equations are not numbered, or not surely so, still has its row.
    rows = [(each.origin, number, each) for each in known for number in each.numbers or [0]]
    # The paper's own first, by number; where one equation is several functions, as they are written.
    rows.sort(key=lambda row: (row[0], row[1] or math.inf))
    lines = [
        "# Equations",
        "",
        "Generated by `make docs` from the code; do not edit.",
        "",
        "Numbers are those of the IPAL paper, except where another work is named; a dash where no number is sure.",
        "",
        "| Eq. | what | function |",
        "| --- | --- | --- |",
    ]
    for origin, number, each in rows:
        label = " of ".join(filter(None, [str(number or "–"), origin]))
        what = each.what.replace("|", r"\|")
        lines.append(f"| {label} | {what} | [`{each.name}`](#{anchor(each.name)}) |")
    for each in dict.fromkeys(each for _, _, each in rows):
        lines += ["", f"## `{each.name}`", ""]
        if each.math:
            lines += ["```math", each.math, "```", ""]
        lines += [each.source, *listed(tested[each.test_name])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
