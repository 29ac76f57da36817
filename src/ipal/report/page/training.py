"""Sections on training: a stream of batches, loss terms, classes in two dimensions, drift."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from ipal.report.collect import Run
from ipal.report.page import plots
from ipal.report.page.parts import Chart, PageSection, Spec

MOST_BARS = 200
"""Batches that are drawn one by one; of more, neighbouring ones share a bar."""

# ---------------------------------------------------------------------- a stream of batches


def along_section(run: Run) -> PageSection | None:
    """Accuracy along the way, what came when, and what a batch cost; None where tasks come whole."""
    if run.result.get("along") is None:
        return None
    points, mixture, batches = (run.result["along"], *(run.protocol.get(name) or [] for name in ("mixture", "batches")))
    look: Spec = {"is_main": True, "size": 6, "markers": len(points["batch"]) <= 60}
    data = [plots.line("mean accuracy", points["batch"], points["test"], 0, "{y:.2f} % after batch {x}", **look)]
    width = -(-len(mixture) // MOST_BARS) or 1
    groups = [mixture[begin : begin + width] for begin in range(0, len(mixture), width)]
    middles = [place * width + (len(rows) + 1) / 2 for place, rows in enumerate(groups)]
    for task, name in enumerate(plots.tasks(len(run.split))):
        nodes = [sum(row[task] for row in rows) / len(rows) for rows in groups]
        shown = "{y:.1f} training nodes of " + name + " in batch {x}"
        data.append(plots.bars(name, middles, nodes, task, shown, panel=1, width=width))
    milliseconds = [1000 * value for value in run.result["timing"].get("seconds_per_batch") or []]
    numbers, hover = list(range(1, len(milliseconds) + 1)), "{y:.2f} ms for batch {x}"
    data.append(plots.line("time of a batch", numbers, milliseconds, 0, hover, panel=2, markers=False))
    panels = [plots.percent_axis("mean accuracy", points["test"])]
    panels += [plots.axis(title, low=0, share=0.6) for title in ("nodes a batch", "ms a batch")]
    ends = list(accumulate(batches, initial=0))[: len(batches)]
    borders = list(zip([end + 0.5 for end in ends], plots.tasks(len(ends)), strict=True))
    chart = Chart(
        "along",
        "Accuracy along the stream, what came, and what it cost",
        "Above: mean test accuracy over the tasks so far; AAUC is the mean of its points. Below: how many training "
        "nodes of which task a batch had, and the time to learn it, tests not counted.",
        plots.spec(data, 620, plots.axis("batches learned"), panels, borders=borders),
    )
    lead = "Tasks came in batches of nodes, each seen once. The learner was also tested between them."
    return PageSection("along", "Along the stream", lead=lead, charts=[chart])


# ---------------------------------------------------------------------- losses


def losses_section(run: Run) -> PageSection:
    """The named loss terms, epoch by epoch."""
    history = run.history
    if not history:
        return PageSection("losses", "Loss terms", notes=["This run has no epochs, and so no loss to show."])
    epochs, tasks = list(range(1, len(history) + 1)), [int(row["task"] or 0) for row in history]
    borders = [
        (place + 0.5, f"task {task + 1}") for place, task in enumerate(tasks) if place == 0 or task != tasks[place - 1]
    ]
    lines = [
        plots.line(
            term, epochs, [row[term] for row in history], index, "{y:.4g} in epoch {x}", markers=len(epochs) < 41
        )
        for index, term in enumerate(name for name in history[0] if name not in {"task", "epoch"})
    ]
    across, down = plots.axis("epochs, all tasks in a row"), plots.axis("value of the term", low=0)
    scales = [{}, {"y": plots.axis("value of the term", log=True)}]
    chart = Chart(
        "losses",
        "Loss terms over time",
        "Each term that the method adds up, as it was in each epoch; dotted lines are where a new task begins. A term "
        "that begins late is one that needs something to remember.",
        plots.spec(lines, 380, across, down, together=True, borders=borders),
        ("linear scale", "logarithmic scale"),
        scales,
    )
    return PageSection("losses", "Loss terms", charts=[chart])


# ---------------------------------------------------------------------- classes on a plane


def plane_section(run: Run) -> PageSection:
    """Classes in two dimensions, if nodes were projected."""
    title, plane = "Classes on a plane", run.closer.get("plane")
    if not plane:
        note = "The nodes of this run are not shown: the page was made without them."
        return PageSection("plane", title, notes=[note])
    return PageSection("plane", title, lead=str(plane["about"]), charts=[_plane_chart(run, plane)])


def _plane_chart(run: Run, plane: Mapping[str, Any]) -> Chart:
    what = str(plane["prototypes_are"])
    nodes, prototypes = (_by_class(plane[kind]) for kind in ("points", "prototypes"))
    dots, stars, names_of_task = list[Spec](), list[Spec](), [set[str]() for _ in run.split]
    size = 17 if len(run.task_of_class) <= 30 else 12
    classes = ((task, name) for task, names in enumerate(run.classes) for name in names)
    for index, (task, name) in enumerate(classes):
        symbol = plots.SYMBOLS[index // plots.SERIES % len(plots.SYMBOLS)]
        legend = f"{name} (task {task + 1})"
        names_of_task[task].add(legend)
        for drawn, found, look in (
            (dots, nodes.get(name, []), {"symbol": symbol, "size": 6}),
            (stars, prototypes.get(name, []), {"symbol": "star", "size": size}),
        ):
            if found:
                about = [_in_words(point) if "hard" in point else f"class {name}: {what}" for point in found]
                ringed = [bool(point.get("hard", True)) for point in found]
                places = {axis: [point[axis] for point in found] for axis in "xy"}
                look |= {"name": legend, "colour": plots.colour(index), "ringed": ringed}
                drawn.append({"kind": "points", **places, "about": about, "hover": "{about}", **look})
    every = {trace["name"] for trace in (*dots, *stars)}
    hidden = [{"hidden": sorted(every - names)} for names in names_of_task]
    bare = plots.axis("", bare=True)
    return Chart(
        "plane",
        "Nodes, prototypes and hard examples",
        f"A dot is a node, coloured by its true class; a dot with a ring is a hard example; a star is what is "
        f"remembered of the class ({what}). Click a class in the legend to hide it, twice to see it alone.",
        plots.spec([*dots, *stars], 600, bare, bare),  # stars lie on top
        ["all tasks", *(f"only {name}" for name in plots.tasks(len(hidden)))],
        [{}, *hidden],
    )


def _by_class(columns: Mapping[str, Sequence[Any]]) -> dict[str, list[dict[str, Any]]]:
    """Points as rows, by the name of their class."""
    found: dict[str, list[dict[str, Any]]] = {}
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        found.setdefault(str(row["class"]), []).append(row)
    return found


def _in_words(node: Mapping[str, Any]) -> str:
    name, predicted = str(node["class"]), str(node["predicted"])
    seen = "recognised" if predicted == name else f"taken for class {predicted}"
    return f"node of class {name}, {seen}" + ", a hard example" * bool(node["hard"])


# ---------------------------------------------------------------------- drift


def drift_section(run: Run) -> PageSection:
    """How far classes move away from where they were learned."""
    title = "Drift of classes"
    if run.drift is None:
        note = "There is no drift: the method trains no network that could move what is remembered."
        return PageSection("drift", title, notes=[note])
    lead = (
        "Shift: how far the mean embedding of a class's test nodes has moved since the class was learned. Gap: how far "
        "what is remembered of the class, its prototype, lies from that mean now. Both in units of the class's own "
        "spread when it was learned: 1 is as far as its nodes scatter."
    )
    has_gap = any(one.gap is not None for moment in run.drift.after_task for one in moment.values())
    notes = [] if has_gap else ["This method remembers no prototypes, so there is no gap to show."]
    measures = ("shift", "gap") if has_gap else ("shift",)
    names = [name for names in run.classes for name in names]
    # By measure, class and task.
    moved = [
        [[getattr(one.get(name), what, None) for one in run.drift.after_task] for name in names] for what in measures
    ]
    every = [value for values in moved for row in values for value in row if value]
    look: dict[str, Any] = {"highest": max(every, default=1.0), "scale": "warm", "suffix": "", "digits": 2}
    specs = []
    for measure, values in zip(measures, moved, strict=True):
        hover = f"class {{y}} after {{x}}:\n{measure} of {{z:.2f}} spreads"
        titles = ("class", "after learning", f"{measure}, in spreads")
        specs.append(plots.heat_map(names, plots.tasks(len(run.split)), values, titles, hover, **look))
    chart = Chart(
        "drift",
        "Drift of every class",
        "Read a row from left to right; the stronger the colour, the further the class has moved. A gap that stays low "
        "while the shift rises: what is remembered follows. Both measures share one scale.",
        {},
        measures,
        specs,
    )
    return PageSection("drift", title, lead=lead, charts=[chart], notes=notes)
