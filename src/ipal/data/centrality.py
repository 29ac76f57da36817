"""How much a node counts in its class's prototype."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ipal.data.graph import Graph

Weights = NDArray[np.float64]
NodeWeights = Literal["pagerank", "degree", "uniform"]
"""Rules for them."""

MOST_KEPT = 8
"""Rules, as with other alphas, whose weights are kept of one graph."""


def pagerank(graph: Graph, alpha: float = 0.85, tolerance: float = 1e-6) -> Weights:
    r"""PageRank of every node, by power iteration.

    .. math:: r_i = \alpha \sum_{j \in N^{in}(i)} \frac{w_{ij} r_j}{d_j^+} + (1 - \alpha)

    Source: the IPAL paper, Eq. 3, where all weights w of edges are one; d is the sum over the edges from a node.
    Iterated until the mean absolute change falls below `tolerance` (the paper says nothing of it). A node without
    in-neighbours keeps 1 - alpha; one without out-neighbours passes nothing on, as printed.
    """
    outwards = graph.by_source.degree
    share = alpha * (1.0 / np.where(outwards > 0, outwards, 1.0))
    values = graph.neighbours.values(0, graph.num_nodes).astype(np.float64)
    incoming = graph.neighbours.matrix(0, graph.num_nodes, values)
    r = np.ones(graph.num_nodes)
    while True:
        update = incoming @ (share * r) + (1.0 - alpha)
        if np.abs(update - r).mean() < tolerance:
            return np.asarray(update)
        r = update


def node_weights(graph: Graph, kind: NodeWeights, alpha: float) -> Weights:
    """The weight of every node of a task's graph, by the name of the rule; the newest are kept as it lives."""
    rules: dict[NodeWeights, Callable[[], Weights]] = {
        "pagerank": lambda: pagerank(graph, alpha),
        "degree": lambda: graph.neighbours.degree + 1.0,  # with the loop of a convolution: no node weighs nothing
        "uniform": lambda: np.ones(graph.num_nodes),
    }
    return graph.derived("centrality", (kind, alpha), rules[kind], most=MOST_KEPT)
