"""A page of the examples: each file with what its docstring says, and its code."""

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
INTRODUCTION = (
    "Small programs, each run by a test. They stand in the folder `examples` of the repository; start them from its "
    "root. What they need, how long they take and what they print is in its `README.md`."
)


def everything() -> str:
    """All examples, in the order of their names."""
    parts = ["# Examples", INTRODUCTION]
    for path in sorted((ROOT / "examples").glob("*.py")):
        source = path.read_text(encoding="utf-8")
        first, _, rest = (ast.get_docstring(ast.parse(source)) or path.stem).partition("\n")
        title, about = [*re.split(r": |, ", first, maxsplit=1), ""][:2]
        code = source.split('"""', 2)[2].strip()
        about = about[:1].upper() + about[1:]
        parts += [f"## {title.rstrip('.')}", about, rest.strip("\n")]
        # A search is for words, not for names in programs.
        parts += [f'```{{ .python title="examples/{path.name}" data-search-exclude="" }}\n{code}\n```']
    return "\n\n".join(filter(None, parts)) + "\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the list in place of the words that stand for it on a code host."""
    return everything() if page.file.src_uri == "examples.md" else markdown
