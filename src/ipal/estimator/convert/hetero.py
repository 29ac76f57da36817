"""From PyTorch Geometric's `HeteroData` to one graph of all its nodes, with the edges of each type on their own.

Each type of nodes has columns of its own among the features, the type with labels first: a projection that depends on
nothing but the types, so that a later graph of the same types is mapped alike. Edges between two types run both ways,
unless the other way is there as `rev_NAME`, as `ToUndirected` names it; both are one type then. Edges between nodes of
one type are taken as they are, as those of a `Data`.
"""

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal.data.csr import Neighbours
from ipal.data.graph import Features, Graph, checked_edges, checked_graph, checked_weights
from ipal.data.labels import Labels
from ipal.data.relations import EdgeType, Relations, Types
from ipal.data.task import Task
from ipal.errors import DataError
from ipal.estimator.convert import pyg
from ipal.estimator.convert.arrays import given_features
from ipal.estimator.convert.pyg import (
    NO_EDGES,
    Departure,
    given_edges,
    given_labels,
    given_leaving,
    is_hetero,
    right_labels,
)

if TYPE_CHECKING:  # for their names alone: importing them takes seconds
    from torch_geometric.data import Data, HeteroData

REVERSE = "rev_"
"""Before the name of an edge type: the same edges the other way."""

Weighted = tuple[NDArray[Any], NDArray[np.float32]]
"""Edges, and the weight of each."""


def graph_of(data: "Data | HeteroData", types: Types | None) -> Graph:
    """A graph to be predicted by a model that knows these types."""
    return _graph(data, types) if types and is_hetero(data) else pyg.graph_of(data)


def task_of(data: "Data | HeteroData", types: Types | None) -> Task:
    """A training view for a model that knows these types, or none yet."""
    if not is_hetero(data):
        return pyg.task_of(data)
    graph = _graph(data, types)
    assert graph.types is not None, "it has types"
    name = graph.types.target
    if getattr(data[name], "y", None) is None:
        raise DataError(f"Nodes of type '{name}' have no labels: set data['{name}'].y, one label per node.")
    return Task(graph, *given_labels(data[name], len(graph.targets)))


def departure_of(data: "Data | HeteroData", types: Types | None) -> Departure:
    """A training view with a `forget_mask` at one type of nodes or several."""
    if types is None or not is_hetero(data):
        return pyg.departure_of(data)
    task, present = task_of(data, types), [name for name, _ in types.nodes if name in data.node_types]
    return Departure(task, given_leaving([data[name] for name in present], [data[name].num_nodes for name in present]))


def correction_of(data: "Data | HeteroData", types: Types | None) -> tuple[Task, Labels]:
    """A training view, and the right labels of its nodes."""
    task = task_of(data, types)
    return task, right_labels(data[task.graph.types.target] if task.graph.types else data, task)


def check_types(given: Types | None, known: Types | None) -> None:
    """Refuse a graph of other types than a model was trained on."""
    if given == known:
        return
    if known is None:
        raise DataError(
            "This graph has types of nodes and edges, and the model was trained on one without: make one type of them "
            "with data = data.to_homogeneous()."
        )
    raise DataError(
        f"The model was trained on a HeteroData with labels at '{known.target}': predict such a one in Python, with "
        "model.predict(data) (files and requests have no types of nodes and edges)."
    )


def _graph(data: Any, types: Types | None) -> Graph:
    x = {name: _features(data, name) for name in data.node_types}
    types = types or _types(data, x)
    _check_known(data, x, types)
    sizes = {name: int(x[name].shape[0]) if name in x else 0 for name, _ in types.nodes}
    by_type = _edges(data, types, sizes)
    every, weights = _joined(by_type.values())
    whole = checked_graph(_side_by_side(x, types), every, undirected=False, weights=weights)
    rows = tuple(Neighbours.of_edges(edges, whole.num_nodes, weights=each) for edges, each in by_type.values())
    is_target = np.arange(whole.num_nodes) < sizes[types.target]
    return Graph.of(whole.x, whole.neighbours, relations=Relations(types, rows, is_target))


# ---------------------------------------------------------------------- types


