"""Held back: training nodes of a first task in parts, as if classes came one after the other; what is rehearsed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from ipal.config import TestGraph
from ipal.data.graph import Graph, Nodes
from ipal.data.streams import Labels, Task

LEARNED, AROUND = 4000, 4
"""Most nodes that are learned or predicted, and how many of their neighbours there may be for each of them."""
FEWEST = 10
"""A class of fewer training nodes is not rehearsed: half of it is too little to learn from, or to measure by."""
ENOUGH = 3
"""Fewer classes than these are too few to hold some back: at least two come first, and at least one later."""
STEPS = 4
"""Most classes that come one after the other."""
GRAPHS: Mapping[TestGraph, str] = MappingProxyType(
    {
        "isolated": "on graphs without edges between classes that were learned apart",
        "seen": "on a graph with edges between classes that were learned apart",
        "both": "in the mean of graphs without and with edges between classes that were learned apart",
    }
)
"""On which nodes are predicted, by the graphs that a learner is tested on."""


@dataclass(frozen=True, eq=False)
class Part:
    """One rehearsed task."""

    task: Task
    aside: Nodes
    """Nodes of its graph that are predicted in the end."""
    truth: Labels
    nodes: Nodes
    """Number of every node of its graph in the graph that it is a part of."""

    def turned(self) -> "Part":
        """With the held-out nodes to be learned, and those learned held out."""
        task = Task(self.task.graph, self.aside, self.truth)
        return Part(task, self.task.nodes, self.task.labels, self.nodes)


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """Tasks one after the other, and the graphs on which their held-out nodes are predicted in the end."""

    parts: Sequence[Part]
    exams: Sequence[Sequence[tuple[Graph, Nodes]]]
    """Of every kind of test graph: graphs, and the held-out nodes in each, those of all parts in their order."""

    @classmethod
    def of(cls, whole: Graph, parts: Sequence[Part], test_graph: TestGraph) -> "Rehearsal":
        apart = [(part.task.graph, part.aside) for part in parts]
        if test_graph == "isolated" or len(parts) == 1:
            return cls(parts, [apart])
        return cls(parts, [[together(whole, parts)]] if test_graph == "seen" else [apart, [together(whole, parts)]])

    @property
    def truth(self) -> Labels:
        return np.concatenate([part.truth for part in self.parts])


def together(whole: Graph, parts: Sequence[Part]) -> tuple[Graph, Nodes]:
    """The graph of all parts, with the edges between them, and the held-out nodes in it."""
    everyone = np.unique(np.concatenate([part.nodes for part in parts]))
    aside = np.concatenate([part.nodes[part.aside] for part in parts])
    return whole.induced(everyone), np.searchsorted(everyone, aside)


def share(task: Task) -> float:
    """About which share of a task's training nodes is learned in a rehearsal."""
    return 0.5 * min(1.0, LEARNED / max(1, len(task.nodes)))


def cut(names: Sequence[Any], *, isolated: bool = True) -> list[list[list[Any]]]:
    """Ways to learn classes in parts: about a third of them twice, and some one by one.

    Few classes are learned at once, or one by one where edges between them count (not `isolated`).
    """
    if len(names) < ENOUGH:
        return [[list(names)] if isolated else [[name] for name in names]]
    third = max(2, len(names) // 3)
    found = []
    for later in ([third] * min(2, (len(names) - 2) // third), [1] * min(STEPS, len(names) // 2)):
        ends = np.cumsum([len(names) - sum(later), *later]).tolist()
        found.append([list(names[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)])
    return found


def parts(
    task: Task, members: Mapping[Any, Nodes], groups: Sequence[Sequence[Any]], random: np.random.Generator
) -> Iterator[Part]:
    """Training nodes of each group of classes on a graph of their own, every other node held out.

    Of many nodes some are drawn, the same number of every class, with neighbours of theirs so that they have edges.
    """
    most = max(FEWEST, LEARNED // sum(map(len, groups)))
    for group in groups:
        drawn = {name: random.permutation(members[name])[:most] for name in group}
        is_drawn, is_mine = np.zeros((2, task.graph.num_nodes), dtype=bool)
        is_drawn[np.concatenate(list(drawn.values()))] = True
        is_mine[np.concatenate([members[name] for name in group])] = True
        others = np.flatnonzero(is_mine & ~is_drawn)
        if len(others):
            others = others[task.graph.neighbours.pointing_to(is_drawn)[others]]
            others = random.permutation(others)[: AROUND * int(is_drawn.sum())]
        nodes = np.sort(np.concatenate([np.flatnonzero(is_drawn), others, task.graph.others]))
        places = {name: np.searchsorted(nodes, some) for name, some in drawn.items()}
        learned, labels = _joined({name: some[::2] for name, some in places.items()})
        aside, truth = _joined({name: some[1::2] for name, some in places.items()})
        yield Part(Task(task.graph.induced(nodes), learned, labels), aside, truth, nodes)


def members(task: Task) -> dict[Any, Nodes]:
    """Training nodes of each class that has enough of them."""
    names, counts = np.unique(task.labels, return_counts=True)
    nodes = task.nodes[np.argsort(task.labels, kind="stable")]
    ends = np.cumsum(counts)
    found = {name: nodes[end - n : end] for name, n, end in zip(names.tolist(), counts, ends, strict=True)}
    return {name: some for name, some in found.items() if len(some) >= FEWEST}


def _joined(found: Mapping[Any, Nodes]) -> tuple[Nodes, Labels]:
    """Nodes of several classes in their order, and the label of each."""
    nodes = np.concatenate(list(found.values()))
    labels = np.repeat(list(found), [len(some) for some in found.values()])
    order = np.argsort(nodes)
    return nodes[order], labels[order]
