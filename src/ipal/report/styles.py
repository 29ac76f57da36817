"""Colours and markers of methods, distinct without colour, and placement of labels without overlap."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ipal.report import paper

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette for colour-blind readers, without its yellow (too pale on white); black is for IPAL.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7")
DASHES = ("--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = "osD^vPX<>hp8dH"

Box = tuple[float, float, float, float]
"""Left, bottom, right, top."""


class Mark(NamedTuple):
    """Colour, line and marker of a method."""

    colour: str
    dash: Any
    marker: str
    width: float


def mark_for(key: str, others: Sequence[str]) -> Mark:
    """The same in all figures for a known method; other rows continue the cycle in the order of `others`."""
    if key == "ipal":
        return Mark("black", "-", "*", 2.4)
    known = [name for name in paper.METHODS if name != "ipal"]
    names = known + [name for name in others if name not in paper.METHODS]
    index = names.index(key)
    return Mark(COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)], MARKERS[index % len(MARKERS)], 1.2)


def spread_out(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions at least `gap` apart, within bounds, nearest to the wanted ones (least squares).

    After subtracting the gaps this is isotonic regression, by pooling adjacent violators.
    """
    order = np.argsort(wanted, kind="stable")
    blocks: list[list[float]] = []
    for rank, index in enumerate(order):
        blocks.append([wanted[index] - rank * gap])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    level = np.concatenate([np.full(len(block), np.mean(block)) for block in blocks]) if blocks else np.zeros(0)
    level = np.clip(level, low, max(low, high - (len(wanted) - 1) * gap))
    places = [0.0] * len(wanted)
    for rank, index in enumerate(order):
        places[index] = float(level[rank] + rank * gap)
    return places


def label_points(axes: "Axes", points: Sequence[tuple[float, float, str, str]]) -> None:
    """A text beside each point (x, y, text, weight), at the nearest free place; a thin line leads to it if far."""
    figure = axes.figure
    figure.canvas.draw()  # only now are the limits final
    frame = axes.get_window_extent().extents
    pixels = figure.dpi / 72
    spots = axes.transData.transform([point[:2] for point in points])
    taken = [(x - 5 * pixels, y - 5 * pixels, x + 5 * pixels, y + 5 * pixels) for x, y in spots]
    for (x, y), point in zip(spots, points, strict=True):
        note = axes.annotate(point[2], point[:2], (0, 0), fontsize=8, fontweight=point[3], textcoords="offset points")
        box = note.get_window_extent()
        left, bottom, distance = _free_place(x, y, box.width, box.height, taken, frame, pixels)
        taken.append((left, bottom, left + box.width, bottom + box.height))
        # In points from the point itself: what was found holds at any resolution.
        note.set_position(((left - x) / pixels, (bottom - y) / pixels))
        if distance > 10 * pixels:
            end = min(max(x, left), left + box.width) - x, min(max(y, bottom), bottom + box.height) - y
            line = {"arrowstyle": "-", "linewidth": 0.5, "color": "0.4", "shrinkA": 0, "shrinkB": 3}
            to = (end[0] / pixels, end[1] / pixels)
            axes.annotate("", point[:2], to, textcoords="offset points", arrowprops=line)


def _free_place(
    x: float,
    y: float,
    width: float,
    height: float,
    taken: Sequence[Box],
    frame: Box,
    pixels: float,
) -> tuple[float, float, float]:
    """Lower left corner of the nearest free box around a point, and its distance from the point."""
    for distance in np.arange(7, 120, 4) * pixels:
        for angle in np.radians([0, 180, 90, 270, 45, 315, 135, 225, 20, 340, 160, 200, 65, 115, 245, 295]):
            across, up = np.cos(angle), np.sin(angle)
            left = x + distance * across - width * (1 - across) / 2
            bottom = y + distance * up - height * (1 - up) / 2
            box = (left, bottom, left + width, bottom + height)
            inside = box[0] > frame[0] and box[1] > frame[1] and box[2] < frame[2] and box[3] < frame[3]
            if inside and not any(_overlap(box, other) for other in taken):
                return left, bottom, distance
    return x + 7 * pixels, y, 0.0  # no free place: overlap


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
