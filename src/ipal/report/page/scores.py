"""Sections on accuracy: by task, by class, and confusions."""

from collections.abc import Sequence
from typing import Any

from ipal.evaluation.metrics import ACCURACIES, metric_named
from ipal.report.cells import Cell, CellTable, count, number, table
from ipal.report.collect import Run
from ipal.report.page import plots
from ipal.report.page.confusion import Counts, counted, grouped, mixing, shares
from ipal.report.page.parts import Chart, PageSection, Spec
from ipal.report.statistics import scale_from
from ipal.runs.records import stream_in_words

# ---------------------------------------------------------------------- by task


def accuracy_section(run: Run) -> PageSection:
    name = run.protocol["accuracy"]
    how = ACCURACIES[name].about if name in ACCURACIES else name
    among = {
        "class": "over all classes seen so far, without knowing the node's task",
        "task": "over the classes of the node's own task, which is known",
    }.get(str(run.protocol["stream"]), f"stream {stream_in_words(run.protocol['stream'])}")
    found = [(metric_named(name), value) for name, value in run.result["metrics"].items()]
    rows = [(metric.title, number(value), metric.unit, metric.about) for metric, value in found]
    matrix = Chart(
        "matrix",
        "Accuracy matrix",
        "A row is a moment (after learning a task), a column a task that is tested: read a column downwards to "
        "see a task being forgotten. AP is the mean of the last row; AF the mean change down the columns, from the "
        "diagonal to the last row.",
        matrix_spec(run.result["accuracy_matrix"]),
    )
    return PageSection(
        "accuracy",
        "Accuracy",
        lead=f"On test nodes, {among}. A task's accuracy: {how}.",
        charts=[matrix, _curve_chart(run)],
        tables=[table("Metrics of the whole run", ("metric", "value", "unit", "meaning"), rows)],
    )


def matrix_spec(matrix: Sequence[plots.Values]) -> Spec:
    """The accuracy matrix, hover texts in words."""
    names = plots.tasks(len(matrix))
    about = [
        [None if value is None else _since_learned(value, matrix[on][on]) for on, value in enumerate(row)]
        for row in matrix
    ]
    hover = "After learning {y}:\n{z:.2f} % on {x}{about}"
    lowest = scale_from(value for row in matrix for value in row if value is not None)
    titles = ("after learning", "tested on", "accuracy %")
    return plots.heat_map(names, names, matrix, titles, hover, about=about, lowest=lowest)


def _since_learned(value: float, at_first: float | None) -> str:
    change = value - (at_first or 0.0)
    if abs(change) < 0.005:
        return ""
    return f",\n{abs(change):.2f} points {'less' if change < 0 else 'more'} than when it was learned"


def _curve_chart(run: Run) -> Chart:
    matrix = run.result["accuracy_matrix"]
    names = plots.tasks(len(matrix))
    hover = "{y:.2f} % after {x}"
    lines = [
        plots.line(f"on {name}", names[on:], [row[on] for row in matrix[on:]], on, hover)
        for on, name in enumerate(names)
    ]
    lines.append(plots.line("AP (mean)", names, run.curve.tolist(), 0, hover, is_main=True))
    down = plots.percent_axis("accuracy", [value for row in matrix for value in row])
    return Chart(
        "curve",
        "AP after each task",
        "The thick line is AP, the mean over the tasks seen so far; thin lines are the tasks it is the mean of. The "
        "last point is the run's AP.",
        plots.spec(lines, 380, plots.axis("after learning", names=names), down),
    )


# ---------------------------------------------------------------------- by class


def classes_section(run: Run) -> PageSection:
    """Recall of every class, at the end and after each task."""
    names, counts = run.confusion.classes, counts_of(run)
    # Of every class after every task; None before it is learned, and without test nodes.
    after_task = [[row[place] for place, row in enumerate(shares(one))] for one in counts]
    recalls = [[one[place] if place < len(one) else None for one in after_task] for place in range(len(names))]
    return PageSection(
        "classes",
        "Classes",
        lead="Recall of a class: the share of its test nodes that are predicted as that class.",
        charts=[_end_chart(run, recalls), _recall_map(names, recalls)],
        tables=[_class_table(run, counts[-1], recalls)],
    )


def counts_of(run: Run) -> list[Counts]:
    """Confusions of the classes known after each task; where tasks overlap, also of later ones that were predicted."""
    moments, task = run.confusion.after_task, run.task_of_class
    predicted = [max((place + 1 for _, place, _ in rows), default=0) for rows in moments]
    known = [max(sum(one <= after for one in task), further) for after, further in enumerate(predicted)]
    return [counted(rows, number) for rows, number in zip(moments, known, strict=True)]


def _end_chart(run: Run, recalls: Sequence[plots.Values]) -> Chart:
    last = {name: row[-1] for name, row in zip(run.confusion.classes, recalls, strict=True) if row[-1] is not None}
    hover = "class {{x}}, learned in {}:\n{{y:.1f}} % of its test nodes are recognised"
    traces = []
    for index, (task, names) in enumerate(zip(plots.tasks(len(run.split)), run.classes, strict=True)):
        known = [name for name in names if name in last]
        traces.append(plots.bars(task, known, [last[name] for name in known], index, hover.format(task)))
    across = plots.axis("class, in the order learned", names=[name for trace in traces for name in trace["x"]])
    return Chart(
        "recall",
        "Recall of every class after the last task",
        "One bar a class, coloured by the task that taught it; a low bar is a class that is missed, old ones on the "
        "left.",
        plots.spec(traces, 360, across, plots.percent_axis("recall")),
    )


