"""Stored nodes as named tensors: a task with class numbers as labels."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend.checks import require
from ipal.data.csr import Neighbours
from ipal.data.graph import Graph
from ipal.data.task import Task

UNKNOWN: Final = np.empty(0, dtype=np.int64)
"""The original node numbers of a graph that has none, as they are stored."""


def task_tensors(task: Task, group: str) -> dict[str, Tensor]:
    """A task, whose labels are class numbers, as named tensors."""
    x = task.graph.x
    shape = np.array(x.shape)
    parts = {"x": x} if not isinstance(x, sp.csr_array) else _csr_parts(x)
    origin = UNKNOWN if task.origin is None else task.origin
    parts |= {"x_shape": shape, "edges": task.graph.edges, "nodes": task.nodes, "origin": origin, "labels": task.labels}
    if (weights := task.graph.edge_weight) is not None:
        parts["edge_weight"] = weights
    return {f"{group}.{name}": torch.from_numpy(np.ascontiguousarray(part)) for name, part in parts.items()}


def task_of_tensors(tensors: Mapping[str, Tensor], group: str, classes: int, num_features: int) -> Task:
    """What `task_tensors` gave, checked; labels are numbers of so many classes."""
    parts = {name[len(group) + 1 :]: t.cpu().numpy() for name, t in tensors.items() if name.startswith(f"{group}.")}
    wrong = f"the nodes kept in '{group}' are no part of a graph"
    missing = {"x_shape", "nodes", "edges", "labels", "origin"} - parts.keys()
    require(not missing, f"'{group}.{min(missing, default='')}' is missing")
    shape, nodes, edges, rows, origin = (parts[name] for name in ("x_shape", "nodes", "edges", "labels", "origin"))
    require(all(part.dtype == np.int64 for part in (shape, nodes, edges, rows, origin)) and shape.shape == (2,), wrong)
    x = parts["x"] if "x" in parts else _csr(parts, wrong, *shape.tolist())
    require(x.dtype == np.float32 and x.shape == tuple(shape.tolist()) and x.shape[1] == num_features, wrong)
    require(edges.ndim == 2 and len(edges) == 2 and nodes.ndim == 1 and nodes.shape == rows.shape, wrong)
    require(_within(edges, x.shape[0]) and _within(nodes, x.shape[0]) and _within(rows, classes), wrong)
    require(origin.shape in (UNKNOWN.shape, x.shape[:1]), wrong)
    weights = parts.get("edge_weight")
    if weights is not None:
        require(weights.dtype == np.float32 and weights.shape == edges.shape[1:], wrong)
        require(bool((weights > 0).all() and (weights < np.inf).all()), wrong)
    neighbours = Neighbours.of_edges(edges, x.shape[0], weights=weights)
    return Task(Graph(x, neighbours), nodes, rows, origin if origin.size else None)


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
