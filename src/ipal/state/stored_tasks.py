"""Stored nodes as named tensors: a task with class numbers as labels."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend.checks import MisfitError, require
from ipal.data.graph import checked_graph
from ipal.data.task import Task
from ipal.errors import DataError

SPARSE: Final = ("x_values", "x_indices", "x_indptr")
UNKNOWN: Final = np.empty(0, dtype=np.int64)
"""The original node numbers of a graph that has none, as they are stored."""


def task_tensors(task: Task, group: str) -> dict[str, Tensor]:
    """A task, whose labels are class numbers, as named tensors."""
    x = task.graph.x
    shape = np.array(x.shape)
    parts = dict(zip(SPARSE, (x.data, x.indices, x.indptr), strict=True)) if isinstance(x, sp.csr_array) else {"x": x}
    origin = UNKNOWN if task.origin is None else task.origin
    parts |= {"x_shape": shape, "edges": task.graph.edges, "nodes": task.nodes, "origin": origin, "labels": task.labels}
    if (weights := task.graph.edge_weight) is not None:
        parts["edge_weight"] = weights
    return {f"{group}.{name}": torch.from_numpy(np.ascontiguousarray(part)) for name, part in parts.items()}


def task_of_tensors(tensors: Mapping[str, Tensor], group: str, classes: int, num_features: int) -> Task:
    """What `task_tensors` gave, checked; labels are numbers of so many classes."""
    parts = {name[len(group) + 1 :]: t.cpu().numpy() for name, t in tensors.items() if name.startswith(f"{group}.")}
    wrong = f"the nodes kept in '{group}' are no part of a graph"
    names = ["x_shape", "nodes", "edges", "labels", "origin", *(["x"] if "x" in parts else SPARSE)]
    missing = set(names) - parts.keys()
    require(not missing, f"'{group}.{min(missing, default='')}' is missing")
    shape, nodes, edges, rows, origin, *x_parts = (parts[name] for name in names)
    whole = (shape, nodes, edges, rows, origin, *x_parts[1:])
    require(all(part.dtype.kind == "i" for part in whole) and shape.shape == (2,), wrong)
    try:
        x = x_parts[0] if "x" in parts else sp.csr_array(tuple(x_parts), shape=shape.tolist())
        if isinstance(x, sp.csr_array):
            x.check_format()
        graph = checked_graph(x, edges, undirected=False, weights=parts.get("edge_weight"))
    except (DataError, ValueError) as error:
        raise MisfitError(wrong) from error
    require(x.dtype == np.float32 and x.shape == tuple(shape.tolist()) and x.shape[1] == num_features, wrong)
    require(nodes.ndim == 1 and nodes.shape == rows.shape, wrong)
    require(_within(nodes, x.shape[0]) and _within(rows, classes), wrong)
    require(origin.shape in (UNKNOWN.shape, x.shape[:1]), wrong)
    return Task(graph, nodes, rows, origin if origin.size else None)


def _within(numbers: NDArray[Any], end: int) -> bool:
    return numbers.size == 0 or bool(numbers.min() >= 0 and numbers.max() < end)
