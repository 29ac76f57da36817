"""The figure of scaling.py: time above, memory below, one column for each thing that is doubled."""

from collections.abc import Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from ipal.report.figures import COLOURS, DPI, MARKERS

ROWS = {"seconds": ("learning and evaluation, seconds", 1.0), "memory": ("peak memory less a minimal run's, MB", 1e6)}
LABELS = {"nodes": "nodes + edges (degree fixed)", "edges": "nodes + edges (nodes fixed)"}


def draw(curves: Sequence[dict[str, Any]]) -> Figure:
    """Every panel's legend names the exponents: over all sizes, and over the upper half in brackets."""
    directions = list(dict.fromkeys(curve["direction"] for curve in curves))
    methods = list(dict.fromkeys(curve["method"] for curve in curves))
    figure = Figure(figsize=(0.7 + 2.45 * len(directions), 6.0), dpi=DPI)
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(directions), squeeze=False, sharey="row", sharex="col")
    for (name, (label, unit)), row in zip(ROWS.items(), panels, strict=True):
        row[0].set_ylabel(label)
        for axes, direction in zip(row, directions, strict=True):
            for curve in (curve for curve in curves if curve["direction"] == direction):
                sizes = [cost["size"] for cost in curve["costs"]]
                costs = [cost[name] / unit for cost in curve["costs"]]
                slope, place = curve["exponents"][name], methods.index(curve["method"])
                axes.loglog(
                    sizes, costs, color=("black", *COLOURS)[place], marker=MARKERS[place], markersize=4, linewidth=1.2,
                    label=f"{slope['all']:.2f} ({slope['upper_half']:.2f})",
                )  # fmt: skip
            _ticks(axes, sizes)
            axes.grid(color="0.92", linewidth=0.6)
            axes.legend(fontsize=7.5, loc="upper left", frameon=False, handlelength=1.8, borderaxespad=0.2)
    for axes, direction in zip(panels[0], directions, strict=True):
        axes.set_title(f"{direction} doubled")
    for axes, direction in zip(panels[1], directions, strict=True):
        axes.set_xlabel(LABELS.get(direction, direction))
    for row in panels:
        low, high = row[0].get_ylim()
        row[0].set_ylim(low, high * (high / low) ** 0.3)  # room for the legends
    handles = panels[0][0].get_legend_handles_labels()[0]
    figure.legend(handles, methods, loc="upper center", ncols=len(methods), frameon=False)
    note = "in every panel: fitted exponent over all sizes (over the upper half of them)"
    figure.text(0.5, 0.01, note, ha="center", va="bottom", fontsize=8)
    figure.tight_layout(rect=(0, 0.03, 1, 0.95))
    return figure


def _ticks(axes: Any, sizes: Sequence[float]) -> None:
    """At every other size; numbers short enough to stand side by side."""
    axes.xaxis.set_major_locator(FixedLocator(sizes[1::2]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.yaxis.set_major_locator(LogLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _short(value: float) -> str:
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= 10 * unit or value >= 1e6:
            return f"{value / unit:.3g}{letter}"
    return f"{value:g}"
