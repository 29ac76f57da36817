"""The graphs that taught a model: enough to recognise each, nothing of what it holds."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ipal.data.graph import content_hash
from ipal.data.task import Task


@dataclass(frozen=True)
class Lesson:
    """One task that was learned."""

    fingerprint: str
    """Of features, edges, training nodes, and which of them had the same label."""
    nodes: int
    """Training nodes."""
    directed: bool = False
    """Whether an edge could run one way, in this graph or an earlier one."""
    time: str | None = None
    sealed: bool = False
    """Whether models or classes were merged since: then it cannot be taken away again."""

    @classmethod
    def of(cls, task: Task, *, directed: bool) -> "Lesson":
        return cls(fingerprint(task), len(task.nodes), directed)

    @property
    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        when = f" on {self.time[:10]}" if self.time else ""
        return f"the graph with {self.nodes} training nodes learned{when}"


def fingerprint(task: Task) -> str:
    """A hash of a graph and of who taught in it. Names of classes are no part of it: they may change."""

    def made() -> str:
        marks = np.full(task.graph.num_nodes, -1)
        _, first, place = np.unique(task.labels, return_index=True, return_inverse=True)
        marks[task.nodes] = task.nodes[first][place]  # the first node with the same label stands for it
        return content_hash(task.graph, marks)[:32]

    return task.derived("fingerprint", None, made)


def sealed(lessons: Iterable[Lesson]) -> tuple[Lesson, ...]:
    """Lessons that cannot be taken away any more."""
    return tuple(replace(lesson, sealed=True) for lesson in lessons)
