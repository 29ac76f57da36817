"""What every stream gives: tasks for the learner, test splits for the evaluator, and facts for the record."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Any, ClassVar, Self

from ipal.config import RunConfig, Section
from ipal.data.dataset import Dataset
from ipal.data.labels import Label
from ipal.data.task import Task, TestSplit
from ipal.system.memory_budget import Budget


class Stream(ABC):
    """A sequence of tasks. A subclass with a `name` is a stream: `protocol.stream` chooses it by that name."""

    name: ClassVar[str]
    gives: ClassVar[frozenset[str]] = frozenset({"boundaries", "whole tasks"})
    """What a learner may rely on: boundaries (tasks come one after the other), whole tasks, whole classes (all nodes at
    once); see `Learner.needs`."""

    class Settings(Section):
        """Settings of its own, which stand under `protocol.stream` beside the name."""

    classes: Sequence[Sequence[Label]]
    """The labels of each task. A class may be in several tasks."""
    budget: Budget | None = None
    """Main memory for graphs that are made of parts of the whole one; None for no limit."""

    @classmethod
    @abstractmethod
    def of(cls, dataset: Dataset, config: RunConfig) -> Self:
        """The stream of a run. What the configuration leaves open, as `split`, is decided here."""

    @abstractmethod
    def task(self, index: int) -> Task:
        """What is learned as number `index`: all of it, if it comes in batches."""

    @abstractmethod
    def test_splits(self, learned: int) -> list[TestSplit]:
        """The tests of tasks 0 to `learned`, as they are after task `learned`. Exams may share a graph."""

    @property
    def batches(self) -> Sequence[int]:
        """In how many batches each task comes."""
        return [1] * len(self)

    def batch(self, index: int, number: int) -> Task:
        """What the learner gets of task `index` as its batch `number`; the whole task where there is but one."""
        return self.task(index)

    @property
    def revisits(self) -> bool:
        """Whether nodes of earlier tasks pass messages again although training graphs are isolated."""
        return False

    def is_tested_after(self, index: int, number: int) -> bool:
        """Whether a learner is tested after this batch, too. It always is after the last one of a task."""
        return False

    def is_tested_before(self, index: int) -> bool:
        """Whether a task is also tested before it is learned: here where each of its classes is in an earlier one."""
        return index > 0 and {*self.classes[index]} <= {label for task in self.classes[:index] for label in task}

    def __len__(self) -> int:
        return len(self.classes)

    def within(self, budget: Budget) -> Self:
        """The same stream for one run: what it makes keeps to a budget, and is kept no longer than the run."""
        mine = copy(self)
        mine.budget = budget
        return mine

    def describe(self) -> dict[str, Any]:
        """Plain facts for the record of a run."""
        return {"stream": self.name, "classes": [list(task) for task in self.classes]}

    def sizes(self) -> list[tuple[int, int]]:
        """Nodes and edges of each task's graph, for estimates of memory."""
        graphs = (self.task(index).graph for index in range(len(self)))
        return [(graph.num_nodes, graph.num_edges) for graph in graphs]
