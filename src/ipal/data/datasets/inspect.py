"""A look at graphs for `ipal data`: where each is and what was understood of it, or how to get it."""

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from ipal.data import datasets
from ipal.data.class_edges import balanced_homophily, edge_homophily, edges_by_class
from ipal.data.datasets import catalog
from ipal.data.graph import Features, Graph
from ipal.data.labels import labelled
from ipal.system import free_memory


def look(name: str, root: Path) -> dict[str, Any]:
    """All that was understood of one graph, its edges as they are given; labels may be missing."""
    facts = catalog.describe(name, root)
    if not facts["here"]:
        return facts
    dataset = datasets.load_to_predict(name, root, undirected=False)
    graph, there = dataset.graph, labelled(dataset.y)
    names, codes, sizes = np.unique(dataset.y[there], return_inverse=True, return_counts=True)
    classes = np.full(graph.num_nodes, -1, dtype=np.int64)
    classes[there] = codes
    same, every = edges_by_class(graph.neighbours, classes, len(names))
    weights = graph.neighbours.weights
    degree = np.diff(graph.indptr)
    if not graph.symmetric:
        degree = degree + np.bincount(graph.indices, minlength=graph.num_nodes)
    return facts | {
        "nodes": graph.num_nodes,
        "ids": None if dataset.ids is None else dataset.ids[:3].tolist(),
        "edges": graph.num_edges,
        "both_ways": graph.symmetric,
        "edge_weights": None if weights is None else [float(weights.min()), float(weights.max())],
        "features": graph.num_features,
        "sparse": sp.issparse(graph.x),
        "share_not_zero": _share_not_zero(graph.x),
        "columns": list(dataset.columns),
        "classes": {str(name): size for name, size in zip(names.tolist(), sizes.tolist(), strict=True)},
        "labelled": int(there.sum()),
        "edge_homophily": edge_homophily(same, every),
        "balanced_homophily": balanced_homophily(same, every, sizes),
        "isolated": int((degree == 0).sum()),
        "components": _components(graph),
        "neighbours": _distribution(degree),
        "of_every_node": list(dataset.known),
        "remark": dataset.remark,
        "hash": dataset.hash if graph.symmetric or dataset.known_hash else datasets.load_to_predict(name, root).hash,
    }


def _share_not_zero(x: Features) -> float:
    values = x.data if isinstance(x, sp.csr_array) else x
    return float(np.count_nonzero(values) / (x.shape[0] * x.shape[1]))


def _components(graph: Graph) -> int | None:
    """Parts that no edge connects; None where counting them would take too much memory."""
    there = free_memory.available()
    if there is not None and 32 * graph.num_edges > there:
        return None
    return int(connected_components(graph.adjacency, directed=True, connection="weak", return_labels=False))


def _distribution(degree: Any) -> list[dict[str, int]]:
    """How many nodes have how many neighbours: none, one, two or three, four to seven, …"""
    place = np.where(degree > 0, np.floor(np.log2(np.maximum(degree, 1))).astype(np.int64) + 1, 0)
    starts = [0, *(2**power for power in range(int(place.max())))]
    ends = [0, *(2 ** (power + 1) - 1 for power in range(int(place.max())))]
    counts = np.bincount(place, minlength=len(starts)).tolist()
    return [{"from": low, "to": high, "nodes": count} for low, high, count in zip(starts, ends, counts, strict=True)]
