"""From PyTorch Geometric's `Data` to the library's own values. The only place that reads a user's `Data`.

Read are `x`, the edges (`edge_index` with `edge_weight`, or `adj_t` with its values), `y`, `train_mask`, `test_mask`
and `forget_mask`. What else is said about edges (`EDGE_PARTS_NOT_USED`) is not used, and that is said once.
Floating-point numbers of any width become float32.
"""

from collections.abc import Collection
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ipal.data.csr import Neighbours
from ipal.data.graph import (
    EDGE_PARTS_NOT_USED,
    Given,
    Graph,
    Nodes,
    checked_edges,
    checked_graph,
    checked_weights,
)
from ipal.data.graph_data import GraphData
from ipal.data.labels import Label, Labels, file_labels, is_missing, labelled, whole_numbers
from ipal.data.task import LabelledNodes, Task
from ipal.errors import DataError, say_ignored
from ipal.estimator.convert.arrays import as_numpy, as_sparse, given_features, is_sparse, shape_of

if TYPE_CHECKING:  # for its name alone: importing it takes seconds
    from torch_geometric.data import Data

NO_EDGES = np.zeros((2, 0), dtype=np.int64)
READS = (
    "a Data or HeteroData of PyTorch Geometric, a networkx graph, a SciPy sparse matrix with x=features and y=labels, "
    "two tables (nodes, edges) of pandas, a dict of arrays (x, edge_index, y), or the path of a file or folder"
)
"""What `graph_from` takes."""

Weighted = tuple[NDArray[Any], Given]
"""Edges, and the weight of each where there are any."""


def graph_of(data: "Data") -> Graph:
    """Features and edges of a `Data`; edges are taken as they are, directed where they are.

    Edges are said by `edge_index`, or by `adj_t` (row: target, column: source), weights by `edge_weight` or the values
    of `adj_t`: an edge of weight 0 is none. With neither, no node has a neighbour.
    """
    if isinstance(data, Graph) or getattr(data, "x", None) is None:
        raise DataError(_not_a_graph(data))
    x = given_features(data.x)
    edges, weights = given_edges(data, (int(x.shape[0]), int(x.shape[0])))
    names = data.columns if isinstance(data, GraphData) else ()
    return checked_graph(x, edges, undirected=False, weights=weights, columns=names)


def _not_a_graph(data: Any) -> str:
    """Why no features are found in what was passed as a graph, and what to do: one sentence."""
    if is_hetero(data):
        return "A HeteroData is made one graph of all its nodes first: pass data = ipal.graph_from(data)."
    if hasattr(data, "x") and not isinstance(data, Graph):
        return "The graph has no features: set data.x (nodes x features, dense or sparse)."
    return f"A {type(data).__name__} is not read as it is: pass data = ipal.graph_from(…), which takes {READS}."


def is_hetero(data: Any) -> bool:
    """Whether it is a `HeteroData`, which may not be installed."""
    return "HeteroData" in {kind.__name__ for kind in type(data).__mro__}


def task_of(data: "Data") -> Task:
    """A training view: labels outside `train_mask` are not even looked at."""
    graph = graph_of(data)
    return Task(graph, *given_labels(data, graph.num_nodes))


def given_labels(data: Any, n: int) -> tuple[Nodes, Labels]:
    """The nodes whose labels count, and those labels: of nodes in `train_mask`, those that have one."""
    if getattr(data, "y", None) is None:
        raise DataError("The graph has no labels: set data.y, one label per node.")
    y = one_a_node(data.y, n)
    mask = getattr(data, "train_mask", None)
    if mask is None:
        labels = _plain_labels(y)
        _check_all_labelled(labels)
        return np.arange(n), labels
    nodes = np.flatnonzero(given_mask(mask, n) & _may_teach(data, y))
    return nodes, _plain_labels(y[nodes])


def share_right(truth: LabelledNodes, predicted: Labels) -> float:
    """The share of some nodes that got their label."""
    if predicted.dtype.kind != truth.labels.dtype.kind:
        raise DataError("The labels of this graph and of the model must be of one kind: numbers or strings.")
    return float(np.mean(predicted[truth.nodes] == truth.labels))


