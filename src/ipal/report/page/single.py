"""The page of one run."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ipal.report.cells import plural, signless
from ipal.report.collect import Run
from ipal.report.page.confusion import Counts
from ipal.report.page.cost import cost_section, retained_section
from ipal.report.page.parts import Fact, Page, seconds
from ipal.report.page.scores import accuracy_section, classes_section, confusion_section, counts_of
from ipal.report.page.setup import setup_section
from ipal.report.page.training import along_section, drift_section, losses_section, plane_section
from ipal.report.tables import size

SECTIONS = (
    accuracy_section,
    along_section,
    classes_section,
    confusion_section,
    losses_section,
    plane_section,
    drift_section,
    retained_section,
    cost_section,
    setup_section,
)
LEAST = 0.05
"""Points of accuracy that print as more than nothing."""


def one_run(run: Run) -> Page:
    """Everything about a run, what matters most first."""
    sizes = run.split
    split = f"{sizes[0]} classes each" if len({*sizes}) == 1 < len(sizes) else f"{'+'.join(map(str, sizes))} classes"
    model = f"{run.result['model']}. " if "model" in run.result else ""
    warnings = [str(remark) for remark in run.closer.get("remarks", ())]
    if remark := run.data_remark:
        warnings.insert(0, f"About this graph: {remark}")
    return Page(
        title=f"{run.result['title']} on {run.dataset}",
        verdict=verdict(run),
        subtitle=(
            f"{model}{plural(len(sizes), 'task')} of {split}, one after the other; seed {run.seed}. Run {run.name}."
        ),
        facts=headline(run),
        warnings=warnings,
        sections=[found for section in SECTIONS if (found := section(run))],
        download=run.as_plain(),
        name=run.name,
    )


def headline(run: Run) -> list[Fact]:
    """The headline numbers."""
    why = "it stores raw nodes of earlier tasks" if run.stores_exemplars else "old nodes pass messages again"
    free = Fact("exemplar-free", "no", why, tone="warn")
    if run.is_exemplar_free:
        free = Fact("exemplar-free", "yes", "no node of an earlier task is kept or seen again", tone="good")
    change = signless(f"{run.scores['AF']:.2f}")
    return [
        Fact("AP", f"{run.scores['AP']:.2f}", "average performance: mean of the accuracy matrix's last row", "%"),
        Fact("AF", change, "average forgetting: mean change of old tasks since learned", "points"),
        Fact("time", seconds(run.costs["seconds"]), "for all tasks, evaluation included"),
        Fact("retained", size(run.costs["retained_bytes"]), "all that the saved model keeps"),
        free,
    ]


def verdict(run: Run) -> str:
    """AP, the task that lost most since it was learned, and the class that it lost most nodes to."""
    score = f"AP {run.scores['AP']:.1f} %"
    lost = run.matrix.diagonal() - run.matrix[-1]
    task = int(np.argmax(lost))
    if len(lost) == 1:
        return f"{score} on a single task, so nothing could be forgotten."
    if lost[task] < LEAST:
        return f"{score}; no task lost accuracy after it was learned."
    to = _where_to(run, task)
    return f"{score}; task {task + 1} lost {lost[task]:.1f} points since it was learned{to}."


def _where_to(run: Run, task: int) -> str:
    """Nothing where the task shares its classes with others: its nodes are not told apart."""
    names, counts = run.confusion.classes, counts_of(run)
    classes = Counter(str(name) for one in run.protocol["classes"] for name in one)
    own = [place for place, one in enumerate(run.task_of_class) if one == task]
    shared = any(classes[names[place]] > 1 for place in own)
    gain = None if shared or not own else taken(counts[task], counts[-1], own)
    if gain is None:
        return ""
    place, share = gain
    most = "most of them" if share > 0.5 else "the largest part"
    when = run.task_of_class[place]
    which = "of its own" if when == task else f"learned in task {when + 1}"
    return f", {most} to {named(names[place])}, {which}"


def taken(before: Counts, after: Counts, own: Sequence[int]) -> tuple[int, float] | None:
    """Which class took the most nodes of the classes `own` between two moments, and its share of all that went."""
    gains = after[own].astype(np.int64)
    gains[:, : before.shape[1]] -= before[own]
    gains[range(len(own)), own] = 0
    total = gains.sum(axis=0).clip(min=0)
    return (int(total.argmax()), float(total.max() / total.sum())) if total.any() else None


def named(name: str) -> str:
    """A name in quotation marks; a number as that of a class."""
    return f"class {name}" if name.lstrip("-").isdecimal() else f"“{name}”"
