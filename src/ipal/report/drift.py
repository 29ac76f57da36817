"""Tables and figures of drift, from what `ipal drift` has measured and stored."""

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import ConfigDict, Field, model_validator

from ipal.config import Tree, run_config
from ipal.errors import StoreError
from ipal.report import cells, paper, tables
from ipal.report.cells import CellTable
from ipal.report.figures import COLOURS, blank, mark_for, write_figure
from ipal.report.statistics import FEWEST, how_many, paired_interval, spread
from ipal.system.documents import Record, read_json
from ipal.system.files import write_atomically

SCORES = {"average_performance": "AP, %", "learning_accuracy": "accuracy on each task just learned, %"}
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
COMPARED = ("kl", "squared_shift", "trace", "relative_shift", "kl_ridge_0.01", "kl_ridge_0.1")
"""The first is that of Theorem 1, the next two are in its proof; the others show the effect of scale and ridge."""
CLASS_MARKERS = "osDPXp*hd8"  # no triangles: those are hard examples


Name = int | str


class DriftPoints(Record):
    """Training nodes of the first task, just after it was learned."""

    model_config = ConfigDict(strict=False)  # lists stand for the tuples
    plane_share: float
    plane: list[tuple[Name, float, float, float, float]]
    """On the plane of largest variance: class, place when learned, place after the last task."""
    means: list[tuple[Name, float, float, float, float]]
    """Of classes, all nodes."""
    hard: list[tuple[Name, bool, float, float]] = Field(default_factory=list)
    """Class, whether it is a hard example, and place by t-SNE."""


class Measurement(Record):
    """NAME.json: one run of one method, measured."""

    average_performance: float
    learning_accuracy: float
    """A method that learns less has less to drift for."""
    config: Tree
    ridge: float
    steps: list[dict[str, Any]] = Field(min_length=1)
    """Every old class after every later task."""
    stream: list[dict[str, Any]] = Field(min_length=1)
    """The classes of the first task after all tasks."""
    hard: dict[str, Any] | None
    drawn: DriftPoints | None
    """Of seed 0."""

    @model_validator(mode="after")
    def _has_all_measures(self) -> Self:
        for row in (*self.steps, *self.stream):
            if any(type(row.get(name)) not in (int, float) for name in MEASURES):
                raise ValueError("a class without its measures")
        if any(type(row.get("task")) is not int or type(row.get("class")) not in (int, str) for row in self.steps):
            raise ValueError("a step without its task and class")
        run_config(self.config)
        return self

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def dataset(self) -> str:
        return paper.dataset_title(self.config["dataset"])

    def mean(self, measure: str) -> float:
        return float(np.mean([row[measure] for row in self.steps]))


def read_measurement(path: Path) -> Measurement:
    try:
        return Measurement.model_validate(read_json(path))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is damaged: delete it, and it is measured again.") from error


def make_report(paths: Sequence[Path], out: Path, command: str) -> tuple[dict[str, Any], list[Path]]:
    """All tables and figures: the numbers as plain data, and the files written, the page first."""
    every = [read_measurement(path) for path in paths]
    numbers = summary(every)
    figures = {"kl-by-task": kl_curves, "figure1": planes, "figure5": hard_examples}
    images = [path for name, draw in figures.items() for path in write_figure(out / name, partial(draw, every))]
    caption, how = texts(every)
    page = [
        "# Drift of old classes' features",
        textwrap.fill(f"{caption} {how}", 120, break_long_words=False, break_on_hyphens=False),
        f"```console\n{command}\n```",
        tables.markdown(table(numbers)),
        "\n".join(f"- {line}" for line in verdicts(numbers)),
        *(f"![{path.stem}]({path.name})" for path in images if path.suffix == ".png"),
    ]
    files = {
        "drift.md": "\n\n".join(filter(None, page)) + "\n",
        "drift.tex": tables.latex(table(numbers), caption, "tab:drift", comments=[how]),
        "drift.csv": tables.cells_csv(table(numbers)),
        "steps.csv": tables.to_csv(
            {"method": one.method, "seed": one.seed, **row} for one in every for row in one.steps
        ),
    }
    for name, text in files.items():
        write_atomically(out / name, text)
    return numbers, [*(out / name for name in files), *images]


# ---------------------------------------------------------------------- numbers


