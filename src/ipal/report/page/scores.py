"""Sections on accuracy: by task, by class, and confusions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ipal.evaluation.metrics import ACCURACIES, metric_named
from ipal.report.cells import Cell, CellTable, table, table_of_choices
from ipal.report.page import plots
from ipal.report.page.confusion import Counts, counted, grouped, mixing, shares
from ipal.report.page.facts import RunFacts
from ipal.report.page.parts import Chart, PageSection, Picker, Spec, count, number
from ipal.report.statistics import scale_from
from ipal.runs.records import Confusion, stream_in_words

# ---------------------------------------------------------------------- by task


def accuracy_section(facts: RunFacts) -> PageSection:
    name = facts.protocol["accuracy"]
    how = ACCURACIES[name].about if name in ACCURACIES else name
    among = {
        "class": "over all classes seen so far, without knowing the node's task",
        "task": "over the classes of the node's own task, which is known",
    }.get(str(facts.protocol["stream"]), f"stream {stream_in_words(facts.protocol['stream'])}")
    return PageSection(
        "accuracy",
        "Accuracy",
        lead=f"On test nodes, {among}. A task's accuracy: {how}.",
        charts=[_matrix_chart(facts), _curve_chart(facts)],
        tables=[_metrics_table(facts)],
    )


def _metrics_table(facts: RunFacts) -> CellTable:
    found = [(metric_named(name), value) for name, value in facts.result["metrics"].items()]
    rows = [(metric.title, number(value), metric.unit, metric.about) for metric, value in found]
    return table("Metrics of the whole run", ("metric", "value", "unit", "meaning"), rows)


def _matrix_chart(facts: RunFacts) -> Chart:
    matrix, sizes = facts.result["accuracy_matrix"], facts.split
    names = plots.tasks(len(sizes))
    rows = [
        (names[after], names[on], count(sizes[on]), number(value), number(value - matrix[on][on]))
        for after, row in enumerate(matrix)
        for on, value in enumerate(row)
        if value is not None
    ]
    columns = ("after", "on", "classes", "accuracy %", "change since learned")
    return Chart(
        "matrix",
        "Accuracy matrix",
        "A row is a moment (after learning a task), a column a task that is tested: read a column downwards to "
        "see a task being forgotten. AP is the mean of the last row; AF the mean change down the columns, from the "
        "diagonal to the last row.",
        matrix_spec(matrix),
        table("Accuracy on each task after each task", columns, rows),
    )


def matrix_spec(matrix: Sequence[Sequence[float | None]]) -> Spec:
    """The accuracy matrix, hover texts in words."""
    names = plots.tasks(len(matrix))
    about = [
        [None if value is None else _since_learned(value, matrix[on][on]) for on, value in enumerate(row)]
        for row in matrix
    ]
    hover = "After learning {y}:\n{z:.2f} % on {x}{about}"
    lowest = scale_from(value for row in matrix for value in row if value is not None)
    return plots.heat_map(names, names, matrix, ("after learning", "tested on"), hover, about=about, lowest=lowest)


def _since_learned(value: float, at_first: float | None) -> str:
    change = value - (at_first or 0.0)
    if abs(change) < 0.005:
        return ""
    return f",\n{abs(change):.2f} points {'less' if change < 0 else 'more'} than when it was learned"


def _curve_chart(facts: RunFacts) -> Chart:
    matrix, curve = facts.result["accuracy_matrix"], facts.curve.tolist()
    names = plots.tasks(len(curve))
    hover = "{y:.2f} % after {x}"
    lines = [
        plots.line(f"on {names[on]}", names[on:], [row[on] for row in matrix[on:]], on, hover)
        for on in range(len(names))
    ]
    lines.append(plots.line("AP (mean)", names, curve, 0, hover, is_main=True))
    down = plots.percent_axis("accuracy", [value for row in matrix for value in row])
    return Chart(
        "curve",
        "AP after each task",
        "The thick line is AP, the mean over the tasks seen so far; thin lines are the tasks it is the mean of. The "
        "last point is the run's AP.",
        plots.spec(lines, 380, plots.named_axis("after learning", names), down),
        table("AP after each task", ("after", "AP %"), zip(names, map(number, curve), strict=True)),
    )


# ---------------------------------------------------------------------- by class


def classes_section(facts: RunFacts) -> PageSection:
    """Recall of every class, at the end and after each task."""
    lead = "Recall of a class: the share of its test nodes that are predicted as that class."
    names = facts.confusion.classes
    # Of every class after every task; None before it is learned, and without test nodes.
    after_task = [[row[place] for place, row in enumerate(shares(one))] for one in counts_of(facts, facts.confusion)]
    recalls = [[one[place] if place < len(one) else None for one in after_task] for place in range(len(names))]
    last = {name: row[-1] for name, row in zip(names, recalls, strict=True) if row[-1] is not None}
    charts = [_end_chart(facts, last), _recall_map(facts, names, recalls)]
    tables = [_class_table(facts, facts.confusion, recalls)]
    return PageSection("classes", "Classes", lead=lead, charts=charts, tables=tables)


def counts_of(facts: RunFacts, confusion: Confusion) -> list[Counts]:
    """Confusions of the classes known after each task; where tasks overlap, also of later ones that were predicted."""
    task = facts.task_of_class
    predicted = [max((place + 1 for _, place, _ in rows), default=0) for rows in confusion.after_task]
    known = [max(sum(one <= after for one in task), further) for after, further in enumerate(predicted)]
    return [counted(rows, number) for rows, number in zip(confusion.after_task, known, strict=True)]


def _end_chart(facts: RunFacts, recalls: Mapping[str, float]) -> Chart:
    tasks = {f"task {task}": [one for one in names if one in recalls] for task, names in enumerate(facts.classes, 1)}
    hover = "class {{x}}, learned in {}:\n{{y:.1f}} % of its test nodes are recognised"
    traces = [
        plots.bars(task, names, [recalls[name] for name in names], index, hover.format(task))
        for index, (task, names) in enumerate(tasks.items())
    ]
    shown = [(name, task) for task, names in tasks.items() for name in names]
    across = plots.named_axis("class, in the order learned", [name for name, _ in shown])
    return Chart(
        "recall",
        "Recall of every class after the last task",
        "One bar a class, coloured by the task that taught it; a low bar is a class that is missed, old ones on the "
        "left.",
        plots.spec(traces, 360, across, plots.percent_axis("recall")),
        table(
            "Recall after the last task",
            ("class", "learned in", "recall %"),
            [(name, task, number(recalls[name])) for name, task in shown],
        ),
    )


def _recall_map(facts: RunFacts, names: Sequence[str], recalls: Sequence[plots.Values]) -> Chart:
    moments, task = plots.tasks(len(facts.split)), facts.task_of_class
    hover = "After {x}: {z:.1f} % of the test nodes\nof class {y} are recognised"
    rows = [
        (names[place], moments[task[place]], moment, number(value))
        for place, row in enumerate(recalls)
        for moment, value in zip(moments, row, strict=True)
        if value is not None
    ]
    lowest = scale_from(value for row in recalls for value in row if value is not None)
    return Chart(
        "recall-over-tasks",
        "Recall of every class over the tasks",
        "Read a row from left to right: where it pales, the class is being forgotten.",
        plots.heat_map(names, moments, recalls, ("class", "after learning"), hover, lowest=lowest),
        table("Recall after each task", ("class", "learned in", "after", "recall %"), rows),
    )


def _class_table(facts: RunFacts, confusion: Confusion, recalls: Sequence[plots.Values]) -> CellTable:
    counts, rows = counts_of(facts, confusion)[-1], []
    taught = facts.result["retained"].get("nodes_behind_class", {})
    for place, (name, task) in enumerate(zip(confusion.classes, facts.task_of_class, strict=True)):
        first, last = recalls[place][task], recalls[place][-1]
        if last is not None:
            rows.append(
                (
                    name,
                    f"task {task + 1}",
                    count(taught[name]) if name in taught else Cell("–", None),
                    count(int(counts[place].sum())),
                    number(first, 1),
                    number(last, 1),
                    number(None if first is None else last - first, 1),
                    _taken_for(confusion, counts, place),
                )
            )
    columns = ("class", "learned in", "taught by", "test nodes", "recall when learned %", "recall now %", "change")
    return table(
        "Classes after the last task: nodes that taught them, recall, and what they are mostly taken for",
        (*columns, "mostly taken for"),
        rows,
    )


def _taken_for(confusion: Confusion, counts: Counts, place: int) -> str:
    wrong = counts[place].copy()
    wrong[place] = 0
    return f"{confusion.classes[wrong.argmax()]} ({wrong.max()})" if wrong.any() else "–"


# ---------------------------------------------------------------------- one for another


def confusion_section(facts: RunFacts) -> PageSection:
    """Confusion of new and old classes."""
    counts, task = counts_of(facts, facts.confusion), facts.task_of_class
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
            facts.confusion.classes,
            counts,
            ("true class", "predicted class"),
            "{about} test nodes of class {y} ({z:.1f} %)\nwere taken for class {x}",
            are_many=True,
        ),
    ]
    if len(facts.split) > 1:
        charts.insert(0, _mixing_chart(facts, counts))
    return PageSection("confusion", "Confusion of old and new", charts=charts)


def _mixing_chart(facts: RunFacts, counts: Sequence[Counts]) -> Chart:
    moments = plots.tasks(len(facts.split))[1:]
    tasks = facts.task_of_class
    found = [mixing(one, [task == after for task in tasks[: len(one)]]) for after, one in enumerate(counts)][1:]
    kinds = ("old taken for new", "new taken for old", "old for another old", "new for another new")
    lines = [
        plots.line(kind, moments, values, index, "{y:.1f} % after {x}")
        for index, (kind, values) in enumerate(zip(kinds, zip(*found, strict=True), strict=True))
    ]
    down = plots.axis_from_zero("share of test nodes", suffix=" %")
    return Chart(
        "mixing",
        "How old and new classes are mixed up",
        "New are the classes of the task just learned, old all before. Old taken for new rising: the newest task draws "
        "nodes to itself; new taken for old: old classes are predicted for nodes of new ones.",
        plots.spec(lines, 360, plots.named_axis("after learning", moments), down),
        table(
            "Shares of confused test nodes, in %",
            ("after", *kinds),
            [(moment, *map(number, one)) for moment, one in zip(moments, found, strict=True)],
        ),
    )


def _confusion_chart(
    what: str,
    reading: str,
    names: Sequence[str],
    counts: Sequence[Counts],
    titles: tuple[str, str],
    hover: str,
    are_many: bool = False,
) -> Chart:
    """Which task or class is taken for which, after each task."""
    specs, rows = [], []
    for one in counts:
        known, found = names[: len(one)], shares(one)
        rounded = [[None if value is None else round(value, 2) for value in row] for row in found]
        look: dict[str, Any] = {"about": one.tolist(), "scale": "errors", "square": are_many}
        specs.append(plots.heat_map(known, known, rounded, titles, hover, **look))
        rows.append(
            [
                (names[true], names[predicted], count(int(nodes)), number(found[true][predicted], 1))
                for (true, predicted), nodes in np.ndenumerate(one)
                if nodes or not are_many
            ]
        )
    columns = ("true", "predicted", "nodes", "% of true")
    options = [f"after {name}" for name in plots.tasks(len(specs))]
    return Chart(
        f"{what}-confusion",
        f"Which {what} is taken for which",
        reading,
        {},
        table_of_choices(f"Nodes by true and predicted {what}", columns, rows),
        picker=Picker("Shown", options, specs, chosen=len(specs) - 1),
    )