def _recall_map(names: Sequence[str], recalls: Sequence[plots.Values]) -> Chart:
    hover = "After {x}: {z:.1f} % of the test nodes\nof class {y} are recognised"
    lowest = scale_from(value for row in recalls for value in row if value is not None)
    titles, moments = ("class", "after learning", "recall %"), plots.tasks(len(recalls[0]))
    return Chart(
        "recall-over-tasks",
        "Recall of every class over the tasks",
        "Read a row from left to right: where it pales, the class is being forgotten.",
        plots.heat_map(names, moments, recalls, titles, hover, lowest=lowest),
    )


def _class_table(run: Run, counts: Counts, recalls: Sequence[plots.Values]) -> CellTable:
    names, rows = run.confusion.classes, []
    taught = run.result["retained"].get("nodes_behind_class", {})
    for place, (name, task) in enumerate(zip(names, run.task_of_class, strict=True)):
        first, last = recalls[place][task], recalls[place][-1]
        if last is None:
            continue
        wrong = counts[place].copy()
        wrong[place] = 0
        cells = (
            count(taught[name]) if name in taught else Cell("–", None),
            count(int(counts[place].sum())),
            number(first, 1),
            number(last, 1),
            number(None if first is None else last - first, 1),
            f"{names[wrong.argmax()]} ({wrong.max()})" if wrong.any() else "–",
        )
        rows.append((name, f"task {task + 1}", *cells))
    columns = ("class", "learned in", "taught by", "test nodes", "recall when learned %", "recall now %", "change")
    return table(
        "Classes after the last task: nodes that taught them, recall, and what they are mostly taken for",
        (*columns, "mostly taken for"),
        rows,
    )


# ---------------------------------------------------------------------- one for another


def confusion_section(run: Run) -> PageSection:
    """Confusion of new and old classes."""
    counts, task = counts_of(run), run.task_of_class
    charts = [
        _confusion_chart(
            "task",
            "Each row sums to 100 %: where the test nodes of a task end up. On the diagonal the task is right, the "
            "class within it need not be. Right of it: old nodes taken for newer classes.",
            plots.tasks(len(counts)),
            [grouped(one, task[: len(one)], max(task[: len(one)]) + 1) for one in counts],
            ("truly of", "predicted as of"),
            "{about} test nodes of {y} ({z:.1f} %)\nwere taken for classes of {x}",
        ),
        _confusion_chart(
            "class",
            "Classes in the order learned, so that what lies right of the diagonal is old taken for new. Each row sums "
            "to 100 %.",
            run.confusion.classes,
            counts,
            ("true class", "predicted class"),
            "{about} test nodes of class {y} ({z:.1f} %)\nwere taken for class {x}",
            square=True,
        ),
    ]
    if len(run.split) > 1:
        charts.insert(0, _mixing_chart(run, counts))
    return PageSection("confusion", "Confusion of old and new", charts=charts)


def _mixing_chart(run: Run, counts: Sequence[Counts]) -> Chart:
    moments, tasks = plots.tasks(len(run.split))[1:], run.task_of_class
    found = [mixing(one, [task == after for task in tasks[: len(one)]]) for after, one in enumerate(counts)][1:]
    kinds = ("old taken for new", "new taken for old", "old for another old", "new for another new")
    lines = [
        plots.line(kind, moments, values, index, "{y:.1f} % after {x}")
        for index, (kind, values) in enumerate(zip(kinds, zip(*found, strict=True), strict=True))
    ]
    down = plots.axis("share of test nodes", low=0, suffix=" %")
    return Chart(
        "mixing",
        "How old and new classes are mixed up",
        "New are the classes of the task just learned, old all before. Old taken for new rising: the newest task draws "
        "nodes to itself; new taken for old: old classes are predicted for nodes of new ones.",
        plots.spec(lines, 360, plots.axis("after learning", names=moments), down),
    )


def _confusion_chart(
    what: str,
    reading: str,
    names: Sequence[str],
    counts: Sequence[Counts],
    titles: tuple[str, str],
    hover: str,
    square: bool = False,
) -> Chart:
    """Which task or class is taken for which, after each task."""
    specs = []
    for one in counts:
        rounded = [[None if value is None else round(value, 2) for value in row] for row in shares(one)]
        look: dict[str, Any] = {"about": one.tolist(), "about_title": "nodes", "scale": "errors", "square": square}
        known = names[: len(one)]
        specs.append(plots.heat_map(known, known, rounded, (*titles, "% of the row"), hover, **look))
    options = [f"after {name}" for name in plots.tasks(len(specs))]
    title = f"Which {what} is taken for which"
    return Chart(f"{what}-confusion", title, reading, {}, options, specs, chosen=len(specs) - 1)
