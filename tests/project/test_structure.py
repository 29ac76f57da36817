"""The shape of the source, over its syntax trees: no flags, no backdoors, no cycles, and methods that stand alone."""

import ast
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from ipal.estimator.registry import METHODS

SOURCE = Path(__file__).parents[2] / "src" / "ipal"
GENERIC = (
    *("backend", "data", "nn", "state", "engine", "evaluation", "audit", "runs", "bench", "deploy", "trackers"),
    *("cli", "report"),
)
"""Rooms that serve every method and know none."""
VALUES = ("methods", "closed_form", "engine", "state", "estimator")
"""Rooms in which an object changes itself, and nobody else does."""
METHOD_FILES = sorted(path.stem for path in (SOURCE / "methods").glob("*.py") if path.stem not in ("__init__", "base"))
MOST_LINES = defaultdict(lambda: 120, ipal=160, ipal_online=150)
MOST_IMPORTED = {"ipal.closed_form.method": 40, "ipal.methods.ipal_online": 32}
"""Modules of the package: a baseline rests on at most 30; these two on another method, or on a room of their own."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees() -> Mapping[str, ast.Module]:
    """The syntax tree of every module, by its path in the package."""
    paths = sorted(SOURCE.rglob("*.py"))
    return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def in_rooms(*rooms: str) -> dict[str, ast.Module]:
    return {path: tree for path, tree in trees().items() if path.split("/")[0] in rooms}


def last_name(node: ast.AST | None) -> str:
    """`b` of `a.b`, `a.b(…)` and `b[…]`."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


# ---------------------------------------------------------------------- flags of classes


def flags(tree: ast.Module, records: frozenset[str] = frozenset()) -> Iterator[tuple[int, str]]:
    """Attributes of classes that are True or False; fields of dataclasses and of `records` are settings, no flags."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        has_fields = node.name in records or any(last_name(one) == "dataclass" for one in node.decorator_list)
        for one in node.body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                shared = last_name(one.annotation) == "ClassVar"
                is_flag = _is_bool(one.value) or (shared and "bool" in ast.unparse(one.annotation))
                names = [one.target.id] if is_flag and (shared or not has_fields) else []
            elif isinstance(one, ast.Assign) and _is_bool(one.value):
                names = [target.id for target in one.targets if isinstance(target, ast.Name)]
            else:
                names = []
            yield from ((one.lineno, f"{node.name}.{name}") for name in names if not name.startswith("__"))


def _is_bool(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, bool)


@cache
def record_classes() -> frozenset[str]:
    """Names of the package's pydantic models and named tuples."""
    classes = [node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found = {"BaseModel", "NamedTuple", "TypedDict"}
    while more := {node.name for node in classes if {last_name(base) for base in node.bases} & found} - found:
        found |= more
    return frozenset(found)


def test_no_class_has_a_flag() -> None:
    found = [f"{path}:{line} {name}" for path, tree in trees().items() for line, name in flags(tree, record_classes())]
    assert found == [], "what a method can do is a protocol that it implements, or a value that it returns"


@pytest.mark.parametrize(
    "text",
    [
        "class A:\n    recordable = True",
        "class A:\n    recordable: ClassVar[bool]",
        "@dataclass(frozen=True)\nclass A:\n    recordable = False",
    ],
)
def test_flags_are_found(text: str) -> None:
    assert list(flags(ast.parse(text)))


@pytest.mark.parametrize("text", ["@dataclass\nclass A:\n    replay: bool = True", "class A:\n    __test__ = False"])
def test_settings_are_no_flags(text: str) -> None:
    assert not list(flags(ast.parse(text)))


# ---------------------------------------------------------------------- backdoors


def backdoors(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Objects made without their constructor, or changed behind their back."""
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            text = next((ast.unparse(one) for one in targets if _is_dict_of(one)), "")
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "object.__new__":
            text = "object.__new__"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_dict_of(node.func.value):
            text = ast.unparse(node.func) if node.func.attr in ("get", "update", "pop", "clear") else ""
        if text:
            yield node.lineno, text


def _is_dict_of(node: ast.expr) -> bool:
    """`a.__dict__`, `vars(a)`, and an entry of one."""
    if isinstance(node, ast.Subscript):
        node = node.value
    is_vars = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "vars"
    return is_vars or (isinstance(node, ast.Attribute) and node.attr == "__dict__")


def test_no_object_is_changed_through_a_backdoor() -> None:
    assert [f"{path}:{line} {text}" for path, tree in trees().items() for line, text in backdoors(tree)] == []


@pytest.mark.parametrize(
    "text",
    [
        "a.__dict__ = b",
        "a.__dict__['b'] = 1",
        "object.__new__(A)",
        "vars(self).get('b')",
    ],
)
def test_backdoors_are_found(text: str) -> None:
    assert list(backdoors(ast.parse(text)))


# ---------------------------------------------------------------------- attributes set from outside

NEEDED = {
    "methods/gem.py: p.grad": "GEM turns the gradient between the backward pass and the step, which reads it there",
    "engine/executors/stacked.py: parameter.data": "a run gets its own memory back; its optimiser knows the parameter",
    "engine/executors/stacked.py: own[name].data": "runs share memory while they are stacked, for the same reason",
}
"""What must be set from outside, as path: target, and why; what is put right must be removed here."""


def set_from_outside(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Attributes of objects that neither set it themselves nor were made in the same function."""
    for function in [node for node in ast.walk(tree) if isinstance(node, Function)]:
        inner = {id(part) for one in ast.walk(function) if isinstance(one, Function) and one is not function
                 for part in ast.walk(one)}  # fmt: skip
        own = [node for node in ast.walk(function) if id(node) not in inner]
        mine = {"self", "cls"} | {name for node in own for name in _made(node)}
        for node in own:
            if isinstance(node, ast.Call) and last_name(node.func) in ("setattr", "__setattr__", "delattr"):
                yield node.lineno, ast.unparse(node.func)
            for target in _targets(node):
                for one in ast.walk(target):
                    is_set = isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store | ast.Del)
                    if is_set and not (isinstance(one.value, ast.Name) and one.value.id in mine):  # type: ignore[attr-defined]
                        yield node.lineno, ast.unparse(one)


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign | ast.Delete):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For) else []


