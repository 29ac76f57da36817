"""No module of the package keeps state that changes: what a program does depends on what it is given.

The rule, over the syntax tree of every module of src/ipal. Forbidden are

- `global NAME`, anywhere: a function that replaces a module's variable;
- a module-level function with `functools.cache` or `functools.lru_cache`: a hidden dictionary (a `cached_property`
  is kept with its object, and is allowed);
- a module-level variable that holds something made to be changed: a call of a type in STATEFUL (`defaultdict()`,
  `WeakKeyDictionary()`, `ContextVar()`, `threading.local()`, …);
- a module-level variable that holds a dict, list or set (a display, a comprehension, or a call of `dict`, `list`,
  `set`), if any code of the package changes it by its name (an item or attribute is assigned or deleted, `+=` or
  `|=`, or a method in CHANGING is called), or if its name is not that of a constant: upper
  case, with or without a leading underscore.
  `__all__` is a constant; so is a variable annotated as `Final`, or as a `Mapping`, `Sequence` or `Set`.

Class bodies count as module level: attributes of a class are shared by all its objects. There a dict, list or set may
have any name, as long as no code of its module changes it through the class.
"""

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "ipal"
STATEFUL = {
    *("defaultdict", "OrderedDict", "Counter", "deque", "ChainMap", "array", "bytearray", "count", "cycle"),
    *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "ContextVar", "local", "Lock", "RLock", "Event"),
    *("Queue", "SimpleQueue", "SimpleNamespace"),
}
PLAIN = {"dict", "list", "set"}
CHANGING = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "reverse"),
    *("setdefault", "sort", "update", "difference_update", "intersection_update", "symmetric_difference_update"),
}
CACHES = {"cache", "lru_cache"}
READ_ONLY = {"Final", "Mapping", "Sequence", "Set", "Collection", "Iterable"}

ALLOWED = {
    "backend/cuda_kernels.py:kernels",
    "estimator/settings.py:settings_model",
    "runs/environment.py:machine_facts",
}
"""What is known and stays, as module:name; what is put right must be removed here.

All three follow from their arguments, or from the machine, and never change while a program runs: compiled kernels, the
model of a method's settings, and versions and processor. Handed down, every sparse matrix would carry the first.
"""


def last_name(node: ast.expr | None) -> str:
    """`cache` of `functools.cache`, `functools.cache(…)` and `cache[…]`."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Constant) and isinstance(node.value, str):  # an annotation in quotes
        return last_name(ast.parse(node.value, mode="eval").body)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_plain(value: ast.expr | None) -> bool:
    """Whether a value is a dict, list or set, perhaps joined of several."""
    if isinstance(value, ast.BinOp):
        return is_plain(value.left) or is_plain(value.right)
    displays = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
    return isinstance(value, displays) or (isinstance(value, ast.Call) and last_name(value) in PLAIN)


def changed_names(tree: ast.Module) -> Iterator[str]:
    """Names (or last attributes) of what code changes in place."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = [one for one in node.targets if isinstance(one, ast.Subscript | ast.Attribute)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Subscript | ast.Attribute):
            targets = [node.target]
        elif isinstance(node, ast.AugAssign):
            inside = isinstance(node.target, ast.Subscript | ast.Attribute)
            yield last_name(node.target.value if inside else node.target)  # type: ignore[union-attr]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
            yield owner(node.func.value)
        yield from (owner(one.value) for one in targets)  # type: ignore[attr-defined]


def owner(node: ast.expr) -> str:
    """The variable in `variable[…]` or `Class.variable`; of `self.variable` nothing, which is an object's own."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
        return node.attr if node.value.id == "cls" else ""
    return last_name(node)


def statements(body: list[ast.stmt], inside: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """All statements that are run once when a module is imported, and whether they are in a class."""
    for node in body:
        yield node, inside
        if isinstance(node, ast.ClassDef):
            yield from statements(node.body, True)
        for part in ("body", "orelse", "finalbody") if isinstance(node, ast.If | ast.Try | ast.With) else ():
            yield from statements(getattr(node, part, []), inside)


def changed_in(tree: ast.Module) -> set[str]:
    """Names of what code changes and no function has made."""
    local = {
        node.id
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.Lambda)
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    } | {argument.arg for argument in ast.walk(tree) if isinstance(argument, ast.arg)}
    return set(changed_names(tree)) - local


def offenders(source: str, changed_elsewhere: Collection[str] = ()) -> list[str]:
    """Names of what the rule forbids in a module."""
    tree = ast.parse(source)
    found = [f"global {name}" for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names]
    changed = changed_in(tree) | {name for name in changed_elsewhere if name.isupper()}
    for node, in_class in statements(tree.body):
        if isinstance(node, ast.FunctionDef) and any(last_name(one) in CACHES for one in node.decorator_list):
            found.append(node.name)
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        declared = last_name(node.annotation) if isinstance(node, ast.AnnAssign) else ""
        if declared == "ClassVar" and isinstance(node.annotation, ast.Subscript):  # type: ignore[union-attr]
            declared = last_name(node.annotation.slice)  # type: ignore[union-attr]
        for name in [target.id for target in targets if isinstance(target, ast.Name)]:
            constant = in_class or name.strip("_").isupper() or name == "__all__" or declared in READ_ONLY
            stateful = isinstance(node.value, ast.Call) and last_name(node.value) in STATEFUL
            cached = isinstance(node.value, ast.Call) and last_name(node.value) in CACHES
            if stateful or cached or (is_plain(node.value) and (name in changed or not constant)):
                found.append(name)
    return found


def test_no_module_keeps_state_that_changes() -> None:
    sources = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    changed = set().union(*(changed_in(ast.parse(text)) for text in sources.values()))
    found = {f"{path}:{name}" for path, text in sources.items() for name in offenders(text, changed)}
    assert not found - ALLOWED, "hidden state: hand it down as a value"
    assert not ALLOWED - found, "put right: remove from ALLOWED"


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    global x\n    x = 1",
        "from functools import cache\n@cache\ndef f(): ...",
        "import functools\n@functools.lru_cache(maxsize=1)\ndef f(): ...",
        "KNOWN = WeakKeyDictionary()",
        "KNOWN: 'weakref.WeakKeyDictionary[A, B]' = weakref.WeakKeyDictionary()",
        "known = {}",
        "KNOWN = {}\ndef f(): KNOWN['a'] = 1",
        "class A:\n    known = {}\n    def f(self): A.known['a'] = 1",
        "class A:\n    known: ClassVar[dict[str, int]] = {}\n    @classmethod\n    def f(cls): cls.known.clear()",
    ],
)
def test_the_rule_finds(text: str) -> None:
    assert offenders(text)


@pytest.mark.parametrize("change", ["from other import KNOWN\nKNOWN['a'] = 1", "import other\nother.KNOWN.clear()"])
def test_the_rule_finds_what_another_module_changes(change: str) -> None:
    assert offenders("KNOWN = {}", changed_in(ast.parse(change)))


@pytest.mark.parametrize(
    "text",
    [
        "KNOWN = {'a': 1}\ndef f(): return KNOWN['a']",
        "known: Final = {}",
        "class A:\n    known = {'a': 1}",
        "class A:\n    @cached_property\n    def f(self): ...",
        "class A:\n    known: dict[str, int] = field(default_factory=dict)\n    def f(self): self.known['a'] = 1",
    ],
)
def test_the_rule_leaves_alone(text: str) -> None:
    assert not offenders(text)
