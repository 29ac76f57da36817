"""From PyTorch Geometric's `HeteroData` to one graph of all its nodes."""

from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import scipy.sparse as sp

from ipal.data.datasets import checked
from ipal.data.datasets.readers import RawGraph
from ipal.data.graph import checked_edges, checked_weights
from ipal.data.graph_data import GraphData
from ipal.errors import DataError
from ipal.estimator.convert.arrays import given_features
from ipal.estimator.convert.pyg import NO_EDGES, given_edges, given_mask, one_a_node


def of_hetero(data: Any, target: str | None, directed: bool) -> GraphData:
    """One graph: nodes of all types one after the other, each type with columns of its own, edges of all types.

    The type to be classified (`target`, or the one that has labels) comes first, the others by name. Features are named
    by type and number, so that a model puts those of a later graph into the same columns.
    """
    labelled = [name for name in data.node_types if getattr(data[name], "y", None) is not None]
    if target is None and len(labelled) != 1:
        which = "No type of nodes has labels" if not labelled else f"Nodes of types {labelled} have labels"
        raise DataError(f"{which}: say which type is classified, as ipal.graph_from(data, label='paper').")
    first = labelled[0] if target is None else target
    if first not in data.node_types:
        raise DataError(f"There are no nodes of type '{first}': the types are {data.node_types}.")
    order = [first, *sorted(name for name in data.node_types if name != first)]
    for name in order:
        if getattr(data[name], "x", None) is None:
            raise DataError(f"Nodes of type '{name}' have no features: set data['{name}'].x, or one column of ones.")
    x = {name: given_features(data[name].x, f"data['{name}'].x") for name in order}
    for name, some in x.items():
        if some.ndim != 2 or not all(some.shape):
            raise DataError(f"The features of type '{name}' must be a table, with at least one node and one feature.")
    size = {name: int(some.shape[0]) for name, some in x.items()}
    start = dict(zip(order, accumulate([0, *size.values()]), strict=False))
    edges, weights = [NO_EDGES], [np.zeros(0, dtype=np.float32)]
    for source, name, end in data.edge_types:
        kind = (source, name, end)
        if source not in size or end not in size:
            raise DataError(f"Edges {kind} end at a type without nodes: set its features x, or del data[{kind}].")
        given, weight = given_edges(data[kind], (size[end], size[source]))
        given = checked_edges(given, max(size[source], size[end]))
        if given.size and (given[0].max() >= size[source] or given[1].max() >= size[end]):
            raise DataError(
                f"An edge of {kind} names a node that is not there: they are {size[source]} and {size[end]}."
            )
        found = checked_weights(weight, given.shape[1])
        edges.append(given.astype(np.int64) + np.array([[start[source]], [start[end]]]))
        weights.append(np.ones(given.shape[1], dtype=np.float32) if found is None else found)
    n, store = sum(size.values()), data[first]
    y, mask = np.full(n, None, dtype=object), np.zeros(n, dtype=np.bool_)
    if getattr(store, "y", None) is not None:
        y[: size[first]] = one_a_node(store.y, size[first], f"data['{first}'].y")
    own = getattr(store, "train_mask", None)
    mask[: size[first]] = True if own is None else given_mask(own, size[first])
    features = x[first] if len(order) == 1 else sp.csr_array(sp.block_diag([*map(sp.csr_array, x.values())], "csr"))
    raw = RawGraph(
        np.concatenate(edges, axis=1),
        y,
        features,
        "features as given",
        edge_weight=np.concatenate(weights),
        columns=tuple(f"{name} {number}" for name in order for number in range(x[name].shape[1])),
    )
    graph = GraphData.of(checked("the graph", raw, undirected=not directed))
    return graph if graph.train_mask is None else replace(graph, train_mask=graph.train_mask & mask)
