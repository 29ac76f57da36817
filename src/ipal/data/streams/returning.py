"""Returning classes: a class comes in parts, with new nodes each time."""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ipal.data.graph import Graph, Nodes
from ipal.data.labels import Label
from ipal.data.streams.base import Stream
from ipal.data.streams.class_incremental import TaskStream
from ipal.data.streams.splits import cut_evenly
from ipal.data.task import TestSplit


class Returning(TaskStream):
    """New classes come evenly over the tasks; each returns in later tasks with nodes that were not there before.

    A class is tested on all its test nodes so far, whichever task brought them.
    """

    name = "returning"
    gives = Stream.gives

    class Settings(TaskStream.Settings):
        parts: int = Field(4, ge=2, le=1000)
        """Number of tasks."""
        times: int = Field(2, ge=1, le=1000)
        """How often a class comes, at equal distances, as far as tasks are left."""

    settings: Settings

    def tasks_of_nodes(self, order: list[Label], split: tuple[int, ...] | None, seed: int) -> NDArray[np.int64]:
        parts, times = self.settings.parts, self.settings.times
        shuffled = np.random.default_rng([seed, 2]).permutation(len(self.y))
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
        graph, nodes = self._all_so_far(learned)
        return [self.tested(graph, nodes, np.isin(self.y[nodes], own)) for own in self.classes[: learned + 1]]

    def _all_so_far(self, learned: int) -> tuple[Graph, Nodes]:
        """The graph of all tasks so far; with isolated test graphs without the edges between them."""
        graph, nodes = self._graph_on(learned, True, True)
        if self.protocol.test_graph == "seen":
            return graph, nodes
        inside = graph.neighbours.within(self.task_of[nodes])
        return Graph.of(graph.x, inside, symmetric=graph.symmetric or None, columns=graph.columns), nodes
