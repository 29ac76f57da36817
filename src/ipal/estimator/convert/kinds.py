"""What is passed in place of a graph, and the line of code that makes one of it."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from scipy import sparse

from ipal.data.graph import Graph

PARTS = "pass data = Data(x=x, edge_index=edge_index, y=y) of torch_geometric.data"
FROM = "pass data = ipal.graph_from"


def not_a_graph(data: Any) -> str:
    """Why no features are found in what was passed as a graph, and what to do: one sentence."""
    names = {kind.__name__ for kind in type(data).__mro__}
    packages = {kind.__module__.partition(".")[0] for kind in type(data).__mro__}
    if "HeteroData" in names:
        return (
            "A HeteroData has types of nodes and edges that are not known here: learn from such a one first, or make "
            "one type of them with data = data.to_homogeneous()."
        )
    if "networkx" in packages:
        return f"A networkx graph is not read as it is: {FROM}(G)."
    if "dgl" in packages:
        return "A graph of DGL is not read: pass data = from_dgl(g) of torch_geometric.utils."
    if isinstance(data, Graph):
        return f"A Graph of ipal goes to predict_graph(g); here {FROM}(g)."
    if isinstance(data, Mapping):
        return f"A dict is not read as it is: {FROM}(d)."
    if isinstance(data, str | PurePath):
        return f"A name or a path is not read here: {FROM}(path)."
    if isinstance(getattr(data, "graph", None), Graph):
        return f"A {type(data).__name__} of ipal is not read as it is: {FROM}(d)."
    if sparse.issparse(data):
        return f"An adjacency matrix alone is no graph: {FROM}(A, x=features, y=labels)."
    if "pandas" in packages:
        return f"A table alone is no graph: {FROM}(nodes, edges)."
    if isinstance(data, tuple | list) and data and all(hasattr(part, "edge_index") for part in data):
        return (
            f"A {type(data).__name__} of graphs is not read: pass one at a time, or all as one with "
            "data = Batch.from_data_list(graphs) of torch_geometric.data."
        )
    if hasattr(data, "x"):
        return "The graph has no features: set data.x (nodes x features, dense or sparse)."
    return f"What was passed as a graph is of the type {type(data).__name__}: {PARTS}."
