"""Sections on training: loss terms, classes in two dimensions, drift."""

from collections.abc import Mapping, Sequence
from typing import Any

from ipal.report.cells import table, table_of_choices
from ipal.report.page import plots
from ipal.report.page.facts import History, RunFacts
from ipal.report.page.parts import Chart, PageSection, Picker, Spec, count, number
from ipal.report.statistics import spread
from ipal.runs.records import Drift


def losses_section(facts: RunFacts) -> PageSection:
    """The named loss terms, epoch by epoch."""
    title = "Loss terms"
    if not facts.history:
        return PageSection("losses", title, notes=["This run has no epochs, and so no loss to show."])
    return PageSection("losses", title, charts=[_losses_chart(facts.history)])


def _losses_chart(history: History) -> Chart:
    terms = [name for name in history[0] if name not in {"task", "epoch"}]
    epochs = list(range(1, len(history) + 1))
    tasks = [int(row["task"] or 0) for row in history]
    starts = [place for place in range(len(tasks)) if place == 0 or tasks[place] != tasks[place - 1]]
    look = {"markers": len(epochs) <= 40}
    lines = [
        plots.line(term, epochs, [row[term] for row in history], index, "{y:.4g} in epoch {x}", **look)
        for index, term in enumerate(terms)
    ]
    spec = plots.spec(
        lines,
        380,
        plots.axis("epochs, all tasks in a row"),
        plots.axis_from_zero("value of the term"),
        together=True,
        borders=plots.borders([start + 0.5 for start in starts], [f"task {tasks[start] + 1}" for start in starts]),
    )
    rows = [
        (count(epoch), f"task {task + 1}", *(number(row[term], 4) for term in terms))
        for epoch, task, row in zip(epochs, tasks, history, strict=True)
    ]
    scales = [{}, {"y": plots.axis("value of the term", log=True)}]
    return Chart(
        "losses",
        "Loss terms over time",
        "Each term that the method adds up, as it was in each epoch; dotted lines are where a new task begins. A term "
        "that begins late is one that needs something to remember.",
        spec,
        table("Loss terms by epoch", ("epoch", "learning", *terms), rows),
        picker=Picker("Scale", ("linear", "logarithmic"), scales),
    )


def plane_section(facts: RunFacts) -> PageSection:
    """Classes in two dimensions, if nodes were projected."""
    title = "Classes on a plane"
    plane = facts.closer.get("plane")
    if not plane:
        note = "The nodes of this run are not shown: the page was made without them."
        return PageSection("plane", title, notes=[note])
    return PageSection("plane", title, lead=str(plane["about"]), charts=[_plane_chart(facts, plane)])


def _plane_chart(facts: RunFacts, plane: Mapping[str, Any]) -> Chart:
    what = str(plane.get("prototypes_are", "prototypes"))
    nodes, prototypes = (_by_class(plane[kind]) for kind in ("points", "prototypes"))
    classes = list(enumerate((task, name) for task, names in enumerate(facts.classes) for name in names))
    size = 17 if len(classes) <= 30 else 12
    shown = [(task, _dots(index, task, name, nodes[name])) for index, (task, name) in classes if name in nodes]
    shown += [  # last, so that they lie on top
        (task, _stars(index, task, name, prototypes[name], what, size))
        for index, (task, name) in classes
        if name in prototypes
    ]
    bare = plots.axis("", bare=True)
    spec = plots.spec([trace for _, trace in shown], 600, bare, bare)
    tasks = range(len(facts.split))
    by_task = [{"hidden": sorted({trace["name"] for own, trace in shown if own != one})} for one in tasks]
    columns = ("class", "predicted", "hard", "x", "y")
    rows = [
        (str(name), str(predicted), "yes" if hard else "no", number(x, 3), number(y, 3))
        for name, predicted, hard, x, y in zip(*(plane["points"][column] for column in columns), strict=True)
    ]
    return Chart(
        "plane",
        "Nodes, prototypes and hard examples",
        f"A dot is a node, coloured by its true class; a dot with a ring is a hard example; a star is what is "
        f"remembered of the class ({what}). Click a class in the legend to hide it, twice to see it alone.",
        spec,
        table("Nodes on the plane", columns, rows),
        picker=Picker(
            "Shown",
            ["all tasks", *(f"only {name}" for name in plots.tasks(len(tasks)))],
            [{}, *by_task],
        ),
    )


def _by_class(columns: Mapping[str, Sequence[Any]]) -> dict[str, list[dict[str, Any]]]:
    """Points as rows, by the name of their class."""
    found: dict[str, list[dict[str, Any]]] = {}
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        found.setdefault(str(row["class"]), []).append(row)
    return found


