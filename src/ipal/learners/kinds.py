"""What is passed in place of a `Data`, and the line of code that makes one of it."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from ipal.data.graph import Graph

PARTS = "pass data = Data(x=x, edge_index=edge_index, y=y) of torch_geometric.data"
OF_DATASET = (
    "pass data = Data(x=d.graph.x, edge_index=d.graph.edges, edge_weight=d.graph.edge_weight, y=d.y) of "
    "torch_geometric.data"
)


def not_a_graph(data: Any) -> str:
    """Why no features are found in what was passed as a graph, and what to do: one sentence."""
    names = {kind.__name__ for kind in type(data).__mro__}
    packages = {kind.__module__.partition(".")[0] for kind in type(data).__mro__}
    if "HeteroData" in names:
        return (
            "A HeteroData has several kinds of nodes and edges, which are not supported: make one kind of them with "
            "data = data.to_homogeneous()."
        )
    if "networkx" in packages:
        return (
            "A networkx graph is not read: pass data = from_networkx(G, group_node_attrs=['x']) of "
            "torch_geometric.utils, with the names of its features."
        )
    if "dgl" in packages:
        return "A graph of DGL is not read: pass data = from_dgl(g) of torch_geometric.utils."
    if isinstance(data, Graph):
        return (
            "A Graph of ipal goes to predict_graph(g); here pass "
            "data = Data(x=g.x, edge_index=g.edges, edge_weight=g.edge_weight) of torch_geometric.data."
        )
    if isinstance(data, Mapping):
        return "A dict is not read as a graph: pass data = Data(**d) of torch_geometric.data."
    if isinstance(data, str | PurePath):
        return f"A name or a path is not read here: load it with d = ipal.load_dataset(path), then {OF_DATASET}."
    if isinstance(getattr(data, "graph", None), Graph):
        return f"A {type(data).__name__} of ipal is not read as a graph: {OF_DATASET}."
    if isinstance(data, tuple | list) and data and all(hasattr(part, "edge_index") for part in data):
        return (
            f"A {type(data).__name__} of graphs is not read: pass one at a time, or all as one with "
            "data = Batch.from_data_list(graphs) of torch_geometric.data."
        )
    if hasattr(data, "x"):
        return "The graph has no features: set data.x (nodes x features, dense or sparse)."
    return f"What was passed as a graph is of the type {type(data).__name__}: {PARTS}."