def labels_to_score(data: "Data", n: int, known: Collection[Label], mask: Any = None) -> LabelledNodes:
    """Labels of the nodes in a mask, in `test_mask`, or of all; nodes without a label do not count.

    A number below zero says that there is none, unless it is a class that is known.
    """
    if getattr(data, "y", None) is None:
        raise DataError("The graph has no labels to score by: set data.y, one label per node.")
    y = one_a_node(data.y, n)
    mask = getattr(data, "test_mask", None) if mask is None else mask
    there = has_label(y) | np.array([label in known for label in y.tolist()], dtype=np.bool_)
    nodes = np.flatnonzero(there if mask is None else there & given_mask(mask, n, "test_mask"))
    if len(nodes) == 0:
        raise DataError("No node of this graph has a label to score by: mark some in mask or data.test_mask.")
    return LabelledNodes(nodes, _plain_labels(y[nodes]))


class Departure(NamedTuple):
    """Nodes that are to leave, and the graph and labels that they were learned with."""

    task: Task
    leaving: Nodes
    """As numbered in the task's graph."""


def departure_of(data: "Data") -> Departure:
    """A training view with a `forget_mask`: one True or False a node."""
    task = task_of(data)
    mask = getattr(data, "forget_mask", None)
    n = task.graph.num_nodes
    return Departure(task, np.flatnonzero(np.zeros(n) if mask is None else given_mask(mask, n, "forget_mask")))


def correction_of(data: "Data") -> tuple[Task, Labels]:
    """A training view, and what its nodes should have been learned as (`new_y`)."""
    task, new = task_of(data), getattr(data, "new_y", None)
    if new is None:
        raise DataError("Say what the labels should have been: set data.new_y, one label per node as in data.y.")
    labels = one_a_node(new, task.graph.num_nodes, "data.new_y")[task.nodes]
    if not _may_teach(data, labels).all():
        raise DataError(
            "data.new_y has no label for a node in train_mask: take the node out of train_mask, or forget what it "
            "taught with ipal.forget_rows."
        )
    return task, _plain_labels(labels)


# ---------------------------------------------------------------------- edges


def given_edges(data: Any, shape: tuple[int, int]) -> Weighted:
    """Edges as they are given, not checked, between so many targets and sources (the shape of `adj_t`)."""
    for name in EDGE_PARTS_NOT_USED:
        if getattr(data, name, None) is not None:
            say_ignored(f"data.{name}")
    given, adj_t = getattr(data, "edge_index", None), getattr(data, "adj_t", None)
    weights = getattr(data, "edge_weight", None)
    weights = None if weights is None else as_numpy(weights, "edge_weight")
    if given is not None and is_sparse(given):
        raise DataError(
            "edge_index is a sparse matrix, not a list of edges: set data.edge_index = to_edge_index(A)[0] of "
            "torch_geometric.utils (from_scipy_sparse_matrix(A)[0] where it is SciPy's)."
        )
    if given is None and adj_t is None and getattr(data, "adj", None) is not None:
        raise DataError(
            "data.adj is not read: set data.edge_index = dense_to_sparse(data.adj)[0] of torch_geometric.utils."
        )
    if adj_t is None:
        return NO_EDGES if given is None else as_numpy(given, "edge_index"), weights
    if given is not None or weights is not None:
        raise DataError(
            "Edges are said twice, by adj_t and by edge_index or edge_weight: keep the right one, and remove the other "
            "with del data.adj_t or del data.edge_index (ToSparseTensor(attr='edge_weight') of "
            "torch_geometric.transforms puts weights into adj_t)."
        )
    return _ends_of(adj_t, shape)


def both_ways(data: "Data") -> "Data":
    """The same graph with every edge in both directions; the one passed in where they are there, or nothing is."""
    if getattr(data, "x", None) is None:
        return data
    n = int(given_features(data.x).shape[0])
    edges, weights = given_edges(data, (n, n))
    edges, weights = checked_edges(edges, n), checked_weights(weights, edges.shape[1])
    if Neighbours.of_edges(edges, n, weights=weights).symmetric:
        return data
    rows = Neighbours.of_edges(edges, n, undirected=True, weights=weights)
    made = copy(data)
    made["edge_index"] = torch.from_numpy(np.stack([rows.indices.astype(np.int64), rows.targets(0, n)]))
    made["edge_weight"] = None if rows.weights is None else torch.from_numpy(rows.weights)
    for name in ("adj_t", *EDGE_PARTS_NOT_USED):
        made[name] = None
    return made


