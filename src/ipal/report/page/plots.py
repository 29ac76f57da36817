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


def named_axis(title: str, names: Sequence[str], **more: Any) -> Spec:
    """An axis of names; long ones are shortened, and complete on hover."""
    axis: Spec = {"type": "category", "title": {"text": title}, "categoryorder": "array", **more}
    axis["categoryarray"] = [plain(name) for name in names]
    if any(len(name) > SHORT for name in names):
        axis["tickvals"] = list(range(len(names)))
        axis["ticktext"] = [plain(name if len(name) <= SHORT else name[: SHORT - 1] + "…") for name in names]
    return axis


def percent_axis(title: str, values: Values = (0,)) -> Spec:
    """From a round number below the lowest value to 100."""
    lowest = min((value for value in values if value is not None), default=0)
    return {"title": {"text": title}, "range": [max(0, (lowest - 4) // 10 * 10), 102], "ticksuffix": " %"}


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Values],
    *,
    titles: tuple[str, str],
    hover: str,
    about: Sequence[Sequence[Any]] | None = None,
    highest: float | None = 100,
    scale: str = "@heat",
    suffix: str = " %",
    digits: int = 1,
    square: bool = False,
) -> Spec:
    """Values by row and column; `titles` are those of the rows and of the columns, `about` is for `hover` to use."""
    cells = len(rows) * len(columns)
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
    }
    if highest is not None:
        trace["zmax"] = highest
    if about is not None:
        trace["customdata"] = about
    if cells <= LABELLED_CELLS:
        trace |= {"texttemplate": f"%{{z:.{digits}f}}", "xgap": 2, "ygap": 2}
    height = 130 + (max(22, 340 // len(rows)) if len(rows) <= 20 else 12) * len(rows)
    layout = {
        "height": max(320, min(height, 980) if not square else min(max(height, 420), 760)),
        "xaxis": named_axis(titles[1], columns, showgrid=False, zeroline=False),
        "yaxis": named_axis(titles[0], rows, showgrid=False, zeroline=False, autorange="reversed"),
    }
    return {"data": [trace], "layout": layout}


def line(
    name: str, x: Sequence[Any], y: Values, index: int, *, hover: str = "%{y:.2f}", is_main: bool = False, **more: Any
) -> Spec:
    """One line of a chart; the main one is drawn in the colour of text, and thick."""
    style = {
        "color": "@ink" if is_main else colour(index),
        "width": 3.5 if is_main else 2,
        "dash": "solid" if is_main else DASHES[index // SERIES % len(DASHES)],
    }
    marker = {"symbol": "star" if is_main else SYMBOLS[index % len(SYMBOLS)], "size": 11 if is_main else 7}
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(name),
        "x": x,
        "y": y,
        "line": style,
        "cliponaxis": False,
        "marker": {**marker, "color": style["color"]},
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


def bars(
    name: str, x: Sequence[Any], y: Values, index: int, *, hover: str, about: Sequence[Any] | None = None, **more: Any
) -> Spec:
    return {
        "type": "bar",
        "name": plain(name),
        "x": x,
        "y": y,
        "marker": {"color": colour(index)},
        "customdata": about,
        "hovertemplate": f"{hover}<extra></extra>",
        **more,
    }


def borders(positions: Sequence[float], labels: Sequence[str], starts: Sequence[float]) -> Spec:
    """Marks between tasks on an axis of epochs, and the names of the tasks above."""
    lines = [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": position,
            "x1": position,
            "y0": 0,
            "y1": 1,
            "line": {"color": "@muted", "width": 1, "dash": "dot"},
        }
        for position in positions
    ]
    texts = [
        {"xref": "x", "yref": "paper", "x": start, "y": 1, "xanchor": "left", "yanchor": "bottom", "showarrow": False}
        | {"text": plain(label), "font": {"color": "@muted", "size": 11}}
        for start, label in zip(starts, labels, strict=True)
    ]
    return {"shapes": lines, "annotations": texts}


def points(
    name: str,
    x: Sequence[float],
    y: Sequence[float],
    index: int,
    *,
    about: Sequence[str],
    is_outlined: Sequence[bool] | None = None,
    is_star: bool = False,
    star_size: int = 17,
    group: str,
) -> Spec:
    """Nodes or prototypes of one class on a plane."""
    outlined = is_outlined or [is_star] * len(x)
    marker: Spec = {
        "symbol": "star" if is_star else SYMBOLS[index // SERIES % len(SYMBOLS)],
        "size": star_size if is_star else [9 if special else 6 for special in outlined],
        "color": colour(index),
        "opacity": 1 if is_star else [1.0 if special else 0.55 for special in outlined],
        "line": {"color": "@ink", "width": 1.5 if is_star else [1.6 if special else 0 for special in outlined]},
    }
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain(name),
        "x": x,
        "y": y,
        "marker": marker,
        "text": [plain(text) for text in about],
        "hovertemplate": "%{text}<extra></extra>",
        "legendgroup": plain(group),
        "showlegend": not is_star,
    }
