"""Charts as `static/charts.js` draws them, in plain dicts.

Colours are names (`@ink`, `@series3`), which the page's script replaces by those of the theme. In `hover`, `{y:.2f}` is
replaced by the value of the point.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ipal.report.page.parts import Spec

SERIES = 8
"""Number of distinct colours; then they repeat with another marker."""
SYMBOLS = ("circle", "square", "diamond", "triangle", "cross", "pentagon", "hexagon", "wedge", "hourglass")
DASHES = ("", "7 4", "2 3", "8 3 2 3", "12 4", "12 3 2 3")
LABELLED_CELLS = 144
"""Cells of a heat map that have room for their number."""

Values = Sequence[float | None]


def colour(index: int) -> str:
    return f"@series{index % SERIES}"


def tasks(count: int) -> list[str]:
    return [f"task {index + 1}" for index in range(count)]


def spec(traces: Sequence[Spec], height: int, x: Spec, y: Spec | Sequence[Spec], **more: Any) -> Spec:
    """A chart of these traces; several axes `y` are panels, one above the other."""
    return {"traces": traces, "height": height, "x": x, "y": y, **more}


def axis(title: str, **more: Any) -> Spec:
    return {"title": title, **more}


def axis_from_zero(title: str, **more: Any) -> Spec:
    return axis(title, low=0, **more)


def named_axis(title: str, names: Sequence[str]) -> Spec:
    """An axis of names; long ones are shortened where they are drawn, and complete on hover."""
    return axis(title, names=names)


def percent_axis(title: str, values: Values = (0,)) -> Spec:
    """From a round number below the lowest value to 100."""
    lowest = min((value for value in values if value is not None), default=0)
    return axis(title, low=max(0, (lowest - 4) // 10 * 10), high=102, suffix=" %")


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Values],
    titles: tuple[str, str],
    hover: str,
    *,
    about: Sequence[Sequence[Any]] | None = None,
    lowest: float = 0,
    highest: float = 100,
    scale: str = "heat",
    suffix: str = " %",
    digits: int = 1,
    square: bool = False,
) -> Spec:
    """Values by row and column; `titles` are those of the rows and of the columns, `about` is for `hover` to use."""
    has_room = len(rows) * len(columns) <= LABELLED_CELLS
    trace = {
        "kind": "heat",
        "z": values,
        "about": about,
        "lowest": lowest,
        "highest": highest,
        "scale": scale,
        "suffix": suffix,
    }
    trace |= {"hover": hover, "digits": digits if has_room else None}
    height = 100 + (max(22, 340 // len(rows)) if len(rows) <= 20 else 12) * len(rows)
    least, most = (420, 760) if square else (320, 980)
    return spec([trace], min(max(height, least), most), named_axis(titles[1], columns), named_axis(titles[0], rows))


def line(name: str, x: Sequence[Any], y: Values, index: int, hover: str, *, is_main: bool = False, **more: Any) -> Spec:
    """One line of a chart; the main one is drawn in the colour of text, and thick.

    `low` and `high` are the bounds of a band around it, `markers` tells whether its points are marked.
    """
    tint, width, dash = ("@ink", 3.5, "") if is_main else (colour(index), 2, DASHES[index // SERIES % len(DASHES)])
    symbol, size = ("star", 11) if is_main else (SYMBOLS[index % len(SYMBOLS)], 7)
    look = {"colour": tint, "width": width, "dash": dash, "symbol": symbol, "size": size, "markers": True}
    return {"kind": "line", "name": name, "x": x, "y": y, "hover": f"{{name}}: {hover}", **look, **more}


def bars(name: str, x: Sequence[Any], y: Sequence[Any], index: int, hover: str, **more: Any) -> Spec:
    """Bars that stand upon those of earlier traces; they lie where `y` are names. `width` is in units of the axis."""
    return {"kind": "bars", "name": name, "x": x, "y": y, "colour": colour(index), "hover": hover, "width": 0.8, **more}


def borders(starts: Sequence[float], labels: Sequence[str]) -> list[tuple[float, str]]:
    """Marks between tasks on an axis of numbers, and the names of the tasks above."""
    return list(zip(starts, labels, strict=True))


def points(name: str, rows: Sequence[Mapping[str, Any]], about: Sequence[str], look: Spec, **more: Any) -> Spec:
    """Nodes or prototypes of one class on a plane; what has no `legend` is shown and hidden with its `name`."""
    places = {"x": [row["x"] for row in rows], "y": [row["y"] for row in rows]}
    return {"kind": "points", "name": name, **places, "about": about, "hover": "{about}", **look, **more}