def _types(data: Any, x: Mapping[str, Features]) -> Types:
    """Those of a graph that is the first to be learned: labels say which nodes are to be classified."""
    labelled = [name for name in data.node_types if getattr(data[name], "y", None) is not None]
    if len(labelled) != 1:
        which = "No type of nodes has labels" if not labelled else f"Nodes of types {labelled} have labels"
        raise DataError(f"{which}: set y of the one type that is to be classified, as data['{[*x, 'NAME'][0]}'].y.")
    order = [*labelled, *sorted(x.keys() - set(labelled))]
    return Types(
        tuple((name, int(x[name].shape[1])) for name in order), tuple(sorted({*map(_one_way, data.edge_types)}))
    )


def _one_way(edge: EdgeType) -> EdgeType:
    """The name under which both ways are known."""
    source, name, target = edge
    return (target, name.removeprefix(REVERSE), source) if name.startswith(REVERSE) else edge


def _check_known(data: Any, x: Mapping[str, Features], types: Types) -> None:
    widths = dict(types.nodes)
    unknown = [name for name in x if name not in widths]
    unknown += [edge for edge in data.edge_types if _one_way(edge) not in types.edges]
    if unknown:
        raise DataError(f"The model has learned no type {unknown[0]!r}: remove it with del data[{unknown[0]!r}].")
    for name, some in x.items():
        if some.shape[1] != widths[name]:
            raise DataError(
                f"Nodes of type '{name}' have {some.shape[1]} features, the model was trained on {widths[name]}."
            )
    if types.target not in x or not x[types.target].shape[0]:
        raise DataError(f"The graph has no nodes of type '{types.target}', the one that is classified.")


# ---------------------------------------------------------------------- features and edges


def _features(data: Any, name: str) -> Features:
    given = getattr(data[name], "x", None)
    if given is None:
        raise DataError(
            f"Nodes of type '{name}' have no features: set data['{name}'].x (nodes x features, or one column of ones)."
        )
    x = given_features(given)
    if x.ndim != 2 or not x.shape[1]:
        raise DataError(
            f"The features of type '{name}' must be a table of nodes by features, with at least one of each."
        )
    return x


def _side_by_side(x: Mapping[str, Features], types: Types) -> Features:
    """The nodes of one type after the other, each type in columns of its own."""
    if len(types.nodes) == 1:
        return x[types.target]
    blocks = [sp.csr_array(x.get(name, (0, width)), dtype=np.float32) for name, width in types.nodes]
    return sp.csr_array(sp.block_diag(blocks, format="csr"))


def _edges(data: Any, types: Types, sizes: Mapping[str, int]) -> dict[EdgeType, Weighted]:
    """The edges of each type, numbered over all nodes."""
    first = dict(zip(sizes, accumulate([0, *sizes.values()]), strict=False))
    found: dict[EdgeType, dict[EdgeType, Weighted]] = {edge: {} for edge in types.edges}
    for edge in data.edge_types:
        source, _, target = edge
        missing = [end for end in (source, target) if not sizes.get(end)]
        if missing:
            raise DataError(
                f"Edges {edge} end at nodes of type '{missing[0]}', of which there are none: set "
                f"data['{missing[0]}'].x, or del data[{edge}]."
            )
        edges, weights = given_edges(data[edge], (sizes[target], sizes[source]))
        edges = checked_edges(edges, max(sizes[source], sizes[target]))
        for end, name in zip(edges, (source, target), strict=True):
            if end.size and end.max() >= sizes[name]:
                raise DataError(
                    f"An edge of {edge} names node {end.max()} of '{name}', whose nodes are 0 to {sizes[name] - 1}."
                )
        weights = checked_weights(weights, edges.shape[1])
        shifted = np.stack([edges[0].astype(np.int64) + first[source], edges[1].astype(np.int64) + first[target]])
        found[_one_way(edge)][edge] = shifted, np.ones(edges.shape[1], np.float32) if weights is None else weights
    return {edge: _both_ways(edge, ways) for edge, ways in found.items()}


def _both_ways(edge: EdgeType, ways: Mapping[EdgeType, Weighted]) -> Weighted:
    """Edges between two types as they are where both ways are given, and else also the other way."""
    given = list(ways.values())
    if len(given) == 1 and edge[0] != edge[2]:
        given.append((given[0][0][::-1], given[0][1]))
    return _joined(given)


def _joined(some: Iterable[Weighted]) -> Weighted:
    edges, weights = zip((NO_EDGES, np.zeros(0, dtype=np.float32)), *some, strict=True)
    return np.concatenate(edges, axis=1), np.concatenate(weights)
