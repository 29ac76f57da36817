"""What a page is made of, as plain values: numbers in boxes, tables, and charts as `static/charts.js` draws them.

Colours are names (`@ink`, `@series3`), which the page's script replaces by those of the theme. In `hover`, `{y:.2f}` is
replaced by the value of the point.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ipal.report.cells import CellTable
from ipal.report.statistics import scale_from

Spec = dict[str, Any]
"""A chart as `static/charts.js` draws it: `traces`, `height`, and the axes `x` and `y`.

Of an axis, `low` and `high` are its ends; `names` make it one of names, cut where they are long; `suffix`.
"""


@dataclass(frozen=True)
class Chart:
    """A chart and how to read it. The page makes the table of its numbers from it."""

    key: str
    title: str
    reading: str
    spec: Spec
    """What all choices have in common."""
    options: Sequence[str] = ()
    """To choose from what is shown."""
    changes: Sequence[Spec] = ()
    """What each option puts in the place of the chart's own; the last one is shown first."""


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
    code: str = ""
    """A line to copy."""
    content: Sequence[Chart | CellTable] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """All of it."""

    title: str
    verdict: str
    """One sentence: what came out."""
    subtitle: str
    warnings: Sequence[str]
    sections: Sequence[PageSection]
    name: str
    """Prefix of file names of downloads."""
    facts: Sequence[Fact] = ()


SERIES = 8
"""Number of distinct colours; then they repeat with another marker."""
SYMBOLS = ("circle", "square", "diamond", "triangle", "cross", "pentagon", "hexagon")
DASHES = ("", "7 4", "2 3", "8 3 2 3", "12 4", "12 3 2 3")
LABELLED_CELLS = 144
"""Cells of a heat map that have room for their number."""

Values = Sequence[float | None]


def tasks(count: int) -> list[str]:
    return [f"task {index + 1}" for index in range(count)]


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Values],
    titles: tuple[str, str, str],
    hover: str,
    **look: Any,
) -> Spec:
    """Values by row and column; `titles` are those of rows, columns and values.

    `look` is what differs from a map of accuracies; `about` in it is for `hover` to use, and is in the table of
    the chart where `about_title` names it.
    """
    lowest = scale_from(chain.from_iterable(values))
    digits = 1 if len(rows) * len(columns) <= LABELLED_CELLS else None
    percent = {"lowest": lowest, "highest": 100, "scale": "heat", "suffix": " %", "digits": digits}
    trace = {"kind": "heat", "z": values, "hover": hover, "value_title": titles[2], **percent, **look}
    height = 100 + (max(22, 340 // len(rows)) if len(rows) <= 20 else 12) * len(rows)
    x, y = {"title": titles[1], "names": columns}, {"title": titles[0], "names": rows}
    return {"traces": [trace], "height": min(max(height, 320), 980), "x": x, "y": y}


def line(name: str, x: Sequence[Any], y: Values, index: int, hover: str, *, is_main: bool = False, **more: Any) -> Spec:
    """One line of a chart; the main one is drawn in the colour of text, and thick.

    `low` and `high` are the bounds of a band around it, `markers` tells whether its points are marked.
    """
    tint, width, dash = f"@series{index % SERIES}", 2.0, DASHES[index // SERIES % len(DASHES)]
    symbol, size = SYMBOLS[index % len(SYMBOLS)], 7
    if is_main:
        tint, width, dash, symbol, size = "@ink", 3.5, "", "star", 11
    look = {"colour": tint, "width": width, "dash": dash, "symbol": symbol, "size": size, "markers": True}
    return {"kind": "line", "name": name, "x": x, "y": y, "hover": f"{{name}}: {hover}", **look, **more}


def curves(lines: Sequence[Spec], x: Spec, title: str, height: int = 380, **more: Any) -> Spec:
    """Lines of percentages, from a round number below the lowest value to 100."""
    low = scale_from(value for one in lines for value in (one.get("low") or one["y"]))
    y = {"title": title, "low": low, "high": 102, "suffix": " %"}
    return {"traces": lines, "height": height, "x": x, "y": y, **more}
