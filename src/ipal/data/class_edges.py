"""How far edges join nodes of one class: homophily, over all edges and balanced between classes."""

import numpy as np
from numpy.typing import NDArray

from ipal.data.csr import Neighbours

Counts = NDArray[np.int64]


def edges_by_class(neighbours: Neighbours, classes: Counts, number: int) -> tuple[Counts, Counts]:
    """Of each class, the edges to its nodes from nodes of the same class, and from nodes of any class.

    `classes` has a number for every node, -1 where it has no class: edges of such nodes do not count.
    """
    same, every = np.zeros(number, dtype=np.int64), np.zeros(number, dtype=np.int64)
    for target, source in neighbours.edge_chunks():
        one, other = classes[target], classes[source]
        both = (one >= 0) & (other >= 0)
        every += np.bincount(one[both], minlength=number)
        same += np.bincount(one[both & (one == other)], minlength=number)
    return same, every


def edge_homophily(same: Counts, every: Counts) -> float | None:
    r"""The share of edges that join nodes of one class; None where no edge joins two labelled nodes.

    .. math:: h = \frac{|\{(i, j) \in E : y_i = y_j\}|}{|E|}

    Source: Zhu et al. 2020, "Beyond Homophily in Graph Neural Networks", Definition 1.
    """
    return float(same.sum() / every.sum()) if every.sum() else None


def balanced_homophily(same: Counts, every: Counts, nodes: Counts) -> float | None:
    r"""How much more edges join nodes of one class than chance would, each class counting alike: 0 where not at all.

    .. math:: \hat h = \frac{1}{C - 1} \sum_{k=1}^{C} \Big[ h_k - \frac{n_k}{n} \Big]_+

    h_k is the share of class k's edges that come from nodes of class k, n_k its number of nodes, C of classes.

    Source: Lim et al. 2021, "Large Scale Learning on Non-Homophilous Graphs", equation 2.
    """
    if len(nodes) < 2 or not every.any():
        return None
    own = same / np.maximum(every, 1)
    return float(np.maximum(own - nodes / nodes.sum(), 0).sum() / (len(nodes) - 1))