def summary(every: Sequence[Measurement]) -> dict[str, Any]:
    """Mean over old classes and tasks within a seed, then mean and deviation over seeds; PR against PCL."""
    methods: dict[str, Any] = {}
    hard: dict[str, Any] | None = None
    for method in dict.fromkeys(one.method for one in every):
        mine = [one for one in every if one.method == method]
        values = {name: [getattr(one, name) for one in mine] for name in SCORES}
        values |= {measure: [one.mean(measure) for one in mine] for measure in MEASURES}
        values["kl_stream"] = [float(np.mean([row["kl"] for row in one.stream])) for one in mine]
        methods[method] = {name: summed._asdict() for name, each in values.items() if (summed := spread(each))}
        if rows := [one.hard for one in mine if one.hard]:
            hard = {name: np.mean([row[name] for row in rows], axis=0).tolist() for name in rows[0]}
    compared = [_compare(every, measure) for measure in COMPARED] if methods.keys() >= set(paper.THEOREM1) else []
    seeds = sorted({one.seed for one in every})
    return {"ridge": every[0].ridge, "seeds": seeds, "methods": methods, "comparison": compared, "hard": hard}


def _compare(every: Sequence[Measurement], measure: str) -> dict[str, Any]:
    pr, pcl = ([one for one in every if one.method == name] for name in paper.THEOREM1)
    means = [{one.seed: one.mean(measure) for one in each} for each in (pr, pcl)]
    interval = paired_interval(means[0], means[1])
    high, low = (
        {(one.seed, row["task"], row["class"]): row[measure] for one in each for row in one.steps} for each in (pr, pcl)
    )
    lower = float(np.mean([low[key] < high[key] for key in high.keys() & low.keys()]))
    found: dict[str, float | None] = interval._asdict() if interval else dict.fromkeys(("difference", "low", "high"))
    verdict = "undecided"
    if interval and not interval.low <= 0 <= interval.high:
        verdict = "supported" if interval.low > 0 else "contradicted"
    return {"measure": measure, **found, "pcl_lower_share": lower, "verdict": verdict}


def texts(every: Sequence[Measurement]) -> tuple[str, str]:
    """What was measured, in one sentence; and how."""
    first, train = every[0], every[0].config["train"]
    caption = (
        f"{first.dataset}, tasks of {'+'.join(map(str, first.config['split']))} classes: drift of old classes, mean "
        f"over classes and tasks ± standard deviation over {how_many(one.seed for one in every)}."
    )
    same = f"All methods: {train['epochs']} epochs a task, rate {train['lr_base']}, later tasks {train['lr_next']}."
    if any(one.config["train"] != train for one in every):
        same = "Training settings DIFFER."
    how = (
        f"Training nodes of every old class, embedded on their own task's graph before and after each later task; "
        f"Gaussians with full covariance plus a ridge of {first.ridge:g} times the class's mean variance before, the "
        f"same on both sides. {same} The KL is half the sum of the three terms below it. ‖μ′−μ‖² depends on the "
        f"scale of a method's embeddings, all else does not; 'variance' is the class's mean variance before."
    )
    return caption, how


def table(numbers: Mapping[str, Any]) -> CellTable:
    """Measures down, methods across."""
    names = {**SCORES, **MEASURES, "kl_stream": "KL, base task to last"}
    rows = [(title, *(_cell(**one[key]) for one in numbers["methods"].values())) for key, title in names.items()]
    return cells.table("", ("measure", *map(paper.title, numbers["methods"])), rows)


def _cell(mean: float, deviation: float | None) -> cells.Cell:
    return cells.Cell(number(mean, deviation), mean, deviation=deviation)


def verdicts(numbers: Mapping[str, Any]) -> list[str]:
    """One sentence for each quantity that should be lower for PCL than for PR, and on where hard examples lie."""
    lines = []
    for row in numbers["comparison"]:
        share = f"PCL is lower in {100 * row['pcl_lower_share']:.0f} % of classes and tasks"
        found = f"with fewer than {FEWEST} seeds there is no interval"
        if row["difference"] is not None:
            found = f"PR − PCL {number(row['difference'])} [{number(row['low'])}, {number(row['high'])}] (95 %)"
        lines.append(f"PCL < PR in {MEASURES[row['measure']]}: {row['verdict']}; {found}; {share}.")
    hard = numbers["hard"]
    if hard and "distance" in hard:
        ratio, margin = hard["distance"][0] / hard["distance"][1], hard["margin"]
        wrong, lowest = ([100 * share for share in hard[name]] for name in ("wrong", "lowest"))
        lines += [
            f"Hard examples of the base task ({hard['k']:.0f} a class) lie {ratio:.2f} times as far from their class "
            f"mean as others; margin (cosine to own prototype minus best other) {margin[0]:.2f} against "
            f"{margin[1]:.2f}; {wrong[0]:.1f} % against {wrong[1]:.1f} % lie on the wrong side.",
            f"Of them {lowest[0]:.0f} % are among the equally many nodes of lowest margin in their class, "
            f"of the others {lowest[1]:.1f} %.",
        ]
    return lines


