"""Figure of why a node is predicted as it is, from an explanation as plain data."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ipal.errors import shortened
from ipal.report.figures import DPI, write_figure

FOR, AGAINST = ("#0072B2", ""), ("#D55E00", "///")
"""Colour (Okabe and Ito's palette) and hatch."""
Bar = tuple[str, float]


def write_explanation(explanation: Mapping[str, Any], path: Path) -> Path:
    """Draw an explanation into a file of the kind that its name says."""
    (written,) = write_figure(path.with_suffix(""), partial(figure, explanation), (path.suffix,))
    return written


def figure(explanation: Mapping[str, Any]) -> Figure:
    """Contributions by hop, by node and by feature, strongest first: to the right for the predicted class."""
    found = explanation
    panels: dict[str, Sequence[Bar]] = {
        "by hop": [(_hops(hop), value) for hop, value in enumerate(found["by_hop"])],
        "by node (hops away)": [(f"{one['node']} ({one['hops']})", one["contribution"]) for one in found["by_node"]],
        "by feature": [(str(one["feature"]), one["contribution"]) for one in found["by_feature"]],
    }
    tallest = max(3, *map(len, panels.values()))
    drawn = Figure(figsize=(10, 1.5 + 0.24 * tallest), dpi=DPI, layout="constrained")
    FigureCanvasAgg(drawn)
    for axes, (title, bars) in zip(drawn.subplots(1, len(panels)), panels.items(), strict=True):
        _bars(axes, bars, tallest)
        axes.set_title(title, loc="left")
    drawn.suptitle(shortened(found["summary"], 120), x=0.01, ha="left", fontsize=10)
    drawn.supxlabel("contribution to the margin: right of zero for the predicted class", fontsize=9)
    return drawn


def _hops(number: int) -> str:
    return "the node itself" if number == 0 else "1 hop away" if number == 1 else f"{number} hops away"


def _bars(axes: Axes, bars: Sequence[Bar], tallest: int) -> None:
    for place, (_, value) in enumerate(bars):
        colour, hatch = FOR if value > 0 else AGAINST
        axes.barh(place, value, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
    axes.set_yticks(range(len(bars)), [shortened(name, 24) for name, _ in bars])
    axes.set_ylim(tallest - 0.4, -0.6)
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
