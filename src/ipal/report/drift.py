"""Tables and figures of drift, from what `ipal drift` has measured and stored."""

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ipal.errors import DataError, StoreError
from ipal.report import cells, paper, tables
from ipal.report.cells import CellTable
from ipal.report.figures import DPI, write_figure
from ipal.report.statistics import how_many, paired_interval, spread
from ipal.report.styles import COLOURS, mark_for
from ipal.system.arrays import read_npz
from ipal.system.documents import Record, read_json
from ipal.system.files import open_plain, write_atomically

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
POINTS = 900
"""Most nodes in a panel of Figure 1."""
FEWEST = 3
"""Seeds that an interval needs: only two methods are compared, so it is narrower than those of tables."""
HALO = [withStroke(linewidth=2.5, foreground="white")]


@dataclass(frozen=True, eq=False)
class Measurement:
    """One run of one method, measured."""

    method: str
    seed: int
    facts: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    @property
    def title(self) -> str:
        return paper.title(self.method)

    @property
    def dataset(self) -> str:
        return paper.dataset_title(self.facts["config"]["dataset"])

    def mean(self, measure: str, part: str = "steps") -> float:
        return float(np.mean([row[measure] for row in self.facts[part]]))

    def by_task(self, measure: str) -> dict[int, float]:
        tasks = sorted({row["task"] for row in self.facts["steps"]})
        return {t: float(np.mean([row[measure] for row in self.facts["steps"] if row["task"] == t])) for t in tasks}


class _Config(Record):
    method: str
    seed: int
    dataset: str
    train: dict[str, Any]


class _Facts(Record):
    """NAME.json."""

    average_performance: float
    learning_accuracy: float
    """A method that learns less has less to drift for."""
    config: _Config
    ridge: float
    steps: list[dict[str, Any]] = Field(min_length=1)
    """Every old class after every later task."""
    stream: list[dict[str, Any]] = Field(min_length=1)
    """The classes of the first task after all tasks."""
    plane_share: float
    hard: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_all_measures(self) -> Self:
        for row in (*self.steps, *self.stream):
            if any(type(row.get(name)) not in (int, float) for name in MEASURES):
                raise ValueError("a class without its measures")
        if any(type(row.get("task")) is not int or type(row.get("class")) not in (int, str) for row in self.steps):
            raise ValueError("a step without its task and class")
        return self


def read_measurement(path: Path) -> Measurement:
    """A measurement from its two files."""
    damaged = f"{path} or its .npz is damaged: delete both, and they are measured again."
    try:
        facts = read_json(path)
        _Facts.model_validate(facts)
        with open_plain(path.with_suffix(".npz")) as file:
            arrays = read_npz(file, lambda _: True, lambda *_: None, damaged, kinds="fiubUS")
        if len({len(arrays[name]) for name in ("labels", "plane_before", "plane_after")}) > 1:
            raise ValueError("arrays of different lengths")
        return Measurement(facts["config"]["method"], facts["config"]["seed"], facts, arrays)
    except (OSError, ValueError, LookupError, TypeError, DataError) as error:
        raise StoreError(damaged) from error


