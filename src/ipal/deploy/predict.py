"""A saved model put to work: the class of every node, how sure the model is, and which nodes are none of its classes.

A prediction needs less than the whole graph, but not much less than people think: of a model that reaches L hops,
the features of all nodes within L hops, the edges among them, and how many in-neighbours each of them has in the whole
graph. The last is easily forgotten: nodes at the border of what was cut out have lost neighbours, and would be weighted
as if they had few. `neighbourhood` cuts out exactly that.
"""

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ipal.data.csr import Neighbours
from ipal.data.graph import Graph, Nodes
from ipal.data.streams import Labels
from ipal.errors import ConfigError, DataError
from ipal.learners import Learner
from ipal.learners.from_pyg import graph_of
from ipal.system.files import written_whole

if TYPE_CHECKING:  # for its name alone: importing it takes seconds
    from torch_geometric.data import Data

__all__ = ["Neighbourhood", "Predictions", "neighbourhood", "predict", "write_csv"]

ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model makes of some nodes.

    A probability is a softmax over the classes the model knows. It says which of these classes is likelier than the
    others, and adds up to one for a node of a class that the model never saw, too. Only the closed form (`analytic`)
    fits its scale to nodes that it left out; of other methods it is no frequency of being right.
    """

    classes: Labels
    """In the order in which they were learned."""
    nodes: Nodes
    """As numbered in the graph that was asked about."""
    best: NDArray[np.int64]
    """The likeliest class of each of these nodes: its place in `classes`."""
    probabilities: NDArray[np.float32]
    """(nodes, classes)"""
    rejected: NDArray[np.bool_]
    """Which nodes are said to be of none of the known classes."""

    @property
    def confidence(self) -> NDArray[np.float32]:
        """The largest probability of each node."""
        return np.asarray(self.probabilities.max(axis=1))

    @property
    def labels(self) -> list[Any]:
        """The likeliest class of each node, in the user's own terms; None where it was rejected."""
        names = self.classes[self.best].tolist()
        return [None if rejected else name for name, rejected in zip(names, self.rejected.tolist(), strict=True)]

    def counts(self) -> dict[str, int]:
        """How many nodes are said to be of each class."""
        counts = np.bincount(self.best[~self.rejected], minlength=len(self.classes))
        return dict(zip(map(str, self.classes.tolist()), counts.tolist(), strict=True))


def predict(
    learner: Learner, graph: "Graph | Data", nodes: Iterable[int] | None = None, *, reject: float = 0.0
) -> Predictions:
    """Classes of all nodes of a graph, or of `nodes` alone, for which no more than their neighbourhood is computed.

    A node whose largest probability is below `reject` is said to be of none of the known classes.
    """
    if not 0 <= reject <= 1:
        raise ConfigError(f"A node is rejected below a probability of 0 to 1, not {reject}.")
    graph = learner.checked(graph if isinstance(graph, Graph) else graph_of(graph))
    asked = np.arange(graph.num_nodes) if nodes is None else _checked_nodes(nodes, graph.num_nodes)
    at = asked
    if nodes is not None and learner.reach is not None:
        part = neighbourhood(graph, asked, learner.reach)
        graph, at = part.graph, part.nodes
    with torch.no_grad():
        chosen = None if nodes is None else torch.from_numpy(at).to(learner.generator_.device)
        scores, probabilities = learner.judged(graph, chosen)
        best, found = scores.argmax(dim=1).cpu().numpy(), probabilities.float().cpu().numpy()
    lost = np.flatnonzero(~np.isfinite(found).all(axis=1))
    if len(lost):
        raise DataError(
            f"The features around node {asked[lost[0]]} are so large (or no numbers) that nothing can be computed from "
            "them: scale features as those that the model was trained on."
        )
    return Predictions(learner.classes_, asked, best, found, found.max(axis=1) < reject)


