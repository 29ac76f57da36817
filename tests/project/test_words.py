"""Words that readers stumbled over stay out of pages, docstrings, messages and help; each with what to write."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import PROJECT
from tests.snippets import FENCE

WORDS = {
    r"rehears\w*": "in this field it is the replay of stored examples; 'model selection' if that is meant",
    r"nothing set": "'default'",
    r"shall": "'must', or the present tense",
    r"anew": "'again'",
    r"(taught|teach|teaches|teaching)": "'trained', 'learned from', 'training nodes'; a teacher is a network",
    r"(whoever|nobody|somebody|anybody|one's)": "name who it is, or use the passive voice",
    r"(of whichever|likewise|for good|in words|without a word)": "'of any', 'also', 'permanently', 'as text'",
    r"stands? (in|under|beside|next|on|from|at|below|above)(?! for)": "'is', 'are': words in a file do not stand",
    r"(is said to|beside it stands)": "say it directly",
    r"(held back|beginner|unite|whereabouts)": "'validation split', 'default', 'merge', 'positions'",
    r"(formerly|no longer(?! than)|(earlier|former|previous) versions?)": "the pages describe what is, not what was",
    r"(as it was before|of the version before|used to be)": "the pages describe what is, not what was",
}
PAGES = [
    PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "examples/README.md")
]
PAGES += sorted((PROJECT / "docs").rglob("*.md"))


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """What a reader sees, with its line: a page without its code, or the strings of a module, docstrings included."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from enumerate(FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text).splitlines(), 1)
    else:
        constants = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
        yield from (
            (node.lineno, node.value) for node in constants if isinstance(node.value, str) and " " in node.value
        )


def test_words_that_readers_stumbled_over() -> None:
    patterns = {re.compile(rf"\b{word}\b", re.IGNORECASE): instead for word, instead in WORDS.items()}
    found = [
        f"{path.relative_to(PROJECT)}:{line}: {match[0]}: write {instead}"
        for path in [*PAGES, *sorted((PROJECT / "src").rglob("*.py"))]
        for line, text in sentences(path)
        for pattern, instead in patterns.items()
        for match in pattern.finditer(" ".join(text.split()))
    ]
    assert not found, "\n".join(found)
