"""Docstrings as the documentation's Markdown: formulas as fences that `mathematics.py` draws, lists set apart."""

import inspect
import re
import textwrap
from typing import Any

import griffe

import ipal

BLOCK = re.compile(r"^\.\. math::(?P<first>.*)(?P<rest>(?:\n[ \t]+.*|\n(?=\n[ \t]))*)", re.MULTILINE)
LEARNERS = "ipal.estimator.learners"


def with_fences(docstring: str) -> str:
    """`.. math:: x` and what is indented below it, as a fence."""
    return BLOCK.sub(
        lambda block: f"```math\n{block['first'].strip()}\n{textwrap.dedent(block['rest']).strip()}\n```", docstring
    )


def with_lists(docstring: str) -> str:
    """A list that follows a line of text gets the empty line that Markdown asks for, before and after."""
    lines: list[str] = []
    for line in docstring.splitlines():
        listed, before = line.startswith("- "), lines[-1] if lines else ""
        ends_list = bool(line.strip()) and not line.startswith((" ", "- ")) and before.startswith(("- ", "  "))
        if (listed and before.strip() and not before.startswith(("- ", "  "))) or ends_list:
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def with_choices(docstring: str) -> str:
    """`{'a', 'b'}` as the type of a parameter is no Python, as which it would be read."""
    return re.sub(r"^(\w+ : )\{(.*?)\}", r"\1one of \2", docstring, flags=re.MULTILINE)


class Markdown(griffe.Extension):
    """Rewrites every docstring when its object is read; that of a learner is made from the settings of its method."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.is_class and obj.path.rpartition(".")[0] == LEARNERS:
            learner = getattr(ipal, obj.name)
            obj.docstring = griffe.Docstring(inspect.getdoc(learner) or "", parent=obj)
            settings = inspect.signature(learner).parameters.items()
            kind = griffe.ParameterKind.keyword_only
            made = [griffe.Parameter(name, kind=kind, default=repr(one.default)) for name, one in settings]
            obj.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*made), parent=obj))
        if obj.docstring is not None:
            obj.docstring.value = with_choices(with_lists(with_fences(obj.docstring.value)))

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """A public name that is assigned, as `load_dataset`, is the function itself."""
        for name, member in list(pkg.members.items()):
            if isinstance(member, griffe.Attribute) and isinstance(member.value, griffe.ExprName):
                pkg.set_member(name, griffe.Alias(name, pkg[str(member.value)].target_path, parent=pkg))
