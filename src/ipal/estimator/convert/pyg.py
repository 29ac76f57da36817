"""From PyTorch Geometric's `Data` to the library's own values. The only place that reads a user's `Data`.

Read are `x`, `edge_index`, `edge_weight`, `y`, `train_mask`, `test_mask`, `forget_mask` and `new_y`. What else is said
about edges (`NOT_USED`) is not used, and that is said once. Floating-point numbers of any width become
float32.
"""

from collections.abc import Collection
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from ipal.data.graph import Features, Given, Graph, Nodes, checked_graph
from ipal.data.graph_data import GraphData
from ipal.data.labels import Label, Labels, file_labels, is_missing, labelled, whole_numbers
from ipal.data.task import LabelledNodes, Task
from ipal.errors import DataError, say_unused, shortened

if TYPE_CHECKING:  # for its name alone: importing it takes seconds
    from torch_geometric.data import Data

READS = (
    "a Data of PyTorch Geometric (of a HeteroData its to_homogeneous()), a networkx graph, two tables (nodes, edges) "
    "of pandas, a dict of arrays (x, edge_index, y), or the path of a file or folder"
)
"""What `graph_from` takes."""
NOT_USED = ("edge_attr", "edge_type")


def graph_of(data: "Data | GraphData", *, undirected: bool = False) -> Graph:
    """Features and edges of a `Data`; edges are taken as they are, directed where they are, unless said otherwise."""
    if isinstance(data, Graph) or not hasattr(data, "x"):
        kind = type(data).__name__
        raise DataError(f"A {kind} is not read as it is: pass data = ipal.graph_from(…), which takes {READS}.")
    if data.x is None:
        raise DataError("The graph has no features: set data.x (nodes x features, dense or sparse).")
    x = given_features(data.x)
    edges, weights = _edges(data)
    names = data.columns if isinstance(data, GraphData) else ()
    return checked_graph(x, edges, undirected=undirected, weights=weights, columns=names)


def both_ways(data: "Data") -> "Data":
    """The same graph with every edge in both directions; the one passed in where they are there, or nothing is."""
    if getattr(data, "x", None) is None or graph_of(data).symmetric:
        return data
    graph = graph_of(data, undirected=True)
    weights = None if graph.edge_weight is None else torch.from_numpy(graph.edge_weight)
    edges = {"edge_index": torch.from_numpy(graph.edges), "edge_weight": weights}
    return copy(data).update(edges | dict.fromkeys(NOT_USED))


def _edges(data: Any) -> tuple[NDArray[Any], Given]:
    """Edges and their weights as they are given, not checked; none where nothing says them."""
    for name in NOT_USED:
        if getattr(data, name, None) is not None:
            say_unused(f"data.{name}; an edge counts by edge_weight alone")
    given, weights, *matrices = (getattr(data, name, None) for name in ("edge_index", "edge_weight", "adj", "adj_t"))
    if is_sparse(given) or (given is None and any(matrix is not None for matrix in matrices)):
        raise DataError(
            "Edges are a list of pairs: make edge_index of a matrix A by to_edge_index(A)[0], "
            "from_scipy_sparse_matrix(A)[0] or dense_to_sparse(A)[0] of torch_geometric.utils; adj_t is A transposed."
        )
    edges = np.zeros((2, 0), dtype=np.int64) if given is None else as_numpy(given, "edge_index")
    return edges, None if weights is None else as_numpy(weights, "edge_weight")


# ---------------------------------------------------------------------- labels


def task_of(data: "Data | GraphData") -> Task:
    """A training view: the nodes in `train_mask` that have a label; other labels are not even looked at."""
    graph = graph_of(data)
    y, mask = one_a_node(getattr(data, "y", None), graph.num_nodes), getattr(data, "train_mask", None)
    if mask is not None:
        nodes = np.flatnonzero(given_mask(mask, graph.num_nodes) & _may_teach(data, y))
        return Task(graph, nodes, _plain_labels(y[nodes]))
    labels = _plain_labels(y)
    if labels.dtype.kind == "i" and labels.size and labels.min() < 0:
        raise DataError(
            f"A label is {labels.min()}, which usually means unlabelled: set data.train_mask = data.y >= 0, or where "
            "it is a class, data.train_mask = torch.ones(data.num_nodes, dtype=torch.bool)."
        )
    return Task(graph, np.arange(graph.num_nodes), labels)


def labels_to_score(data: "Data | GraphData", n: int, known: Collection[Label], mask: Any = None) -> LabelledNodes:
    """Labels of the nodes in a mask, in `test_mask`, or of all; nodes without a label do not count.

    A number below zero says that there is none, unless it is a class that is known.
    """
    y, mask = one_a_node(getattr(data, "y", None), n), getattr(data, "test_mask", None) if mask is None else mask
    there = _has_label(y) | np.array([label in known for label in y.tolist()], dtype=np.bool_)
    nodes = np.flatnonzero(there if mask is None else there & given_mask(mask, n, "test_mask"))
    if len(nodes) == 0:
        raise DataError("No node of this graph has a label to score by: mark some in mask or data.test_mask.")
    return LabelledNodes(nodes, _plain_labels(y[nodes]))


def departure_of(data: "Data | GraphData") -> tuple[Task, Nodes]:
    """A training view, and the nodes that are to leave (`forget_mask`)."""
    task, mask = task_of(data), getattr(data, "forget_mask", None)
    n = task.graph.num_nodes
    return task, np.flatnonzero(np.zeros(n) if mask is None else given_mask(mask, n, "forget_mask"))


