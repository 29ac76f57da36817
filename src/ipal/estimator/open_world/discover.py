"""New classes among rejected nodes: groups of nodes that lie together, ready to be named and learned."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ipal.data.graph import Nodes
from ipal.errors import ConfigError, shortened
from ipal.estimator.model import Fitted, Model, model_of
from ipal.estimator.open_world.unknown import rejected

if TYPE_CHECKING:  # for their names alone: importing them takes seconds
    from torch_geometric.data import Data


MOST = 20
"""Groups that are tried, where their number is not given."""
FEWEST = 5
"""Nodes of a group: smaller ones are no classes."""
COMPONENTS = 32
COMPARED = 2000
"""Nodes by which numbers of groups are compared."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """Rejected nodes that may be of one class."""

    nodes: Nodes
    """By how near they are to the middle of the group."""
    nearest: list[tuple[Any, float]]
    """Known classes that its nodes are most often taken for, and the share of nodes."""
    cohesion: float
    """Mean silhouette of its nodes, -1 to 1: how clearly they lie apart from other groups."""

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.nodes)


def discover(
    learner: Fitted | Model, data: "Data", reject: float = 0.05, classes: int | None = None
) -> list[Candidate]:
    """Rejected nodes in groups, each perhaps a new class: k-means on the main components of embeddings.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data : Data or GraphData
        A graph with `x` and `edge_index`.
    reject : float, default=0.05
        Share of known nodes that may be rejected.
    classes : int, optional
        Number of groups. Default: the one with the highest silhouette (Rousseeuw 1987).

    Returns
    -------
    list of Candidate
        The largest group first; none has fewer than five nodes.

    Raises
    ------
    ConfigError
        If `classes` is no number of groups.
    """
    from sklearn.cluster import KMeans  # here, because it takes a second to load
    from sklearn.decomposition import PCA
    from sklearn.metrics import silhouette_samples

    model = model_of(learner)
    is_number = isinstance(classes, int | np.integer) and not isinstance(classes, bool) and classes > 0
    if classes is not None and not is_number:
        raise ConfigError(f"classes, the number of groups, is a whole number from 1 on, not {shortened(classes)}.")
    graph = model.checked(data)
    nodes = np.flatnonzero(rejected(model, graph, reject))
    if len(nodes) < FEWEST:
        return []
    with torch.no_grad():
        rows = model.embed(graph)[torch.from_numpy(nodes)].float().cpu().numpy()
        taken_for = model.predict_graph(graph).labels[nodes]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True).clip(min=1e-12)
    seed = model.config.seed % 2**32
    rows = PCA(min(COMPONENTS, *rows.shape), random_state=seed).fit_transform(rows)
    some = np.random.default_rng(seed).permutation(len(rows))[:COMPARED]

    def grouped(number: int) -> tuple[KMeans, NDArray[np.float64]]:
        """Groups, and the silhouettes of some of the nodes."""
        means = KMeans(number, n_init=2, random_state=seed).fit(rows)
        labels = means.labels_[some]
        is_comparable = 1 < len(np.unique(labels)) < len(some)
        return means, silhouette_samples(rows[some], labels) if is_comparable else np.zeros(len(some))

    most = min(MOST, len(nodes) // FEWEST)
    tried = map(grouped, [min(classes, most)] if classes else range(1, most + 1))
    means, apart = max(tried, key=lambda one: float(one[1].mean()))
    found = []
    for group, centre in enumerate(means.cluster_centers_):
        own, inside = np.flatnonzero(means.labels_ == group), apart[means.labels_[some] == group]
        if len(own) < FEWEST:
            continue
        own = own[np.argsort(((rows[own] - centre) ** 2).sum(axis=1), kind="stable")]
        nearest = [(name, count / len(own)) for name, count in Counter(taken_for[own].tolist()).most_common(3)]
        found.append(Candidate(nodes[own], nearest, float(inside.mean()) if len(inside) else 0.0))
    return sorted(found, key=lambda one: -one.size)
