"""Raw nodes that a method keeps, as a value: only methods that store exemplars come here, and all of them do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.data.csr import Neighbours, joined
from ipal.data.graph import Graph
from ipal.data.streams import Labels, Task
from ipal.learners.checks import require
from ipal.learners.kept import Kept
from ipal.system.memory_budget import Budget

UNKNOWN: Final = np.empty(0, dtype=np.int64)
"""The original node numbers of a graph that has none, as they are stored."""


def disjoint_union(a: Task, b: Task) -> Task:
    """Both tasks side by side in one graph; no edge runs between them."""
    sparse = any(isinstance(part.graph.x, sp.csr_array) for part in (a, b))
    x = sp.vstack([a.graph.x, b.graph.x], format="csr") if sparse else np.concatenate([a.graph.x, b.graph.x])
    shift = a.graph.num_nodes
    neighbours = joined([a.graph.neighbours, b.graph.neighbours])
    origin = None if a.origin is None or b.origin is None else np.concatenate([a.origin, b.origin])
    nodes, labels = np.concatenate([a.nodes, b.nodes + shift]), np.concatenate([a.labels, b.labels])
    return Task(Graph.of(x, neighbours), nodes, labels, origin)


def grown(known: Task, task: Task) -> Task | None:
    """What is known in the graph of a task that holds all its nodes, and more; None where it does not."""
    if known.origin is None or task.origin is None or not np.isin(known.origin, task.origin).all():
        return None
    order = np.argsort(task.origin)
    earlier = order[np.searchsorted(task.origin, known.origin[known.nodes], sorter=order)]
    stays = ~np.isin(earlier, task.nodes)  # a node that comes again has its newest label
    nodes = np.concatenate([earlier[stays], task.nodes])
    return Task(task.graph, nodes, np.concatenate([known.labels[stays], task.labels]), task.origin)


def excerpt(task: Task, chosen: Labels, hops: int, budget: Budget | None = None) -> Task:
    """Some training nodes of a task (places in `task.nodes`), in the subgraph within `hops` steps around them."""
    reached = np.zeros(task.graph.num_nodes, dtype=bool)
    reached[task.nodes[chosen]] = True
    for _ in range(hops):
        reached |= task.graph.neighbours.pointing_to(reached)
    inside = np.flatnonzero(reached)
    place = np.searchsorted(inside, task.nodes[chosen])
    return Task(task.graph.induced(inside, budget), place, task.labels[chosen])


def without_edges(task: Task) -> Task:
    """The same nodes, each alone with its self-loop."""
    alone = Graph.of(task.graph.x, Neighbours.none(task.graph.num_nodes), symmetric=True)
    return Task(alone, task.nodes, task.labels)


@dataclass(frozen=True, eq=False)
class Nodes(Kept):
    """Nodes with their labels and graph: a task or None, or a list of tasks."""

    even_while_learning: bool = False
    """Whether nodes of every class are kept in the middle of a task, too."""

    def tensors(self, learner: Any) -> dict[str, Tensor]:
        tasks, several = self.value(learner), isinstance(self.value(learner), list)
        tensors: dict[str, Tensor] = {}
        for index, task in enumerate(tasks if several else [tasks] if tasks else []):
            group = f"{self.name}.{index}" if several else self.name
            tensors |= task_tensors(task, learner.rows(task.labels), group)
        return tensors

    def restore(self, learner: Any, tensors: Mapping[str, Tensor]) -> None:
        several = isinstance(self.value(learner), list)
        number = sum(self.owns(name) and name.endswith(".labels") for name in tensors)
        groups = [f"{self.name}.{index}" if several else self.name for index in range(number)]
        tasks = [task_of_tensors(tensors, group, learner.classes_, learner.num_features_) for group in groups]
        setattr(learner, self.attribute or f"{self.name}_", tasks if several else tasks[0] if tasks else None)

    def check_restored(self, learner: Any, whole: bool) -> None:
        value = self.value(learner)
        if isinstance(value, list):
            require(not whole or bool(value), "it keeps no node")
        elif whole or self.even_while_learning:
            labels = [] if value is None else value.labels.tolist()
            require(set(labels) == set(learner.labels_), "it does not keep nodes of every class")


def task_tensors(task: Task, rows: Tensor, group: str) -> dict[str, Tensor]:
    """A task as named tensors; `rows` are its labels in the learner's own numbers."""
    x = task.graph.x
    shape = np.array(x.shape)
    parts = {"x": x} if not isinstance(x, sp.csr_array) else _csr_parts(x)
    origin = UNKNOWN if task.origin is None else task.origin
    parts |= {"x_shape": shape, "edges": task.graph.edges, "nodes": task.nodes, "origin": origin}
    if (weights := task.graph.edge_weight) is not None:
        parts["edge_weight"] = weights
    tensors = {f"{group}.{name}": torch.from_numpy(np.ascontiguousarray(part)) for name, part in parts.items()}
    return tensors | {f"{group}.labels": rows}


def task_of_tensors(tensors: Mapping[str, Tensor], group: str, labels: Labels, num_features: int) -> Task:
    """What `task_tensors` gave, checked; `labels` are all classes in the order of the learner's numbers."""
    parts = {name[len(group) + 1 :]: t.cpu().numpy() for name, t in tensors.items() if name.startswith(f"{group}.")}
    wrong = f"the nodes kept in '{group}' are no part of a graph"
    shape, nodes, edges, rows, origin = (parts[name] for name in ("x_shape", "nodes", "edges", "labels", "origin"))
    require(all(part.dtype == np.int64 for part in (shape, nodes, edges, rows, origin)) and shape.shape == (2,), wrong)
    x = parts["x"] if "x" in parts else _csr(parts, wrong, *shape.tolist())
    require(x.dtype == np.float32 and x.shape == tuple(shape.tolist()) and x.shape[1] == num_features, wrong)
    require(edges.ndim == 2 and len(edges) == 2 and nodes.ndim == 1 and nodes.shape == rows.shape, wrong)
    require(_within(edges, x.shape[0]) and _within(nodes, x.shape[0]) and _within(rows, len(labels)), wrong)
    require(origin.shape in (UNKNOWN.shape, x.shape[:1]), wrong)
    weights = parts.get("edge_weight")
    if weights is not None:
        require(weights.dtype == np.float32 and weights.shape == edges.shape[1:], wrong)
        require(bool((weights > 0).all() and (weights < np.inf).all()), wrong)
    return Task(Graph(x, edges, weights), nodes, labels[rows], origin if origin.size else None)


def _csr(parts: Mapping[str, NDArray[Any]], wrong: str, rows: int, columns: int) -> sp.csr_array:
    """A sparse matrix of parts that may be anything."""
    values, indices, indptr = (parts[f"x_{name}"] for name in ("values", "indices", "indptr"))
    require(values.ndim == 1 and values.shape == indices.shape and indptr.shape == (rows + 1,), wrong)
    require(all(part.dtype in (np.int32, np.int64) for part in (indices, indptr)) and _within(indices, columns), wrong)
    require(indptr[0] == 0 and indptr[-1] == len(values) and bool((np.diff(indptr) >= 0).all()), wrong)
    return sp.csr_array((values, indices, indptr), shape=(rows, columns))


def _within(numbers: NDArray[Any], end: int) -> bool:
    return numbers.size == 0 or bool(numbers.min() >= 0 and numbers.max() < end)


def _csr_parts(x: sp.csr_array) -> dict[str, NDArray[Any]]:
    return {"x_values": x.data, "x_indices": x.indices, "x_indptr": x.indptr}