def number(mean: float, deviation: float | None = None) -> str:
    """With digits after the point by its size, no exponent."""
    digits = 0 if abs(mean) >= 100 else 2 if abs(mean) >= 1 else 4
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


# ---------------------------------------------------------------------- figures


def kl_curves(every: Sequence[Measurement]) -> Figure:
    """KL of each task's step by task, one line per method."""
    figure = blank(5.4, 3.6)
    axes = figure.subplots()
    methods = list(dict.fromkeys(one.method for one in every))
    tasks = sorted({row["task"] for row in every[0].steps})
    for method in methods:
        mark, mine = mark_for(method, methods), [one.steps for one in every if one.method == method]
        kl = [[np.mean([row["kl"] for row in rows if row["task"] == task]) for task in tasks] for rows in mine]
        line = {"color": mark.colour, "linestyle": mark.dash, "marker": mark.marker, "label": paper.title(method)}
        axes.plot(tasks, np.mean(kl, axis=0), **line)
        axes.fill_between(tasks, np.min(kl, axis=0), np.max(kl, axis=0), color=mark.colour, alpha=0.15, linewidth=0)
    if all(one.mean("kl") > 0 for one in every):
        axes.set_yscale("log")
    axes.set_xticks(tasks, [str(task + 1) for task in tasks])
    axes.set(xlabel="task learned", ylabel="KL before ‖ after, mean of old classes")
    axes.set_title(f"{every[0].dataset}: drift at each task (mean and range of {how_many(one.seed for one in every)})")
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.legend()
    return figure


def planes(every: Sequence[Measurement]) -> Figure:
    """Figure 1: base-task features when just learned and after the last task, arrows from old to new class means."""
    shown = [(one, one.drawn) for one in every if one.drawn]
    figure = blank(0.4 + 2.6 * len(shown), 5.6)
    panels = figure.subplots(2, len(shown), squeeze=False, sharex="col", sharey="col")
    for column, (one, drawn) in zip(panels.T, shown, strict=True):
        _scatter(column[0], [(name, x, y) for name, x, y, _, _ in drawn.plane])
        _scatter(column[1], [(name, x, y) for name, _, _, x, y in drawn.plane])
        for _, *means in drawn.means:
            for axes in column:
                axes.plot(*means[:2], "o", color="white", markeredgecolor="black", markersize=4, zorder=6)
            arrow = {"arrowstyle": "-|>", "mutation_scale": 7, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
            column[1].annotate("", means[2:], means[:2], arrowprops=arrow, zorder=5)
        share = f"{100 * drawn.plane_share:.0f} % of variance in the plane"
        column[0].set_title(f"{paper.title(one.method)}\n{share}", fontsize=9)
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
    one = next((one for one in every if one.hard and one.drawn and one.drawn.hard), None)
    if one is None or one.drawn is None or one.hard is None:
        return None
    figure = blank(5.4, 4.9)
    axes = figure.subplots()
    _scatter(axes, [(name, x, y) for name, is_hard, x, y in one.drawn.hard if not is_hard])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=6, markerscale=2)
    hard = [(name, x, y) for name, is_hard, x, y in one.drawn.hard if is_hard]
    _scatter(axes, hard, s=60, marker="^", alpha=1, edgecolors="black", linewidths=0.8, zorder=4)
    axes.set_title(
        f"{one.dataset}, seed 0: base task just learned by {paper.title(one.method)}\n"
        f"t-SNE by cosine of {len(one.drawn.hard)} training nodes; △ the {one.hard['k']} hardest of each class",
        fontsize=9,
    )
    return figure


def _scatter(axes: Axes, rows: Sequence[tuple[Name, float, float]], **look: Any) -> None:
    """Points by class."""
    for index, name in enumerate(sorted({name for name, *_ in rows})):
        own = {"marker": CLASS_MARKERS[index % len(CLASS_MARKERS)], "color": COLOURS[index % len(COLOURS)]}
        places = np.array([place for label, *place in rows if label == name])
        style = {"s": 9, "alpha": 0.55, "linewidths": 0, **own, **look}
        axes.scatter(*places.T, label=f"class {name}", **style)
    axes.set(xticks=[], yticks=[])
