r"""Mutants of a source file: one small change each, such as `<` for `<=`.

| changed | into |
|---|---|
| `<` `<=` `>` `>=`; `==` `is` `in` | its neighbour (`<=` for `<`); its negation |
| `and`, `or`; a condition; `not x`, `-x`, `~x` | each other; its negation; `x` |
| `+ - * / // % ** @ & |`, also with `=` | another one; `a += b` also into `a = b` |
| a number; True, False | one more, and one less in a slice or a comparison; each other |
| `min`, `any`, `argmax`, `mean` … | `max`, `all`, `argmin`, `sum` … |
| a call | its first two arguments swapped; without a keyword argument; `x.method(…)` into `x` |
| a slice; `x[chosen]` | without its lower or its upper bound; `x` |
| a statement that acts, as a call or `self.a = b` | nothing; `return x` into `return None`; `break` into `continue` |
| a decorator, as `@torch.no_grad()` | nothing |

Left alone: text, docstrings, annotations, imports, what is inside `raise`, `assert` and `if TYPE_CHECKING`, decorators
that make a dataclass or a property, and what only another device shows (`device=…`, `.to(device)`, `.cpu()`) or only a
bug (`strict=True`).
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CodeType
from typing import Any

NEIGHBOUR: dict[type, type] = {
    **dict([(ast.Lt, ast.LtE), (ast.LtE, ast.Lt), (ast.Gt, ast.GtE), (ast.GtE, ast.Gt)]),
    **dict([(ast.Eq, ast.NotEq), (ast.NotEq, ast.Eq), (ast.Is, ast.IsNot), (ast.IsNot, ast.Is)]),
    **dict([(ast.In, ast.NotIn), (ast.NotIn, ast.In), (ast.And, ast.Or), (ast.Or, ast.And)]),
    **dict([(ast.Add, ast.Sub), (ast.Sub, ast.Add), (ast.Mult, ast.Div), (ast.Div, ast.Mult), (ast.Pow, ast.Mult)]),
    **dict([(ast.FloorDiv, ast.Div), (ast.Mod, ast.Mult), (ast.MatMult, ast.Mult)]),
    **dict([(ast.BitAnd, ast.BitOr), (ast.BitOr, ast.BitAnd), (ast.LShift, ast.RShift), (ast.RShift, ast.LShift)]),
}
NEGATED_ALREADY = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
PAIRS = "min max any all argmin argmax amin amax mean sum floor ceil zeros ones clamp_min clamp_max add sub mul div"
TWIN = {a: b for x, y in list(pairwise(PAIRS.split()))[::2] for a, b in ((x, y), (y, x))}
BUILT_IN = {"min", "max", "any", "all"}
UNSEEN_KEYWORDS = {"device", "strict", "stacklevel", "encoding", "non_blocking", "help", "description"}
PLAIN_METHODS = {"items", "keys", "values", "cpu", "join", "format"}
PLAIN_DECORATORS = ("property", "classmethod", "staticmethod", "abstractmethod", "overload", "override", "dataclass")


@dataclass(eq=False)
class Mutant:
    """One change of one file's syntax tree: `place[slot]`, an attribute or an item of a list, becomes `new`."""

    path: Path
    module: str
    tree: ast.Module
    where: str
    """Module and function, as `losses.unit`."""
    function: tuple[str, int] | None
    """Qualified name and first line of the outermost function whose code alone changes; None: what an import runs."""
    lines: range
    """Of the statement; for a compound one, of its head."""
    statement: ast.stmt | None
    """None if the whole statement is exchanged."""
    place: Any
    slot: str | int
    new: Any
    before: str = ""
    after: str = ""
    change: str = ""
    """The change alone and what is around it, as `x.sum(dim={0 => 1}).mean()`."""

    @property
    def name(self) -> str:
        return f"{self.where}: {self.change}"

    def exchange(self) -> None:
        """Make the change, or, the second time, take it back."""
        if isinstance(self.slot, int):
            self.place[self.slot], self.new = self.new, self.place[self.slot]
        else:
            old = getattr(self.place, self.slot)
            setattr(self.place, self.slot, self.new)
            self.new = old


def mutants_of(path: Path, module: str) -> list[Mutant]:
    """All mutants of a file, each with its statement before and after."""
    tree = ast.parse(path.read_text())
    found, names = [], dict[str, int]()
    for mutant in _Walk(path, module, tree).body(tree, None):
        before = _text(mutant)
        mutant.exchange()
        after = _text(mutant)
        mutant.exchange()
        changed = [(a, b) for a, b in zip(before, after, strict=False) if a != b]
        mutant.before, mutant.after = (text.strip() for text in (changed or [(before[-1], "pass")])[0])
        mutant.change = _change(mutant.before, mutant.after)
        times = names[mutant.name] = names.get(mutant.name, 0) + 1
        mutant.change += f" #{times}" if times > 1 else ""
        found.append(mutant)
    return found


