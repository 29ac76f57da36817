"""The page of one run."""

import math
import shlex
from collections.abc import Iterable
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ipal.config import RunConfig, flat
from ipal.evaluation.metrics import METRICS
from ipal.report.cells import Cell, seconds, signless, table
from ipal.report.collect import Run
from ipal.report.page import plots
from ipal.report.page.plots import Chart, Fact, Page, PageSection
from ipal.report.tables import as_text, as_yaml
from ipal.runs.records import stream_in_words
from ipal.system.units import many, size

ACCURACIES = {"balanced": "the mean recall of its classes", "micro": "the share of its nodes that are predicted right"}
OPTIONS = ("dataset", "method", "seed", "split", "device", "threads")


def one_run(run: Run) -> Page:
    """Everything about a run, what matters most first."""
    result, sizes = run.result, run.result.protocol.split
    split = f"{sizes[0]} classes each" if len({*sizes}) == 1 < len(sizes) else f"{'+'.join(map(str, sizes))} classes"
    sections = (
        accuracy_section, along_section, classes_section, training_section, cost_section, setup_section,
    )  # fmt: skip
    model, name = f"{result.model}. " if result.model else "", run.folder.path.name
    return Page(
        title=f"{result.title} on {run.dataset}",
        verdict=verdict(run),
        subtitle=f"{model}{many(len(sizes), 'task')} of {split}, one after the other; seed {result.seed}. Run {name}.",
        facts=headline(run),
        warnings=[f"About this graph: {result.data.remark}"] if result.data.remark else [],
        sections=[found for section in sections if (found := section(run))],
        name=name,
    )


def headline(run: Run) -> list[Fact]:
    """The headline numbers."""
    stores = run.result.retained.stores_exemplars
    why = "it stores raw nodes of earlier tasks" if stores else "old nodes pass messages again"
    free = Fact("exemplar-free", "no", why, tone="warn")
    if run.result.protocol.exemplar_free:
        free = Fact("exemplar-free", "yes", "no node of an earlier task is kept or seen again", tone="good")
    change = signless(f"{run.scores['AF']:.2f}")
    return [
        Fact("AP", f"{run.scores['AP']:.2f}", "average performance: mean of the accuracy matrix's last row", "%"),
        Fact("AF", change, "average forgetting: mean change of old tasks since learned", "points"),
        Fact("time", seconds(run.costs["time of a run"]), "for all tasks, evaluation included"),
        Fact("retained", size(run.costs["retained"]), "all that the saved model keeps"),
        free,
    ]


def verdict(run: Run) -> str:
    """AP, and the task that lost most since it was learned."""
    score, lost = f"AP {run.scores['AP']:.1f} %", run.matrix.diagonal() - run.matrix[-1]
    task = int(np.argmax(lost))
    if len(lost) == 1:
        return f"{score} on a single task, so nothing could be forgotten."
    if lost[task] < 0.05:  # which would print as nothing
        return f"{score}; no task lost accuracy after it was learned."
    return f"{score}; task {task + 1} lost most since it was learned, {lost[task]:.1f} points."


