"""The figures of a report, readable in grey and by colour-blind readers; equal input gives equal bytes."""

import io
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from ipal.report import paper
from ipal.report.cells import pretty, spread_cell
from ipal.report.collect import Comparison
from ipal.report.statistics import Spread, how_many, scale_from, spread
from ipal.system.files import make_folder, write_atomically

DPI = 160
STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "ipal",  # names inside the file are drawn at random otherwise
    "savefig.dpi": DPI,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
CLOSED_FORM = "analytic"
# Okabe and Ito's palette for colour-blind readers, without its yellow (too pale on white). Black is for IPAL, and Paul
# Tol's wine for the closed form: those that readers look for share their colour with no other.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7")
DASHES = ("--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = "osD^vPX<>hp8dH"


def look_of(key: str, others: Sequence[str]) -> dict[str, Any]:
    """Colour, line and marker: the same in all figures for a known method; other rows continue in their order."""
    own: dict[str, tuple[Any, ...]] = {paper.OURS: ("black", "-", "*"), CLOSED_FORM: ("#882255", "-", "s")}
    if key not in own:
        index = [name for name in dict.fromkeys([*paper.METHODS, *others]) if name not in own].index(key)
        own[key] = (COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)], MARKERS[index % len(MARKERS)])
    return dict(zip(("color", "linestyle", "marker"), own[key], strict=True))


def write_figures(folder: Path, benches: Sequence[Comparison]) -> list[Path]:
    """The figures of a report."""
    written = list[Path]()
    for bench in benches:
        if bench.kind == "table1":
            written += write_figure(folder / f"figure4-{bench.name}", partial(learning_dynamics, bench))
        if bench.kind == "table2":
            written += write_figure(folder / f"figure3-{bench.name}", partial(heat_maps, bench))
    grids = [bench for bench in benches if bench.kind == "figure6"]
    return written + write_figure(folder / "figure6", partial(gamma_curves, grids))


def write_figure(stem: Path, draw: Callable[[], Figure | None]) -> list[Path]:
    """Draw in our style, whatever the user's settings, and write SVG and PNG, if there is anything to draw."""
    with matplotlib.style.context(["default", STYLE]):
        figure = draw()
        if figure is None:
            return []
        make_folder(stem.parent)
        written = []
        for suffix in (".svg", ".png"):
            content = io.BytesIO()
            figure.savefig(content, format=suffix[1:], metadata={"Date" if suffix == ".svg" else "Software": None})
            written.append(stem.with_name(stem.name + suffix))
            write_atomically(written[-1], content.getvalue())
    return written