def _dots(index: int, task: int, name: str, nodes: Sequence[Mapping[str, Any]]) -> Spec:
    symbol = plots.SYMBOLS[index // plots.SERIES % len(plots.SYMBOLS)]
    look = {"symbol": symbol, "size": 6, "colour": plots.colour(index), "legend": True}
    about = [_node_in_words(name, str(node["predicted"]), node["hard"]) for node in nodes]
    return plots.points(_legend(name, task), nodes, about, look, ringed=[bool(node["hard"]) for node in nodes])


def _stars(index: int, task: int, name: str, prototypes: Sequence[Mapping[str, Any]], what: str, size: int) -> Spec:
    look = {"symbol": "star", "size": size, "colour": plots.colour(index)}
    about = [f"class {name}: {what}"] * len(prototypes)
    return plots.points(_legend(name, task), prototypes, about, look, ringed=[True] * len(prototypes))


def _legend(name: str, task: int) -> str:
    return f"{name} (task {task + 1})"


def _node_in_words(name: str, predicted: str, is_hard: bool) -> str:
    seen = "recognised" if predicted == name else f"taken for class {predicted}"
    return f"node of class {name}, {seen}" + ", a hard example" * bool(is_hard)


def drift_section(facts: RunFacts) -> PageSection:
    """How far classes move away from where they were learned."""
    title = "Drift of classes"
    if facts.drift is None:
        note = "There is no drift: the method trains no network that could move what is remembered."
        return PageSection("drift", title, notes=[note])
    lead = (
        "Shift: how far the mean embedding of a class's test nodes has moved since the class was learned. Gap: how far "
        "what is remembered of the class, its prototype, lies from that mean now. Both in units of the class's own "
        "spread when it was learned: 1 is as far as its nodes scatter."
    )
    has_gap = any(one.gap is not None for moment in facts.drift.after_task for one in moment.values())
    notes = [] if has_gap else ["This method remembers no prototypes, so there is no gap to show."]
    measures = ("shift", "gap") if has_gap else ("shift",)
    charts = [chart(facts, facts.drift, measures) for chart in (_drift_lines, _drift_map)]
    return PageSection("drift", title, lead=lead, charts=charts, notes=notes)


def _drift_lines(facts: RunFacts, drift: Drift, measures: Sequence[str]) -> Chart:
    """Mean over the classes of each task."""
    moments = plots.tasks(len(drift.after_task))
    specs, rows = [], []
    for measure in measures:
        hover = f"mean {measure} {{y:.2f}} after {{x}}"
        means = [
            [_mean([_measured(one, name, measure) for name in names]) for one in drift.after_task[task:]]
            for task, names in enumerate(facts.classes)
        ]
        lines = [
            plots.line(f"classes of task {task + 1}", moments[task:], own, task, hover)
            for task, own in enumerate(means)
        ]
        specs.append({"traces": lines})
        rows.append(
            [
                (measure, f"task {task + 1}", moment, number(mean, 3))
                for task, own in enumerate(means)
                for moment, mean in zip(moments[task:], own, strict=True)
            ]
        )
    down = plots.axis_from_zero("mean over classes, in spreads")
    spec = plots.spec([], 380, plots.named_axis("after learning", moments), down)
    return Chart(
        "drift",
        "Drift by task",
        "A line is the mean over the classes of one task. Rising: the network moves on and takes the old classes with "
        "it. A gap that stays low while the shift rises: what is remembered follows.",
        spec,
        table_of_choices("Mean drift by task", ("measure", "classes of", "after", "mean"), rows),
        picker=Picker("Shown", measures, specs),
    )


def _drift_map(facts: RunFacts, drift: Drift, measures: Sequence[str]) -> Chart:
    names = [name for task in facts.classes for name in task]
    moments = plots.tasks(len(drift.after_task))
    values = [[[_measured(one, name, each) for one in drift.after_task] for name in names] for each in measures]
    highest = max((value for own in values for row in own for value in row if value), default=1.0)
    specs, rows = [], []
    for measure, own in zip(measures, values, strict=True):
        hover = f"class {{y}} after {{x}}:\n{measure} of {{z:.2f}} spreads"
        look: dict[str, Any] = {"highest": highest, "scale": "warm", "suffix": "", "digits": 2}
        specs.append(plots.heat_map(names, moments, own, ("class", "after learning"), hover, **look))
        rows.append(
            [
                (measure, name, moment, number(value, 3))
                for name, row in zip(names, own, strict=True)
                for moment, value in zip(moments, row, strict=True)
                if value is not None
            ]
        )
    return Chart(
        "drift-by-class",
        "Drift of every class",
        "Read a row from left to right; the stronger the colour, the further the class has moved. Both measures share "
        "one scale.",
        {},
        table_of_choices("Drift by class", ("measure", "class", "after", "spreads"), rows),
        picker=Picker("Shown", measures, specs),
    )


def _measured(moment: Mapping[str, Any], name: str, measure: str) -> float | None:
    return getattr(moment.get(name), measure, None)


def _mean(values: Sequence[float | None]) -> float | None:
    summary = spread([value for value in values if value is not None])
    return summary.mean if summary else None
