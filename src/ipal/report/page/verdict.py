"""One sentence at the top of a page: what a run lost and to which class, or which method is best and by how much."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ipal.report.collect import Row, Run
from ipal.report.page.confusion import Counts
from ipal.report.page.parts import plural, signless
from ipal.report.page.scores import counts_of
from ipal.report.statistics import paired_interval

LEAST = 0.05
"""Points of accuracy that print as more than nothing."""


class Gain(NamedTuple):
    """Where the nodes of a task went since it was learned."""

    place: int
    """Of the class that took most of them."""
    share: float
    """Of all that went."""


def of_run(run: Run) -> str:
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
    most = "most of them" if gain.share > 0.5 else "the largest part"
    when = run.task_of_class[gain.place]
    which = "of its own" if when == task else f"learned in task {when + 1}"
    return f", {most} to {named(names[gain.place])}, {which}"


def taken(before: Counts, after: Counts, own: Sequence[int]) -> Gain | None:
    """Which class took the most nodes of the classes `own` between two moments; None if none did."""
    gains = after[own].astype(np.int64)
    gains[:, : before.shape[1]] -= before[own]
    gains[range(len(own)), own] = 0
    total = gains.sum(axis=0).clip(min=0)
    return Gain(int(total.argmax()), float(total.max() / total.sum())) if total.any() else None


def named(name: str) -> str:
    """A name in quotation marks; a number as that of a class."""
    return f"class {name}" if name.lstrip("-").isdecimal() else f"“{name}”"


def of_comparison(title: str, ranked: Sequence[Row]) -> str:
    """The best method, by how much, and whether seeds alone could explain it."""
    if len(ranked) < 2:
        return f"{title}: fewer than two rows have the same seeds, so none is called best."
    best, second, *_ = sorted(ranked, key=lambda row: -row.mean("AP"))
    before = signless(f"{best.mean('AP') - second.mean('AP'):.1f}")
    said = f"{title}: {best.title} is best with AP {best.mean('AP'):.1f} %, {before} points before {second.title}"
    interval = paired_interval(best.by_seed("AP"), second.by_seed("AP"), len(ranked) - 1)
    if interval is None:
        return f"{said}; fewer than five seeds cannot tell whether that is chance."
    bounds = signless(f"{interval.low:.1f}") + " to " + signless(f"{interval.high:.1f}")
    verdict = "excludes zero" if interval.low > 0 else "includes zero, so it may be chance"
    return f"{said}; the 95 % interval of the difference, {bounds}, {verdict}."


def of_comparisons(verdicts: Sequence[str], best: Sequence[str]) -> str:
    """The one verdict, or how often which method is best."""
    if len(verdicts) == 1:
        return verdicts[0]
    said = ", ".join(f"{title} in {number}" for title, number in Counter(best).most_common())
    return f"Of {plural(len(verdicts), 'comparison')}, best in AP: {said}." if said else "No comparison has a best row."
