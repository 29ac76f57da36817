"""Sections on accuracy: by task, by class, and confusions."""

from collections.abc import Sequence

from ipal.evaluation.metrics import ACCURACIES, metric_named
from ipal.report.page import plots
from ipal.report.page.confusion import Hits, hits, mixing, task_counts, task_of_place
from ipal.report.page.facts import Facts
from ipal.report.page.parts import Cell, Chart, Picker, Section, Spec, Table, count, number, words
from ipal.runs.records import Confusion

NO_CONFUSION = (
    "This run was made by a version of ipal that did not count which class was taken for which: only recalls after "
    "the last task are known. Run it again to see more."
)


# ---------------------------------------------------------------------- by task


def accuracy_section(facts: Facts) -> Section:
    name = facts.run.protocol["accuracy"]
    how = ACCURACIES[name].about if name in ACCURACIES else name
    among = {
        "class-incremental": "over all classes seen so far; nobody tells the model the task",
        "task-incremental": "over the classes of the node's own task, which is known",
    }.get(str(facts.run.protocol["stream"]), f"stream {facts.run.protocol['stream']}")
    return Section(
        "accuracy",
        "Accuracy",
        lead=f"On test nodes, {among}. A task's accuracy: {how}.",
        charts=(matrix_chart(facts), _curve_chart(facts)),
        tables=(_metrics_table(facts),),
    )


def _metrics_table(facts: Facts) -> Table:
    rows = []
    for name, value in facts.result["metrics"].items():
        metric = metric_named(name)
        rows.append((words(metric.title), number(value), words(metric.unit), words(metric.about)))
    return Table("Metrics of the whole run", ("metric", "value", "unit", "meaning"), tuple(rows))


def matrix_chart(facts: Facts) -> Chart:
    matrix, sizes = facts.result["accuracy_matrix"], facts.split
    names = plots.tasks(len(sizes))
    spec = matrix_spec(matrix)
    rows = tuple(
        (words(names[after]), words(names[on]), count(sizes[on]), number(value), number(value - matrix[on][on]))
        for after, row in enumerate(matrix)
        for on, value in enumerate(row)
        if value is not None
    )
    columns = ("after", "on", "classes", "accuracy %", "change since learned")
    return Chart(
        "matrix",
        "Accuracy matrix",
        "A row is a moment (after learning a task), a column a task that is asked about: read a column downwards to "
        "see a task being forgotten. AP is the mean of the last row; AF the mean change down the columns, from the "
        "diagonal to the last row.",
        spec,
        Table("Accuracy on each task after each task", columns, rows),
    )


def matrix_spec(matrix: Sequence[Sequence[float | None]]) -> Spec:
    """The accuracy matrix, hover texts in words."""
    names = plots.tasks(len(matrix))
    about = [
        [None if value is None else _since_learned(value, matrix[on][on]) for on, value in enumerate(row)]
        for row in matrix
    ]
    return plots.heat_map(
        names,
        names,
        matrix,
        titles=("after learning", "asked about"),
        hover="After learning %{y}:<br>%{z:.2f} % on %{x}%{customdata}",
        about=about,
    )


def _since_learned(value: float, at_first: float | None) -> str:
    change = value - (at_first or 0.0)
    if abs(change) < 0.005:
        return ""
    return f",<br>{abs(change):.2f} points {'less' if change < 0 else 'more'} than when it was learned"


def _curve_chart(facts: Facts) -> Chart:
    matrix, curve = facts.result["accuracy_matrix"], facts.run.curve.tolist()
    names = plots.tasks(len(curve))
    hover = "%{y:.2f} % after %{x}"
    lines = [
        plots.line(f"on {names[on]}", names[on:], [row[on] for row in matrix[on:]], on, hover=hover, opacity=0.75)
        for on in range(len(names))
    ]
    lines.append(plots.line("AP (mean)", names, curve, 0, hover=hover, is_main=True))
    rows = tuple((words(name), number(value)) for name, value in zip(names, curve, strict=True))
    layout = {
        "height": 380,
        "xaxis": plots.named_axis("after learning", names),
        "yaxis": plots.percent_axis("accuracy", [value for row in matrix for value in row]),
    }
    return Chart(
        "curve",
        "AP after each task",
        "The thick line is AP, the mean over the tasks seen so far; thin lines are the tasks it is the mean of. The "
        "last point is the run's AP.",
        {"data": lines, "layout": layout},
        Table("AP after each task", ("after", "AP %"), rows),
    )


# ---------------------------------------------------------------------- by class


