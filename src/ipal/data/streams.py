"""From one labelled graph to a stream of tasks.

What a learner may see (`Task`: a graph and its *training* labels) and what only the evaluator sees (`Exam`)
are two types: no validation or test label can reach a learner, because a task has no place to carry it.
"""

import hashlib
import weakref
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipal.config import ProtocolConfig
from ipal.data.derived import Derives
from ipal.data.graph import Graph, Nodes
from ipal.errors import DataError

Labels = NDArray[np.generic]
TRAIN, VALIDATION, TEST = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Task(Derives):
    """What a learner is handed: a graph, the nodes whose labels count, and those labels alone."""

    graph: Graph
    nodes: Nodes
    """Training nodes, as numbered in `graph`."""
    labels: Labels
    """One label per training node, in the user's own terms."""


@dataclass(frozen=True, eq=False)
class Answers:
    """Nodes to be predicted, and the truth."""

    nodes: Nodes
    labels: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Exam:
    """The test of one task: the evaluator's alone."""

    graph: Graph
    validation: Answers
    test: Answers


class TaskStream:
    """A graph cut by classes into tasks. Graphs of tasks are made when asked for, and kept.

    `split` says how many classes each task brings; None (as `Dataset.split` where no benchmark fixes one) leaves it to
    `default_split`.
    """

    def __init__(
        self,
        graph: Graph,
        y: NDArray[np.int64],
        split: tuple[int, ...] | None,
        protocol: ProtocolConfig,
        seed: int,
    ) -> None:
        self.protocol = protocol
        self.graph = graph
        self.y = y
        self.part, self.dropped = assign_parts(y, protocol, seed)
        order = order_classes(y[self.part >= 0], protocol, seed)
        self.classes = cut_classes(order, default_split(len(order)) if split is None else split)
        self.task_of = np.full(len(y), -1, dtype=np.int64)
        for index, classes in enumerate(self.classes):
            self.task_of[np.isin(y, classes)] = index
        self.task_of[self.part < 0] = -1
        self._graphs: dict[tuple[int, bool, bool], tuple[Graph, Nodes]] = {}

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def split_hash(self) -> str:
        """Identifies which node is in which task and part."""
        return hashlib.sha256(self.task_of.tobytes() + self.part.astype(np.int64).tobytes()).hexdigest()

    def task(self, index: int) -> Task:
        """The training view of a task."""
        everything = self.protocol.visibility == "transductive"
        graph, nodes = self._graph_on(index, self.protocol.train_graph == "seen", everything)
        mine = np.flatnonzero((self.task_of[nodes] == index) & (self.part[nodes] == TRAIN))
        return Task(graph=graph, nodes=mine, labels=self.y[nodes[mine]])

    def exams(self, learned: int) -> list[Exam]:
        """The tests of tasks 0 to `learned`, as they stand after task `learned`."""
        seen = self.protocol.test_graph == "seen"
        exams = []
        for index in range(learned + 1):
            graph, nodes = self._graph_on(learned if seen else index, seen, True)
            mine = self.task_of[nodes] == index
            answers = [
                Answers(nodes=chosen, labels=self.y[nodes[chosen]])
                for chosen in (np.flatnonzero(mine & (self.part[nodes] == p)) for p in (VALIDATION, TEST))
            ]
            exams.append(Exam(graph, *answers))
        return exams

    def _graph_on(self, index: int, with_earlier: bool, with_unlabelled: bool) -> tuple[Graph, Nodes]:
        """The subgraph of a task, and which nodes of the whole graph its nodes are; kept while it may be needed."""
        key = (index, with_earlier, with_unlabelled)
        if key not in self._graphs:
            # A task's own graph comes back at every later exam, a union of seen tasks only while it is the newest.
            self._graphs = {old: graph for old, graph in self._graphs.items() if not old[1] or old[0] == index}
            self._graphs[key] = self._induce(*key)
        return self._graphs[key]

    def _induce(self, index: int, with_earlier: bool, with_unlabelled: bool) -> tuple[Graph, Nodes]:
        chosen = self.task_of == index
        if with_earlier:
            chosen = (self.task_of >= 0) & (self.task_of <= index)
        if not with_unlabelled:
            chosen = chosen & (self.part == TRAIN)
        nodes = np.flatnonzero(chosen)
        return _part(self.graph, nodes), nodes


