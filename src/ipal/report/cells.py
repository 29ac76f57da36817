"""Tables of a report: cells that are read, sorted and downloaded. Plain values, no HTML."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

LONG_WORD = 24
LONG_TEXT = 36
"""Characters of a word, and of a text, that do not fit a narrow column."""


@dataclass(frozen=True)
class Cell:
    """One field of a table: what is read, and what is sorted and downloaded."""

    text: str
    value: float | str | None
    """None sorts last and is empty in a download."""
    mark: str = ""
    """best, second or nothing."""
    deviation: float | None = None
    """Sample standard deviation, where the value is a mean: a column of its own in a download."""

    @property
    def is_number(self) -> bool:
        return not isinstance(self.value, str)

    @property
    def kind(self) -> str:
        """CSS class: numbers right-aligned, long texts wide, hashes breakable."""
        if self.is_number:
            return "number"
        if any(len(word) > LONG_WORD for word in self.text.split()):
            return "long"
        return "prose" if len(self.text) > LONG_TEXT else ""


@dataclass(frozen=True)
class CellTable:
    """Rows for Markdown, LaTeX or a page, where they can be sorted by any column and downloaded."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    groups: Sequence[str] = ()
    """Headings over equally many columns each, after the first column."""

    @property
    def group_width(self) -> int:
        return (len(self.columns) - 1) // len(self.groups) if self.groups else 0

    def is_number(self, column: int) -> bool:
        return all(row[column].is_number for row in self.rows)


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], groups: Sequence[str] = ()) -> CellTable:
    """A table of cells, and of plain texts that become one."""
    cells = [[Cell(one, one) if isinstance(one, str) else one for one in row] for row in rows]
    return CellTable(caption, columns, cells, groups)


def signless(text: str) -> str:
    """`0.00` where rounding left `-0.00`; a true minus sign elsewhere."""
    return text.removeprefix("-") if not text.strip("-0.") else text.replace("-", "−")


def number(value: float | None, digits: int = 2) -> Cell:
    return Cell("–", None) if value is None else Cell(signless(f"{value:.{digits}f}"), value)


def count(value: int) -> Cell:
    return Cell(f"{value:,}".replace(",", "\u202f"), value)


def plural(number_of: int, word: str) -> str:
    ending = "es" if word.endswith("s") else "s"
    return f"{number_of} {word}" if number_of == 1 else f"{number_of} {word}{ending}"