def correction_of(data: "Data | GraphData") -> tuple[Task, Task]:
    """A training view, and the one that should have been learned (`new_y`)."""
    task, new = task_of(data), getattr(data, "new_y", None)
    if new is None:
        raise DataError("Say what the labels should have been: set data.new_y, one label per node as in data.y.")
    labels = one_a_node(new, task.graph.num_nodes, "data.new_y")[task.nodes]
    if not _may_teach(data, labels).all():
        raise DataError("data.new_y has no label for a node in train_mask: use ipal.forget_rows for such nodes.")
    return task, replace(task, labels=_plain_labels(labels))


def one_a_node(values: Any, n: int, name: str = "data.y") -> NDArray[Any]:
    """Labels as they are given, one for each node."""
    if values is None:
        raise DataError(f"The graph has no labels: set {name}, one label per node.")
    if isinstance(values, list | tuple) and len({isinstance(value, str) for value in values}) > 1:
        values = np.array(values, dtype=object)  # NumPy would make strings of all of them
    y = as_numpy(values, name)
    if y.size != n:
        columns = f": for one-hot rows write {name}.argmax(dim=1)" if y.ndim == 2 and y.shape[0] == n else ""
        raise DataError(f"There are {y.size} labels for {n} nodes, and one per node is needed{columns}.")
    return y.reshape(-1)


def _plain_labels(labels: NDArray[Any]) -> Labels:
    """Whole numbers (True and False are 1 and 0) or strings; anything else would not survive saving."""
    if labels.dtype == object and labels.size and all(isinstance(label, int | np.integer) for label in labels):
        labels = np.array(labels.tolist())
    numbers = whole_numbers(labels)
    if numbers is not None:
        return numbers
    is_text = labels.dtype.kind == "U" or (labels.dtype == object and all(isinstance(v, str) for v in labels))
    if is_text and not any(map(is_missing, np.unique(labels).tolist())):
        return labels.astype(np.str_)
    raise DataError(
        "The labels must be whole numbers or strings, all of one kind: where some say that there is none, set "
        "data.train_mask, True for the nodes with one; else number the classes 0, 1, 2, …, or set data.y = "
        "[str(label) for label in data.y]."
    )


def _has_label(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Which nodes have a label: one that is not NaN, None, a word that says that there is none, or below zero."""
    return np.asarray(y >= 0) if y.dtype.kind in "if" else labelled(file_labels(y.astype(object), len(y)))


def _may_teach(data: Any, y: NDArray[Any]) -> NDArray[np.bool_]:
    """Which nodes in a mask have a label: in a `Data` numbers below zero are classes then, in a `GraphData` never."""
    return ~np.isnan(y) if y.dtype.kind in "if" and not isinstance(data, GraphData) else _has_label(y)


def given_mask(mask: Any, n: int, name: str = "train_mask") -> NDArray[np.bool_]:
    """One True or False for each of n nodes."""
    chosen = as_numpy(mask, name)
    if chosen.shape == (n,) and chosen.dtype == np.bool_:
        return chosen
    raise DataError(
        f"{name} must hold one True or False for each of the {n} nodes; this one holds {chosen.dtype} of the shape "
        f"{chosen.shape}: take one column, data.{name}[:, 0], make 0 and 1 data.{name}.bool(), or numbers of nodes "
        f"index_to_mask(numbers, size={n}) of torch_geometric.utils."
    )


# ---------------------------------------------------------------------- arrays and tensors of every kind


def is_sparse(values: Any) -> bool:
    """Whether it is a sparse matrix, of PyTorch or of SciPy."""
    return values.layout != torch.strided if isinstance(values, torch.Tensor) else bool(sp.issparse(values))


def as_numpy(values: Any, name: str) -> NDArray[Any]:
    """A dense array; sparse ones are filled in."""
    try:
        if isinstance(values, torch.Tensor):
            has_twin = values.dtype in (torch.float32, torch.float64) or not values.is_floating_point()
            values = (values.to_dense() if has_twin else values.to_dense().float()).numpy(force=True)
        array: NDArray[Any] = values.toarray() if sp.issparse(values) else np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{name} cannot be made an array: it needs values, in rows of the same length.") from error
    return array


def as_sparse(matrix: Any, name: str) -> sp.csr_array:
    """A sparse matrix, each place once."""
    try:
        if sp.issparse(matrix):
            return sp.csr_array(matrix)
        found = matrix.detach().cpu().to_sparse(layout=torch.sparse_coo).coalesce()
        ends = tuple(found.indices().numpy())
        return sp.coo_array((as_numpy(found.values(), name), ends), shape=tuple(matrix.shape)).tocsr()
    except (RuntimeError, ValueError) as error:
        raise DataError(f"{name} cannot be read: make it a sparse tensor of numbers on the CPU.") from error


def given_features(x: Any, name: str = "data.x") -> Features:
    """Features, dense or sparse, in 32 bits."""
    values = as_sparse(x, name) if is_sparse(x) and x.ndim == 2 else as_numpy(x, name)
    if values.dtype.kind not in "fiub":
        raise DataError(
            f"The features must be a table of numbers, nodes by features; these are of the type {values.dtype}: "
            "encode them, as with sklearn.preprocessing.OneHotEncoder."
        )
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        if isinstance(values, np.ndarray):
            return np.ascontiguousarray(values, dtype=np.float32)
        return sp.csr_array(values).astype(np.float32)


def single(given: Any, what: str) -> Any:
    """A label or a node that was given: one value, not several."""
    value = given.item() if getattr(given, "ndim", None) == 0 else given
    if not isinstance(value, int | float | str):
        raise DataError(f"{what} is named by a whole number or a string, not by {shortened(given)}.")
    return value
