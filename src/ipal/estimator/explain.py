"""Why a node is predicted as it is: what each feature of each node within reach contributed.

What is divided among them is the margin, which decides: the score of the predicted class less that of another.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal.data.graph import Nodes
from ipal.data.graph_data import GraphData
from ipal.data.labels import Labels
from ipal.data.neighbourhood import neighbourhood
from ipal.errors import DataError, NonFiniteError
from ipal.estimator.convert.pyg import single
from ipal.estimator.evidence import FixedDivisors, NodeEvidence
from ipal.estimator.model import Fitted, Model, model_of

if TYPE_CHECKING:  # for their names alone: importing them takes seconds
    from torch_geometric.data import Data


@dataclass(frozen=True, eq=False)
class Explanation:
    """What spoke for the predicted class of a node (above zero) and against it (below), rather than another class."""

    node: int
    """The node, as numbered in the graph."""
    classes: Labels
    """All that the model knows."""
    scores: NDArray[np.float64]
    """Of each of them."""
    predicted: Any
    """The class of the highest score."""
    against: Any
    """The class that it is compared with; None where the model knows no other."""
    margin: float
    """The score of the predicted class less that of the other."""
    nodes: Nodes
    """The nodes within reach, as numbered in the graph; ascending."""
    distance: NDArray[np.int64]
    """How many edges lead from each of them to the node."""
    evidence: sp.csr_array
    """(nodes, features): what each feature of each of these nodes contributed to the margin."""
    ids: Labels | None = None
    """What all nodes of the graph are called, where that is not their number."""
    columns: tuple[str, ...] = ()
    """What each feature is, where that is known."""

    @property
    def rest(self) -> float:
        """What of the margin no feature contributed: offsets of a method, and what is not linear in an encoder."""
        return self.margin - float(self.evidence.sum())

    @property
    def by_hop(self) -> NDArray[np.float64]:
        """Contributions of the node itself, of nodes one edge away, two edges, …"""
        return np.bincount(self.distance, weights=self.by_node).astype(np.float64)

    @cached_property
    def by_node(self) -> NDArray[np.float64]:
        """Contribution of each of `nodes`."""
        return np.asarray(self.evidence.sum(axis=1))

    @cached_property
    def by_feature(self) -> NDArray[np.float64]:
        """Contribution of each feature, over all nodes."""
        return np.asarray(self.evidence.sum(axis=0))

    def strongest(self, count: int) -> list[tuple[int, int, float]]:
        """The pieces of evidence that contributed most, for or against.

        Parameters
        ----------
        count : int
            How many.

        Returns
        -------
        list of tuple of int, int and float
            Node, feature and contribution of each.
        """
        found = self.evidence.tocoo()
        return [
            (int(self.nodes[found.row[at]]), int(found.col[at]), share) for at, share in _strongest(found.data, count)
        ]

    def __str__(self) -> str:
        """What was predicted, rather than what, and how clearly."""
        rather = "" if self.against is None else f" rather than class {self.against}"
        return f"Node {self._name(self.node)}: class {self.predicted}{rather}, by a margin of {self.margin:.4g}"

    def _name(self, node: int) -> Any:
        return int(node) if self.ids is None else self.ids[[node]].tolist()[0]

    def as_plain_data(self, top: int = 10) -> dict[str, Any]:
        """As JSON has it, with the strongest nodes, features, and pieces of evidence, by their names.

        Parameters
        ----------
        top : int, default=10
            How many of each.

        Returns
        -------
        dict
        """
        features = self.columns or range(self.evidence.shape[1])
        return {
            "summary": str(self),
            "node": self._name(self.node),
            "predicted": self.predicted,
            "against": self.against,
            "scores": dict(zip(map(str, self.classes.tolist()), self.scores.tolist(), strict=True)),
            "margin": self.margin,
            "rest": self.rest,
            "by_hop": self.by_hop.tolist(),
            "by_node": [
                {"node": self._name(self.nodes[at]), "hops": int(self.distance[at]), "contribution": share}
                for at, share in _strongest(self.by_node, top)
            ],
            "by_feature": [
                {"feature": features[at], "contribution": share} for at, share in _strongest(self.by_feature, top)
            ],
            "evidence": [
                {"node": self._name(node), "feature": features[feature], "contribution": share}
                for node, feature, share in self.strongest(top)
            ],
        }


def _strongest(values: NDArray[np.float64], count: int) -> list[tuple[int, float]]:
    """Places of the values that are farthest from zero, without zeros, and the values."""
    order = np.argsort(-abs(values), kind="stable")[:count]
    return [(place, value) for place, value in zip(order.tolist(), values[order].tolist(), strict=True) if value]


def explain(learner: Fitted | Model, data: "Data", node: Any, *, against: Any = None) -> Explanation:
    """Which neighbours and features spoke for the class of a node, rather than for another.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data : Data or GraphData
        A graph with `x` and `edge_index`.
    node : int or str
        The id of the node, or its number where the graph has no ids.
    against : int or str, optional
        The class to compare with. Default: the next best.

    Returns
    -------
    Explanation

    Raises
    ------
    DataError
        If the class to compare with was never learned, or is the predicted one.
    NonFiniteError
        If the scores of the node cannot be computed.
    """
    model, name = model_of(learner), single(node, "A node")
    graph = model.checked(data)
    number = int(data.nodes([name])[0]) if isinstance(data, GraphData) else name
    part = neighbourhood(graph, [number], model.reach)
    rows: Any = NodeEvidence(part.graph, int(part.nodes[0]), model.runtime)
    with FixedDivisors():
        (found,) = model.forward(part.graph, compute=rows).scores
    scores = found.detach().double().cpu()
    if not scores.isfinite().all():
        raise NonFiniteError(f"the scores of node {name} cannot be computed")
    order = scores.argsort(descending=True, stable=True).tolist()
    best, other = order[0], order[1] if len(order) > 1 else None
    if against is not None:
        label, names = str(single(against, "A class")), list(map(str, model.labels))
        if label not in names:
            raise DataError(f"Class {label} was never learned; known are {', '.join(names)}.")
        if (other := names.index(label)) == best:
            raise DataError(f"The node is predicted as class {label} itself: name another to compare with, or none.")
    margin = scores[best] - (0 if other is None else scores[other])
    return Explanation(
        number,
        model.classes_,
        scores.numpy(),
        model.labels[best],
        None if other is None else model.labels[other],
        margin.item(),
        part.origin,
        part.distance,
        rows.shares(found[best] if other is None else found[best] - found[other]),
        data.ids if isinstance(data, GraphData) else None,
        graph.columns or model.columns,
    )