def make_report(paths: Sequence[Path], out: Path, command: str) -> tuple[dict[str, Any], list[Path]]:
    """All tables and figures: the numbers as plain data, and the files written, the page first."""
    every = [read_measurement(path) for path in paths]
    numbers = summary(every)
    drawn = {one.method: one for one in reversed(every)}  # the first seed of each method
    shown = list(reversed(drawn.values()))
    with_hard = next((one for one in shown if "hard" in one.facts), None)
    figures: dict[str, Callable[[], Figure | None]] = {"kl-by-task": partial(kl_curves, every)}
    figures |= {"figure1": partial(planes, shown), "figure5": partial(hard_examples, with_hard)}
    images = [path for name, draw in figures.items() for path in write_figure(out / name, draw)]
    page = [
        "# Drift of old classes' features",
        textwrap.fill(f"{caption(every)} {measured(every)}", 120, break_long_words=False, break_on_hyphens=False),
        f"```console\n{command}\n```",
        tables.markdown(table(numbers)),
        *("\n".join(f"- {line}" for line in lines) for lines in (verdicts(numbers), about_hard(numbers)) if lines),
        *(f"![{path.stem}]({path.name})" for path in images if path.suffix == ".png"),
    ]
    by_measure = [
        {"method": method, "measure": name, **each}
        for method, measures in numbers["methods"].items()
        for name, each in measures.items()
    ]
    steps = [{"method": one.method, "seed": one.seed, **row} for one in every for row in one.facts["steps"]]
    texts = {
        "drift.md": "\n\n".join(page) + "\n",
        "drift.tex": tables.latex(table(numbers), caption(every), "tab:drift", comments=[measured(every)]),
        "drift.csv": tables.to_csv(by_measure),
        "steps.csv": tables.to_csv(steps),
    }
    for name, text in texts.items():
        write_atomically(out / name, text)
    return numbers, [*(out / name for name in texts), *images]


def summary(every: Sequence[Measurement]) -> dict[str, Any]:
    """Mean over old classes and tasks within a seed, then mean and deviation over seeds; PR against PCL."""
    methods: dict[str, Any] = {}
    hard: dict[str, Any] | None = None
    for method in dict.fromkeys(one.method for one in every):
        mine = [one for one in every if one.method == method]
        values = {name: [one.facts[name] for one in mine] for name in SCORES}
        values |= {measure: [one.mean(measure) for one in mine] for measure in MEASURES}
        values["kl_stream"] = [one.mean("kl", "stream") for one in mine]
        methods[method] = {name: summed._asdict() for name, each in values.items() if (summed := spread(each))}
        if "hard" in mine[0].facts:
            rows = [one.facts["hard"] for one in mine]
            hard = {name: np.mean([row[name] for row in rows], axis=0).tolist() for name in rows[0]}
    ridge, seeds = every[0].facts["ridge"], sorted({one.seed for one in every})
    compared = [_compare(every, measure) for measure in COMPARED] if methods.keys() >= set(paper.THEOREM1) else []
    return {"ridge": ridge, "seeds": seeds, "methods": methods, "comparison": compared, "hard": hard}


def _compare(every: Sequence[Measurement], measure: str) -> dict[str, Any]:
    pr, pcl = ({one.seed: one for one in every if one.method == name} for name in paper.THEOREM1)
    means = [{seed: one.mean(measure) for seed, one in each.items()} for each in (pr, pcl)]
    interval = paired_interval(means[0], means[1], fewest=FEWEST)
    rows = [
        {(one.seed, row["task"], row["class"]): row[measure] for one in each.values() for row in one.facts["steps"]}
        for each in (pr, pcl)
    ]
    lower = [rows[1][key] < rows[0][key] for key in rows[0].keys() & rows[1].keys()]
    verdict = "undecided" if interval is None or interval.low <= 0 <= interval.high else "supported"
    if interval and interval.high < 0:
        verdict = "contradicted"
    found = interval._asdict() if interval else {"difference": None, "low": None, "high": None}
    return {"measure": measure, **found, "pcl_lower_share": float(np.mean(lower)), "verdict": verdict}


def caption(every: Sequence[Measurement]) -> str:
    """What was measured, in one sentence."""
    split = "+".join(map(str, every[0].facts["config"]["split"]))
    return (
        f"{every[0].dataset}, tasks of {split} classes: drift of old classes, mean over classes and tasks "
        f"± standard deviation over {_seeds(every)}."
    )


def measured(every: Sequence[Measurement]) -> str:
    """How it was measured."""
    config, ridge = every[0].facts["config"], every[0].facts["ridge"]
    train = {json.dumps(one.facts["config"]["train"], sort_keys=True) for one in every}
    rates = f"{config['train']['epochs']} epochs a task, rate {config['train']['lr_base']:g}, later tasks "
    same = f"All methods: {rates}{config['train']['lr_next']:g}." if len(train) == 1 else "Training settings DIFFER."
    return (
        f"Training nodes of every old class, embedded on their own task's graph before and after each later task; "
        f"Gaussians with full covariance plus a ridge of {ridge:g} times the class's mean variance before, the same on "
        f"both sides. {same} The KL is half the sum of the three terms below it. ‖μ′−μ‖² depends on the scale of a "
        f"method's embeddings, all else does not; 'variance' is the class's mean variance before."
    )


