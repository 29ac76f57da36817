"""Sections of one run on accuracy, classes and training."""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ipal.evaluation.metrics import ACCURACIES, METRICS
from ipal.report.cells import CellTable, count, number, table
from ipal.report.collect import Run
from ipal.report.page import plots
from ipal.report.page.plots import Chart, PageSection, Spec
from ipal.report.statistics import scale_from
from ipal.runs.records import stream_in_words

Counts = NDArray[np.int64]
"""Test nodes by true (row) and predicted class (column), in the order learned."""

# ---------------------------------------------------------------------- by task


def accuracy_section(run: Run) -> PageSection:
    name = run.result.protocol.accuracy
    how = ACCURACIES[name].about if name in ACCURACIES else name
    among = {
        "class": "over all classes seen so far, without knowing the node's task",
        "task": "over the classes of the node's own task, which is known",
    }.get(str(run.result.protocol.stream), f"stream {stream_in_words(run.result.protocol.stream)}")
    matrix = Chart(
        "matrix",
        "Accuracy matrix",
        "A row is a moment, a column a task that is tested: read a column downwards to see a task being forgotten. "
        "AP is the mean of the last row, AF the mean change from the diagonal to the last row.",
        matrix_spec(run.matrix),
    )
    return PageSection(
        "accuracy",
        "Accuracy",
        lead=f"On test nodes, {among}. A task's accuracy: {how}.",
        content=[matrix, _curve_chart(run), _metrics_table(run)],
    )


def matrix_spec(matrix: NDArray[np.float64]) -> Spec:
    """The accuracy matrix."""
    names, titles = plots.tasks(len(matrix)), ("after learning", "tested on", "accuracy %")
    values = [[None if math.isnan(value) else value for value in row] for row in matrix.tolist()]
    lowest = scale_from(np.nanmin(matrix, axis=1).tolist())
    return plots.heat_map(names, names, values, titles, "After learning {y}:\n{z:.2f} % on {x}", lowest=lowest)


def _curve_chart(run: Run) -> Chart:
    matrix, names, hover = run.matrix, plots.tasks(len(run.matrix)), "{y:.2f} % after {x}"
    lines = [plots.line(f"on {name}", names[on:], matrix[on:, on].tolist(), on, hover) for on, name in enumerate(names)]
    lines.append(plots.line("AP (mean)", names, run.result.average_performance_curve, 0, hover, is_main=True))
    down = plots.percent_axis("accuracy", [value for one in lines for value in one["y"]])
    return Chart(
        "curve",
        "AP after each task",
        "The thick line is AP, the mean over the tasks seen so far; thin lines are these tasks.",
        plots.spec(lines, 380, plots.axis("after learning", names=names), down),
    )


def _metrics_table(run: Run) -> CellTable:
    known = {metric.title: metric for metric in METRICS.values()}
    rows = []
    for title, value in run.scores.items():
        unit, about = (known[title].unit, known[title].about) if title in known else ("", "")
        rows.append((title, number(value), unit, about))
    return table("Metrics of the whole run", ("metric", "value", "unit", "meaning"), rows)


# ---------------------------------------------------------------------- by class


def classes_section(run: Run) -> PageSection:
    """Recall of every class after each task, and what its nodes are taken for."""
    names, counts, task = run.confusion.classes, counts_of(run), run.task_of_class
    # Of every class after every task; None before it is learned, and without test nodes.
    after_task = [[row[place] for place, row in enumerate(shares(one))] for one in counts]
    recalls = [[one[place] if place < len(one) else None for one in after_task] for place in range(len(names))]
    by_task = [grouped(one, task[: len(one)], max(task[: len(one)]) + 1) for one in counts]
    return PageSection(
        "classes",
        "Classes",
        lead="Recall of a class: the share of its test nodes that are predicted as that class.",
        content=[
            _recall_chart(names, recalls),
            _confusion_chart("task", plots.tasks(len(run.matrix)), by_task),
            _confusion_chart("class", names, counts),
            _class_table(run, counts[-1], recalls),
        ],
    )


def _recall_chart(names: Sequence[str], recalls: Sequence[plots.Values]) -> Chart:
    titles, moments = ("class", "after learning", "recall %"), plots.tasks(len(recalls[0]))
    lowest = scale_from(value for row in recalls for value in row if value is not None)
    hover = "{z:.1f} % of class {y}\nafter {x}"
    return Chart(
        "recall",
        "Recall of every class over the tasks",
        "Read a row from left to right: where it pales, the class is being forgotten.",
        plots.heat_map(names, moments, recalls, titles, hover, lowest=lowest),
    )


