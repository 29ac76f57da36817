"""What a page is made of: numbers in boxes, tables, charts, sections. Plain values, no HTML."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ipal.report.cells import CellTable

Spec = dict[str, Any]
"""A chart as `static/charts.js` draws it: `traces`, `height`, and the axes `x` and `y`."""


@dataclass(frozen=True)
class Chart:
    """A chart and how to read it. The page makes the table of its numbers from it."""

    key: str
    title: str
    reading: str
    """How to read it."""
    spec: Spec
    """What all choices have in common."""
    options: Sequence[str] = ()
    """To choose from what is shown."""
    changes: Sequence[Spec] = ()
    """What each option puts in the place of the chart's own: `traces`, axes, or names that are `hidden`."""
    chosen: int = 0


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
class PageSection:
    """A part of the page with a heading."""

    key: str
    title: str
    lead: str = ""
    facts: Sequence[Fact] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[CellTable] = ()
    tables_first: bool = False
    """Whether tables come before the charts."""
    notes: Sequence[str] = ()
    codes: Sequence[tuple[str, str]] = ()
    """A title and lines to copy."""


@dataclass(frozen=True)
class Page:
    """All of it."""

    title: str
    verdict: str
    """One sentence: what came out."""
    subtitle: str
    facts: Sequence[Fact]
    warnings: Sequence[str]
    sections: Sequence[PageSection]
    download: Any = field(repr=False)
    """Everything known, as plain data."""
    name: str
    """Prefix of file names of downloads."""


def seconds(value: float) -> str:
    """`0.43 s`, `12.5 s`, `3 min 20 s`, `2 h 5 min`."""
    if value < 60:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
