"""The section on a stream of batches: accuracy along the way, what came when, and what a batch cost."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from ipal.report.cells import table
from ipal.report.page import plots
from ipal.report.page.facts import RunFacts
from ipal.report.page.parts import Chart, PageSection, Spec, count, number

MOST_BARS = 200
"""Batches that are drawn one by one; of more, neighbouring ones share a bar."""


def along_sections(facts: RunFacts) -> list[PageSection]:
    """One section, or none where tasks come whole."""
    if facts.result.get("along") is None:
        return []
    lead = "Tasks came in batches of nodes, each seen once. The learner was also tested between them."
    return [PageSection("along", "Along the stream", lead=lead, charts=[_accuracy_chart(facts), _cost_chart(facts)])]


def _accuracy_chart(facts: RunFacts) -> Chart:
    points, mixture = facts.result["along"], facts.protocol.get("mixture") or []
    names = plots.tasks(len(facts.split))
    hover = "{y:.2f} % after batch {x}"
    look: Spec = {"is_main": True, "size": 6, "markers": len(points["batch"]) <= 60}
    data = [plots.line("mean accuracy", points["batch"], points["test"], 0, hover, **look)]
    width = -(-len(mixture) // MOST_BARS) or 1
    groups = [mixture[begin : begin + width] for begin in range(0, len(mixture), width)]
    middles = [begin + (len(rows) + 1) / 2 for begin, rows in zip(range(0, len(mixture), width), groups, strict=True)]
    for task, name in enumerate(names):
        nodes = [sum(row[task] for row in rows) / len(rows) for rows in groups]
        shown = "{y:.1f} training nodes of " + name + " in batch {x}"
        data.append(plots.bars(name, middles, nodes, task, shown, panel=1, width=width))
    panels = [plots.percent_axis("mean accuracy", points["test"]), plots.axis_from_zero("nodes a batch", share=0.6)]
    spec = plots.spec(data, 480, plots.axis("batches learned"), panels, borders=_borders(facts))
    rows = [
        (count(batch), number(test), number(validation))
        for batch, test, validation in zip(points["batch"], points["test"], points["validation"], strict=True)
    ]
    return Chart(
        "along",
        "Accuracy along the stream, and what came",
        "Above: mean test accuracy over the tasks so far. Below: how many training nodes of which task a batch had. "
        "AAUC is the mean of the line's points.",
        spec,
        table("Tests along the stream", ("batches", "test %", "validation %"), rows),
    )


def _cost_chart(facts: RunFacts) -> Chart:
    points, seconds = facts.result["along"], facts.result["timing"].get("seconds_per_batch") or []
    batches = list(range(1, len(seconds) + 1))
    milliseconds = [1000 * value for value in seconds]
    kilobytes = [value / 1000 for value in points["bytes"]]
    data = [
        plots.line("time", batches, milliseconds, 0, "{y:.2f} ms for batch {x}", markers=False),
        plots.line("model", points["batch"], kilobytes, 1, "{y:.1f} kB after batch {x}", panel=1),
    ]
    panels = [plots.axis_from_zero("ms to learn a batch"), plots.axis_from_zero("kB of the model")]
    spec = plots.spec(data, 420, plots.axis("batch"), panels, borders=_borders(facts))
    rows = [(count(batch), number(value, 2)) for batch, value in zip(batches, milliseconds, strict=True)]
    return Chart(
        "batch-cost",
        "Cost of a batch",
        "Time to learn a batch, tests not counted, and what a saved model holds. Flat lines: a batch costs as much "
        "late in the stream as early.",
        spec,
        table("Time of every batch", ("batch", "ms"), rows),
    )


def _borders(facts: RunFacts) -> list[tuple[float, str]]:
    """Where tasks end."""
    batches: Sequence[Any] = facts.protocol.get("batches") or []
    ends = list(accumulate(batches, initial=0))[: len(batches)]
    return plots.borders([end + 0.5 for end in ends], plots.tasks(len(ends)))