def _confusion_chart(what: str, names: Sequence[str], counts: Sequence[Counts]) -> Chart:
    """Which task or class is taken for which, after each task."""
    titles = (f"true {what}", f"predicted {what}", "% of the row")
    hover = "{about} test nodes of {y} ({z:.1f} %)\nwere taken for {x}"
    specs = [
        plots.heat_map(
            names[: len(one)], names[: len(one)], shares(one), titles, hover,
            about=one.tolist(), about_title="nodes", scale="errors",
        )
        for one in counts
    ]  # fmt: skip
    return Chart(
        f"{what}-confusion",
        f"Which {what} is taken for which",
        f"Where the test nodes of a {what} end up. Right of the diagonal, old ones are taken for newer ones.",
        {},
        [f"after {name}" for name in plots.tasks(len(specs))],
        specs,
        chosen=len(specs) - 1,
    )


def _class_table(run: Run, counts: Counts, recalls: Sequence[plots.Values]) -> CellTable:
    names, rows = run.confusion.classes, []
    taught = run.result.retained.nodes_behind_class
    for place, (name, task) in enumerate(zip(names, run.task_of_class, strict=True)):
        first, last = recalls[place][task], recalls[place][-1]
        wrong = np.where(np.arange(len(names)) == place, 0, counts[place])
        rows.append(
            (
                name,
                f"task {task + 1}",
                count(taught[name]) if name in taught else "–",
                count(int(counts[place].sum())),
                number(first, 1),
                number(last, 1),
                number(None if first is None or last is None else last - first, 1),
                f"{names[wrong.argmax()]} ({wrong.max()})" if wrong.any() else "–",
            )
        )
    columns = ("class", "learned in", "trained on", "test nodes", "recall when learned %", "recall now %", "change")
    return table("Classes after the last task", (*columns, "mostly taken for"), rows)


# ---------------------------------------------------------------------- counts


def counts_of(run: Run) -> list[Counts]:
    """Confusions of the classes known after each task; where tasks overlap, also of later ones that were predicted."""
    moments, task = run.confusion.after_task, run.task_of_class
    predicted = [max((place + 1 for _, place, _ in rows), default=0) for rows in moments]
    known = [max(sum(one <= after for one in task), further) for after, further in enumerate(predicted)]
    return [counted(rows, number) for rows, number in zip(moments, known, strict=True)]


def counted(rows: Iterable[tuple[int, int, int]], classes: int) -> Counts:
    """From true class, predicted class and number of nodes."""
    counts = np.zeros((classes, classes), np.int64)
    for true, predicted, nodes in rows:
        counts[true, predicted] += nodes
    return counts


def shares(counts: Counts) -> list[list[float | None]]:
    """In percent of each row; None in a row without a node. On the diagonal is the recall of a class."""
    return [[round(100 * int(one) / total, 4) if (total := int(row.sum())) else None for one in row] for row in counts]


def grouped(counts: Counts, group: Sequence[int], groups: int) -> Counts:
    """Nodes by true and predicted group of classes, where `group` is that of each class."""
    member = np.eye(groups, dtype=np.int64)[list(group)]
    return np.asarray(member.T @ counts @ member)


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
        plots.spec([line], 380, plots.axis("batches learned"), down, borders=borders),
    )
    lead = "Tasks came in batches of nodes, each seen once. The learner was also tested between them."
    return PageSection("along", "Along the stream", lead=lead, content=[chart])


def training_section(run: Run) -> PageSection:
    """The named loss terms, epoch by epoch."""
    notes = [] if run.history else ["This run has no epochs, and so no loss to show."]
    return PageSection("training", "Training", content=[_losses_chart(run)] if run.history else [], notes=notes)


def _losses_chart(run: Run) -> Chart:
    history = run.history
    epochs, tasks = list(range(1, len(history) + 1)), [int(row["task"] or 0) for row in history]
    begins = [place for place, task in enumerate(tasks) if place == 0 or task != tasks[place - 1]]
    terms = [name for name in history[0] if name not in {"task", "epoch"}]
    lines = [
        plots.line(
            term, epochs, [row[term] for row in history], index, "{y:.4g} in epoch {x}", markers=len(epochs) < 41
        )
        for index, term in enumerate(terms)
    ]
    across, down = plots.axis("epochs, all tasks in a row"), plots.axis("value of the term", low=0)
    borders = [(place + 0.5, f"task {tasks[place] + 1}") for place in begins]
    return Chart(
        "losses",
        "Loss terms over time",
        "Each term that the method adds up, as it was in each epoch; dotted lines are where a new task begins.",
        plots.spec(lines, 380, across, down, together=True, borders=borders),
    )
