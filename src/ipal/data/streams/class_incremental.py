"""Class-incremental, as in the paper: each task brings classes of its own."""

import hashlib
import weakref
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import SerializerFunctionWrapHandler, model_serializer

from ipal.config import Count, ProtocolConfig, RunConfig
from ipal.data.dataset import Dataset
from ipal.data.graph import Graph, Nodes
from ipal.data.labels import Label, Labels
from ipal.data.node_facts import NodeFacts
from ipal.data.streams.base import Stream
from ipal.data.streams.splits import (
    CONTEXT,
    TEST,
    TRAIN,
    VALIDATION,
    assign_parts,
    at_most,
    cut_classes,
    default_split,
    order_classes,
)
from ipal.data.task import LabelledNodes, Task, TestSplit
from ipal.errors import DataError
from ipal.system.memory_budget import Budget

SHOTS = 5
"""Place of the seed of a random draw, after those of online.py."""


class TaskStream(Stream):
    """A graph cut by classes into tasks. Graphs of tasks are made when asked for, and kept.

    `split` says how many classes each task brings; None (as `Dataset.split` where no benchmark fixes one) leaves it to
    `default_split`. `facts` are what else is known of nodes, as a `Dataset` says it.
    """

    name = "class"
    gives = frozenset({"boundaries", "whole tasks", "whole classes"})

    class Settings(Stream.Settings):
        classes: Count | None = None
        """So many classes are learned, the first of the order; others are left out of the graph. None: all."""
        shots: Count | None = None
        """Most labelled nodes of a class in each task after the first; further training nodes stay in the graph without
        a role. None: all."""

        @model_serializer(mode="wrap")
        def _serialised(self, plain: SerializerFunctionWrapHandler) -> Any:
            """Without what is left open."""
            open_ = {name for name in ("classes", "shots") if getattr(self, name) is None}
            return {name: value for name, value in plain(self).items() if name not in open_}

    settings: Settings

    def __init__(
        self,
        graph: Graph,
        y: Labels,
        split: tuple[int, ...] | None,
        protocol: ProtocolConfig,
        seed: int,
        facts: NodeFacts | None = None,
    ) -> None:
        self.protocol = protocol
        self.settings = self.Settings.model_validate(protocol.stream.settings)
        self.facts = facts or NodeFacts()
        self.graph = graph
        self.y = y
        self.part, self.dropped = assign_parts(y, protocol, seed, self.facts.parts)
        order = self._learned(order_classes(y[self.part >= 0], protocol, seed))
        self.task_of = np.where(self.part >= 0, self.tasks_of_nodes(order, split, seed), -1)
        self._label_few(seed)
        self.untested = (self.part == TRAIN) | (self.part == CONTEXT)
        number = int(self.task_of.max()) + 1
        for part, what in ((TRAIN, "training"), (VALIDATION, "validation"), (TEST, "test")):
            count = np.bincount(self.task_of[self.part == part], minlength=number)
            if not count.all():
                raise DataError(f"Task {count.argmin() + 1} of {number} has no {what} node: make fewer tasks.")
        arrived = [(self.task_of == index) & (self.part == TRAIN) for index in range(number)]
        self.classes = [[label for label in order if (y[mine] == label).any()] for mine in arrived]
        self._graphs: dict[tuple[int, bool, bool], tuple[Graph, Nodes]] = {}
        self.arrange(seed)

    def arrange(self, seed: int) -> None:
        """What a stream decides besides, once the task of every node is known; here nothing."""

    def tasks_of_nodes(self, order: list[Label], split: tuple[int, ...] | None, seed: int) -> NDArray[np.int64]:
        """The task of every node; here that of its class. `order` are the classes as they are to be learned."""
        groups = cut_classes(order, default_split(len(order)) if split is None else split)
        task_of = np.full(len(self.y), -1, dtype=np.int64)
        for index, classes in enumerate(groups):
            task_of[np.isin(self.y, classes)] = index
        return task_of

    def _learned(self, order: list[Label]) -> list[Label]:
        """The classes to learn; the others are dropped."""
        # A stream that is built on this one may have settings of its own only.
        number = getattr(self.settings, "classes", None) or len(order)
        if number > len(order):
            raise DataError(f"protocol.stream.classes is {number}, but there are {len(order)} classes: set fewer.")
        self.dropped = [*self.dropped, *order[number:]]
        self.part[np.isin(self.y, order[number:])] = -1
        return order[:number]

    def _label_few(self, seed: int) -> None:
        """Leave every class at most `shots` training nodes in each task after the first."""
        shots = getattr(self.settings, "shots", None)
        if shots is None:
            return
        later = np.flatnonzero((self.task_of > 0) & (self.part == TRAIN))
        _, group = np.unique(self.y[later], return_inverse=True)
        group = group * (self.task_of.max() + 1) + self.task_of[later]
        kept = at_most(group, shots, np.random.default_rng([seed, SHOTS]))
        self.part[np.delete(later, kept)] = CONTEXT

    @classmethod
    def of(cls, dataset: Dataset, config: RunConfig) -> Self:
        split = config.split or dataset.split
        return cls(dataset.graph, dataset.y, split, config.protocol, config.seed, dataset)

    @property
    def split_hash(self) -> str:
        """Identifies which node is in which task and part."""
        return hashlib.sha256(self.task_of.tobytes() + self.part.astype(np.int64).tobytes()).hexdigest()

    def task(self, index: int) -> Task:
        everything = self.protocol.visibility == "transductive"
        graph, nodes = self._graph_on(index, self.protocol.train_graph == "seen", everything)
        mine = np.flatnonzero((self.task_of[nodes] == index) & (self.part[nodes] == TRAIN))
        return Task(graph=graph, nodes=mine, labels=self.y[nodes[mine]], origin=nodes)

    def test_splits(self, learned: int) -> list[TestSplit]:
        seen = self.protocol.test_graph == "seen"
        graphs = [self._graph_on(learned if seen else index, seen, True) for index in range(learned + 1)]
        return [self.tested(*graph, self.task_of[graph[1]] == index) for index, graph in enumerate(graphs)]

    def tested(self, graph: Graph, nodes: Nodes, mine: NDArray[np.bool_]) -> TestSplit:
        """The test of some nodes of a graph, whose nodes are these of the whole one."""
        validation, test = (np.flatnonzero(mine & (self.part[nodes] == part)) for part in (VALIDATION, TEST))
        y = self.y[nodes]
        return TestSplit(graph, LabelledNodes(validation, y[validation]), LabelledNodes(test, y[test]))

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "dropped_classes": self.dropped, "split_hash": self.split_hash}

    def sizes(self) -> list[tuple[int, int]]:
        """Nodes and edges of each task's own graph, counted without making it."""
        nodes = np.bincount(self.task_of[self.task_of >= 0], minlength=len(self))
        edges = np.zeros(len(self), dtype=np.int64)
        for begin, end in self.graph.neighbours.chunks():
            own = np.repeat(self.task_of[begin:end], np.diff(self.graph.indptr[begin : end + 1]))
            other = self.task_of[self.graph.indices[self.graph.indptr[begin] : self.graph.indptr[end]]]
            edges += np.bincount(own[(own == other) & (own >= 0)], minlength=len(self))
        return list(zip(nodes.tolist(), edges.tolist(), strict=True))

    def _graph_on(self, index: int, with_earlier: bool, with_unlabelled: bool) -> tuple[Graph, Nodes]:
        """The subgraph of a task, and which nodes of the whole graph its nodes are; kept while it may be needed."""
        key = (index, with_earlier, with_unlabelled)
        if key not in self._graphs:
            # A task's own graph comes back in every later test, a union of seen tasks only while it is the newest.
            self._graphs = {old: graph for old, graph in self._graphs.items() if not old[1] or old[0] == index}
            self._graphs[key] = self._induce(*key)
        return self._graphs[key]

    def _induce(self, index: int, with_earlier: bool, with_unlabelled: bool) -> tuple[Graph, Nodes]:
        chosen = self.task_of == index
        if with_earlier:
            chosen = (self.task_of >= 0) & (self.task_of <= index)
        if not with_unlabelled:
            chosen = chosen & self.untested
        nodes = np.flatnonzero(chosen)
        return _part(self.graph, nodes, self.budget), nodes


def _part(graph: Graph, nodes: Nodes, budget: Budget | None) -> Graph:
    """The subgraph on some nodes: one and the same for all streams of a graph, as those of other seeds."""
    known = graph.derived("parts", None, weakref.WeakValueDictionary[bytes, Graph])
    key = hashlib.sha256(nodes.tobytes()).digest()
    part = known.get(key)
    if part is None:
        part = known[key] = graph.induced(nodes, budget)
    return part
