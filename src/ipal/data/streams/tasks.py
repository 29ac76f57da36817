"""Streams of tasks: every node is in one task, by its class, time, domain or graph."""

import hashlib
import weakref
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ipal.config import MOST_TASKS, Count, ProtocolConfig, RunConfig, Section
from ipal.data.dataset import Dataset
from ipal.data.graph import Graph, Nodes
from ipal.data.labels import Label, Labels
from ipal.data.streams.splits import (
    CONTEXT,
    TEST,
    TRAIN,
    VALIDATION,
    assign_parts,
    at_most,
    cut_evenly,
    order_classes,
    tasks_of_classes,
)
from ipal.data.task import LabelledNodes, Task, TestSplit
from ipal.errors import DataError
from ipal.system.memory_budget import Budget

SHOTS = 5
"""Place of the seed of a random draw, after those of online.py."""


class TaskStream:
    """Class-incremental, as in the paper: a graph cut by classes into tasks, whose graphs are made when asked for.

    A subclass with a `name` is another stream: `protocol.stream` chooses it by that name.

    Parameters
    ----------
    graph : Graph
        The whole graph.
    y : ndarray of shape (n_nodes,)
        A label per node.
    split : tuple of int or None
        How many classes each task brings. None: two each after a larger first task.
    protocol : ProtocolConfig
        How nodes are parted, and what is seen.
    seed : int
        Decides which nodes are in which part.
    facts : mapping of str to ndarray of shape (n_nodes,), optional
        What else is known of the nodes, as in a `Dataset`.
    """

    name: ClassVar[str] = "class"
    gives: ClassVar[frozenset[str]] = frozenset({"boundaries", "whole tasks", "whole classes"})
    """What a learner may rely on: boundaries (tasks come one after the other), whole tasks, whole classes (all nodes at
    once); see `Learner.needs`."""

    class Settings(Section):
        """Settings of its own, which are under `protocol.stream` beside the name."""

        classes: Count | None = None
        """So many classes are learned, the first of the order; others are left out of the graph. None: all."""
        shots: Count | None = None
        """Most labelled nodes of a class in each task after the first; further training nodes stay in the graph without
        a role. None: all."""

    settings: Any
    """Those of the run: a value of the stream's own `Settings`."""
    classes: Sequence[Sequence[Label]]
    """The labels of each task. A class may be in several tasks."""
    budget: Budget | None = None
    """Main memory for graphs that are made of parts of the whole one; None for no limit."""

    def __init__(
        self,
        graph: Graph,
        y: Labels,
        split: tuple[int, ...] | None,
        protocol: ProtocolConfig,
        seed: int,
        facts: Mapping[str, NDArray[np.int64]] = MappingProxyType({}),
    ) -> None:
        self.protocol, self.graph, self.y, self.seed, self.facts = protocol, graph, y, seed, facts
        self.settings = self.Settings.model_validate(protocol.stream.settings)
        self.part, self.dropped = assign_parts(y, protocol, seed, self.facts.get("split"))
        order = order_classes(y[self.part >= 0], protocol, seed)
        learned = self.settings.classes or len(order)
        if learned > len(order):
            raise DataError(f"protocol.stream.classes is {learned}, but there are {len(order)} classes: set fewer.")
        self.dropped += order[learned:]
        self.part[np.isin(y, order[learned:])] = -1
        order = order[:learned]
        self.task_of = np.where(self.part >= 0, self.tasks_of_nodes(order, split), -1)
        if (shots := self.settings.shots) is not None:
            later = np.flatnonzero((self.task_of > 0) & (self.part == TRAIN))
            _, group = np.unique(y[later], return_inverse=True)
            group = group * (self.task_of.max() + 1) + self.task_of[later]
            kept = at_most(group, shots, np.random.default_rng([seed, SHOTS]))
            self.part[np.delete(later, kept)] = CONTEXT
        self.untested = (self.part == TRAIN) | (self.part == CONTEXT)
        number = int(self.task_of.max()) + 1
        for part, what in ((TRAIN, "training"), (VALIDATION, "validation"), (TEST, "test")):
            count = np.bincount(self.task_of[self.part == part], minlength=number)
            if not count.all():
                raise DataError(f"Task {count.argmin() + 1} of {number} has no {what} node: make fewer tasks.")
        arrived = [(self.task_of == index) & (self.part == TRAIN) for index in range(number)]
        self.classes = [[label for label in order if (y[mine] == label).any()] for mine in arrived]
        self._graphs: dict[tuple[int, bool, bool], tuple[Graph, Nodes]] = {}

    @classmethod
    def of(cls, dataset: Dataset, config: RunConfig) -> Self:
        """The stream of a run. What the configuration leaves open, as `split`, is decided here.

        Parameters
        ----------
        dataset : Dataset
            The graph and its labels.
        config : RunConfig
            The configuration of the run.

        Returns
        -------
        TaskStream
        """
        split = config.split or dataset.split
        return cls(dataset.graph, dataset.y, split, config.protocol, config.seed, dataset.facts)

    def tasks_of_nodes(self, order: list[Label], split: tuple[int, ...] | None) -> NDArray[np.int64]:
        """The task of every node; here that of its class. `order` are the classes as they are to be learned."""
        task_of = np.full(len(self.y), -1, dtype=np.int64)
        for label, task in zip(order, tasks_of_classes(len(order), split), strict=True):
            task_of[self.y == label] = task
        return task_of

    @property
    def split_hash(self) -> str:
        """Identifies which node is in which task and part."""
        return hashlib.sha256(self.task_of.tobytes() + self.part.astype(np.int64).tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def batches(self) -> Sequence[int]:
        """In how many batches each task comes."""
        return [1] * len(self)

    @property
    def revisits(self) -> bool:
        """Whether nodes of earlier tasks pass messages again although training graphs are isolated."""
        return False

    def within(self, budget: Budget) -> Self:
        """The same stream for one run: what it makes keeps to a budget, and is kept no longer than the run."""
        mine = copy(self)
        mine.budget = budget
        return mine

    def is_tested_after(self, index: int, number: int) -> bool:
        """Whether a learner is tested after this batch, too. It always is after the last one of a task.

        Parameters
        ----------
        index, number : int
            Of the task and of its batch, from 0.

        Returns
        -------
        bool
        """
        return False

    def is_tested_before(self, index: int) -> bool:
        """Whether a task is also tested before it is learned: here where each of its classes is in an earlier one.

        Parameters
        ----------
        index : int
            Number of the task, from 0.

        Returns
        -------
        bool
        """
        return index > 0 and {*self.classes[index]} <= {label for task in self.classes[:index] for label in task}

    def task(self, index: int) -> Task:
        """What is learned: all of it, if it comes in batches.

        Parameters
        ----------
        index : int
            Number of the task, from 0.

        Returns
        -------
        Task
        """
        everything = self.protocol.visibility == "transductive"
        graph, nodes = self._graph_on(index, self.protocol.train_graph == "seen", everything)
        mine = np.flatnonzero((self.task_of[nodes] == index) & (self.part[nodes] == TRAIN))
        return Task(graph=graph, nodes=mine, labels=self.y[nodes[mine]], origin=nodes)

    def batch(self, index: int, number: int) -> Task:
        """What the learner gets of task `index` as its batch `number`; the whole task where there is but one."""
        return self.task(index)

    def test_splits(self, learned: int) -> list[TestSplit]:
        """The tests of the tasks so far. They may share a graph.

        Parameters
        ----------
        learned : int
            Number of the task learned last, from 0.

        Returns
        -------
        list of TestSplit
            One for each task from 0 to `learned`.
        """
        seen = self.protocol.test_graph == "seen"
        graphs = [self._graph_on(learned if seen else index, seen, True) for index in range(learned + 1)]
        return [self.tested(*graph, self.task_of[graph[1]] == index) for index, graph in enumerate(graphs)]

    def tested(self, graph: Graph, nodes: Nodes, mine: NDArray[np.bool_]) -> TestSplit:
        """The test of some nodes of a graph, whose nodes are these of the whole one."""
        validation, test = (np.flatnonzero(mine & (self.part[nodes] == part)) for part in (VALIDATION, TEST))
        y = self.y[nodes]
        return TestSplit(graph, LabelledNodes(validation, y[validation]), LabelledNodes(test, y[test]))

    def describe(self) -> dict[str, Any]:
        """Plain facts for the record of a run.

        Returns
        -------
        dict
        """
        classes = [list(task) for task in self.classes]
        return {"stream": self.name, "classes": classes, "dropped_classes": self.dropped, "split_hash": self.split_hash}

    def sizes(self) -> list[tuple[int, int]]:
        """Nodes and edges of each task's own graph, counted without making it."""
        nodes = np.bincount(self.task_of[self.task_of >= 0], minlength=len(self))
        edges = np.zeros(len(self), dtype=np.int64)
        for target, source in self.graph.neighbours.edge_chunks():
            own, other = self.task_of[target], self.task_of[source]
            edges += np.bincount(own[(own == other) & (own >= 0)], minlength=len(self))
        return list(zip(nodes.tolist(), edges.tolist(), strict=True))

    def _graph_on(self, index: int, with_earlier: bool, with_tested: bool) -> tuple[Graph, Nodes]:
        """The subgraph of a task, and which nodes of the whole graph its nodes are; kept while it may be needed."""
        key = (index, with_earlier, with_tested)
        if key not in self._graphs:
            # A task's own graph comes back in every later test, a union of seen tasks only while it is the newest.
            self._graphs = {old: graph for old, graph in self._graphs.items() if not old[1] or old[0] == index}
            chosen = (self.task_of >= 0) & (self.task_of <= index) if with_earlier else self.task_of == index
            nodes = np.flatnonzero(chosen if with_tested else chosen & self.untested)
            # One and the same for all streams of a graph, as those of other seeds.
            known = self.graph.derived("parts", None, weakref.WeakValueDictionary[bytes, Graph])
            digest = hashlib.sha256(nodes.tobytes()).digest()
            part = known[digest] = known.get(digest) or self.graph.induced(nodes, self.budget)
            self._graphs[key] = part, nodes
        return self._graphs[key]


class TaskIncremental(TaskStream):
    """As class-incremental, but every node is tested among the classes of its own task only."""

    name = "task"

    def test_splits(self, learned: int) -> list[TestSplit]:
        test_splits = zip(super().test_splits(learned), self.classes, strict=False)
        return [replace(test_split, classes=tuple(classes)) for test_split, classes in test_splits]


class TimeIncremental(TaskStream):
    """Periods of about as many nodes each; nodes of one time are in one period. Classes come, stay and return."""

    name = "time"
    gives = TaskStream.gives - {"whole classes"}

    class Settings(TaskStream.Settings):
        periods: int = Field(5, ge=2, le=1000)
        """Number of periods."""

    def tasks_of_nodes(self, order: list[Label], split: tuple[int, ...] | None) -> NDArray[np.int64]:
        time = self.facts.get("time")
        if time is None:
            raise DataError(
                f"The stream '{self.name}' needs the time of every node: add an array 'time' to the .npz file."
            )
        times, which, count = np.unique(time, return_inverse=True, return_counts=True)
        middle = np.cumsum(count) - count / 2  # of the nodes of each time, in the order of all
        period = np.asarray(self.settings.periods * middle / len(which), dtype=np.int64)
        if len(np.unique(period)) < self.settings.periods:
            raise DataError(
                f"{len(times)} times do not make {self.settings.periods} periods: lower protocol.stream.periods."
            )
        return period[which]

    def is_tested_before(self, index: int) -> bool:
        """Every next period, whatever is new in it: nodes of classes not known yet count as wrong."""
        return index > 0


class DomainIncremental(TaskStream):
    """All classes or many of them in each task, from another part of the graph: domains as the dataset numbers them, in
    ascending order; without such numbers, every class is cut by the number of neighbours of its nodes, least first."""

    name = "domain"
    gives = TaskStream.gives - {"whole classes"}

    class Settings(TaskStream.Settings):
        parts: Annotated[int, Field(ge=2, le=1000)] | None = None
        """Number of domains. None: those of the dataset, or without any, three by number of neighbours."""

    def tasks_of_nodes(self, order: list[Label], split: tuple[int, ...] | None) -> NDArray[np.int64]:
        asked, domain = self.settings.parts, self.facts.get("domain")
        if domain is None:
            return cut_evenly(self.y, np.diff(self.graph.neighbours.indptr), asked or 3)
        numbers, which = np.unique(domain, return_inverse=True)
        if len(numbers) < 2 or asked not in (None, len(numbers)):
            raise DataError(
                f"The dataset's array 'domain' names {len(numbers)} domain(s), not {asked or 'two or more'}: leave "
                "protocol.stream.parts out, or the array."
            )
        return np.asarray(which, dtype=np.int64)


class GraphSequence(TaskStream):
    """Every task is one graph with all its classes. At test time it is not said which graph a node is of."""

    name = "graphs"

    class Settings(TaskStream.Settings):
        first: Literal["seed"] | Annotated[int, Field(ge=0, lt=MOST_TASKS)] = 0
        """Place, from 0, of the graph that comes first; the others follow in turn. seed: the run's seed says which, in
        turn, so that as many seeds as there are graphs make all rotations."""

    def tasks_of_nodes(self, order: list[Label], split: tuple[int, ...] | None) -> NDArray[np.int64]:
        domains, which = np.unique(self.facts.get("domain", [0]), return_inverse=True)
        number = len(domains)
        if number < 2:
            raise DataError(
                f"The stream '{self.name}' needs several graphs, and this dataset is one: name more with commas, as "
                "--dataset cora-ml,dblp, or add an array 'domain' of whole numbers to its .npz file."
            )
        first = self.seed if self.settings.first == "seed" else self.settings.first
        again = [label for label in order if len(np.unique(which[self.y == label])) > 1]
        if again:
            raise DataError(
                f"Class {again[0]} is in several graphs: give the classes of each graph numbers of their own, or set "
                "protocol.stream=domain, where classes come again."
            )
        return np.asarray((which - first) % number, dtype=np.int64)


class Returning(TaskStream):
    """New classes come evenly over the tasks; each returns in later tasks with nodes that were not there before.

    A class is tested on all its test nodes so far, whichever task brought them.
    """

    name = "returning"
    gives = TaskStream.gives - {"whole classes"}

    class Settings(TaskStream.Settings):
        parts: int = Field(4, ge=2, le=1000)
        """Number of tasks."""
        times: int = Field(2, ge=1, le=1000)
        """How often a class comes, at equal distances, as far as tasks are left."""

    def tasks_of_nodes(self, order: list[Label], split: tuple[int, ...] | None) -> NDArray[np.int64]:
        parts, times = self.settings.parts, self.settings.times
        shuffled = np.random.default_rng([self.seed, 2]).permutation(len(self.y))
        task_of = np.full(len(self.y), -1, dtype=np.int64)
        for place, label in enumerate(order):
            first = place * parts // len(order)
            visits = np.arange(first, parts, max(1, parts // times))[:times]
            mine = np.flatnonzero(self.y == label)
            # Training, validation and test nodes are cut alike, so that every visit has some of each.
            which = cut_evenly(self.part[mine], shuffled[mine], len(visits))
            task_of[mine] = visits[which]
        return task_of

    def test_splits(self, learned: int) -> list[TestSplit]:
        graph, nodes = self._graph_on(learned, True, True)
        if self.protocol.test_graph == "isolated":
            graph = graph.within(self.task_of[nodes])
        return [self.tested(graph, nodes, np.isin(self.y[nodes], own)) for own in self.classes[: learned + 1]]
