"""Tables and figures of drift, from what `ipal drift` has measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ipal.config import RunConfig
from ipal.report import cells, paper
from ipal.report.cells import CellTable
from ipal.report.figures import COLOURS, blank, write_figure
from ipal.report.statistics import FEWEST, how_many, paired_interval, spread
from ipal.report.tables import Captioned
from ipal.system.files import make_folder, write_atomically

MEASURES = {
    "kl": "KL (Eq. 16)",
    "log_det": "log det Σ′ − log det Σ",
    "trace": "tr(Σ′⁻¹Σ − I)",
    "mean_shift": "(μ′−μ)ᵀ Σ′⁻¹ (μ′−μ)",
    "squared_shift": "‖μ′−μ‖²",
    "relative_shift": "‖μ′−μ‖² / variance",
    "cosine": "cosine before, after",
    "kl_ridge_0.01": "KL, ridge 0.01",
    "kl_ridge_0.1": "KL, ridge 0.1",
}
NAMES = {
    "average_performance": "AP, %",
    "learning_accuracy": "accuracy on each task just learned, %",
    **MEASURES,
    "kl_stream": "KL, base task to last",
}
COMPARED = ("kl", "squared_shift", "trace", "relative_shift", "kl_ridge_0.01", "kl_ridge_0.1")
"""The first is that of Theorem 1, the next two are in its proof; the others show the effect of scale and ridge."""
CLASS_MARKERS = "osDPXp*hd8"  # no triangles: those are hard examples


@dataclass(frozen=True, eq=False)
class Measurement:
    """One run of one method, measured."""

    config: RunConfig
    scores: Mapping[str, float]
    """Of the whole run; a method that learns less has less to drift for."""
    steps: Sequence[Mapping[str, Any]]
    """Every old class after every later task."""
    hard: Mapping[str, Any] | None
    """Where hard examples of the first task lie, and others."""
    drawn: Mapping[str, Any] | None
    """Training nodes of the first task as points, of seed 0."""

    @property
    def dataset(self) -> str:
        return paper.dataset_title(self.config.dataset)

    @cached_property
    def means(self) -> dict[str, float]:
        """Every measure, mean over old classes and tasks."""
        return {name: float(np.mean([row[name] for row in self.steps])) for name in MEASURES} | dict(self.scores)


def make_report(every: Sequence[Measurement], how: str, out: Path, command: str) -> tuple[dict[str, Any], list[Path]]:
    """All tables and figures: the numbers as plain data, and the files written, the page first."""
    make_folder(out)
    numbers = summary(every)
    made = Captioned("drift", table(numbers), caption(every), [command], verdicts(numbers), how)
    figures = {"figure1": planes, "figure5": hard_examples}
    images = [path for name, draw in figures.items() for path in write_figure(out / name, partial(draw, every))]
    shown = "\n\n".join(f"![{path.stem}]({path.name})" for path in images if path.suffix == ".png")
    files = made.files
    files["drift.md"] += f"\n{shown}\n" if shown else ""
    for name, text in files.items():
        write_atomically(out / name, text)
    return numbers, [*(out / name for name in files), *images]


# ---------------------------------------------------------------------- numbers


def summary(every: Sequence[Measurement]) -> dict[str, Any]:
    """Mean and deviation over seeds; PR against PCL."""
    methods = dict[str, dict[str, Any]]()
    for method in dict.fromkeys(one.config.method for one in every):
        means = [one.means for one in every if one.config.method == method]
        methods[method] = {name: one._asdict() for name in NAMES if (one := spread([each[name] for each in means]))}
    hard = [one.hard for one in every if one.hard]
    return {
        "seeds": sorted({one.config.seed for one in every}),
        "methods": methods,
        "comparison": [_compare(every, name) for name in COMPARED] if {*methods} >= {*paper.THEOREM1} else [],
        "hard": {name: np.mean([row[name] for row in hard], axis=0).tolist() for name in hard[0]} if hard else None,
    }


def _compare(every: Sequence[Measurement], measure: str) -> dict[str, Any]:
    pr, pcl = (
        {one.config.seed: one.means[measure] for one in every if one.config.method == name} for name in paper.THEOREM1
    )
    interval, verdict = paired_interval(pr, pcl), "undecided"
    if interval and not interval.low <= 0 <= interval.high:
        verdict = "supported" if interval.low > 0 else "contradicted"
    return {"measure": measure, "verdict": verdict, **(interval._asdict() if interval else {})}


def caption(every: Sequence[Measurement]) -> str:
    """What was measured, in one sentence."""
    first, train = every[0], every[0].config.train
    same = f"{train.epochs} epochs a task" if all(one.config.train == train for one in every) else "training DIFFERS"
    return (
        f"{first.dataset}, tasks of {'+'.join(map(str, first.config.split or ()))} classes, {same}: drift of old "
        f"classes, mean over classes and tasks ± standard deviation over {how_many(one.config.seed for one in every)}."
    )


def table(numbers: Mapping[str, Any]) -> CellTable:
    """Measures down, methods across."""
    methods = numbers["methods"]
    rows = [
        (
            title,
            *(cells.Cell(number(**one[key]), one[key]["mean"], "", one[key]["deviation"]) for one in methods.values()),
        )
        for key, title in NAMES.items()
    ]
    return cells.table("", ("measure", *map(paper.title, methods)), rows)


def verdicts(numbers: Mapping[str, Any]) -> list[str]:
    """One sentence for each quantity that should be lower for PCL than for PR, and on where hard examples lie."""
    lines = []
    for row in numbers["comparison"]:
        found = f"with fewer than {FEWEST} seeds there is no interval"
        if "difference" in row:
            found = f"PR − PCL {number(row['difference'])} [{number(row['low'])}, {number(row['high'])}] (95 %)"
        lines.append(f"PCL < PR in {MEASURES[row['measure']]}: {row['verdict']}; {found}.")
    hard = numbers["hard"]
    if hard and "distance" in hard:
        ratio, margin = hard["distance"][0] / hard["distance"][1], hard["margin"]
        lines.append(
            f"Hard examples of the base task ({hard['k']:.0f} a class) lie {ratio:.2f} times as far from the class "
            f"mean as others; margin (cosine to own prototype, less the best other) {margin[0]:.2f}, {margin[1]:.2f}."
        )
    return lines


def number(mean: float, deviation: float | None = None) -> str:
    """With digits after the point by its size, no exponent."""
    digits = 0 if abs(mean) >= 100 else 2 if abs(mean) >= 1 else 4
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


# ---------------------------------------------------------------------- figures


def planes(every: Sequence[Measurement]) -> Figure:
    """Figure 1: base-task features when just learned and after the last task, arrows from old to new class means."""
    shown = [(one, one.drawn) for one in every if one.drawn]
    figure = blank(0.4 + 2.6 * len(shown), 5.6)
    panels = figure.subplots(2, len(shown), squeeze=False, sharex="col", sharey="col")
    for column, (one, drawn) in zip(panels.T, shown, strict=True):
        for axes, places in zip(column, drawn["places"], strict=True):
            _scatter(axes, drawn["labels"], places)
        for was, now in drawn["means"]:
            for axes in column:
                axes.plot(*was, "o", color="white", markeredgecolor="black", markersize=4, zorder=6)
            arrow = {"arrowstyle": "-|>", "mutation_scale": 7, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
            column[1].annotate("", now, was, arrowprops=arrow, zorder=5)
        share = f"{100 * drawn['share']:.0f} % of variance in the plane"
        column[0].set_title(f"{paper.title(one.config.method)}\n{share}", fontsize=9)
    panels[0, 0].set_ylabel("base task just learned")
    panels[1, 0].set_ylabel("after the last task")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6, markerscale=2)
    figure.suptitle(
        f"{every[0].dataset}, seed 0: base-task features on the two main axes (PCA) of each method's\n"
        "own features before; ○ class mean before, arrows lead from there to the mean after",
        fontsize=9,
    )
    return figure


def hard_examples(every: Sequence[Measurement]) -> Figure | None:
    """Figure 5: the classes of the base task just after it was learned; hard examples are triangles."""
    one = next((one for one in every if one.drawn and "is_hard" in one.drawn), None)
    if one is None or one.drawn is None or one.hard is None:
        return None
    figure = blank(5.4, 4.9)
    axes = figure.subplots()
    labels, places, hard = (one.drawn[name] for name in ("hard_labels", "hard_places", "is_hard"))
    _scatter(axes, labels[~hard], places[~hard])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=6, markerscale=2)
    _scatter(axes, labels[hard], places[hard], s=60, marker="^", alpha=1, edgecolors="black", linewidths=0.8, zorder=4)
    axes.set_title(
        f"{one.dataset}, seed 0: base task just learned by {paper.title(one.config.method)}\n"
        f"t-SNE by cosine of {len(labels)} training nodes; △ the {one.hard['k']} hardest of each class",
        fontsize=9,
    )
    return figure


def _scatter(axes: Axes, labels: NDArray[Any], places: NDArray[Any], **look: Any) -> None:
    """Points by class."""
    for index, name in enumerate(np.unique(labels)):
        own = {"marker": CLASS_MARKERS[index % len(CLASS_MARKERS)], "color": COLOURS[index % len(COLOURS)]}
        style = {"s": 9, "alpha": 0.55, "linewidths": 0, **own, **look}
        axes.scatter(*places[labels == name].T, label=f"class {name}", **style)
    axes.set(xticks=[], yticks=[])
