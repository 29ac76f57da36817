"""A graph in plain arrays, as the methods of learners take it; needs no PyTorch Geometric."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipal.data.dataset import Dataset
from ipal.data.graph import Edges, Features, Nodes
from ipal.data.labels import Labels, labelled
from ipal.errors import DataError, shortened


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphData:
    """A graph with its labels. Its parts are named as in PyTorch Geometric's `Data`, so that it can stand for one.

    `dataclasses.replace(data, train_mask=…)` is the same graph with other labels to learn from.
    """

    x: Features
    edge_index: Edges
    edge_weight: NDArray[np.float32] | None = None
    """Of each column of `edge_index`; None where all are one."""
    y: Labels | None = None
    """Whole numbers or strings; None where no node has a label."""
    train_mask: NDArray[np.bool_] | None = None
    """Which labels are learned: of all nodes that have one, until it is replaced."""
    forget_mask: NDArray[np.bool_] | None = None
    """Which nodes are to be forgotten."""
    new_y: Labels | None = None
    """What nodes should have been learned as."""
    ids: Labels | None = None
    """What nodes are called; None where that is their number."""
    columns: tuple[str, ...] = ()
    """What each feature is, where that is known."""

    @classmethod
    def of(cls, dataset: Dataset) -> "GraphData":
        graph, there = dataset.graph, labelled(dataset.y)
        known = {"y": dataset.y, "train_mask": there} if there.any() else {}
        weights = graph.edge_weight
        return cls(
            x=graph.x, edge_index=graph.edges, edge_weight=weights, ids=dataset.ids, columns=graph.columns, **known
        )

    @property
    def num_nodes(self) -> int:
        return int(self.x.shape[0])

    def nodes(self, ids: Iterable[Any]) -> Nodes:
        """The numbers of nodes by their ids, for `predict(data)[data.nodes(["anna", "ben"])]`."""
        place = {str(name): number for number, name in enumerate(self.node_ids.tolist())}
        if isinstance(ids, str) or not isinstance(ids, Iterable) or not getattr(ids, "ndim", 1):
            raise DataError(f"Give the ids of nodes as a list, as ['anna'], not as {shortened(ids)}.")
        asked = [str(name) for name in ids]
        unknown = next((name for name in asked if name not in place), None)
        if unknown is not None:
            raise DataError(f"There is no node '{shortened(unknown)}': the first one is '{next(iter(place))}'.")
        return np.array([place[name] for name in asked], dtype=np.int64)

    @property
    def node_ids(self) -> Labels:
        """What nodes are called, also where that is their number."""
        return np.arange(self.num_nodes) if self.ids is None else self.ids

    def __repr__(self) -> str:
        classes = 0 if self.y is None else len(np.unique(self.y[labelled(self.y)]))
        taught = 0 if self.train_mask is None else int(self.train_mask.sum())
        weights = "" if self.edge_weight is None else ", weighted"
        return (
            f"GraphData({self.num_nodes} nodes, {self.edge_index.shape[1]} edges{weights}, {self.x.shape[1]} features, "
            f"{classes} classes, {taught} labels to learn)"
        )
