"""Colours and markers of methods, distinct without colour, and placement of labels without overlap."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.transforms import Bbox

from ipal.report import paper

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLOSED_FORM = "analytic"
# Okabe and Ito's palette for colour-blind readers, without its yellow (too pale on white). Black is for IPAL, and Paul
# Tol's wine for the closed form: those that readers look for share their colour with no other.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7")
DASHES = ("--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = "osD^vPX<>hp8dH"


class Mark(NamedTuple):
    """Colour, line and marker of a method."""

    colour: str
    dash: Any
    marker: str
    width: float


def mark_for(key: str, others: Sequence[str]) -> Mark:
    """The same in all figures for a known method; other rows continue the cycle in the order of `others`."""
    own = {paper.OURS: Mark("black", "-", "*", 2.4), CLOSED_FORM: Mark("#882255", "-", "s", 1.8)}
    if key in own:
        return own[key]
    names = [name for name in dict.fromkeys([*paper.METHODS, *others]) if name not in own]
    index = names.index(key)
    return Mark(COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)], MARKERS[index % len(MARKERS)], 1.2)


def spread_out(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions at least `gap` apart, within bounds, nearest to the wanted ones (least squares).

    After subtracting the gaps this is isotonic regression.
    """
    if not wanted:
        return []
    from sklearn.isotonic import isotonic_regression

    order, gaps = np.argsort(wanted, kind="stable"), gap * np.arange(len(wanted))
    level = isotonic_regression(np.array(wanted, float)[order] - gaps, y_min=low, y_max=max(low, high - gaps[-1]))
    places = np.empty(len(wanted))
    places[order] = level + gaps
    return [float(place) for place in places]


def label_points(axes: "Axes", points: Sequence[tuple[float, float, str, str]]) -> None:
    """A text beside each point (x, y, text, weight), at the nearest free place; a thin line leads to it if far."""
    figure = axes.figure
    figure.canvas.draw()  # only now are the limits final
    frame, pixels = axes.get_window_extent(), figure.dpi / 72
    spots = axes.transData.transform([point[:2] for point in points])
    taken = [Bbox.from_extents(x, y, x, y).padded(5 * pixels) for x, y in spots]
    for (x, y), point in zip(spots, points, strict=True):
        note = axes.annotate(point[2], point[:2], (0, 0), fontsize=8, fontweight=point[3], textcoords="offset points")
        box, distance = _free_place(x, y, note.get_window_extent(), taken, frame, pixels)
        taken.append(box)
        # In points from the point itself: what was found holds at any resolution.
        note.set_position(((box.x0 - x) / pixels, (box.y0 - y) / pixels))
        if distance > 10 * pixels:
            to = (np.clip(x, box.x0, box.x1) - x) / pixels, (np.clip(y, box.y0, box.y1) - y) / pixels
            line = {"arrowstyle": "-", "linewidth": 0.5, "color": "0.4", "shrinkA": 0, "shrinkB": 3}
            axes.annotate("", point[:2], to, textcoords="offset points", arrowprops=line)


def _free_place(
    x: float, y: float, text: Bbox, taken: Sequence[Bbox], frame: Bbox, pixels: float
) -> tuple[Bbox, float]:
    """The nearest free box of the text's size around a point, and its distance from the point."""
    for distance in np.arange(7, 120, 4) * pixels:
        for angle in np.radians([0, 180, 90, 270, 45, 315, 135, 225, 20, 340, 160, 200, 65, 115, 245, 295]):
            across, up = np.cos(angle), np.sin(angle)
            left = x + distance * across - text.width * (1 - across) / 2
            bottom = y + distance * up - text.height * (1 - up) / 2
            box = Bbox.from_bounds(left, bottom, text.width, text.height)
            is_inside = all(frame.fully_contains(*corner) for corner in (box.min, box.max))
            if is_inside and not any(box.fully_overlaps(other) for other in taken):
                return box, distance
    return Bbox.from_bounds(x + 7 * pixels, y, text.width, text.height), 0.0  # no free place: overlap
