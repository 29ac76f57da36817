"""The figures of a report, readable in grey and by colour-blind readers; equal input gives equal bytes."""

import io
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from ipal.report import paper
from ipal.report.collect import Grid, ReportRow, StoredBench
from ipal.report.statistics import how_many, scale_from, spread
from ipal.report.styles import label_points, mark_for, spread_out
from ipal.report.tables import pretty
from ipal.system.files import make_folder, write_atomically

DPI = 160
STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "ipal",  # names inside the file are drawn at random otherwise
    "savefig.dpi": DPI,
}


def write_figure(stem: Path, draw: Callable[[], Figure | None], kinds: Sequence[str] = (".svg", ".png")) -> list[Path]:
    """Draw in our style, whatever the user's settings, and write SVG and PNG, if there is anything to draw."""
    with matplotlib.style.context(["default", STYLE]):
        figure = draw()
        if figure is None:
            return []
        make_folder(stem.parent)
        written = []
        for suffix in kinds:
            content = io.BytesIO()
            figure.savefig(content, format=suffix[1:], metadata={"Date" if suffix == ".svg" else "Software": None})
            written.append(stem.with_name(stem.name + suffix))
            write_atomically(written[-1], content.getvalue())
    return written


def _blank(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def heat_maps(bench: StoredBench) -> Figure | None:
    """Figure 3: accuracy on each task after each task, mean over seeds, on one scale for all panels."""
    rows = {title: row for switch, title in paper.FIGURE3.items() if (row := bench.find(switch))}
    if not rows:
        return None
    means = {title: np.mean([run.matrix for run in row.runs], axis=0) for title, row in rows.items()}
    lowest = scale_from(float(np.nanmin(mean)) for mean in means.values())
    figure = _blank(1.2 + 2.75 * len(rows), 3.5)
    panels = figure.subplots(1, len(rows), squeeze=False, sharey=True)[0]
    figure.subplots_adjust(left=0.5 / figure.get_figwidth(), right=1 - 0.8 / figure.get_figwidth(), wspace=0.08)
    colours = colormaps["cividis"]  # lightness grows with the value: it survives grey print
    image = None
    for axes, (title, mean) in zip(panels, means.items(), strict=True):
        image = axes.imshow(mean, cmap=colours, vmin=lowest, vmax=100)
        tasks = len(mean)
        for after, on in zip(*np.tril_indices(tasks), strict=True):
            red, green, blue, _ = colours((mean[after, on] - lowest) / (100 - lowest))
            dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.45
            text = f"{mean[after, on]:.{1 if tasks < 8 else 0}f}"
            style = {"ha": "center", "va": "center", "fontsize": 8 if tasks < 12 else 6}
            axes.text(on, after, text, color="white" if dark else "black", **style)
        axes.set_title(f"{title}\nAP {pretty(spread(list(rows[title].by_seed('AP').values())))}")
        axes.set_xticks(range(tasks), [str(task + 1) for task in range(tasks)])
        axes.set_yticks(range(tasks), [str(task + 1) for task in range(tasks)])
        axes.set_xlabel("accuracy on task")
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.tick_params(length=0)
    panels[0].set_ylabel(f"{bench.title}: after learning task")
    if image is not None:
        bar = figure.colorbar(image, ax=list(panels), fraction=0.02, pad=0.015)
        bar.set_label("accuracy, %")
    return figure


def learning_dynamics(bench: StoredBench) -> Figure | None:
    """Figure 4: AP after each task, every method named at the end of its line; the best without exemplars is bold."""
    rows = [row for row in bench.rows if row.runs]
    if not rows:
        return None
    figure = _blank(7.2, 4.6)
    room = 0.03 + 0.0095 * max(len(_short(row)) + 5 for row in rows)  # for names and numbers at the right
    axes = figure.add_axes((0.08, 0.11, (0.92 - room) / 1.125, 0.81))
    curves = [_mean_curve(row) for row in rows]
    tasks = max(map(len, curves))
    for row, curve in zip(rows, curves, strict=True):
        mark, steps = mark_for(row.key, [row.key for row in rows]), np.arange(1, len(curve) + 1)
        width, size, front = (2.4, 8, 3) if row is bench.best else (1.2, 5, 2)
        axes.plot(
            steps, curve, color=mark.colour, linestyle=mark.dash, linewidth=width, marker=mark.marker, markersize=size,
            zorder=front,
        )  # fmt: skip
        if row is bench.best and len(row.runs) > 1:
            deviation = np.std([run.curve for run in row.runs], axis=0, ddof=1)
            axes.fill_between(steps, curve - deviation, curve + deviation, color="0.85", zorder=1, linewidth=0)
    axes.set(xlim=(0.9, tasks + 0.06 * max(tasks - 1, 1)), xticks=range(1, tasks + 1), ylabel="AP on test nodes, %")
    axes.set(
        xlabel="tasks learned", title=f"{bench.title}: AP after each task (mean of {how_many(bench.manifest.seeds)})"
    )
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    low, high = axes.get_ylim()
    gap = (high - low) * (1.3 * 8 / 72) / (0.81 * 4.6)
    places = spread_out([float(curve[-1]) for curve in curves], gap, low + gap / 2, high - gap / 2)
    beside = axes.get_yaxis_transform()  # across in shares of the panel, up in the data's units
    for row, curve, place in zip(rows, curves, places, strict=True):
        mark, weight = mark_for(row.key, [row.key for row in rows]), "bold" if row is bench.best else "normal"
        thin: dict[str, Any] = {"transform": beside, "clip_on": False, "color": mark.colour}
        axes.plot([0.985, 1.03], [curve[-1], place], linewidth=0.6, **thin)
        axes.plot([1.035, 1.105], [place, place], linestyle=mark.dash, linewidth=1.2, **thin)
        axes.plot([1.07], [place], marker=mark.marker, markersize=5, linestyle="", **thin)
        text = f"{_short(row)} {curve[-1]:.1f}"
        axes.text(1.125, place, text, transform=beside, fontsize=8, va="center", fontweight=weight)
    return figure


def gamma_curves(panels: Sequence[tuple[str, Sequence[Grid]]]) -> Figure | None:
    """Figure 6: validation AP against the weighting factor, one panel for each dataset."""
    panels = [(title, grids) for title, grids in panels if grids]
    if not panels:
        return None
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = _blank(max(4.2, 3.1 * columns), 0.5 + 2.9 * lines)
    every = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, (title, grids) in zip(every, panels, strict=False):
        for index, grid in enumerate(grids):
            gammas = [gamma for gamma, _ in grid.points]
            scores = [score for _, values in grid.points if (score := spread(values))]
            means, bars = [score.mean for score in scores], [score.deviation or 0.0 for score in scores]
            best = int(np.argmax(means))
            found = f"highest at γ = {gammas[best]:g}: {pretty(scores[best])}"
            mark = mark_for(paper.OURS if index == 0 else grid.label, [grid.label for grid in grids])
            axes.errorbar(
                gammas, means, bars, color=mark.colour, linestyle=mark.dash, marker="o", markersize=4, capsize=2,
                linewidth=1.2, label=f"{grid.label}: {found}",
            )  # fmt: skip
            style = {"markersize": 13, "markeredgecolor": "black", "markerfacecolor": "white"}
            axes.plot(gammas[best], means[best], marker="*", zorder=5, **style)
        axes.axvspan(*paper.GAMMA_RANGE, color="0.93", zorder=0, linewidth=0)
        tried = [gamma for grid in grids for gamma, _ in grid.points]
        if max(tried) > 2 and min(tried) > 0:
            _logarithmic(axes)
        axes.margins(x=0.08, y=0.1)
        axes.set(title=f"{title}\n{found}" if len(grids) == 1 else title, xlabel="γ")
        if len(grids) > 1:
            axes.legend(fontsize=7)
    for axes in every[len(panels) :]:
        axes.set_visible(False)
    for axes in every[::columns]:
        axes.set_ylabel("AP on validation nodes, %")
    note = f"shaded: the paper's grid, {paper.GAMMA_RANGE[0]} to {paper.GAMMA_RANGE[1]}; star: highest mean"
    note = textwrap.fill(f"{note}; bars: standard deviation over seeds", int(15 * figure.get_figwidth()))
    figure.text(0.5, 0.01, note, ha="center", va="bottom", fontsize=8)
    figure.tight_layout(rect=(0, 0.17 * (note.count("\n") + 1) / figure.get_figheight(), 1, 1))
    return figure


def cost_plot(bench: StoredBench) -> Figure | None:
    """AP against the time of a run: up and to the left is better; the best AP without exemplars is bold."""
    rows = [row for row in bench.rows if row.runs]
    if not rows:
        return None
    figure = _blank(7.2, 4.4)
    axes = figure.add_axes((0.09, 0.12, 0.88, 0.79))
    points = []
    for row in rows:
        mark = mark_for(row.key, [row.key for row in rows])
        seconds = max(float(np.mean(row.over_runs("seconds"))), 1e-3)
        performance = float(np.mean(list(row.by_seed("AP").values())))
        is_best = row is bench.best
        axes.plot(
            seconds, performance, marker=mark.marker, color=mark.colour, markersize=12 if is_best else 7,
            markeredgecolor="black", markeredgewidth=0.5, linestyle="",
        )  # fmt: skip
        points.append((seconds, performance, _short(row), "bold" if is_best else "normal"))
    _logarithmic(axes)
    axes.margins(x=0.12, y=0.12)
    axes.set(xlabel="seconds a run (logarithmic)", ylabel="AP on test nodes, %")
    axes.set_title(f"{bench.title}: AP against time (mean of {how_many(bench.manifest.seeds)}; † stores raw nodes)")
    axes.grid(color="0.92", linewidth=0.6)
    label_points(axes, points)
    return figure


def _logarithmic(axes: Axes) -> None:
    """With ticks as plain numbers."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(LogFormatter())


def _short(row: ReportRow) -> str:
    """A label shortened to fit."""
    return row.marked_title if len(row.marked_title) <= 26 else row.marked_title[:25] + "…"


def _mean_curve(row: ReportRow) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.asarray(np.mean([run.curve for run in row.runs], axis=0))
