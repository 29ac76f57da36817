"""A look at graphs for `ipal data`: where each is and what was understood of it, or how to get it."""

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from ipal.data import datasets
from ipal.data.csr import Neighbours
from ipal.data.datasets import catalog
from ipal.data.labels import Labels, labelled


def look(name: str, root: Path) -> dict[str, Any]:
    """All that was understood of one graph, its edges as they are given; labels may be missing."""
    facts = catalog.describe(name, root)
    if not facts["here"]:
        return facts
    dataset = datasets.load_to_predict(name, root, undirected=False)
    graph, there = dataset.graph, labelled(dataset.y)
    names, sizes = np.unique(dataset.y[there], return_counts=True)
    weights, x = graph.neighbours.weights, graph.x
    alone = np.diff(graph.indptr) == 0
    alone[graph.indices] = False
    return facts | {
        "nodes": graph.num_nodes,
        "ids": None if dataset.ids is None else dataset.ids[:3].tolist(),
        "edges": graph.num_edges,
        "both_ways": graph.symmetric,
        "edge_weights": None if weights is None else [float(weights.min()), float(weights.max())],
        "features": graph.num_features,
        "sparse": sp.issparse(x),
        "share_not_zero": float(np.count_nonzero(x.data if isinstance(x, sp.csr_array) else x) / np.prod(x.shape)),
        "columns": list(graph.columns),
        "classes": dict(zip(map(str, names.tolist()), sizes.tolist(), strict=True)),
        "labelled": int(there.sum()),
        "edge_homophily": edge_homophily(graph.neighbours, dataset.y),
        "isolated": int(alone.sum()),
        "of_every_node": list(dataset.facts),
        "remark": dataset.remark,
        "hash": dataset.hash if graph.symmetric or dataset.known_hash else datasets.load_to_predict(name, root).hash,
    }


def edge_homophily(neighbours: Neighbours, y: Labels) -> float | None:
    r"""The share of edges that join nodes of one class; None where no edge joins two nodes with a label.

    .. math:: h = \frac{|\{(i, j) \in E : y_i = y_j\}|}{|E|}

    Source: Zhu et al. 2020, "Beyond Homophily in Graph Neural Networks", Definition 1.
    """
    there, same, every = labelled(y), 0, 0
    for target, source in neighbours.edge_chunks():
        both = there[target] & there[source]
        every += int(both.sum())
        same += int((both & (y[target] == y[source])).sum())
    return same / every if every else None
