"""One sentence at the top of a page: what a run lost and to which class, or which method is best and by how much."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ipal.report.page.confusion import Counts
from ipal.report.page.facts import RunFacts
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


def of_run(facts: RunFacts) -> str:
    """AP, the task that lost most since it was learned, and the class that it lost most nodes to."""
    score = f"AP {facts.scores['AP']:.1f} %"
    matrix = facts.matrix
    lost = matrix.diagonal() - matrix[-1]
    task = int(np.argmax(lost))
    if len(lost) == 1:
        return f"{score} on a single task, so nothing could be forgotten."
    if lost[task] < LEAST:
        return f"{score}; no task lost accuracy after it was learned."
    said = f"{score}; task {task + 1} lost {lost[task]:.1f} points since it was learned"
    to = _where_to(facts, task)
    return f"{said}, {to}." if to else f"{said}."


def _where_to(facts: RunFacts, task: int) -> str:
    """Nothing where the task shares its classes with others: its nodes are not told apart."""
    classes = Counter(str(name) for one in facts.protocol["classes"] for name in one)
    own = [place for place, one in enumerate(facts.task_of_class) if one == task]
    if not own or any(classes[facts.confusion.classes[place]] > 1 for place in own):
        return ""
    counts = counts_of(facts, facts.confusion)
    gain = taken(counts[task], counts[-1], own)
    if gain is None:
        return ""
    most = "most of them" if gain.share > 0.5 else "the largest part"
    when = facts.task_of_class[gain.place]
    which = "of its own" if when == task else f"learned in task {when + 1}"
    return f"{most} to {named(facts.confusion.classes[gain.place])}, {which}"


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


class Contestant(NamedTuple):
    """A ranked row of a comparison."""

    title: str
    by_seed: Mapping[int, float]
    """AP."""

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.by_seed.values())))


def of_comparison(title: str, ranked: Sequence[Contestant]) -> str:
    """The best method, by how much, and whether seeds alone could explain it."""
    if len(ranked) < 2:
        return f"{title}: fewer than two rows have the same seeds, so none is called best."
    best, second, *_ = sorted(ranked, key=lambda one: -one.mean)
    said = (
        f"{title}: {best.title} is best with AP {best.mean:.1f} %, {signless(f'{best.mean - second.mean:.1f}')} points "
        f"before {second.title}"
    )
    interval = paired_interval(best.by_seed, second.by_seed, len(ranked) - 1)
    if interval is None:
        return f"{said}; fewer than five seeds cannot tell whether that is chance."
    bounds = signless(f"{interval.low:.1f}") + " to " + signless(f"{interval.high:.1f}")
    if interval.low > 0:
        return f"{said}; the 95 % interval of the difference, {bounds}, excludes zero."
    return f"{said}; the 95 % interval of the difference, {bounds}, includes zero, so it may be chance."


def of_comparisons(verdicts: Sequence[str], best: Sequence[str]) -> str:
    """The one verdict, or how often which method is best."""
    if len(verdicts) == 1:
        return verdicts[0]
    wins = Counter(best).most_common()
    said = ", ".join(f"{title} in {number}" for title, number in wins)
    return f"Of {plural(len(verdicts), 'comparison')}, best in AP: {said}." if said else "No comparison has a best row."
