"""What a page is made of: numbers in boxes, tables, charts, sections. Plain values, no HTML."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Spec = dict[str, Any]
"""A chart as Plotly takes it: `data` and `layout`."""


MANY_ROWS = 100
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


Row = Sequence[Any]
"""Cells, and texts that become one."""


@dataclass(frozen=True)
class Table:
    """Rows that can be sorted by any column and downloaded."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    choices: Sequence[int] = ()
    """Which choice of the chart's picker each row belongs to; empty: all rows are always shown."""

    @property
    def is_long(self) -> bool:
        """Whether the rows are added only when the table is opened, because they are many."""
        return len(self.rows) > MANY_ROWS

    def is_number(self, column: int) -> bool:
        return all(row[column].is_number for row in self.rows)


def table(caption: str, columns: Sequence[str], rows: Iterable[Row]) -> Table:
    """A table of cells and plain texts."""
    return Table(caption, columns, [[words(one) if isinstance(one, str) else one for one in row] for row in rows])


def table_of_choices(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Row]]) -> Table:
    """A table whose rows change with the chart's picker: those of each choice."""
    every = table(caption, columns, [row for own in rows for row in own])
    return replace(every, choices=[choice for choice, own in enumerate(rows) for _ in own])


@dataclass(frozen=True)
class Picker:
    """A list to choose what a chart shows from."""

    label: str
    options: Sequence[str]
    changes: Sequence[Mapping[str, Any]]
    """What each option changes: `data`, `layout`, or `visible` (for each trace)."""
    chosen: int = 0


@dataclass(frozen=True)
class Chart:
    """A chart, how to read it, and the numbers behind it."""

    key: str
    title: str
    reading: str
    """One sentence: how to read it."""
    spec: Spec
    """What all choices of the picker have in common."""
    table: Table
    picker: Picker | None = None

    def as_plain(self) -> dict[str, Any]:
        """What the script needs."""
        changes = [dict(change) for change in self.picker.changes] if self.picker else []
        return {**self.spec, "changes": changes, "chosen": self.picker.chosen if self.picker else 0}


@dataclass(frozen=True)
class Fact:
    """A number in a box."""

    name: str
    value: str
    note: str
    unit: str = ""
    tone: str = ""
    """good, warn or nothing."""


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    key: str
    title: str
    lead: str = ""
    facts: Sequence[Fact] = ()
    warnings: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    tables_first: bool = False
    """Whether tables come before the charts."""
    notes: Sequence[str] = ()
    codes: Sequence[tuple[str, str]] = ()
    """A title and lines to copy."""
    folded: Sequence[tuple[str, str]] = ()
    """A title and lines, collapsed."""


@dataclass(frozen=True)
class Page:
    """All of it."""

    title: str
    subtitle: str
    facts: Sequence[Fact]
    warnings: Sequence[str]
    sections: Sequence[Section]
    download: Any = field(repr=False)
    """Everything known, as plain data."""
    name: str
    """Prefix of file names of downloads."""


def words(text: str) -> Cell:
    return Cell(text, text)


def number(value: float | None, digits: int = 2, unit: str = "") -> Cell:
    if value is None:
        return Cell("–", None)
    return Cell(signless(f"{value:.{digits}f}") + unit, value)


def count(value: int) -> Cell:
    return Cell(f"{value:,}".replace(",", "\u202f"), value)


def seconds(value: float) -> str:
    """`0.43 s`, `12.5 s`, `3 min 20 s`, `2 h 5 min`."""
    if value < 60:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def signless(text: str) -> str:
    """`0.00` where rounding left `-0.00`; a true minus sign elsewhere."""
    return text.removeprefix("-") if not text.strip("-0.") else text.replace("-", "−")


def plural(number_of: int, word: str) -> str:
    ending = "es" if word.endswith("s") else "s"
    return f"{number_of} {word}" if number_of == 1 else f"{number_of} {word}{ending}"


def sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