def _change(before: str, after: str, around: int = 30) -> str:
    """Two texts as one: what they share, and in braces what they do not."""
    start = _shared(before, after)
    end = _shared(before[start:][::-1], after[start:][::-1])
    stop, shared = len(before) - end, before[len(before) - end :]
    head = before[:start] if start <= around else "…" + before[start - around : start]
    tail = shared if end <= around else shared[:around] + "…"
    return f"{head}{{{before[start:stop]} => {after[start : len(after) - end]}}}{tail}"


def _shared(a: str, b: str) -> int:
    """With how many equal letters two texts begin."""
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def code_of(code: CodeType, function: tuple[str, int]) -> CodeType:
    """The code of a function inside that of its module."""
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    for part in inner:
        if (part.co_qualname, part.co_firstlineno) == function:
            return part
        if function[0].startswith(part.co_qualname + "."):
            return code_of(part, function)
    raise LookupError(function)


def _text(mutant: Mutant) -> list[str]:
    whole = mutant.place[mutant.slot] if mutant.statement is None else mutant.statement
    return ast.unparse(ast.fix_missing_locations(whole)).splitlines()


class _Walk:
    """Goes through a file with the names of where it is."""

    def __init__(self, path: Path, module: str, tree: ast.Module) -> None:
        self.path, self.module, self.tree = path, module, tree
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        self.imported = {(alias.asname or alias.name).split(".")[0] for node in imports for alias in node.names}
        self.scope: list[str] = []

    def body(self, owner: ast.AST, function: tuple[str, int] | None) -> Iterator[Mutant]:
        """Of all statements in the blocks of `owner`."""
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            block = getattr(owner, field, [])
            for index, statement in enumerate(block if isinstance(block, list) else []):
                if isinstance(statement, ast.ExceptHandler | ast.match_case):
                    yield from self.body(statement, function)
                else:
                    yield from self.statement(block, index, statement, function)

    def statement(self, block: Any, index: int, node: ast.stmt, function: tuple[str, int] | None) -> Iterator[Mutant]:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.Global | ast.Nonlocal):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        first = getattr(node, "body", [])
        end = first[0].lineno - 1 if first else node.end_lineno
        lines = range(node.lineno, max(node.lineno, end or 0) + 1)

        def made(place: Any, slot: str | int, new: Any, function: tuple[str, int] | None = function) -> Mutant:
            where = ".".join([*self.module.split(".")[1:], *self.scope])
            inside = None if place is block else node
            return Mutant(self.path, self.module, self.tree, where, function, lines, inside, place, slot, new)

        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.scope.append(node.name)
            decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
            for place, text in enumerate(decorators):
                if isinstance(node, ast.FunctionDef) and not any(word in text for word in PLAIN_DECORATORS):
                    rest = node.decorator_list[:place] + node.decorator_list[place + 1 :]
                    yield made(node, "decorator_list", rest, function=None)
            own = function
            if not isinstance(node, ast.ClassDef):
                for defaults in (node.args.defaults, node.args.kw_defaults):
                    for place, default in enumerate(defaults):
                        if default is not None:
                            yield from self.expression(defaults, place, default, partial(made, function=None))
                start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                own = function or (".".join(self.scope), start)
            yield from self.body(node, own)
            self.scope.pop()
            return
        for new in _instead(node):
            yield made(block, index, ast.copy_location(new, node))
        if isinstance(node, ast.AugAssign):
            yield from (made(node, "op", NEIGHBOUR[type(node.op)]()) for _ in [0] if type(node.op) in NEIGHBOUR)
        if not isinstance(node, ast.Raise):
            yield from self.fields(node, made, skip=("body", "orelse", "finalbody", "handlers", "cases"))
        yield from self.body(node, function)

    def fields(self, node: ast.AST, made: Any, skip: tuple[str, ...] = ()) -> Iterator[Mutant]:
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "type_comment", "ctx", *skip):
                continue
            if isinstance(value, ast.AST):
                yield from self.expression(node, field, value, made)
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    if isinstance(item, ast.AST):
                        yield from self.expression(value, index, item, made)

    def expression(self, place: Any, slot: str | int, node: ast.AST, made: Any) -> Iterator[Mutant]:
        if isinstance(node, ast.JoinedStr):
            return
        if isinstance(node, ast.keyword) and node.arg in UNSEEN_KEYWORDS:
            return
        deleted = isinstance(place, ast.Expr)  # with its statement, already
        for new in self.others(node, deleted):
            yield made(place, slot, ast.copy_location(new, node))
        tests: list[tuple[Any, str | int, Any]] = [(node, "test", node.test)] if isinstance(node, ast.IfExp) else []
        if isinstance(node, ast.comprehension):
            tests += [(node.ifs, index, test) for index, test in enumerate(node.ifs)]
        if slot == "test" and isinstance(place, ast.If | ast.While):
            tests += [(place, "test", node)]
        for owner, where, test in tests:
            clear = isinstance(test, ast.Compare) and isinstance(test.ops[0], NEGATED_ALREADY)
            if not clear and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
                yield made(owner, where, ast.copy_location(ast.UnaryOp(ast.Not(), test), test))
        yield from self.less_and_more(node, place, slot, made)
        if not _is_negative(node):
            yield from self.fields(node, made)

    def less_and_more(self, node: ast.AST, place: Any, slot: str | int, made: Any) -> Iterator[Mutant]:
        """One less, beside one more, where it is a boundary."""
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        sides += [side for side in (node.lower, node.upper) if side] if isinstance(node, ast.Slice) else []
        for side in sides:
            if isinstance(side, ast.Constant) and type(side.value) is int:
                yield made(side, "value", side.value - 1)

    def others(self, node: ast.AST, deleted: bool) -> Iterator[ast.AST]:
        """What may stand in place of an expression."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, bool):
                yield ast.Constant(not node.value)
            elif isinstance(node.value, int | float):
                yield ast.Constant(node.value + 1)
        elif _is_negative(node):
            yield ast.Constant(1 - node.operand.value)  # type: ignore[attr-defined]
        elif isinstance(node, ast.Compare):
            for index, op in enumerate(node.ops):
                ops = [*node.ops[:index], NEIGHBOUR[type(op)](), *node.ops[index + 1 :]]
                yield ast.Compare(node.left, ops, node.comparators)
        elif isinstance(node, ast.BoolOp):
            yield ast.BoolOp(NEIGHBOUR[type(node.op)](), node.values)
        elif isinstance(node, ast.BinOp) and type(node.op) in NEIGHBOUR and not _is_text(node):
            yield ast.BinOp(node.left, NEIGHBOUR[type(node.op)](), node.right)
        elif isinstance(node, ast.UnaryOp):
            yield node.operand
        elif isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant | ast.Slice | ast.Tuple):
            name = ast.unparse(node.value)
            generic = name[0].isupper() or name in ("list", "dict", "set", "tuple")
            if isinstance(node.ctx, ast.Load) and not generic and not _is_negative(node.slice):
                yield node.value
        elif isinstance(node, ast.Slice):
            for part in ("lower", "upper", "step"):
                if getattr(node, part) is not None:
                    yield ast.Slice(**{p: getattr(node, p) for p in ("lower", "upper", "step") if p != part})
        elif isinstance(node, ast.Call):
            yield from self.other_calls(node, deleted)

    def other_calls(self, node: ast.Call, deleted: bool) -> Iterator[ast.expr]:
        func, args, keywords = node.func, node.args, node.keywords
        name = func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""
        empty = bool(args) and isinstance(args[0], ast.Constant) and args[0].value == 0  # zeros or ones, none of them
        if name in TWIN and not empty:
            if isinstance(func, ast.Attribute):
                yield ast.Call(ast.Attribute(func.value, TWIN[name], ast.Load()), args, keywords)
            elif name in BUILT_IN:
                yield ast.Call(ast.Name(TWIN[name], ast.Load()), args, keywords)
        plain = len(args) > 1 and not any(isinstance(arg, ast.Starred) for arg in args[:2])
        if plain and name not in TWIN and ast.dump(args[0]) != ast.dump(args[1]):
            yield ast.Call(func, [args[1], args[0], *args[2:]], keywords)
        for index, keyword in enumerate(keywords):
            flag = isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, bool)
            if keyword.arg and keyword.arg not in UNSEEN_KEYWORDS and not flag:  # a flag is turned over already
                yield ast.Call(func, args, keywords[:index] + keywords[index + 1 :])
        if isinstance(func, ast.Attribute) and name not in PLAIN_METHODS and not deleted:
            owner = ast.unparse(func.value)
            plain = owner in ("self", "cls", "super()") or (owner.split(".")[0] in self.imported and "(" not in owner)
            if not (plain or owner[0].isupper() or (name == "to" and "device" in ast.unparse(node))):
                yield func.value


def _instead(node: ast.stmt) -> Iterator[ast.stmt]:
    """What may stand in place of a whole statement."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    kept = any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
    acts = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Yield | ast.YieldFrom)
    if kept or acts or isinstance(node, ast.Raise | ast.Delete | ast.AugAssign):
        yield ast.Pass()
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Break | ast.Continue):
        yield ast.Continue() if isinstance(node, ast.Break) else ast.Break()
    if isinstance(node, ast.AugAssign):
        yield ast.Assign([node.target], node.value)


def _is_negative(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in (node.left, node.right)
    )
