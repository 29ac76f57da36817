"""Raw nodes that a method keeps: tasks with class numbers as labels. Only methods that store exemplars come here."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend.checks import require
from ipal.data.csr import joined
from ipal.data.graph import Graph
from ipal.data.task import Task
from ipal.system.memory_budget import Budget


def disjoint_union(a: Task, b: Task) -> Task:
    """Both tasks side by side in one graph; no edge runs between them."""
    sparse = any(isinstance(part.graph.x, sp.csr_array) for part in (a, b))
    x = sp.vstack([a.graph.x, b.graph.x], format="csr") if sparse else np.concatenate([a.graph.x, b.graph.x])
    shift = a.graph.num_nodes
    neighbours = joined([a.graph.neighbours, b.graph.neighbours])
    origin = None if a.origin is None or b.origin is None else np.concatenate([a.origin, b.origin])
    nodes, labels = np.concatenate([a.nodes, b.nodes + shift]), np.concatenate([a.labels, b.labels])
    return Task(Graph(x, neighbours), nodes, labels, origin)


def grown(known: Task, task: Task) -> Task | None:
    """What is known in the graph of a task that holds all its nodes, and more; None where it does not."""
    if known.origin is None or task.origin is None or not np.isin(known.origin, task.origin).all():
        return None
    order = np.argsort(task.origin)
    earlier = order[np.searchsorted(task.origin, known.origin[known.nodes], sorter=order)]
    stays = ~np.isin(earlier, task.nodes)  # a node that comes again has its newest label
    nodes = np.concatenate([earlier[stays], task.nodes])
    return Task(task.graph, nodes, np.concatenate([known.labels[stays], task.labels]), task.origin)


def excerpt(task: Task, chosen: NDArray[np.int64], hops: int, budget: Budget | None = None) -> Task:
    """Some training nodes of a task (places in `task.nodes`), in the subgraph within `hops` steps around them."""
    reached = np.zeros(task.graph.num_nodes, dtype=bool)
    reached[task.nodes[chosen]] = True
    for _ in range(hops):
        reached[task.graph.neighbours.rows_of(np.flatnonzero(reached))[1]] = True
    inside = np.flatnonzero(reached)
    place = np.searchsorted(inside, task.nodes[chosen])
    return Task(task.graph.induced(inside, budget), place, task.labels[chosen])


def owned(task: Task) -> Task:
    """The same task in memory of its own: what a caller passed may be overwritten."""
    graph = Graph(task.graph.x.copy(), task.graph.neighbours, symmetric=task.graph.symmetric)
    origin = None if task.origin is None else task.origin.copy()
    return Task(graph, task.nodes.copy(), task.labels.copy(), origin)


def without_edges(task: Task) -> Task:
    """The same nodes, each alone with its self-loop."""
    alone = Graph(task.graph.x, np.zeros((2, 0), dtype=np.int64), symmetric=True)
    return Task(alone, task.nodes, task.labels)


@dataclass(frozen=True, eq=False)
class StoredTasks:
    tasks: tuple[Task, ...]
    """nodes of old tasks and the nodes around them"""

    def check(self, classes: int, parameters: Mapping[str, Tensor], whole: bool) -> None:
        require(bool(self.tasks) or not whole, "it keeps no node")


def check_every_class(kept: Task | None, classes: int, whole: bool) -> None:
    """Refuse nodes that are not of all classes; their labels are known to be numbers of these."""
    known = 0 if kept is None else len(np.unique(kept.labels))
    require(known == classes or not whole, "it does not keep nodes of every class")


@dataclass(frozen=True, eq=False)
class NodeBuffer:
    buffer: Task | None
    """nodes of old classes, without edges"""

    def check(self, classes: int, parameters: Mapping[str, Tensor], whole: bool) -> None:
        check_every_class(self.buffer, classes, whole)


@dataclass(frozen=True, eq=False)
class AllTasks:
    data: Task | None
    """all nodes, edges and labels of all tasks so far"""

    def check(self, classes: int, parameters: Mapping[str, Tensor], whole: bool) -> None:
        check_every_class(self.data, classes, whole)
