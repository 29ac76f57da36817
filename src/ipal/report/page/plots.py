"""Charts as `static/charts.js` draws them, in plain dicts.

Colours are names (`@ink`, `@series3`), which the page's script replaces by those of the theme. In `hover`, `{y:.2f}` is
replaced by the value of the point.
"""

from collections.abc import Sequence
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
    """`low` and `high` are its ends; `names` make it one of names, cut where they are long; `log`, `suffix`, `bare`."""
    return {"title": title, **more}


def percent_axis(title: str, values: Values = (0,)) -> Spec:
    """From a round number below the lowest value to 100."""
    lowest = min((value for value in values if value is not None), default=0)
    return axis(title, low=max(0, (lowest - 4) // 10 * 10), high=102, suffix=" %")


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Values],
    titles: tuple[str, str, str],
    hover: str,
    *,
    square: bool = False,
    **look: Any,
) -> Spec:
    """Values by row and column; `titles` are those of rows, columns and values.

    `look` is what differs from a map of percentages; `about` in it is for `hover` to use, and stands in the table of
    the chart where `about_title` names it.
    """
    percent = {"lowest": 0, "highest": 100, "scale": "heat", "suffix": " %", "digits": 1}
    trace = {"kind": "heat", "z": values, "hover": hover, "value_title": titles[2], **percent, **look}
    if len(rows) * len(columns) > LABELLED_CELLS:
        trace["digits"] = None
    height = 100 + (max(22, 340 // len(rows)) if len(rows) <= 20 else 12) * len(rows)
    least, most = (420, 760) if square else (320, 980)
    across, down = axis(titles[1], names=columns), axis(titles[0], names=rows)
    return spec([trace], min(max(height, least), most), across, down)


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
