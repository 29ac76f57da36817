"""From PyTorch Geometric's `Data` to the library's own values. The only place that reads a user's `Data`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from ipal.errors import DataError
from ipal.graph import Features, Graph, Nodes, checked_graph
from ipal.streams import Labels, Task

if TYPE_CHECKING:  # for its name alone: importing it takes seconds
    from torch_geometric.data import Data


def graph_of(data: "Data") -> Graph:
    """Features and edges of a `Data`; edges are taken as they are, directed where they are."""
    if getattr(data, "x", None) is None:
        raise DataError("The graph has no features: set data.x (nodes x features, dense or sparse).")
    edges = getattr(data, "edge_index", None)
    ends = np.zeros((2, 0), dtype=np.int64) if edges is None else _numpy(edges)
    return checked_graph(_features(data.x), ends, undirected=False)


def task_of(data: "Data") -> Task:
    """A training view: labels outside `train_mask` are not even looked at."""
    graph = graph_of(data)
    if getattr(data, "y", None) is None:
        raise DataError("The graph has no labels: set data.y, one label per node.")
    y = _numpy(data.y).reshape(-1)
    if len(y) != graph.num_nodes:
        raise DataError(f"There are {len(y)} labels for {graph.num_nodes} nodes: one per node is needed.")
    mask = getattr(data, "train_mask", None)
    nodes = np.arange(graph.num_nodes) if mask is None else np.flatnonzero(_mask(mask, graph.num_nodes))
    return Task(graph=graph, nodes=nodes, labels=_plain_labels(y[nodes]))


@dataclass(frozen=True, eq=False)
class Departure:
    """Nodes that are to leave, and the graph and labels that they were learned with."""

    task: Task
    leaving: Nodes
    """As numbered in the task's graph."""


def departure_of(data: "Data") -> Departure:
    """A training view with a `forget_mask`: one True or False a node."""
    task = task_of(data)
    mask = getattr(data, "forget_mask", None)
    if mask is None:
        raise DataError("Say which nodes are to be forgotten: set data.forget_mask, one True or False per node.")
    leaving = np.flatnonzero(_mask(mask, task.graph.num_nodes, "forget_mask"))
    if len(leaving) == 0:
        raise DataError("forget_mask marks no node: nothing is to be forgotten.")
    return Departure(task, leaving)


def _plain_labels(labels: NDArray[Any]) -> Labels:
    """Whole numbers or strings; anything else would not survive saving."""
    if labels.dtype.kind in "iub":
        return labels.astype(np.int64)
    if labels.dtype.kind == "f" and np.isfinite(labels).all() and np.array_equal(labels, np.floor(labels)):
        return labels.astype(np.int64)
    if labels.dtype.kind == "U" or (labels.dtype == object and all(isinstance(v, str) for v in labels)):
        return labels.astype(np.str_)
    raise DataError("The labels must be whole numbers or strings.")


def _mask(mask: Any, n: int, name: str = "train_mask") -> NDArray[np.bool_]:
    chosen = _numpy(mask)
    if chosen.shape != (n,) or chosen.dtype != np.bool_:
        raise DataError(f"{name} must hold one True or False for each of the {n} nodes.")
    return chosen


def _features(x: Any) -> Features:
    if isinstance(x, torch.Tensor) and x.layout != torch.strided:
        x = x.detach().cpu().to_sparse_csr()
        parts = (x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy())
        return sp.csr_array(parts, shape=tuple(x.shape)).astype(np.float32)
    if sp.issparse(x):
        return sp.csr_array(x).astype(np.float32)
    try:
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
            return np.ascontiguousarray(_numpy(x), dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise DataError("The features must be a table of numbers, nodes by features.") from error


def _numpy(values: Any) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
