"""Sections of one run on accuracy, classes and training."""

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ipal.evaluation.metrics import METRICS
from ipal.report.cells import Cell, CellTable, signless, table
from ipal.report.collect import Run
from ipal.report.page import plots
from ipal.report.page.plots import Chart, PageSection, Spec
from ipal.runs.records import stream_in_words

Counts = NDArray[np.int64]
"""Test nodes by true (row) and predicted class (column), in the order learned."""

ACCURACIES = {"balanced": "the mean recall of its classes", "micro": "the share of its nodes that are predicted right"}

# ---------------------------------------------------------------------- by task


def accuracy_section(run: Run) -> PageSection:
    among = {
        "class": "over all classes seen so far, without knowing the node's task",
        "task": "over the classes of the node's own task, which is known",
    }.get(str(run.result.protocol.stream), f"stream {stream_in_words(run.result.protocol.stream)}")
    accuracy, moments = run.result.protocol.accuracy, plots.tasks(len(run.matrix))
    titles = ("after learning", "tested on", "accuracy %")
    matrix = Chart(
        "matrix",
        "Accuracy matrix",
        "A row is a moment, a column a task that is tested: read a column downwards to see a task being forgotten. "
        "AP is the mean of the last row, AF the mean change from the diagonal to the last row.",
        plots.heat_map(moments, moments, run.result.accuracy_matrix, titles, "After learning {y}:\n{z:.2f} % on {x}"),
    )
    return PageSection(
        "accuracy",
        "Accuracy",
        lead=f"On test nodes, {among}. A task's accuracy is {ACCURACIES.get(accuracy, accuracy)}.",
        content=[matrix, _curve_chart(run), _metrics_table(run)],
    )


def _curve_chart(run: Run) -> Chart:
    matrix, names, hover = run.matrix, plots.tasks(len(run.matrix)), "{y:.2f} % after {x}"
    lines = [plots.line(f"on {name}", names[on:], matrix[on:, on].tolist(), on, hover) for on, name in enumerate(names)]
    lines.append(plots.line("AP (mean)", names, run.result.average_performance_curve, 0, hover, is_main=True))
    down = plots.percent_axis("accuracy", [value for one in lines for value in one["y"]])
    return Chart(
        "curve",
        "AP after each task",
        "The thick line is AP, the mean over the tasks seen so far; thin lines are these tasks.",
        {"traces": lines, "height": 380, "x": {"title": "after learning", "names": names}, "y": down},
    )


def _metrics_table(run: Run) -> CellTable:
    known = {metric.title: metric for metric in METRICS.values()}
    rows = []
    for title, value in run.scores.items():
        unit, about = (known[title].unit, known[title].about) if title in known else ("", "")
        rows.append((title, Cell(signless(f"{value:.2f}"), value), unit, about))
    return table("Metrics of the whole run", ("metric", "value", "unit", "meaning"), rows)


# ---------------------------------------------------------------------- by class


def classes_section(run: Run) -> PageSection:
    """Recall of every class after each task, and what its nodes are taken for."""
    names = run.confusion.classes
    counts = [counted(rows, len(names)) for rows in run.confusion.after_task]
    percent = [shares(one) for one in counts]
    recalls = [[one[place][place] for one in percent] for place in range(len(names))]
    return PageSection(
        "classes",
        "Classes",
        lead="Recall of a class: the share of its test nodes that are predicted as that class.",
        content=[_recall_chart(names, recalls), _confusion_chart(names, counts)],
    )


def _recall_chart(names: Sequence[str], recalls: Sequence[plots.Values]) -> Chart:
    titles, moments = ("class", "after learning", "recall %"), plots.tasks(len(recalls[0]))
    return Chart(
        "recall",
        "Recall of every class over the tasks",
        "Read a row from left to right: where it pales, the class is being forgotten.",
        plots.heat_map(names, moments, recalls, titles, "{z:.1f} % of class {y}\nafter {x}"),
    )


def _confusion_chart(names: Sequence[str], counts: Sequence[Counts]) -> Chart:
    """Which class is taken for which, after each task."""
    titles = ("true class", "predicted class", "% of the row")
    hover = "{about} test nodes of {y} ({z:.1f} %)\nwere taken for {x}"
    specs = [
        plots.heat_map(
            names, names, shares(one), titles, hover, lowest=0, about=one.tolist(), about_title="nodes", scale="errors"
        )
        for one in counts
    ]
    return Chart(
        "confusion",
        "Which class is taken for which",
        "Where the test nodes of a class end up. Right of the diagonal, old ones are taken for newer ones.",
        {},
        [f"after {name}" for name in plots.tasks(len(specs))],
        specs,
    )


# ---------------------------------------------------------------------- counts


def counted(rows: Iterable[tuple[int, int, int]], classes: int) -> Counts:
    """From true class, predicted class and number of nodes."""
    counts = np.zeros((classes, classes), np.int64)
    for true, predicted, nodes in rows:
        counts[true, predicted] += nodes
    return counts


def shares(counts: Counts) -> list[list[float | None]]:
    """In percent of each row; None in a row without a node. On the diagonal is the recall of a class."""
    return [[round(100 * int(one) / total, 4) if (total := int(row.sum())) else None for one in row] for row in counts]


# ---------------------------------------------------------------------- training


def along_section(run: Run) -> PageSection | None:
    """Accuracy along a stream of batches; None where tasks come whole."""
    points = run.result.along
    if points is None:
        return None
    look: Spec = {"is_main": True, "size": 6, "markers": len(points.batch) <= 60}
    hover = "{y:.2f} % after batch {x}"
    line = plots.line("mean accuracy", points.batch, points.test, 0, hover, **look)
    batches = run.result.protocol.batches or []
    ends = list(accumulate(batches, initial=0))[: len(batches)]
    borders = list(zip([end + 0.5 for end in ends], plots.tasks(len(ends)), strict=True))
    down = plots.percent_axis("mean accuracy", points.test)
    chart = Chart(
        "along",
        "Accuracy along the stream",
        "Mean test accuracy over the tasks so far; AAUC is the mean of these points.",
        {"traces": [line], "height": 380, "x": {"title": "batches learned"}, "y": down, "borders": borders},
    )
    lead = "Tasks came in batches of nodes, each seen once. The learner was also tested between them."
    return PageSection("along", "Along the stream", lead=lead, content=[chart])


def training_section(run: Run) -> PageSection | None:
    """The named loss terms, epoch by epoch; None where nothing is trained."""
    history = run.history
    if not history:
        return None
    epochs, tasks = list(range(1, len(history) + 1)), [int(row["task"] or 0) for row in history]
    begins = [place for place, task in enumerate(tasks) if place == 0 or task != tasks[place - 1]]
    terms = [name for name in history[0] if name not in {"task", "epoch"}]
    lines = [
        plots.line(
            term, epochs, [row[term] for row in history], index, "{y:.4g} in epoch {x}", markers=len(epochs) < 41
        )
        for index, term in enumerate(terms)
    ]
    across, down = {"title": "epochs, all tasks in a row"}, {"title": "value of the term", "low": 0}
    borders = [(place + 0.5, f"task {tasks[place] + 1}") for place in begins]
    chart = Chart(
        "losses",
        "Loss terms over time",
        "Each term that the method adds up, as it was in each epoch; dotted lines are where a new task begins.",
        {"traces": lines, "height": 380, "x": across, "y": down, "together": True, "borders": borders},
    )
    return PageSection("training", "Training", content=[chart])
