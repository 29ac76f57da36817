"""Sections on training: loss terms, classes in two dimensions, drift."""

from collections.abc import Mapping, Sequence
from typing import Any

from ipal.report.page import plots
from ipal.report.page.confusion import task_of_place
from ipal.report.page.facts import Facts, History
from ipal.report.page.parts import Chart, Picker, Section, Spec, Table, count, number, words
from ipal.report.statistics import spread
from ipal.runs.records import Drift


def losses_section(facts: Facts) -> Section:
    """The named loss terms, epoch by epoch."""
    title = "Loss terms"
    if not facts.history.rows:
        return Section("losses", title, notes=("This run has no epochs, and so no loss to show.",))
    return Section("losses", title, charts=(_losses_chart(facts.history),))


def _losses_chart(history: History) -> Chart:
    epochs = list(range(1, len(history.rows) + 1))
    tasks = [int(row["task"] or 0) for row in history.rows]
    starts = [place for place in range(len(tasks)) if place == 0 or tasks[place] != tasks[place - 1]]
    lines = [
        plots.line(term, epochs, [row[term] for row in history.rows], index, hover="%{y:.4g} in epoch %{x}")
        | {"mode": "lines" if len(epochs) > 40 else "lines+markers"}
        for index, term in enumerate(history.terms)
    ]
    marks = plots.borders(
        [start + 0.5 for start in starts[1:]],
        [f"task {tasks[start] + 1}" for start in starts],
        [start + 0.5 for start in starts],
    )
    layout = {
        "height": 380,
        "hovermode": "x unified",
        "xaxis": {"title": {"text": "epochs, all tasks in a row"}, "zeroline": False},
        "yaxis": {"title": {"text": "value of the term"}, "rangemode": "tozero"},
        **marks,
    }
    rows = tuple(
        (
            count(epoch),
            words(f"task {task + 1}"),
            *(number(row[term], 4) for term in history.terms),
        )
        for epoch, task, row in zip(epochs, tasks, history.rows, strict=True)
    )
    scales = ({"layout": {"yaxis": {"type": "linear"}}}, {"layout": {"yaxis": {"type": "log"}}})
    return Chart(
        "losses",
        "Loss terms over time",
        "Each term that the method adds up, as it was in each epoch; dotted lines are where a new task begins. A term "
        "that begins late is one that needs something to remember.",
        {"data": lines, "layout": layout},
        Table("Loss terms by epoch", ("epoch", "learning", *history.terms), rows),
        picker=Picker("Scale", ("linear", "logarithmic"), scales),
    )


def plane_section(facts: Facts) -> Section:
    """Classes in two dimensions, if nodes were projected."""
    title = "Classes on a plane"
    plane = facts.closer.get("plane")
    if not plane or not any(facts.classes):
        note = "The nodes of this run are not shown: the page was made without them."
        return Section("plane", title, notes=(note,))
    return Section("plane", title, lead=str(plane["about"]), charts=(_plane_chart(facts, plane),))


def _plane_chart(facts: Facts, plane: Mapping[str, Any]) -> Chart:
    points, stars = plane["points"], plane["prototypes"]
    names = [name for task in facts.classes for name in task]
    task = dict(zip(names, task_of_place(facts.new), strict=True))
    traces: list[Spec] = []
    tasks: list[int] = []
    for index, name in enumerate(names):
        chosen = [place for place, label in enumerate(points["class"]) if str(label) == name]
        if not chosen:
            continue
        label = f"{name} (task {task[name] + 1})"
        hard = [bool(points["hard"][place]) for place in chosen]
        about = [
            _node_in_words(name, str(points["predicted"][place]), special)
            for place, special in zip(chosen, hard, strict=True)
        ]
        x, y = ([points[axis][place] for place in chosen] for axis in "xy")
        traces.append(plots.points(label, x, y, index, about=about, is_outlined=hard, group=name))
        tasks.append(task[name])
    size = 17 if len(names) <= 30 else 12
    what = str(plane.get("prototypes_are", "prototypes"))
    for index, name in enumerate(names):  # last, so that they lie on top
        chosen = [place for place, label in enumerate(stars["class"]) if str(label) == name]
        if chosen:
            x, y = ([stars[axis][place] for place in chosen] for axis in "xy")
            about = [f"class {name}: {what}"] * len(chosen)
            traces.append(plots.points(name, x, y, index, about=about, is_star=True, star_size=size, group=name))
            tasks.append(task[name])
    bare = {"showgrid": False, "zeroline": False, "showticklabels": False}
    layout = {
        "height": 600,
        "dragmode": "zoom",
        "margin": {"l": 12},
        "xaxis": {**bare, "title": {"text": ""}},
        "yaxis": {**bare, "title": {"text": ""}, "scaleanchor": "x"},
        "legend": {"title": {"text": "class"}, "itemsizing": "constant", "tracegroupgap": 0},
        "hovermode": "closest",
    }
    everything: list[bool | str] = [True] * len(traces)
    by_task = [[True if own == one else "legendonly" for own in tasks] for one in range(len(facts.split))]
    picker = Picker(
        "Shown",
        ("all tasks", *(f"only {name}" for name in plots.tasks(len(facts.split)))),
        ({"visible": everything}, *({"visible": one} for one in by_task)),
    )
    return Chart(
        "plane",
        "Nodes, prototypes and hard examples",
        f"A dot is a node, coloured by its true class; a dot with a ring is a hard example; a star is what is "
        f"remembered of the class ({what}). Click a class in the legend to hide it, twice to see it alone.",
        {"data": traces, "layout": layout},
        Table("Nodes on the plane", ("class", "predicted", "hard", "x", "y"), _plane_rows(points)),
        picker=picker,
    )


