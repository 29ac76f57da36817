"""A graph in plain arrays, as the methods of learners take it; needs no PyTorch Geometric."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipal.data.dataset import Dataset
from ipal.data.graph import Edges, Features, Graph, Nodes, checked_graph
from ipal.data.labels import WHOLE, Labels, labelled
from ipal.errors import DataError, shortened


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphData:
    """A graph with its labels. Its parts are named as in PyTorch Geometric's `Data`, so that it can stand for one.

    `dataclasses.replace(data, train_mask=…)` is the same graph with other labels to learn from.
    """

    x: Features
    """Features, (nodes, features); dense or a SciPy CSR array."""
    edge_index: Edges
    """Edges, (2, edges), from row 0 to row 1."""
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
        """The graph of a dataset, every node that has a label marked for training.

        Parameters
        ----------
        dataset : Dataset
            Of `ipal.load_dataset`.

        Returns
        -------
        GraphData
        """
        graph, there = dataset.graph, labelled(dataset.y)
        known = {"y": dataset.y, "train_mask": there} if there.any() else {}
        weights = graph.edge_weight
        return cls(
            x=graph.x, edge_index=graph.edges, edge_weight=weights, ids=dataset.ids, columns=graph.columns, **known
        )

    @property
    def graph(self) -> Graph:
        """Features and edges, checked, as models compute with them."""
        return checked_graph(self.x, self.edge_index, undirected=False, weights=self.edge_weight, columns=self.columns)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return int(self.x.shape[0])

    def nodes(self, ids: Iterable[Any]) -> Nodes:
        """The numbers of nodes by their ids, for `predict(data)[data.nodes(["anna", "ben"])]`.

        Parameters
        ----------
        ids : iterable of int or str
            Ids, or numbers where nodes have no ids.

        Returns
        -------
        ndarray of shape (n_ids,)

        Raises
        ------
        DataError
            If there is no such node.
        """
        if isinstance(ids, str) or not isinstance(ids, Iterable) or not getattr(ids, "ndim", 1):
            raise DataError(f"Give the ids of nodes as a list, as ['anna'], not as {shortened(ids)}.")
        (found,) = node_numbers(ids, "The call", (self.num_nodes, self.ids))
        return np.array(found, dtype=np.int64)

    def __repr__(self) -> str:
        classes = 0 if self.y is None else len(np.unique(self.y[labelled(self.y)]))
        taught = 0 if self.train_mask is None else int(self.train_mask.sum())
        weights = "" if self.edge_weight is None else ", weighted"
        return (
            f"GraphData({self.num_nodes} nodes, {self.edge_index.shape[1]} edges{weights}, {self.x.shape[1]} features, "
            f"{classes} classes, {taught} labels to learn)"
        )


def _places(names: Sequence[str], n: int, ids: Labels | None) -> list[int | None]:
    """The numbers of nodes by their ids, or else by their numbers as text; None for those that are not there."""
    if ids is None:
        return [int(name) if WHOLE.fullmatch(name) and int(name) in range(n) else None for name in names]
    place = {str(name): at for at, name in enumerate(ids.tolist())}
    return [place.get(name) for name in names]


def node_numbers(asked: Iterable[Any], where: str, *graphs: tuple[int, Labels | None]) -> list[list[int]]:
    """Nodes of graphs, each of so many nodes and with ids or without; every one must be in one of them.

    `where` is what names them.
    """
    names = [str(name).strip() for name in asked]
    found = [_places(names, n, ids) for n, ids in graphs]
    for name, *numbers in zip(names, *found, strict=True):
        if all(number is None for number in numbers):
            n, ids = graphs[0]
            some = "" if ids is None else ", ".join(shortened(one, 40) for one in ids[:3].tolist())
            which = f"{some}, …" if some else f"0 to {n - 1}"
            raise DataError(f"{where} names the node '{shortened(name)}', and the nodes are {which}.")
    return [[number for number in numbers if number is not None] for numbers in found]