def table(numbers: Mapping[str, Any]) -> CellTable:
    """Measures down, methods across."""
    names = {**SCORES, **MEASURES, "kl_stream": "KL, base task to last"}
    methods = numbers["methods"]
    rows = [
        (title, *(cells.Cell(number(**one[key]), one[key]["mean"]) for one in methods.values()))
        for key, title in names.items()
    ]
    return cells.table("", ("measure", *map(paper.title, methods)), rows)


def verdicts(numbers: Mapping[str, Any]) -> list[str]:
    """One sentence for each quantity that should be lower for PCL than for PR."""
    lines = []
    for row in numbers["comparison"]:
        share = f"PCL is lower in {100 * row['pcl_lower_share']:.0f} % of classes and tasks"
        found = f"with fewer than {FEWEST} seeds there is no interval"
        if row["difference"] is not None:
            found = f"PR − PCL {number(row['difference'])} [{number(row['low'])}, {number(row['high'])}] (95 %)"
        lines.append(f"PCL < PR in {MEASURES[row['measure']]}: {row['verdict']}; {found}; {share}.")
    return lines


def about_hard(numbers: Mapping[str, Any]) -> list[str]:
    """Where the hard examples lie."""
    hard = numbers["hard"]
    if not hard or "distance" not in hard:
        return []
    ratio, margin = hard["distance"][0] / hard["distance"][1], hard["margin"]
    wrong, lowest = ([100 * share for share in hard[name]] for name in ("wrong", "lowest"))
    return [
        f"Hard examples of the base task ({hard['k']:.0f} a class) lie {ratio:.2f} times as far from their class mean "
        f"as others; margin (cosine to own prototype minus best other) {margin[0]:.2f} against {margin[1]:.2f}; "
        f"{wrong[0]:.1f} % against {wrong[1]:.1f} % lie on the wrong side.",
        f"Of them {lowest[0]:.0f} % are among the equally many nodes of lowest margin in their class, "
        f"of the others {lowest[1]:.1f} %.",
    ]


