"""`graph_from`: a graph from what people have."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from ipal.data.dataset import Dataset
from ipal.data.datasets import checked, loaded
from ipal.data.datasets.catalog import data_root
from ipal.data.datasets.readers import FACTS, RawGraph
from ipal.data.datasets.tables.assemble import Roles, assembled
from ipal.data.datasets.tables.columns import Table, table_of, words_of
from ipal.data.datasets.tables.read import read_tables
from ipal.data.graph import Graph
from ipal.data.graph_data import GraphData
from ipal.errors import ConfigError, DataError

ARRAYS = ("x", "edge_index", "edge_weight", "y", "ids", *FACTS)
READS = (
    "a Data or HeteroData of PyTorch Geometric, a networkx graph, a SciPy sparse matrix with x=features and y=labels, "
    "two tables (nodes, edges) of pandas, a dict of arrays (x, edge_index, y), or the path of a file or folder"
)


def graph_from(
    graph: Any,
    edges: Any = None,
    /,
    *,
    x: Any = None,
    y: Any = None,
    directed: bool | None = None,
    features: Sequence[str] | None = None,
    id: str | None = None,
    label: str | None = None,
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
) -> Any:
    """A graph that `partial_fit`, `predict` and the other methods take, from what there is.

    Read are: PyTorch Geometric's `Data` and `HeteroData` (passed on as they are), networkx graphs (attributes of nodes
    are features and `label`, of edges `weight`), a SciPy sparse matrix or an array A (A[i, j] is the weight of the edge
    from i to j) with features `x` and labels `y`, a table of nodes and a table of edges (pandas, a dict of columns, or
    paths of CSV or Parquet files), a dict of arrays, and whatever the command reads by name or path.

    Args:
        graph: The graph, its adjacency matrix, its table of nodes, or a path.
        edges: The table of edges, where `graph` is the table of nodes.
        x: Features of an adjacency matrix, nodes by features.
        y: Labels of an adjacency matrix; None, NaN, "" or -1 where a node has none.
        directed: Whether edges run one way; None: as networkx or the matrix says, of tables not.
        features: Which columns of nodes are features; None: all that are nothing else.
        id: The column of nodes that identifies them, if it is not called id.
        label: The column of classes, if it is not called label.
        source: The column of edges with their first ends, if it is not called source.
        target: The column of edges with their second ends, if it is not called target.
        weight: The column of weights, if it is not called weight.
    """
    given = {"id": id, "label": label, "source": source, "target": target, "weight": weight}
    roles = Roles({role: name for role, name in given.items() if name is not None}, features)
    is_matrix = sp.issparse(graph) or isinstance(graph, np.ndarray)
    if (x is not None or y is not None) and not is_matrix:
        raise ConfigError("x= and y= go with an adjacency matrix: other graphs bring their own features and labels.")
    if isinstance(graph, tuple | list) and len(graph) == 2 and edges is None:
        graph, edges = graph
    elif isinstance(graph, Mapping) and set(graph) == {"nodes", "edges"}:
        graph, edges = graph["nodes"], graph["edges"]
    packages = {kind.__module__.partition(".")[0] for kind in type(graph).__mro__}
    if edges is not None:
        return _made(_pair(graph, edges, roles), bool(directed))
    if "torch_geometric" in packages or isinstance(graph, GraphData):
        return graph
    if isinstance(graph, Dataset):
        return GraphData.of(graph)
    if isinstance(graph, Graph):
        return GraphData(x=graph.x, edge_index=graph.edges, edge_weight=graph.edge_weight)
    if "networkx" in packages:
        one_way = graph.is_directed() if directed is None else directed
        return _made(_of_networkx(graph, roles), one_way)
    if is_matrix:
        return _made(_of_matrix(graph, x, y), directed is not False)
    if isinstance(graph, str | os.PathLike):
        return GraphData.of(loaded(os.fspath(graph), data_root(), undirected=not directed))
    if isinstance(graph, Mapping) and "edge_index" in graph:
        return _made(_of_arrays(graph), directed is not False)
    raise DataError(f"A graph cannot be made of a {type(graph).__name__}: pass {READS}.")


def _made(raw: RawGraph, directed: bool) -> GraphData:
    return GraphData.of(checked("the graph", raw, undirected=not directed))


def _pair(nodes: Any, edges: Any, roles: Roles) -> RawGraph:
    from pathlib import Path

    if all(isinstance(one, str | os.PathLike) for one in (nodes, edges)):
        return read_tables(Path(nodes), Path(edges), roles)
    of_nodes = table_of(_columns(nodes), "the table of nodes", roles.of_nodes("The table of nodes"))
    return assembled(of_nodes, _edge_table(_columns(edges), roles), roles)


def _edge_table(columns: Mapping[str, Any], roles: Roles) -> Table:
    return table_of(columns, "the table of edges", roles.of_edges("The table of edges"))


def _columns(table: Any) -> dict[str, Any]:
    """The columns of a table in memory, by name; an index with a name is one."""
    if isinstance(table, Mapping):
        return {str(name): values for name, values in table.items()}
    if not hasattr(table, "columns"):
        raise DataError(f"A table cannot be made of a {type(table).__name__}: pass {READS}.")
    index = getattr(table, "index", None)
    named = {} if getattr(index, "name", None) is None else {str(table.index.name): table.index}
    return named | {str(name): table[name] for name in table.columns}


def _of_networkx(graph: Any, roles: Roles) -> RawGraph:
    names = list(dict.fromkeys(name for _, known in graph.nodes(data=True) for name in known))
    columns: dict[str, list[Any]] = {"id": list(graph.nodes)}
    columns |= {str(name): [known.get(name) for _, known in graph.nodes(data=True)] for name in names if name != "id"}
    nodes = table_of(columns, "the nodes", roles.of_nodes("The networkx graph"))
    key = roles.said.get("weight", "weight")
    ends = list(graph.edges(data=True))
    found: dict[str, list[Any]] = {"source": [end[0] for end in ends], "target": [end[1] for end in ends]}
    if any(key in known for *_, known in ends):
        found[key] = [known.get(key, 1) for *_, known in ends]  # as networkx has it
    return assembled(nodes, _edge_table(found, roles), roles)


def _of_matrix(matrix: Any, x: Any, y: Any) -> RawGraph:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise DataError(f"An adjacency matrix is square, nodes by nodes; this one has the shape {matrix.shape}.")
    entries = sp.coo_array(matrix)
    if entries.dtype.kind not in "fiub":
        raise DataError(f"An adjacency matrix holds numbers; this one holds {entries.dtype}.")
    ones = entries.dtype.kind == "b" or (entries.data == 1).all()
    weights = None if ones else entries.data
    return _raw(np.stack([entries.row, entries.col]), x, y, matrix.shape[0], edge_weight=weights)


def _of_arrays(arrays: Mapping[str, Any]) -> RawGraph:
    unknown = [name for name in arrays if name not in ARRAYS]
    if unknown:
        raise DataError(f"A graph has no part '{unknown[0]}': a dict of arrays has {', '.join(ARRAYS)}.")
    parts = {name: np.asarray(arrays[name]) for name in ("edge_weight", "ids", *FACTS) if arrays.get(name) is not None}
    x, y = arrays.get("x"), arrays.get("y")
    if x is None and y is None:
        raise DataError("A dict of arrays needs x (nodes by features), or at least y: how many nodes are there?")
    n = len(np.asarray(y)) if x is None else int(x.shape[0] if sp.issparse(x) else len(x))
    return _raw(np.asarray(arrays["edge_index"]), x, y, n, **parts)


def _raw(edges: Any, x: Any, y: Any, n: int, **parts: Any) -> RawGraph:
    x = x if x is None or sp.issparse(x) else np.asarray(x)
    if x is not None and (x.dtype.kind not in "fiub" or x.ndim != 2):
        raise DataError(f"x must be numbers, nodes by features; this one has {x.ndim} dimension(s) of {x.dtype}.")
    if x is not None and x.shape[0] != n:
        raise DataError(f"x has {x.shape[0]} rows for {n} nodes: one per node is needed.")
    if x is not None:
        x = sp.csr_array(x).astype(np.float32) if sp.issparse(x) else np.ascontiguousarray(x, dtype=np.float32)
    labels = np.full(n, "") if y is None else words_of(np.asarray(y).reshape(-1)).values
    return RawGraph(edges, labels, x, "features as given", **parts)