def _made(node: ast.AST) -> Iterator[str]:
    """Names of what a statement constructs: `name = Class(…)`."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
        maker = last_name(node.value.func)
        if maker == "cls" or maker[:1].isupper():
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def test_no_object_is_changed_from_outside() -> None:
    found = [
        (f"{path}: {text}", line) for path, tree in in_rooms(*VALUES).items() for line, text in set_from_outside(tree)
    ]
    assert [f"{place} (line {line})" for place, line in found if place not in NEEDED] == []
    assert NEEDED.keys() <= {place for place, _ in found}, "put right: remove from NEEDED"


@pytest.mark.parametrize(
    "text",
    [
        "def f(a): a.b = 1",
        "def f(a): a.b += 1",
        "def f(self): self.b.c = 1",
        "def f(a): object.__setattr__(a, 'b', 1)",
        "def f():\n    a = made()\n    a.b = 1",
    ],
)
def test_what_is_set_from_outside_is_found(text: str) -> None:
    assert list(set_from_outside(ast.parse(text)))


@pytest.mark.parametrize(
    "text", ["def f(self): self.b = 1", "def f():\n    a = A()\n    a.b = 1", "def f(a): a[0] = 1"]
)
def test_what_is_ones_own_may_be_set(text: str) -> None:
    assert not list(set_from_outside(ast.parse(text)))


# ---------------------------------------------------------------------- imports


def module_name(path: str) -> str:
    parts = ("ipal", *path.removesuffix(".py").split("/"))
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """The modules of the package that every module names, wherever it does."""
    known = {module_name(path) for path in trees()}
    found: dict[str, set[str]] = {name: set() for name in known}
    for path, tree in trees().items():
        for node in ast.walk(tree):
            named: list[str] = []
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: a relative import"
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                named = [one if one in known else str(node.module) for one in inside]
            found[module_name(path)] |= {one for one in named if one in known}
    return {name: frozenset(others - {name}) for name, others in found.items()}


def cycles(graph: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """A shortest cycle through every module that is on one, each once."""
    found: dict[frozenset[str], list[str]] = {}
    for start in sorted(graph):
        paths, seen = [[start]], {start}
        while paths:
            path = paths.pop(0)
            if start in graph[path[-1]]:
                found.setdefault(frozenset(path), [*path, start])
                break
            fresh = sorted(graph[path[-1]] - seen)
            seen.update(fresh)
            paths += [[*path, one] for one in fresh]
    return list(found.values())


def test_no_modules_import_each_other() -> None:
    # The package's own module names all that it offers, each of which it imports when it is asked for.
    graph = {name: others - {"ipal"} for name, others in imports().items()}
    assert [" -> ".join(cycle) for cycle in cycles(graph)] == []


def test_cycles_are_found() -> None:
    graph = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("b"), "d": frozenset("a")}
    assert cycles(graph) == [["b", "c", "b"]]


def method_modules() -> set[str]:
    return {method.__module__ for method in METHODS.own.values()}


def test_generic_code_knows_no_method() -> None:
    """Neither its class nor its name."""
    classes, names = (
        {method.__name__ for method in METHODS.own.values()},
        {method.name for method in METHODS.own.values()},
    )
    found = []
    for path, tree in in_rooms(*GENERIC).items():
        found += [f"{path} imports {one}" for one in imports()[module_name(path)] & method_modules()]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ipal"):
                found += [f"{path}:{node.lineno} imports {one.name}" for one in node.names if one.name in classes]
            compared: list[ast.AST] = []
            if isinstance(node, ast.Compare):
                compared = [node]
            elif isinstance(node, ast.MatchValue):
                compared = [node.value]
            elif isinstance(node, ast.Subscript) and last_name(node.value) in ("METHODS", "RunConfig"):
                compared = [node.slice]
            said = {one.value for part in compared for one in ast.walk(part) if isinstance(one, ast.Constant)}
            found += [f"{path}:{node.lineno} names '{name}'" for name in sorted(names & {*map(str, said)})]  # type: ignore[attr-defined]
    assert found == []


IMPORTED = """
import importlib, json, sys
import numpy, pydantic, scipy.sparse, torch
found = {}
for name in sys.argv[1:]:
    for module in [one for one in sys.modules if one.split(".")[0] == "ipal"]:
        del sys.modules[module]
    importlib.import_module(name)
    found[name] = sorted(one for one in sys.modules if one.split(".")[0] == "ipal")