def _ends_of(adj_t: Any, expected: tuple[int, int]) -> Weighted:
    """Edges from a transposed adjacency matrix: of PyTorch, of SciPy, or torch_sparse's SparseTensor."""
    if not (isinstance(adj_t, torch.Tensor) or is_sparse(adj_t)):
        raise DataError(
            f"adj_t is of the type {type(adj_t).__name__}: make it a sparse tensor, or set data.edge_index (2 x edges)."
        )
    if (shape := shape_of(adj_t)) != expected:
        raise DataError(f"adj_t has the shape {shape}, but there are {expected[0]} nodes: {expected} is needed.")
    found = as_sparse(adj_t, "adj_t")
    row, column = found.coords
    return np.stack([column, row]), found.data


# ---------------------------------------------------------------------- labels


def one_a_node(values: Any, n: int, name: str = "data.y") -> NDArray[Any]:
    """Labels as they are given, one for each node."""
    if isinstance(values, list | tuple) and len({isinstance(value, str) for value in values}) > 1:
        values = np.array(values, dtype=object)  # NumPy would make strings of all of them
    y: NDArray[Any] = as_numpy(values, name)
    if y.ndim == 2 and y.shape[0] == n and y.shape[1] > 1:
        raise DataError(
            f"{name} has {y.shape[1]} columns: one label per node is needed, for one-hot rows {name} = "
            f"{name}.argmax(dim=1)."
        )
    if y.size != n:
        raise DataError(f"There are {y.size} labels for {n} nodes: one per node is needed.")
    return y.reshape(-1)


def _plain_labels(labels: NDArray[Any]) -> Labels:
    """Whole numbers (True and False are 1 and 0) or strings; anything else would not survive saving."""
    if labels.dtype == object and labels.size and all(isinstance(label, int | np.integer) for label in labels):
        labels = np.array(labels.tolist())
    numbers = whole_numbers(labels)
    if numbers is not None:
        return numbers
    wrong = "The labels must be whole numbers or strings"
    is_text = labels.dtype.kind == "U" or (labels.dtype == object and all(isinstance(v, str) for v in labels))
    if is_text and not any(map(is_missing, np.unique(labels).tolist())):
        return labels.astype(np.str_)
    is_number = labels.dtype.kind == "f"
    if is_text or (is_number and np.isnan(labels).any()) or (labels.dtype == object and not has_label(labels).all()):
        raise DataError(f"{wrong}, and some say that there is none: set data.train_mask, True for the nodes with one.")
    if labels.dtype.kind in "fu":
        raise DataError(f"{wrong}; these are fractions or too large: number the classes 0, 1, 2, …")
    raise DataError(f"{wrong}, all of one kind: set data.y = [str(label) for label in data.y].")


def has_label(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Which nodes have a label: one that is not NaN, None, a word that says that there is none, or below zero."""
    return np.asarray(y >= 0) if y.dtype.kind in "if" else labelled(file_labels(y.astype(object), len(y)))


def _may_teach(data: Any, y: NDArray[Any]) -> NDArray[np.bool_]:
    """Which nodes in a mask have a label: in a `Data` numbers below zero are classes then, in a `GraphData` never."""
    return ~np.isnan(y) if y.dtype.kind in "if" and not isinstance(data, GraphData) else has_label(y)


def _check_all_labelled(labels: Labels) -> None:
    """Most who write -1 or nothing mean no class by it. A mask says what is meant."""
    if labels.dtype.kind == "i" and labels.size and labels.min() < 0:
        raise DataError(
            f"A label is {labels.min()}, which usually means unlabelled: set data.train_mask = data.y >= 0, or where "
            "it is a class, data.train_mask = torch.ones(data.num_nodes, dtype=torch.bool)."
        )


def given_mask(mask: Any, n: int, name: str = "train_mask") -> NDArray[np.bool_]:
    chosen = as_numpy(mask, name)
    if chosen.shape == (n,) and chosen.dtype == np.bool_:
        return chosen
    raise DataError(
        f"{name} must hold one True or False for each of the {n} nodes; this one holds {chosen.dtype} of the shape "
        f"{chosen.shape}: take one column, data.{name}[:, 0], make 0 and 1 data.{name}.bool(), or numbers of nodes "
        f"index_to_mask(numbers, size={n}) of torch_geometric.utils."
    )
