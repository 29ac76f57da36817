"""`graph_from`: a graph from what people have."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from ipal.data.dataset import Dataset
from ipal.data.datasets import checked, load_to_predict
from ipal.data.datasets.readers import FACTS, RawGraph
from ipal.data.datasets.tables.assemble import Roles, assembled, read_tables
from ipal.data.datasets.tables.columns import table_of
from ipal.data.graph import Graph
from ipal.data.graph_data import GraphData
from ipal.data.labels import NO_NAME
from ipal.errors import ConfigError, DataError, shortened
from ipal.estimator.convert.arrays import as_numpy, as_sparse, given_features, is_sparse, shape_of
from ipal.estimator.convert.hetero import of_hetero
from ipal.estimator.convert.pyg import READS, both_ways, is_hetero, one_a_node

ARRAYS = ("x", "edge_index", "edge_weight", "y", "ids", *FACTS)


def graph_from(
    graph: Any,
    edges: Any = None,
    /,
    *,
    x: Any = None,
    y: Any = None,
    directed: bool = False,
    features: Sequence[str] | None = None,
    id: str | None = None,
    label: str | None = None,
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
) -> Any:
    """A graph that `partial_fit`, `predict` and the other methods take, from what there is.

    The same nodes and edges give the same graph, whatever they are read from: PyTorch Geometric's `Data`, a networkx
    graph (attributes of nodes are features and `label`, of edges `weight`), a SciPy sparse matrix or an array A
    (A[i, j] is the weight of the edge from i to j) with features `x` and labels `y`, a table of nodes and a table of
    edges (pandas, a dict of columns, or paths of CSV or Parquet files), a dict of arrays, and whatever the command
    reads by name or path. What ipal has read before is passed on as it is.

    **Edges run both ways unless** `directed=True`, also those of a networkx `DiGraph`, of a matrix that is not
    symmetric and of a `Data` with edges in one direction only.

    **All nodes that have a label are marked for training.** To learn some of them, as those of one month:
    `dataclasses.replace(graph, train_mask=is_new)`; what is in `train_mask` again is learned again.

    **A** `HeteroData` **becomes one graph**: the nodes of the type with labels first, then those of the others by name,
    each type with features in columns of its own, and the edges of all types. The first rows of what `predict` gives
    are those of the labelled type.

    Parameters
    ----------
    graph : object
        The graph, its adjacency matrix, its table of nodes, or a path.
    edges : object, optional
        The table of edges, where `graph` is the table of nodes.
    x : array of shape (n_nodes, n_features), optional
        Features of an adjacency matrix.
    y : array of shape (n_nodes,), optional
        Labels of an adjacency matrix; None, NaN, "" or -1 where a node has none.
    directed : bool, default=False
        Whether edges run one way, from source to target.
    features : sequence of str, optional
        Which columns of nodes are features. Default: all that are nothing else.
    id : str, optional
        The column of nodes that identifies them, if it is not called id.
    label : str, optional
        The column of classes, if it is not called label. Of a `HeteroData`, the type of nodes that is classified:
        needed where not just one has labels.
    source, target : str, optional
        The columns of edges with their ends, if they are not called so.
    weight : str, optional
        The column of weights, if it is not called weight.

    Returns
    -------
    GraphData
        Or the `Data` itself.
    """
    roles = _roles({"id": id, "label": label, "source": source, "target": target, "weight": weight}, features)
    is_matrix = is_sparse(graph) or isinstance(graph, np.ndarray | torch.Tensor)
    if (x is not None or y is not None) and not is_matrix:
        raise ConfigError("x= and y= go with an adjacency matrix: other graphs bring their own features and labels.")
    if not isinstance(directed, bool):
        raise ConfigError(f"directed is True (edges run one way) or False (both ways), not {shortened(directed)}.")
    if isinstance(graph, tuple | list) and len(graph) == 2 and edges is None:
        graph, edges = graph
    elif isinstance(graph, Mapping) and not is_matrix and set(graph) == {"nodes", "edges"}:
        graph, edges = graph["nodes"], graph["edges"]
    packages = {kind.__module__.partition(".")[0] for kind in type(graph).__mro__}
    names = {kind.__name__ for kind in type(graph).__mro__}
    if edges is not None:
        return _made(_pair(graph, edges, roles), directed)
    if isinstance(graph, GraphData):
        return graph
    if is_hetero(graph):
        return of_hetero(graph, label, directed)
    if "torch_geometric" in packages and "Data" in names:
        return graph if directed else both_ways(graph)
    if isinstance(graph, Dataset):
        return GraphData.of(graph)
    if isinstance(graph, Graph):
        return GraphData(x=graph.x, edge_index=graph.edges, edge_weight=graph.edge_weight, columns=graph.columns)
    if "networkx" in packages:
        return _made(_of_networkx(graph, roles), directed)
    if is_matrix:
        return _made(_of_matrix(graph, x, y), directed)
    if isinstance(graph, str | os.PathLike):
        return GraphData.of(load_to_predict(os.fspath(graph), undirected=not directed))
    if isinstance(graph, Mapping) and "edge_index" in graph:
        return _made(_of_arrays(graph), directed)
    raise DataError(f"A graph cannot be made of a {type(graph).__name__}: pass {READS}.")


def _roles(given: Mapping[str, Any], features: Any) -> Roles:
    said = {role: name for role, name in given.items() if name is not None}
    for role, name in said.items():
        if not isinstance(name, str):
            raise ConfigError(f"{role} is the name of a column, not {shortened(name)}.")
    is_list = isinstance(features, list | tuple) and all(isinstance(name, str) for name in features)
    if features is not None and not is_list:
        raise ConfigError(f"features are the names of columns, as ['age', 'country'], not {shortened(features)}.")
    return Roles(said, features)


def _made(raw: RawGraph, directed: bool) -> GraphData:
    return GraphData.of(checked("the graph", raw, undirected=not directed))


def _pair(nodes: Any, edges: Any, roles: Roles) -> RawGraph:
    from pathlib import Path

    if all(isinstance(one, str | os.PathLike) for one in (nodes, edges)):
        return read_tables(Path(nodes), Path(edges), roles)
    tables = table_of(_columns(nodes), "the table of nodes"), table_of(_columns(edges), "the table of edges")
    return assembled(*tables, roles)


def _columns(table: Any) -> dict[str, Any]:
    """The columns of a table in memory, by name; an index with a name is one."""
    if isinstance(table, Mapping) and not is_sparse(table):
        return {str(name): _column(values, str(name)) for name, values in table.items()}
    if not hasattr(table, "columns"):
        raise DataError(f"A table cannot be made of a {type(table).__name__}: pass {READS}.")
    names = [str(name) for name in table.columns]
    index = getattr(table, "index", None)
    named = {} if getattr(index, "name", None) is None else {str(table.index.name): table.index}
    counts = Counter(names)
    twice = next((name for name in names if counts[name] > 1 or name in named), None)
    if twice is not None:
        raise DataError(f"A table has two columns called {shortened(twice)}: give each a name of its own.")
    return named | {str(name): table[name] for name in table.columns}


def _column(values: Any, name: str) -> Any:
    values = _plain(values, name)
    if (
        isinstance(values, str | bytes | Mapping | Set)
        or not getattr(values, "ndim", 1)
        or not hasattr(values, "__len__")
    ):
        raise DataError(
            f"The column {shortened(name)} is a {type(values).__name__}: make it a list, with a value for each row."
        )
    return values


def _plain(values: Any, name: str) -> Any:
    """Tensors as arrays, also those in a list; other values as they are."""
    if isinstance(values, torch.Tensor) or is_sparse(values):
        return as_numpy(values, name)
    if isinstance(values, list | tuple) and any(isinstance(value, torch.Tensor | list | tuple) for value in values):
        return [_plain(value, name) for value in values]
    return values


def _of_networkx(graph: Any, roles: Roles) -> RawGraph:
    names = list(dict.fromkeys(name for _, known in graph.nodes(data=True) for name in known))
    columns: dict[str, list[Any]] = {"id": list(graph.nodes)}
    columns |= {
        str(name): _plain([known.get(name) for _, known in graph.nodes(data=True)], str(name))
        for name in names
        if name != "id"
    }
    key = roles.said.get("weight", "weight")
    ends = list(graph.edges(data=True))
    found: dict[str, list[Any]] = {"source": [end[0] for end in ends], "target": [end[1] for end in ends]}
    if any(key in known for *_, known in ends):
        found[key] = [known.get(key, 1) for *_, known in ends]  # as networkx has it
    return assembled(table_of(columns, "the networkx graph"), table_of(found, "the table of edges"), roles)


def _of_matrix(matrix: Any, x: Any, y: Any) -> RawGraph:
    shape = shape_of(matrix)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise DataError(f"An adjacency matrix is square, nodes by nodes; this one has the shape {shape}.")
    found = as_numpy(matrix, "The matrix") if not is_sparse(matrix) else as_sparse(matrix, "The matrix")
    if found.dtype.kind not in "fiub":
        raise DataError(f"An adjacency matrix holds numbers; this one holds {found.dtype}.")
    entries = sp.coo_array(found)
    return _raw(np.stack(entries.coords), x, y, shape[0], edge_weight=entries.data.astype(np.float64))


def _of_arrays(arrays: Mapping[str, Any]) -> RawGraph:
    unknown = [name for name in arrays if name not in ARRAYS]
    if unknown:
        raise DataError(f"A graph has no part '{unknown[0]}': a dict of arrays has {', '.join(ARRAYS)}.")
    there = [name for name in ("edge_weight", "ids", *FACTS) if arrays.get(name) is not None]
    parts = {name: as_numpy(arrays[name], name) for name in there}
    x, y = arrays.get("x"), arrays.get("y")
    if x is None and y is None:
        raise DataError("A dict of arrays needs x (nodes by features), or at least y: how many nodes are there?")
    n = as_numpy(y, "y").size if x is None else None
    return _raw(as_numpy(arrays["edge_index"], "edge_index"), x, y, n, **parts)


def _raw(edges: Any, x: Any, y: Any, n: int | None, **parts: Any) -> RawGraph:
    """Of arrays; n is the number of nodes, None where the features say it."""
    found = None if x is None else given_features(x, "x")
    if found is not None and found.ndim != 2:
        raise DataError(f"x must be numbers, nodes by features; this one has {found.ndim} dimension(s).")
    rows = n if found is None else int(found.shape[0])
    assert rows is not None, "it is one or the other"
    if n is not None and rows != n:
        raise DataError(f"x has {rows} rows for {n} nodes: one per node is needed.")
    labels = np.full(rows, NO_NAME) if y is None else one_a_node(y, rows, "y")
    return RawGraph(edges, labels, found, "features as given", **parts)