def accuracy_section(run: Run) -> PageSection:
    among = {
        "class": "over all classes seen so far, without knowing the node's task",
        "task": "over the classes of the node's own task, which is known",
    }.get(str(run.result.protocol.stream), f"stream {stream_in_words(run.result.protocol.stream)}")
    accuracy, matrix, names = run.result.protocol.accuracy, run.matrix, plots.tasks(len(run.matrix))
    titles, hover = ("after learning", "tested on", "accuracy %"), "{y:.2f} % after {x}"
    cells = plots.heat_map(names, names, run.result.accuracy_matrix, titles, "After learning {y}:\n{z:.2f} % on {x}")
    lines = [plots.line(f"on {name}", names[on:], matrix[on:, on].tolist(), on, hover) for on, name in enumerate(names)]
    lines.append(plots.line("AP (mean)", names, run.result.average_performance_curve, 0, hover, is_main=True))
    charts = [
        Chart(
            "matrix",
            "Accuracy matrix",
            "A row is a moment, a column a task that is tested: read a column downwards to see a task being forgotten. "
            "AP is the mean of the last row, AF the mean change from the diagonal to the last row.",
            cells,
        ),
        Chart(
            "curve",
            "AP after each task",
            "The thick line is AP, the mean over the tasks seen so far; thin lines are these tasks.",
            plots.curves(lines, {"title": "after learning", "names": names}, "accuracy"),
        ),
    ]
    known, rows = {metric.title: metric for metric in METRICS.values()}, []
    for title, value in run.scores.items():
        unit, about = (known[title].unit, known[title].about) if title in known else ("", "")
        rows.append((title, Cell(signless(f"{value:.2f}"), value), unit, about))
    metrics = table("Metrics of the whole run", ("metric", "value", "unit", "meaning"), rows)
    lead = f"On test nodes, {among}. A task's accuracy is {ACCURACIES.get(accuracy, accuracy)}."
    return PageSection("accuracy", "Accuracy", lead=lead, content=[*charts, metrics])


def classes_section(run: Run) -> PageSection:
    """Recall of every class after each task, and what its nodes are taken for."""
    names, moments = run.confusion.classes, plots.tasks(len(run.matrix))
    counts = [counted(rows, len(names)) for rows in run.confusion.after_task]
    percent = [shares(one) for one in counts]
    recalls = [[one[place][place] for one in percent] for place in range(len(names))]
    of_recalls, of_shares = ("class", "after learning", "recall %"), ("true class", "predicted class", "% of the row")
    hover = "{about} test nodes of {y} ({z:.1f} %)\nwere taken for {x}"
    look = {"lowest": 0, "about_title": "nodes", "scale": "errors"}
    taken = [
        plots.heat_map(names, names, share, of_shares, hover, about=one.tolist(), **look)
        for one, share in zip(counts, percent, strict=True)
    ]
    charts = [
        Chart(
            "recall",
            "Recall of every class over the tasks",
            "Read a row from left to right: where it pales, the class is being forgotten.",
            plots.heat_map(names, moments, recalls, of_recalls, "{z:.1f} % of class {y}\nafter {x}"),
        ),
        Chart(
            "confusion",
            "Which class is taken for which",
            "Where the test nodes of a class end up. Right of the diagonal, old ones are taken for newer ones.",
            {},
            [f"after {name}" for name in moments],
            taken,
        ),
    ]
    lead = "Recall of a class: the share of its test nodes that are predicted as that class."
    return PageSection("classes", "Classes", lead=lead, content=charts)


def counted(rows: Iterable[tuple[int, int, int]], classes: int) -> NDArray[np.int64]:
    """Test nodes by true (row) and predicted class (column); rows hold both and the number of nodes."""
    counts = np.zeros((classes, classes), np.int64)
    for true, predicted, nodes in rows:
        counts[true, predicted] += nodes
    return counts


def shares(counts: NDArray[np.int64]) -> list[list[float | None]]:
    """In percent of each row; None in a row without a node. On the diagonal is the recall of a class."""
    return [[round(100 * int(one) / total, 4) if (total := int(row.sum())) else None for one in row] for row in counts]


def along_section(run: Run) -> PageSection | None:
    """Accuracy along a stream of batches; None where tasks come whole."""
    points = run.result.along
    if points is None:
        return None
    hover, markers = "{y:.2f} % after batch {x}", len(points.batch) <= 60
    line = plots.line("mean accuracy", points.batch, points.test, 0, hover, is_main=True, size=6, markers=markers)
    batches = run.result.protocol.batches or []
    begins = [batch + 0.5 for batch in accumulate(batches, initial=0)]
    borders = list(zip(begins, plots.tasks(len(batches)), strict=False))
    chart = Chart(
        "along",
        "Accuracy along the stream",
        "Mean test accuracy over the tasks so far; AAUC is the mean of these points.",
        plots.curves([line], {"title": "batches learned"}, "mean accuracy", borders=borders),
    )
    lead = "Tasks came in batches of nodes, each seen once. The learner was also tested between them."
    return PageSection("along", "Along the stream", lead=lead, content=[chart])


