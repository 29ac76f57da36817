"""`graph_from`: a graph from what people have."""

import os
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ipal.data.dataset import FACTS, Dataset
from ipal.data.datasets import checked, load_to_predict
from ipal.data.datasets.readers import RawGraph
from ipal.data.datasets.tables import Roles, Table, assembled, read_tables
from ipal.data.graph_data import GraphData
from ipal.data.labels import NO_NAME
from ipal.errors import ConfigError, DataError, shortened
from ipal.estimator.convert.pyg import READS, as_numpy, both_ways, given_features, is_sparse, one_a_node

MORE = ("edge_weight", "ids", *FACTS)
ARRAYS = ("x", "edge_index", "y", *MORE)
"""What a dict of arrays may hold."""


def graph_from(
    graph: Any,
    edges: Any = None,
    /,
    *,
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
    graph (attributes of nodes are features and `label`, of edges `weight`), a table of nodes and a table of edges
    (pandas, a dict of columns, or paths of CSV or Parquet files), a dict of arrays, and whatever the command reads by
    name or path. What ipal has read before is passed on as it is.

    **Edges run both ways unless** `directed=True`, also those of a networkx `DiGraph` and of a `Data` with edges in
    one direction only.

    **All nodes that have a label are marked for training.** To learn some of them, as those of one month:
    `dataclasses.replace(graph, train_mask=is_new)`; what is in `train_mask` again is learned again.

    Parameters
    ----------
    graph : object
        The graph, its table of nodes, or a path.
    edges : object, optional
        The table of edges, where `graph` is the table of nodes.
    directed : bool, default=False
        Whether edges run one way, from source to target.
    features : sequence of str, optional
        Which columns of nodes are features. Default: all that are nothing else.
    id : str, optional
        The column of nodes that identifies them, if it is not called id.
    label : str, optional
        The column of classes, if it is not called label.
    source, target : str, optional
        The columns of edges with their ends, if they are not called so.
    weight : str, optional
        The column of weights, if it is not called weight.

    Returns
    -------
    GraphData
        Or the `Data` itself.

    Raises
    ------
    ConfigError
        If an argument does not go with this kind of graph.
    DataError
        If no graph can be made of what is given.
    """
    said = {"id": id, "label": label, "source": source, "target": target, "weight": weight}
    roles = _roles({role: name for role, name in said.items() if name is not None}, features)
    if not isinstance(directed, bool):
        raise ConfigError(f"directed is True (edges run one way) or False (both ways), not {shortened(directed)}.")
    packages = {kind.__module__.partition(".")[0] for kind in type(graph).__mro__}
    if isinstance(graph, GraphData):
        return graph
    if isinstance(graph, Dataset):
        return GraphData.of(graph)
    if isinstance(graph, str | os.PathLike) and edges is None:
        return GraphData.of(load_to_predict(os.fspath(graph), undirected=not directed))
    if "torch_geometric" in packages and hasattr(graph, "edge_index"):
        return graph if directed else both_ways(graph)
    if edges is not None and all(isinstance(one, str | os.PathLike) for one in (graph, edges)):
        raw = read_tables(Path(graph), Path(edges), roles)
    elif edges is not None:
        tables = Table.of("the table of nodes", _columns(graph)), Table.of("the table of edges", _columns(edges))
        raw = assembled(*tables, roles)
    elif "networkx" in packages:
        raw = _of_networkx(graph, roles)
    elif isinstance(graph, Mapping) and "edge_index" in graph:
        raw = _of_arrays(graph)
    else:
        raise DataError(f"A graph cannot be made of a {type(graph).__name__}: pass {READS}.")
    return GraphData.of(checked("the graph", raw, undirected=not directed))


def _roles(said: dict[str, Any], features: Any) -> Roles:
    names = [*said.values(), *(features if isinstance(features, list | tuple) else ())]
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong or not isinstance(features, list | tuple | None):
        given = shortened(wrong[0] if wrong else features)
        raise ConfigError(f"Columns go by name, as id='account' and features=['age', 'country'], not as {given}.")
    return Roles(said, features)


def _columns(table: Any) -> list[tuple[str, Any]]:
    """The columns of a table in memory, with their names; an index with a name is one."""
    if isinstance(table, Mapping) and not is_sparse(table):
        return [(str(name), _column(values, str(name))) for name, values in table.items()]
    if hasattr(table, "columns"):
        index = getattr(table, "index", None)
        named = [] if getattr(index, "name", None) is None else [(str(table.index.name), index)]
        return named + [(str(name), table[name]) for name in table.columns]
    raise DataError(f"A table cannot be made of a {type(table).__name__}: pass {READS}.")


def _column(values: Any, name: str) -> Any:
    values = _plain(values, name)
    is_list = hasattr(values, "__len__") and getattr(values, "ndim", 1) > 0
    if isinstance(values, str | bytes | Mapping | Set) or not is_list:
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
    nodes, ends = list(graph.nodes(data=True)), list(graph.edges(data=True))
    names = dict.fromkeys(name for _, known in nodes for name in known if name != "id")
    columns: dict[str, Any] = {"id": [node for node, _ in nodes]}
    columns |= {str(name): _plain([known.get(name) for _, known in nodes], str(name)) for name in names}
    key = roles.said.get("weight", "weight")
    edges = {"source": [end[0] for end in ends], "target": [end[1] for end in ends]}
    if any(key in known for *_, known in ends):
        edges[key] = [known.get(key, 1) for *_, known in ends]  # as networkx has it
    return assembled(Table("the networkx graph", columns), Table("the table of edges", edges), roles)


def _of_arrays(arrays: Mapping[str, Any]) -> RawGraph:
    unknown = [name for name in arrays if name not in ARRAYS]
    if unknown:
        raise DataError(f"A graph has no part '{unknown[0]}': a dict of arrays has {', '.join(ARRAYS)}.")
    x, y = arrays.get("x"), arrays.get("y")
    if x is None and y is None:
        raise DataError("A dict of arrays needs x (nodes by features), or at least y: how many nodes are there?")
    found = None if x is None else given_features(x, "x")
    if found is not None and found.ndim != 2:
        raise DataError(f"x must be nodes by features, one row per node; this one has the shape {found.shape}.")
    n = as_numpy(y, "y").size if found is None else int(found.shape[0])
    labels = np.full(n, NO_NAME) if y is None else one_a_node(y, n, "y")
    parts: dict[str, Any] = {name: as_numpy(arrays[name], name) for name in MORE if arrays.get(name) is not None}
    return RawGraph(as_numpy(arrays["edge_index"], "edge_index"), labels, found, "features as given", **parts)