def classes_section(facts: Facts) -> Section:
    """Recall of every class, at the end and after each task."""
    confusion = facts.confusion
    lead = "Recall of a class: the share of its test nodes that are predicted as that class."
    if confusion is None:
        recalls = {str(name): float(value) for name, value in facts.result.get("per_class", {}).items()}
        if not recalls:
            return Section("classes", "Classes", lead=lead, notes=(NO_CONFUSION,))
        return Section("classes", "Classes", lead=lead, charts=(_end_chart(facts, recalls),), notes=(NO_CONFUSION,))
    by_task = [hits(rows) for rows in confusion.after_task]
    last = {confusion.classes[place]: one.recall for place, one in by_task[-1].items()}
    table = _class_table(facts, confusion, by_task)
    charts = (_end_chart(facts, last), _recall_map(facts, confusion, by_task))
    return Section("classes", "Classes", lead=lead, charts=charts, tables=(table,))


def _end_chart(facts: Facts, recalls: dict[str, float]) -> Chart:
    traces, rows = [], []
    for task, names in enumerate(facts.classes):
        known = [name for name in names if name in recalls]
        shown = [plots.plain(name) for name in known]
        hover = f"class %{{x}}, learned in task {task + 1}:<br>%{{y:.1f}} % of its test nodes are recognised"
        traces.append(plots.bars(f"task {task + 1}", shown, [recalls[name] for name in known], task, hover=hover))
        rows += [(words(name), words(f"task {task + 1}"), number(recalls[name])) for name in known]
    names = [name for task in facts.classes for name in task if name in recalls]
    layout = {
        "height": 360,
        "xaxis": plots.named_axis("class, in the order learned", names),
        "yaxis": plots.percent_axis("recall"),
        "bargap": 0.15,
    }
    return Chart(
        "recall",
        "Recall of every class after the last task",
        "One bar a class, coloured by the task that taught it; a low bar is a class that is missed, old ones on the "
        "left.",
        {"data": traces, "layout": layout},
        Table("Recall after the last task", ("class", "learned in", "recall %"), tuple(rows)),
    )


def _recall_map(facts: Facts, confusion: Confusion, by_task: Sequence[dict[int, Hits]]) -> Chart:
    names, moments = confusion.classes, plots.tasks(len(by_task))
    values = [[one[place].recall if place in one else None for one in by_task] for place in range(len(names))]
    task = task_of_place(facts.new)
    spec = plots.heat_map(
        names,
        moments,
        values,
        titles=("class", "after learning"),
        hover="After %{x}: %{z:.1f} % of the test nodes<br>of class %{y} are recognised",
    )
    rows = tuple(
        (words(names[place]), words(moments[task[place]]), words(moment), number(value))
        for place, row in enumerate(values)
        for moment, value in zip(moments, row, strict=True)
        if value is not None
    )
    return Chart(
        "recall-over-tasks",
        "Recall of every class over the tasks",
        "Read a row from left to right: where it pales, the class is being forgotten.",
        spec,
        Table("Recall after each task", ("class", "learned in", "after", "recall %"), rows),
    )


def _class_table(facts: Facts, confusion: Confusion, by_task: Sequence[dict[int, Hits]]) -> Table:
    task, rows = task_of_place(facts.new), []
    behind = facts.result["retained"].get("nodes_behind_class", {})
    for place, last in by_task[-1].items():
        first = by_task[task[place]][place].recall
        name = confusion.classes[place]
        taken_for = _taken_for(confusion, place)
        taught = behind.get(name)
        rows.append(
            (
                words(name),
                words(f"task {task[place] + 1}"),
                Cell("–", None) if taught is None else count(taught),
                count(last.total),
                number(first, 1),
                number(last.recall, 1),
                number(last.recall - first, 1),
                words(taken_for),
            )
        )
    columns = ("class", "learned in", "taught by", "test nodes", "recall when learned %", "recall now %", "change")
    return Table(
        "Classes after the last task: nodes that taught them, recall, and what they are mostly taken for",
        (*columns, "mostly taken for"),
        tuple(rows),
    )


def _taken_for(confusion: Confusion, place: int) -> str:
    wrong = [(count_, predicted) for true, predicted, count_ in confusion.after_task[-1] if true == place != predicted]
    if not wrong:
        return "–"
    count_, predicted = max(wrong, key=lambda one: (one[0], -one[1]))
    return f"{confusion.classes[predicted]} ({count_})"


# ---------------------------------------------------------------------- one for another


def confusion_section(facts: Facts) -> Section:
    """Confusion of new and old classes."""
    title = "Confusion of old and new"
    if facts.confusion is None:
        return Section("confusion", title, notes=(NO_CONFUSION,))
    charts = [_tasks_chart(facts, facts.confusion), _pairs_chart(facts, facts.confusion)]
    if len(facts.split) > 1:
        charts.insert(0, _mixing_chart(facts, facts.confusion))
    return Section("confusion", title, charts=tuple(charts))