print(json.dumps(found))
"""


def test_a_method_rests_on_little_of_the_package() -> None:
    """Whoever reads a method need not read the package: with packages, base and equations counted."""
    modules = sorted(method_modules())
    done = subprocess.run([sys.executable, "-c", IMPORTED, *modules], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = {name: len(loaded) for name, loaded in json.loads(done.stdout).items()}
    assert {name: number for name, number in found.items() if number > MOST_IMPORTED.get(name, 30)} == {}


# ---------------------------------------------------------------------- sizes and names


@pytest.mark.parametrize("name", METHOD_FILES)
def test_a_method_fits_on_two_pages(name: str) -> None:
    lines = (SOURCE / "methods" / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_LINES[name]


@pytest.mark.parametrize("method", METHODS.own.values(), ids=lambda method: method.name)
def test_a_method_has_one_line_of_bases(method: type) -> None:
    """No diamond: what a method does is written in one place above it, or in itself."""
    line = [base for base in method.__mro__ if base.__module__.split(".")[0] == "ipal"]
    for base in line:
        assert len([parent for parent in base.__bases__ if parent in line]) <= 1, base


FACE = "estimator/learners.py"
"""Has the class of learners of every method, under the method's name: `ipal.IPAL` learns by `methods.ipal.IPAL`."""


def test_every_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for path, tree in trees().items():
        for node in tree.body:  # a class in another has a longer name, as Stream.Settings
            if isinstance(node, ast.ClassDef) and path != FACE:
                places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