def _node_in_words(name: str, predicted: str, is_hard: bool) -> str:
    seen = "recognised" if predicted == name else f"taken for class {predicted}"
    return f"node of class {name}, {seen}" + ", a hard example" * is_hard


def _plane_rows(points: Mapping[str, Sequence[Any]]) -> tuple[Any, ...]:
    columns = (points[name] for name in ("class", "predicted", "hard", "x", "y"))
    return tuple(
        (words(name), words(predicted), words("yes" if hard else "no"), number(x, 3), number(y, 3))
        for name, predicted, hard, x, y in zip(*columns, strict=True)
    )


def drift_section(facts: Facts) -> Section:
    """How far classes move away from where they were learned."""
    title = "Drift of classes"
    if facts.drift is None:
        note = (
            "Nothing is known of drift: the method trains no network that could move what is remembered, or the "
            "run was made by a version of ipal that did not measure it."
        )
        return Section("drift", title, notes=(note,))
    lead = (
        "Shift: how far the mean embedding of a class's test nodes has moved since the class was learned. Gap: how far "
        "what is remembered of the class, its prototype, lies from that mean now. Both in units of the class's own "
        "spread when it was learned: 1 is as far as its nodes scatter."
    )
    has_gap = any(one.gap is not None for moment in facts.drift.after_task for one in moment.values())
    notes = () if has_gap else ("This method remembers no prototypes, so there is no gap to show.",)
    measures = ("shift", "gap") if has_gap else ("shift",)
    charts = (_drift_lines(facts, facts.drift, measures), _drift_map(facts, facts.drift, measures))
    return Section("drift", title, lead=lead, charts=charts, notes=notes)


def _drift_lines(facts: Facts, drift: Drift, measures: Sequence[str]) -> Chart:
    """Mean over the classes of each task."""
    moments = plots.tasks(len(drift.after_task))
    specs, rows, choices = [], [], []
    for choice, measure in enumerate(measures):
        lines = []
        for task, names in enumerate(facts.classes):
            means = [_mean([_measured(one, name, measure) for name in names]) for one in drift.after_task[task:]]
            hover = f"%{{y:.2f}} after %{{x}}: mean {measure} of these classes"
            lines.append(plots.line(f"classes of task {task + 1}", moments[task:], means, task, hover=hover))
            for moment, mean in zip(moments[task:], means, strict=True):
                rows.append((words(measure), words(f"task {task + 1}"), words(moment), number(mean, 3)))
                choices.append(choice)
        specs.append({"data": lines})
    layout = {
        "height": 380,
        "xaxis": plots.named_axis("after learning", moments),
        "yaxis": {"title": {"text": "mean over classes, in spreads"}, "rangemode": "tozero"},
    }
    return Chart(
        "drift",
        "Drift by task",
        "A line is the mean over the classes of one task. Rising: the network moves on and takes the old classes with "
        "it. A gap that stays low while the shift rises: what is remembered follows.",
        {"layout": layout},
        Table("Mean drift by task", ("measure", "classes of", "after", "mean"), tuple(rows), tuple(choices)),
        picker=Picker("Shown", tuple(measures), tuple(specs)),
    )


def _drift_map(facts: Facts, drift: Drift, measures: Sequence[str]) -> Chart:
    names = [name for task in facts.classes for name in task]
    moments = plots.tasks(len(drift.after_task))
    highest = max(
        (value for one in drift.after_task for name in names for m in measures if (value := _measured(one, name, m))),
        default=1.0,
    )
    specs, rows, choices = [], [], []
    for choice, measure in enumerate(measures):
        values = [[_measured(one, name, measure) for one in drift.after_task] for name in names]
        specs.append(
            plots.heat_map(
                names,
                moments,
                values,
                titles=("class", "after learning"),
                hover=f"class %{{y}} after %{{x}}:<br>{measure} of %{{z:.2f}} spreads",
                highest=highest,
                scale="@warm",
                suffix="",
                digits=2,
            )
        )
        for name, row in zip(names, values, strict=True):
            for moment, value in zip(moments, row, strict=True):
                if value is not None:
                    rows.append((words(measure), words(name), words(moment), number(value, 3)))
                    choices.append(choice)
    return Chart(
        "drift-by-class",
        "Drift of every class",
        "Read a row from left to right; the stronger the colour, the further the class has moved. Both measures share "
        "one scale.",
        {},
        Table("Drift by class", ("measure", "class", "after", "spreads"), tuple(rows), tuple(choices)),
        picker=Picker("Shown", tuple(measures), tuple(specs)),
    )


def _measured(moment: Mapping[str, Any], name: str, measure: str) -> float | None:
    found = moment.get(name)
    value: float | None = getattr(found, measure) if found else None
    return value


def _mean(values: Sequence[float | None]) -> float | None:
    summary = spread([value for value in values if value is not None])
    return summary.mean if summary else None