def _checked_nodes(nodes: Iterable[int], n: int) -> Nodes:
    numbers = np.asarray(nodes if isinstance(nodes, np.ndarray) else list(nodes))
    if numbers.ndim != 1 or not len(numbers):
        raise DataError("Say for which nodes, as a list of at least one number.")
    if not np.issubdtype(numbers.dtype, np.integer):
        raise DataError(f"Nodes are said by whole numbers, not by {numbers.dtype}.")
    for wrong in (numbers.min(), numbers.max()):
        if not 0 <= wrong < n:
            raise DataError(f"There is no node {wrong}: the nodes are 0 to {n - 1}.")
    numbers = numbers.astype(np.int64)
    names, counts = np.unique(numbers, return_counts=True)
    if (counts > 1).any():
        raise DataError(f"Node {names[counts.argmax()]} is named twice.")
    return numbers


# ---------------------------------------------------------------------- what a prediction needs of a graph


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """A part of a graph, enough to predict some nodes of it as in the whole."""

    graph: Graph
    """Its `neighbours.degree` are those of the whole graph."""
    nodes: Nodes
    """The nodes asked for, as numbered in `graph`."""
    origin: Nodes
    """What every node of `graph` is in the whole one; ascending."""


def neighbourhood(graph: Graph, nodes: Iterable[int], hops: int) -> Neighbourhood:
    """All that predictions for `nodes` by a model that reaches so many hops depend on (see `Learner.reach`).

    That is: nodes from which an edge leads to one of `nodes` in at most `hops` steps, the edges among them, and their
    numbers of in-neighbours in the whole graph, which `degree` keeps.
    """
    asked = _checked_nodes(nodes, graph.num_nodes)
    reached = np.zeros(graph.num_nodes, dtype=bool)
    reached[asked] = True
    border = asked
    for _ in range(hops):
        found = np.unique(_pointing_to(graph.neighbours, border))
        border = found[~reached[found]].astype(np.int64)
        reached[border] = True
    inside = np.flatnonzero(reached)
    if len(inside) == graph.num_nodes:
        return Neighbourhood(graph, asked, inside)
    part = graph.induced(inside)
    rows = Neighbours(part.indptr, part.indices, graph.neighbours.degree[inside])
    return Neighbourhood(Graph.of(part.x, rows, symmetric=part.symmetric), np.searchsorted(inside, asked), inside)


def _pointing_to(neighbours: Neighbours, nodes: Nodes) -> NDArray[np.int32]:
    """In-neighbours of some nodes, one after the other: only their rows are looked at."""
    begins = neighbours.indptr[nodes]
    sizes = neighbours.indptr[nodes + 1] - begins
    ends = np.cumsum(sizes)
    places = np.repeat(begins - (ends - sizes), sizes) + np.arange(ends[-1] if len(ends) else 0)
    return np.asarray(neighbours.indices[places])


# ---------------------------------------------------------------------- as a table


def write_csv(predictions: Predictions, path: Path) -> None:
    """A row a node: node, predicted (empty where rejected), confidence, rejected, and `p(CLASS)` for every class.

    Written some rows at a time; the file appears whole or not at all.
    """
    with written_whole(path) as file:
        for text in _table(predictions):
            file.write(text.encode())


def _table(predictions: Predictions) -> Iterator[str]:
    header = ["node", "predicted", "confidence", "rejected", *(f"p({name})" for name in predictions.classes.tolist())]
    yield _lines([header])
    nodes, rejected = predictions.nodes.tolist(), predictions.rejected.tolist()
    labels, confidence = predictions.labels, predictions.confidence.tolist()
    for begin in range(0, len(nodes), ROWS_AT_ONCE):
        some = slice(begin, begin + ROWS_AT_ONCE)
        yield _lines(
            [node, label, f"{sure:.6g}", "true" if out else "false", *(f"{p:.6g}" for p in row)]
            for node, label, sure, out, row in zip(
                nodes[some],
                labels[some],
                confidence[some],
                rejected[some],
                predictions.probabilities[some].tolist(),
                strict=True,
            )
        )


def _lines(rows: Iterable[list[Any]]) -> str:
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    return table.getvalue()
