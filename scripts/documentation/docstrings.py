"""Docstrings as the documentation's Markdown: formulas as fences that `mathematics.py` draws, lists set apart."""

import re
import textwrap
from typing import Any

import griffe

BLOCK = re.compile(r"^\.\. math::(?P<first>.*)(?P<rest>(?:\n[ \t]+.*|\n(?=\n[ \t]))*)", re.MULTILINE)


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


class Markdown(griffe.Extension):
    """Rewrites every docstring when its object is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_lists(with_fences(obj.docstring.value))