def training_section(run: Run) -> PageSection | None:
    """The named loss terms, epoch by epoch; None where nothing is trained."""
    rows = run.folder.history()
    if not rows:
        return None
    names = dict.fromkeys(name for row in rows for name in row)
    # None where a term was not there or not a number.
    history = [{name: row[name] if math.isfinite(row.get(name, math.nan)) else None for name in names} for row in rows]
    epochs, tasks = list(range(1, len(history) + 1)), [int(row["task"] or 0) for row in history]
    begins = [place for place, task in enumerate(tasks) if place == 0 or task != tasks[place - 1]]
    terms = [name for name in names if name not in {"task", "epoch"}]
    hover, markers = "{y:.4g} in epoch {x}", len(epochs) < 41
    lines = [
        plots.line(term, epochs, [row[term] for row in history], index, hover, markers=markers)
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


def cost_section(run: Run) -> PageSection:
    """What is kept, how long it took, how much memory, on what."""
    timing, retained = run.result.timing, run.result.retained
    lead = "By its method the model stores no raw node. What it does keep is all here."
    if retained.stores_exemplars:
        lead = "Raw nodes of earlier tasks are stored: anyone who has the model has them."
    notes = [
        f"An epoch took {seconds(run.costs['an epoch'])}, all tests {seconds(timing.evaluation_seconds)}.",
        f"The process held at most {size(run.costs['peak memory'])}. Measured on: {run.machine}.",
        "'ipal audit RUN' shows what can be reconstructed from the model.",
    ]
    if (turns := timing.runs_taking_turns) > 1:
        notes.append(f"{turns} runs took turns in one process: times are those of this run, memory is that of all.")
    items = sorted(((item.what, item.bytes) for item in retained.items), key=lambda item: -item[1])
    kept = table("All that is kept", ("what", "size"), [(what, Cell(size(count), count)) for what, count in items])
    return PageSection("cost", "Memory and time", lead=lead, content=[kept], notes=notes)


def setup_section(run: Run) -> PageSection:
    """Everything that decided the numbers."""
    notes = [
        "The command makes the same run in a folder of the same name. It looks for the graph under IPAL_DATA, or where "
        "--data-root says."
    ]
    if how := getattr(run.result.data, "preprocessing", ""):
        notes.append(f"Features: {how}.")
    if dropped := run.result.protocol.dropped_classes:
        notes.append(f"Classes left out for having too few nodes: {', '.join(map(str, dropped))}.")
    settings = [(name, as_text(value)) for name, value in flat(run.config.to_tree()).items()]
    known = run.folder.environment()
    found = [("run", run.folder.path.name), ("graph (SHA-256)", run.result.data.hash)]
    found.append(("split of nodes (SHA-256)", run.result.protocol.split_hash))
    found += [(name, version) for name, version in (known.get("packages") or {}).items() if version]
    names = ("python", "git_commit", "platform", "processor", "device_name", "cores", "threads")
    found += [(name.replace("_", " "), str(known[name])) for name in names if known.get(name) is not None]
    content = [
        table("All settings", ("setting", "value"), settings),
        table("Graph, software and machine", ("what", "which"), found),
    ]
    return PageSection("setup", "How it was made", code=command(run.config), notes=notes, content=content)


def command(config: RunConfig) -> str:
    """`ipal run …` with all settings."""
    words = ["ipal", "run"]
    for name, value in flat(config.to_tree()).items():
        if name in OPTIONS:
            words += [f"--{name}", ",".join(map(str, value)) if isinstance(value, list) else str(value)]
        elif name != "dataset_hash":  # the graph says it by itself
            words += ["--set", f"{name}={as_yaml(value)}"]
    return shlex.join(words)