def blank(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def heat_maps(bench: Comparison) -> Figure | None:
    """Figure 3: accuracy on each task after each task, mean over seeds, on one scale for all panels."""
    ours = {row.switch: row for row in bench.rows if row.is_ours and row.runs}
    rows = {title: ours[switch] for switch, title in paper.FIGURE3.items() if switch in ours}
    if not rows:
        return None
    means = {title: np.mean([run.matrix for run in row.runs], axis=0) for title, row in rows.items()}
    lowest = scale_from(float(np.nanmin(mean)) for mean in means.values())
    figure = blank(1.2 + 2.75 * len(rows), 3.3)
    panels = figure.subplots(1, len(rows), squeeze=False, sharey=True)[0]
    for axes, (title, mean) in zip(panels, means.items(), strict=True):
        image = axes.imshow(mean, cmap="cividis", vmin=lowest, vmax=100)  # lightness grows with the value
        tasks = len(mean)
        for after, on in zip(*np.tril_indices(tasks), strict=True):
            dark = mean[after, on] < (lowest + 100) / 2
            text = f"{mean[after, on]:.{1 if tasks < 8 else 0}f}"
            style = {"ha": "center", "va": "center", "fontsize": 8 if tasks < 12 else 6}
            axes.text(on, after, text, color="white" if dark else "black", **style)
        axes.set_title(f"{title}\nAP {spread_cell(spread(list(rows[title].by_seed('AP').values()))).text}")
        axes.set_xticks(range(tasks), [str(task + 1) for task in range(tasks)])
        axes.set_yticks(range(tasks), [str(task + 1) for task in range(tasks)])
        axes.set_xlabel("accuracy on task")
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.tick_params(length=0)
    panels[0].set_ylabel(f"{bench.title}: after learning task")
    figure.colorbar(image, ax=list(panels), fraction=0.02, pad=0.015, label="accuracy, %")
    return figure


def learning_dynamics(bench: Comparison) -> Figure | None:
    """Figure 4: AP after each task, methods by their last AP; the best is thick."""
    rows = sorted((row for row in bench.rows if row.runs), key=lambda row: -row.mean("AP"))
    if not rows:
        return None
    figure = blank(7.2, 4.4)
    axes = figure.subplots()
    for row in rows:
        curves = np.array([run.result.average_performance_curve for run in row.runs])
        mean, steps = curves.mean(axis=0), np.arange(1, curves.shape[1] + 1)
        look, is_best = look_of(row.key, [one.key for one in bench.rows]), row is bench.best
        name = row.title if len(row.title) <= 26 else row.title[:25] + "…"
        look["label"] = f"{name} {mean[-1]:.1f}"
        axes.plot(steps, mean, linewidth=2.4 if is_best else 1.2, markersize=8 if is_best else 5, **look)
        if is_best and len(curves) > 1:
            deviation = curves.std(axis=0, ddof=1)
            axes.fill_between(steps, mean - deviation, mean + deviation, color="0.85", zorder=1, linewidth=0)
        axes.set_xticks(steps)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    title = f"{bench.title}: AP after each task (mean of {how_many(bench.seeds)})"
    axes.set(xlabel="tasks learned", ylabel="AP on test nodes, %", title=title)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
    return figure


def gamma_curves(benches: Sequence[Comparison]) -> Figure | None:
    """Figure 6: validation AP against the weighting factor, a panel for each dataset, a line for each row."""
    panels = [(bench.title, lines) for bench in benches if (lines := _by_gamma(bench))]
    if not panels:
        return None
    columns = min(3, len(panels))
    figure = blank(max(4.2, 3.1 * columns), 0.6 + 2.9 * -(-len(panels) // columns))
    every = figure.subplots(-(-len(panels) // columns), columns, squeeze=False).ravel()
    for axes, (title, lines) in zip(every, panels, strict=False):
        for index, (label, scores) in enumerate(lines.items()):
            gammas, means = sorted(scores), [scores[gamma].mean for gamma in sorted(scores)]
            best = gammas[int(np.argmax(means))]
            look = look_of(paper.OURS if index == 0 else label, list(lines))
            look |= {"marker": "o", "markersize": 4, "linewidth": 1.2}
            look["label"] = f"{label}: highest at γ = {best:g}: {pretty(scores[best])}"
            axes.errorbar(gammas, means, [scores[gamma].deviation or 0.0 for gamma in gammas], capsize=2, **look)
            star = {"marker": "*", "markersize": 13, "markeredgecolor": "black", "markerfacecolor": "white"}
            axes.plot(best, scores[best].mean, zorder=5, **star)
        axes.axvspan(*paper.GAMMA_RANGE, color="0.93", zorder=0, linewidth=0)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(LogFormatter())
        axes.margins(x=0.08, y=0.1)
        axes.set(title=title, xlabel="γ")
        axes.legend(fontsize=7)
    for axes in every[len(panels) :]:
        axes.set_visible(False)
    for axes in every[::columns]:
        axes.set_ylabel("AP on validation nodes, %")
    note = f"shaded: the paper's grid, {paper.GAMMA_RANGE[0]} to {paper.GAMMA_RANGE[1]}; star: highest mean"
    note = textwrap.fill(f"{note}; bars: standard deviation over seeds", int(15 * figure.get_figwidth()))
    figure.supxlabel(note, fontsize=8)
    return figure


def _by_gamma(bench: Comparison) -> dict[str, dict[float, Spread]]:
    """By row and positive gamma the scores; where other settings were tried as well, those of the best."""
    lines: dict[str, dict[float, Spread]] = {}
    for point in bench.tried:
        gamma = point.settings.get(paper.GAMMA)
        score = spread([run.result.validation.average_performance for run in point.runs])
        if isinstance(gamma, int | float) and gamma > 0 and score:
            line = lines.setdefault(point.label, {})
            line[gamma] = max(score, line.get(gamma, score), key=lambda one: one.mean)
    return lines