def _part(graph: Graph, nodes: Nodes) -> Graph:
    """The subgraph on some nodes: one and the same for all streams of a graph, as those of other seeds."""
    known = graph.derived("parts", None, weakref.WeakValueDictionary[bytes, Graph])
    key = hashlib.sha256(nodes.tobytes()).digest()
    part = known.get(key)
    if part is None:
        part = known[key] = graph.induced(nodes)
    return part


def default_split(num_classes: int) -> tuple[int, ...]:
    """Steps of two classes after a larger base: a third of the classes counted in steps (10 is 4+2+2+2)."""
    steps = num_classes // 3
    if steps == 0:
        return (1,) * num_classes
    return (num_classes - 2 * steps,) + (2,) * steps


def order_classes(y: NDArray[np.int64], protocol: ProtocolConfig, seed: int) -> list[int]:
    """The labels in the order in which they are to be learned."""
    labels: list[int] = np.unique(y).tolist()
    if protocol.class_order == "label":
        return labels
    if protocol.class_order == "shuffled":
        return [int(label) for label in np.random.default_rng([seed, 1]).permutation(labels)]
    if sorted(protocol.class_order) != labels:
        raise DataError(f"protocol.class_order must name each of the {len(labels)} classes once: {shorten(labels)}.")
    return list(protocol.class_order)


def cut_classes(order: list[int], split: tuple[int, ...]) -> list[list[int]]:
    """Consecutive groups of the sizes of `split`."""
    if not split or any(size < 1 for size in split) or sum(split) != len(order):
        sizes = "+".join(map(str, split))
        raise DataError(
            f"The split {sizes or '(none)'} adds up to {sum(split)} classes, but the graph has {len(order)}: "
            f"pass --split with sizes that add up to {len(order)}, for example "
            f"{','.join(map(str, default_split(len(order))))}."
        )
    ends = np.cumsum(split)
    return [order[end - size : end] for size, end in zip(split, ends, strict=True)]


def assign_parts(y: NDArray[np.int64], protocol: ProtocolConfig, seed: int) -> tuple[NDArray[np.int8], list[int]]:
    """Train, validation or test for every node, class by class and seeded; -1 for nodes of dropped classes."""
    test_share = 1 - protocol.train_share - protocol.validation_share
    if test_share <= 0:
        raise DataError("protocol.train_share and protocol.validation_share leave nothing for the test.")
    part = np.full(len(y), -1, dtype=np.int8)
    random = np.random.default_rng([seed, 0])
    dropped = []
    for label in np.unique(y):
        members = random.permutation(np.flatnonzero(y == label))
        validation = max(1, round(protocol.validation_share * len(members)))
        test = max(1, round(test_share * len(members)))
        if validation + test >= len(members):
            dropped.append(int(label))
            continue
        part[members] = TRAIN
        part[members[:validation]] = VALIDATION
        part[members[validation : validation + test]] = TEST
    if dropped and protocol.small_classes == "error":
        sizes = ", ".join(f"{label} ({np.sum(y == label)} node(s))" for label in dropped[:5])
        raise DataError(
            f"Too small to split into training, validation and test nodes: class {sizes}. "
            "Add nodes, or leave such classes out with --set protocol.small_classes=drop."
        )
    if len(dropped) == len(np.unique(y)):
        raise DataError("No class is large enough to split: each needs at least three nodes.")
    return part, dropped


def shorten(values: list[int], most: int = 12) -> str:
    text = ", ".join(map(str, values[:most]))
    return text + (", …" if len(values) > most else "")