def _mixing_chart(facts: Facts, confusion: Confusion) -> Chart:
    moments = plots.tasks(len(facts.split))[1:]
    found = [mixing(rows, facts.new, after) for after, rows in enumerate(confusion.after_task)][1:]
    kinds = {
        "old taken for new": [one.old_as_new for one in found],
        "new taken for old": [one.new_as_old for one in found],
        "old for another old": [one.old_among_themselves for one in found],
        "new for another new": [one.new_among_themselves for one in found],
    }
    lines = [
        plots.line(name, moments, values, index, hover="%{y:.1f} % after %{x}")
        for index, (name, values) in enumerate(kinds.items())
    ]
    layout = {
        "height": 360,
        "xaxis": plots.named_axis("after learning", moments),
        "yaxis": {"title": {"text": "share of test nodes"}, "ticksuffix": " %", "rangemode": "tozero"},
    }
    rows = tuple(
        (words(moment), *(number(value, 2) for value in one)) for moment, one in zip(moments, found, strict=True)
    )
    return Chart(
        "mixing",
        "How old and new classes are mixed up",
        "New are the classes of the task just learned, old all before. Old taken for new rising: the newest task draws "
        "nodes to itself; new taken for old: the old classes hold on to what is not theirs.",
        {"data": lines, "layout": layout},
        Table("Shares of confused test nodes, in %", ("after", *kinds), rows),
    )


def _tasks_chart(facts: Facts, confusion: Confusion) -> Chart:
    specs, rows, choices = [], [], []
    for after, pairs in enumerate(confusion.after_task):
        counts = task_counts(pairs, facts.new, after + 1)
        names = plots.tasks(after + 1)
        shares = [[100 * value / sum(row) if sum(row) else None for value in row] for row in counts]
        specs.append(
            plots.heat_map(
                names,
                names,
                shares,
                titles=("truly of", "predicted as of"),
                hover="%{customdata} test nodes of %{y} (%{z:.1f} %)<br>were taken for classes of %{x}",
                about=counts,
                scale="@errors",
            )
        )
        for true in range(after + 1):
            for predicted in range(after + 1):
                share = number(shares[true][predicted], 1)
                rows.append((words(names[true]), words(names[predicted]), count(counts[true][predicted]), share))
                choices.append(after)
    return Chart(
        "task-confusion",
        "Which task is taken for which",
        "Each row sums to 100 %: where the test nodes of a task end up. On the diagonal the task is right, the class "
        "within it need not be. Right of it: old nodes taken for newer classes.",
        {},
        Table(
            "Nodes by true and predicted task", ("true", "predicted", "nodes", "% of true"), tuple(rows), tuple(choices)
        ),
        picker=_moments(specs),
    )


def _pairs_chart(facts: Facts, confusion: Confusion) -> Chart:
    task = task_of_place(facts.new)
    specs, rows, choices = [], [], []
    for after, pairs in enumerate(confusion.after_task):
        known = [place for place in range(len(confusion.classes)) if task[place] <= after]
        totals = {place: one.total for place, one in hits(pairs).items()}
        counts = [[0] * len(known) for _ in known]
        for true, predicted, nodes in pairs:
            counts[true][predicted] = nodes
            if nodes:
                share = number(100 * nodes / totals[true], 1)
                names = words(confusion.classes[true]), words(confusion.classes[predicted])
                rows.append((*names, count(nodes), share))
                choices.append(after)
        shares = [
            [100 * value / totals[true] if true in totals else None for value in row]
            for true, row in zip(known, counts, strict=True)
        ]
        names_known = [confusion.classes[place] for place in known]
        hover = "%{customdata} test nodes of class %{y} (%{z:.1f} %)<br>were taken for class %{x}"
        specs.append(
            plots.heat_map(
                names_known,
                names_known,
                [[None if value is None else round(value, 2) for value in row] for row in shares],
                titles=("true class", "predicted class"),
                hover=hover,
                about=counts,
                scale="@errors",
                square=True,
            )
        )
    return Chart(
        "class-confusion",
        "Which class is taken for which",
        "Classes in the order learned, so that what lies right of the diagonal is old taken for new. Each row sums to "
        "100 %.",
        {},
        Table(
            "Nodes by true and predicted class",
            ("true", "predicted", "nodes", "% of true"),
            tuple(rows),
            tuple(choices),
        ),
        picker=_moments(specs),
    )


def _moments(specs: Sequence[Spec]) -> Picker:
    options = tuple(f"after {name}" for name in plots.tasks(len(specs)))
    return Picker("Shown", options, tuple(specs), chosen=len(specs) - 1)