def number(mean: float, deviation: float | None = None) -> str:
    """With digits after the point by its size, no exponent."""
    digits = 0 if abs(mean) >= 100 else 2 if abs(mean) >= 1 else 4
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def kl_curves(every: Sequence[Measurement]) -> Figure:
    """KL of each task's step by task, one line per method."""
    figure = Figure(figsize=(5.4, 3.6), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    methods = list(dict.fromkeys(one.method for one in every))
    for method in methods:
        mark = mark_for(method, methods)
        mine = [one for one in every if one.method == method]
        curves = np.array([list(one.by_task("kl").values()) for one in mine])
        tasks = [task + 1 for task in mine[0].by_task("kl")]
        line = {"color": mark.colour, "linestyle": mark.dash, "marker": mark.marker, "linewidth": mark.width}
        axes.plot(tasks, curves.mean(axis=0), label=mine[0].title, markersize=6, **line)
        axes.fill_between(tasks, curves.min(axis=0), curves.max(axis=0), color=mark.colour, alpha=0.15, linewidth=0)
    if all(one.mean("kl") > 0 for one in every):
        axes.set_yscale("log")
    axes.set(xlabel="task learned", ylabel="KL before ‖ after, mean of old classes", xticks=tasks)
    axes.set_title(f"{every[0].dataset}: drift at each task (mean and range of {_seeds(every)})")
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.legend(frameon=False)
    return figure


def planes(shown: Sequence[Measurement]) -> Figure:
    """Figure 1: base-task features when just learned and after the last task, arrows from old to new class means."""
    figure = Figure(figsize=(0.4 + 2.6 * len(shown), 5.6), dpi=DPI, layout="constrained")
    panels = figure.subplots(2, len(shown), squeeze=False, sharex="col", sharey="col")
    for column, one in zip(panels.T, shown, strict=True):
        labels, before, after = (one.arrays[name] for name in ("labels", "plane_before", "plane_after"))
        chosen = np.random.default_rng(0).permutation(len(labels))[:POINTS]
        for axes, points in zip(column, (before, after), strict=True):
            _scatter(axes, points[chosen], labels[chosen], labels)
            axes.set(xticks=[], yticks=[])
        for label in np.unique(labels):
            old, new = (points[labels == label].mean(axis=0) for points in (before, after))
            for axes in column:
                axes.plot(
                    *old, "o", color="white", markeredgecolor="black", markersize=4, markeredgewidth=0.9, zorder=6
                )
            arrow = {"arrowstyle": "-|>", "mutation_scale": 7, "color": "black", "linewidth": 1.2}
            column[1].annotate("", new, old, arrowprops={**arrow, "shrinkA": 0, "shrinkB": 0}, zorder=5)
        column[0].set_title(f"{one.title}\n{100 * one.facts['plane_share']:.0f} % of variance in the plane", fontsize=9)
    panels[0, 0].set_ylabel("base task just learned")
    panels[1, 0].set_ylabel("after the last task")
    handles, names = panels[0, 0].get_legend_handles_labels()
    if len(names) <= 12:
        figure.legend(handles, names, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    figure.suptitle(
        f"{shown[0].dataset}, seed {shown[0].seed}: base-task features on the two main axes (PCA) of each method's\n"
        "own features before; ○ class mean before, arrows lead from there to the mean after",
        fontsize=9,
    )
    return figure


def hard_examples(one: Measurement | None) -> Figure | None:
    """Figure 5: the classes of the base task just after it was learned; hard examples are triangles."""
    if one is None or len(one.arrays["shown"]) < 5:
        return None
    from sklearn.manifold import TSNE

    labels, hard = one.arrays["labels"][one.arrays["shown"]], one.arrays["shown_hard"]
    perplexity = min(30.0, (len(labels) - 1) / 3)
    tsne = TSNE(metric="cosine", perplexity=perplexity, random_state=0, n_jobs=1)
    points = tsne.fit_transform(one.arrays["shown_features"])
    figure = Figure(figsize=(5.4, 4.9), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    _scatter(axes, points[~hard], labels[~hard], one.arrays["labels"])
    for index, label in enumerate(np.unique(labels)):
        style: dict[str, Any] = {
            "color": "white",
            "edgecolors": COLOURS[index % len(COLOURS)],
            "linewidths": 1.1,
            "zorder": 4,
        }
        mine = points[hard & (labels == label)]
        axes.scatter(mine[:, 0], mine[:, 1], marker="^", s=95, **style)
        for x, y in mine:
            text: dict[str, Any] = {"fontsize": 5.5, "ha": "center", "textcoords": "offset points", "zorder": 5}
            axes.annotate(str(label), (x, y), (0, -3.2), **text)
        middle = np.median(points[labels == label], axis=0)
        axes.annotate(f"class {label}", middle, ha="center", fontweight="bold", zorder=6, path_effects=HALO)
    axes.set(xticks=[], yticks=[])
    axes.set_title(
        f"{one.dataset}, seed {one.seed}: base task just learned by {one.title}\n"
        f"t-SNE by cosine of {len(labels)} training nodes; △ the {one.facts['hard']['k']} hardest of each class",
        fontsize=9,
    )
    return figure


def _scatter(axes: Axes, points: NDArray[Any], labels: NDArray[Any], every: NDArray[Any]) -> None:
    for index, label in enumerate(np.unique(every)):
        marker, colour = CLASS_MARKERS[index % len(CLASS_MARKERS)], COLOURS[index % len(COLOURS)]
        x, y = points[labels == label].T
        axes.scatter(x, y, s=9, marker=marker, color=colour, alpha=0.55, linewidths=0, label=f"class {label}")


def _seeds(every: Sequence[Measurement]) -> str:
    return how_many(one.seed for one in every)
