"""How much a node counts in its class's prototype."""

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal.graph import Graph

Weights = NDArray[np.float64]


def pagerank(adjacency: sp.csr_array, alpha: float = 0.85, tolerance: float = 1e-6) -> Weights:
    r"""PageRank of every node, by power iteration.

    .. math:: r_i = \alpha \sum_{j \in N^{in}(i)} \frac{r_j}{d_j^+} + (1 - \alpha)

    Source: the IPAL paper, Eq. 3. `adjacency[i, j]` is 1 where an edge runs from j to i; no self-loops.
    Iterated until the mean absolute change falls below `tolerance` (the paper says nothing of it). A node
    without in-neighbours keeps 1 - alpha; one without out-neighbours passes nothing on, as printed.
    """
    out_degree = np.asarray(adjacency.sum(axis=0), dtype=np.float64).reshape(-1)
    share = alpha * adjacency.astype(np.float64) @ sp.diags_array(1.0 / np.maximum(out_degree, 1.0))
    r = np.ones(adjacency.shape[0])
    while True:
        update = share @ r + (1.0 - alpha)
        if np.abs(update - r).mean() < tolerance:
            return np.asarray(update)
        r = update


def degree(adjacency: sp.csr_array) -> Weights:
    """In-degree with the self-loop that a graph convolution adds, so that no node weighs nothing."""
    return np.asarray(adjacency.sum(axis=1), dtype=np.float64).reshape(-1) + 1.0


def node_weights(graph: Graph, kind: str, alpha: float) -> Weights:
    """The weight of every node of a task's graph, by the name of the rule."""
    rules: dict[str, Callable[[], Weights]] = {
        "pagerank": lambda: pagerank(graph.adjacency, alpha),
        "degree": lambda: degree(graph.adjacency),
        "uniform": lambda: np.ones(graph.num_nodes),
    }
    return rules[kind]()
