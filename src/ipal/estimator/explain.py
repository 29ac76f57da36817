"""Why a node is predicted as it is: what each feature of each node within reach contributed.

What is divided among them is the margin, the score of the predicted class less that of another: it decides between the
two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal.data.graph import Graph, Nodes
from ipal.data.graph_data import GraphData
from ipal.data.labels import Labels
from ipal.data.neighbourhood import neighbourhood
from ipal.errors import DataError, NonFiniteError
from ipal.estimator.convert.arrays import single
from ipal.estimator.evidence import FixedDivisors, NodeEvidence
from ipal.estimator.model import Fitted, Model, model_of
from ipal.methods.base import Compute

if TYPE_CHECKING:  # for their names alone: importing them takes seconds
    from torch_geometric.data import Data


class Contribution(NamedTuple):
    """A feature of a node, and what it contributed."""

    node: int
    feature: int
    contribution: float


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
    nodes: Nodes
    """The nodes within reach, as numbered in the graph; ascending."""
    distance: NDArray[np.int64]
    """How many edges lead from each of them to the node."""
    evidence: sp.csr_array
    """(nodes, features): what each feature of each of these nodes contributed to the margin."""
    ids: Labels | None = None
    """What all nodes of the graph are called, where that is not their number."""

    @property
    def margin(self) -> float:
        """The score of the predicted class less that of the other."""
        of = dict(zip(self.classes.tolist(), self.scores.tolist(), strict=True))
        return float(of[self.predicted] - (0.0 if self.against is None else of[self.against]))

    @property
    def rest(self) -> float:
        """What of the margin no feature contributed: offsets of a method, and what is not linear in an encoder."""
        return self.margin - float(self.evidence.sum())

    @property
    def by_hop(self) -> NDArray[np.float64]:
        """Contributions of the node itself, of nodes one edge away, two edges, …"""
        return np.bincount(self.distance.clip(min=0), weights=self.by_node).astype(np.float64)

    @cached_property
    def by_node(self) -> NDArray[np.float64]:
        """Contribution of each of `nodes`."""
        return np.asarray(self.evidence.sum(axis=1))

    @cached_property
    def by_feature(self) -> NDArray[np.float64]:
        """Contribution of each feature, over all nodes."""
        return np.asarray(self.evidence.sum(axis=0))

    def strongest(self, count: int) -> list[Contribution]:
        """The pieces of evidence that contributed most, for or against.

        Parameters
        ----------
        count : int
            How many.

        Returns
        -------
        list of Contribution
            Each with `node`, `feature` and `contribution`.
        """
        found = self.evidence.tocoo()
        return [
            Contribution(int(self.nodes[found.row[place]]), int(found.col[place]), float(found.data[place]))
            for place in strongest(found.data, count)
        ]

    def __str__(self) -> str:
        """What was predicted, rather than what, and how clearly."""
        rather = "" if self.against is None else f" rather than class {self.against}"
        return f"Node {self._named(self.node)}: class {self.predicted}{rather}, by a margin of {self.margin:.4g}"

    def _named(self, number: int) -> Any:
        """What a node is called."""
        return int(number) if self.ids is None else self.ids[[number]].tolist()[0]

    def as_plain_data(self, top: int = 10, features: Sequence[str] | None = None) -> dict[str, Any]:
        """As JSON has it, with the strongest nodes, features, and pieces of evidence, by their names.

        Parameters
        ----------
        top : int, default=10
            How many of each.
        features : sequence of str, optional
            Names of the features. Default: their numbers.

        Returns
        -------
        dict
        """

        def named(feature: int) -> Any:
            return int(feature) if features is None else features[feature]

        return {
            "summary": str(self),
            "node": self._named(self.node),
            "predicted": self.predicted,
            "against": self.against,
            "scores": dict(zip(map(str, self.classes.tolist()), self.scores.tolist(), strict=True)),
            "margin": self.margin,
            "rest": self.rest,
            "by_hop": self.by_hop.tolist(),
            "by_node": [
                {
                    "node": self._named(self.nodes[j]),
                    "hops": int(self.distance[j]),
                    "contribution": float(self.by_node[j]),
                }
                for j in strongest(self.by_node, top)
            ],
            "by_feature": [
                {"feature": named(f), "contribution": float(self.by_feature[f])}
                for f in strongest(self.by_feature, top)
            ],
            "evidence": [
                {"node": self._named(piece.node), "feature": named(piece.feature), "contribution": piece.contribution}
                for piece in self.strongest(top)
            ],
        }


def strongest(values: NDArray[np.float64], count: int) -> list[int]:
    """Places of the values that are farthest from zero, without zeros."""
    order = np.argsort(-abs(values), kind="stable")[:count]
    return [place for place in order.tolist() if values[place]]


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
    """
    model, other = model_of(learner), None if against is None else single(against, "A class")
    ids = data.ids if isinstance(data, GraphData) else None
    name = single(node, "A node")
    number = name if ids is None else int(data.nodes([name])[0])
    return replace(explained(model, model.checked(data), number, other), ids=ids)


def explained(model: Model, graph: Graph, node: int, against: Any = None) -> Explanation:
    """Why a node of a graph is predicted as it is, and not as `against`: the next best class, unless said."""
    graph = model.checked(graph)
    part = neighbourhood(graph, [node], model.reach)
    rows = NodeEvidence.of(part.graph, int(part.nodes[0]), model.runtime)
    with FixedDivisors():
        (found,) = model.forward(part.graph, compute=cast(Compute, rows)).scores
    scores = found.detach().double().cpu()
    if not scores.isfinite().all():
        raise NonFiniteError(f"the scores of node {node} cannot be computed")
    order = scores.argsort(descending=True, stable=True).tolist()
    best, other = order[0], _other(model, order, against)
    evidence = rows.shares(found[best] if other is None else found[best] - found[other])
    classes = model.classes_
    names = classes.tolist()
    return Explanation(
        int(node),
        classes,
        scores.numpy(),
        names[best],
        None if other is None else names[other],
        part.origin,
        part.distance,
        evidence,
    )


def _other(model: Model, order: list[int], against: Any) -> int | None:
    """The class to compare with, as the model numbers it."""
    if against is None:
        return order[1] if len(order) > 1 else None
    names: list[Any] = model.classes_.tolist()
    if isinstance(against, bool) or against not in names:
        raise DataError(f"Class {against} was never learned; known are {', '.join(map(str, names))}.")
    if names.index(against) == order[0]:
        raise DataError(f"The node is predicted as class {against} itself: name another to compare with, or none.")
    return names.index(against)
