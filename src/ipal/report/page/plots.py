"""Charts as Plotly takes them, in plain dicts.

Colours are names (`@ink`, `@series3`, `@heat`), which the page's script replaces by those of the theme. Everything
that comes from the data goes through `plain`: Plotly reads a little HTML in its texts.
"""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from ipal.report.page.parts import Spec

SERIES = 8
"""Number of distinct colours; then they repeat with another marker."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "pentagon", "hexagon", "triangle-down", "hourglass")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SHORT = 16
"""Characters of a name that fit at an axis."""
LABELLED_CELLS = 144
"""Cells of a heat map that have room for their number."""

Values = Sequence[float | None]


def plain(text: Any) -> str:
    """A text escaped for Plotly."""
    return html.escape(str(text), quote=False)


def colour(index: int) -> str:
    return f"@series{index % SERIES}"


def tasks(count: int) -> list[str]:
    return [f"task {index + 1}" for index in range(count)]


def spec(data: Sequence[Spec], height: int, xaxis: Spec, yaxis: Spec, **more: Any) -> Spec:
    """A chart of these traces."""
    return {"data": data, "layout": {"height": height, "xaxis": xaxis, "yaxis": yaxis, **more}}


def axis(title: str, **more: Any) -> Spec:
    return {"title": {"text": title}, **more}


def axis_from_zero(title: str, **more: Any) -> Spec:
    return axis(title, rangemode="tozero", **more)


def named_axis(title: str, names: Sequence[str], **more: Any) -> Spec:
    """An axis of names; long ones are shortened, and complete on hover."""
    array = [plain(name) for name in names]
    found = {"type": "category", **axis(title), "categoryorder": "array", **more, "categoryarray": array}
    if any(len(name) > SHORT for name in names):
        found["tickvals"] = list(range(len(names)))
        found["ticktext"] = [plain(cut(name, SHORT)) for name in names]
    return found


def cut(text: str, most: int) -> str:
    """A text shortened to fit."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def percent_axis(title: str, values: Values = (0,)) -> Spec:
    """From a round number below the lowest value to 100."""
    lowest = min((value for value in values if value is not None), default=0)
    return axis(title, range=[max(0, (lowest - 4) // 10 * 10), 102], ticksuffix=" %")


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Values],
    titles: tuple[str, str],
    hover: str,
    *,
    about: Sequence[Sequence[Any]] | None = None,
    highest: float = 100,
    scale: str = "@heat",
    suffix: str = " %",
    digits: int = 1,
    square: bool = False,
) -> Spec:
    """Values by row and column; `titles` are those of the rows and of the columns, `about` is for `hover` to use."""
    trace: Spec = {
        "type": "heatmap",
        "x": [plain(name) for name in columns],
        "y": [plain(name) for name in rows],
        "z": values,
        "zmin": 0,
        "colorscale": scale,
        "hovertemplate": f"{hover}<extra></extra>",
        "hoverongaps": False,
        "colorbar": {"ticksuffix": suffix, "thickness": 12, "outlinewidth": 0},
        "zmax": highest,
    }
    if about is not None:
        trace["customdata"] = about
    if len(rows) * len(columns) <= LABELLED_CELLS:
        trace |= {"texttemplate": f"%{{z:.{digits}f}}", "xgap": 2, "ygap": 2}
    height = 130 + (max(22, 340 // len(rows)) if len(rows) <= 20 else 12) * len(rows)
    lowest, most = (420, 760) if square else (320, 980)
    bare = {"showgrid": False, "zeroline": False}
    across, down = named_axis(titles[1], columns, **bare), named_axis(titles[0], rows, **bare, autorange="reversed")
    return spec([trace], min(max(height, lowest), most), across, down)


def line(name: str, x: Sequence[Any], y: Values, index: int, hover: str, *, is_main: bool = False, **more: Any) -> Spec:
    """One line of a chart; the main one is drawn in the colour of text, and thick."""
    tint, width, dash = ("@ink", 3.5, "solid") if is_main else (colour(index), 2, DASHES[index // SERIES % len(DASHES)])
    symbol, size = ("star", 11) if is_main else (SYMBOLS[index % len(SYMBOLS)], 7)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(name),
        "x": x,
        "y": y,
        "line": {"color": tint, "width": width, "dash": dash},
        "cliponaxis": False,
        "marker": {"symbol": symbol, "size": size, "color": tint},
        "hovertemplate": f"{hover}<extra>%{{fullData.name}}</extra>",
        **more,
    }


def band(x: Sequence[Any], low: Sequence[float], high: Sequence[float], line_: Mapping[str, Any]) -> Spec:
    """The band around a line, shown and hidden with it."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [*x, *reversed(x)],
        "y": [*high, *reversed(low)],
        "fill": "toself",
        "fillcolor": f"{line_['line']['color']}/0.14",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": line_["legendgroup"],
    }


def bars(name: str, x: Sequence[Any], y: Values, index: int, hover: str) -> Spec:
    return {
        "type": "bar",
        "name": plain(name),
        "x": x,
        "y": y,
        "marker": {"color": colour(index)},
        "customdata": None,
        "hovertemplate": f"{hover}<extra></extra>",
    }


def borders(starts: Sequence[float], labels: Sequence[str]) -> Spec:
    """Marks between tasks on an axis of epochs, and the names of the tasks above."""
    in_data = {"xref": "x", "yref": "paper"}
    mark = {"color": "@muted", "width": 1, "dash": "dot"}
    text = {"y": 1, "xanchor": "left", "yanchor": "bottom", "showarrow": False, "font": {"color": "@muted", "size": 11}}
    return {
        "shapes": [
            {"type": "line", **in_data, "x0": start, "x1": start, "y0": 0, "y1": 1, "line": mark}
            for start in starts[1:]
        ],
        "annotations": [
            {**in_data, "x": start, **text, "text": plain(label)} for start, label in zip(starts, labels, strict=True)
        ],
    }


def points(
    name: str, rows: Sequence[Mapping[str, Any]], marker: Spec, about: Sequence[str], group: str, **more: Any
) -> Spec:
    """Nodes or prototypes of one class on a plane."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain(name),
        "x": [row["x"] for row in rows],
        "y": [row["y"] for row in rows],
        "marker": marker,
        "text": [plain(text) for text in about],
        "hovertemplate": "%{text}<extra></extra>",
        "legendgroup": plain(group),
        "showlegend": True,
        **more,
    }
