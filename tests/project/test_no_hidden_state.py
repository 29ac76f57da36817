"""No module of the package keeps state that changes: what a program does depends on what it is given."""

import ast
from collections.abc import Iterator

import pytest

from tests.project.test_structure import last_name, trees

STATEFUL = {
    *("defaultdict", "OrderedDict", "Counter", "deque", "ChainMap", "array", "bytearray", "count", "cycle"),
    *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "ContextVar", "local", "Lock", "RLock", "Event"),
    *("Queue", "SimpleQueue", "SimpleNamespace", "cache", "lru_cache"),
}
"""What is made to be changed, or keeps what it has computed."""
PLAIN = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
CHANGING = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "reverse"),
    *("setdefault", "sort", "update", "difference_update", "intersection_update", "symmetric_difference_update"),
}
ALLOWED = {
    "backend/cuda_kernels.py:kernels",
    "estimator/settings.py:settings_model",
    "runs/environment.py:machine_facts",
}
"""What is known and stays, as module:name; what is put right must be removed here.

All three follow from their arguments, or from the machine, and never change while a program runs: compiled kernels, the
model of a method's settings, and versions and processor. Handed down, every sparse matrix would carry the first.
"""


def at_import(body: list[ast.stmt], in_class: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """All statements that are run once when a module is imported, and whether they are in a class."""
    for node in body:
        yield node, in_class
        for part in ("body", "orelse", "finalbody") if isinstance(node, ast.ClassDef | ast.If | ast.Try) else ():
            yield from at_import(getattr(node, part, []), in_class or isinstance(node, ast.ClassDef))


def offenders(tree: ast.Module) -> Iterator[str]:
    """Names of what replaces a module's variable, changes a constant or `cls.…`, caches, or may change."""
    for node in ast.walk(tree):
        changed: ast.expr | None = None
        if isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            changed = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
            changed = node.func.value
        owner = last_name(changed.value) if isinstance(changed, ast.Attribute) else ""
        if last_name(changed).strip("_").isupper() or owner == "cls":
            yield last_name(changed)
    for node, in_class in at_import(tree.body):
        if isinstance(node, ast.FunctionDef) and {last_name(one) for one in node.decorator_list} & STATEFUL:
            yield node.name
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            made = last_name(node.value) if isinstance(node.value, ast.Call) else ""
            is_plain, is_stateful = isinstance(node.value, PLAIN) or made in {"dict", "list", "set"}, made in STATEFUL
            for name in [target.id for target in targets if isinstance(target, ast.Name)]:
                is_constant = in_class or name.strip("_").isupper() or name == "__all__"
                if is_stateful or (is_plain and not is_constant):
                    yield name


def test_no_module_keeps_state_that_changes() -> None:
    found = {f"{path}:{name}" for path, tree in trees().items() for name in offenders(tree)}
    assert not found - ALLOWED, "hidden state: hand it down as a value"
    assert not ALLOWED - found, "put right: remove from ALLOWED"


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    global x\n    x = 1",
        "@functools.lru_cache(maxsize=1)\ndef f(): ...",
        "KNOWN: 'weakref.WeakKeyDictionary[A, B]' = weakref.WeakKeyDictionary()",
        "known = {}",
        "def f(): KNOWN['a'] = 1",
        "import other\nother.KNOWN.clear()",
        "class A:\n    @classmethod\n    def f(cls): cls.known.clear()",
    ],
)
def test_the_rule_finds(text: str) -> None:
    assert list(offenders(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "KNOWN = {'a': 1}\ndef f(): return KNOWN['a']",
        "class A:\n    known = {'a': 1}",
        "class A:\n    @cached_property\n    def f(self): ...",
        "class A:\n    known: dict[str, int] = field(default_factory=dict)\n    def f(self): self.known['a'] = 1",
    ],
)
def test_the_rule_leaves_alone(text: str) -> None:
    assert not list(offenders(ast.parse(text)))
