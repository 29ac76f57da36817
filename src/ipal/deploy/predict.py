"""Predictions of a saved model: classes, probabilities, and rejection of nodes of unknown classes.

A prediction by a model of L hops needs the features of all nodes within L hops, the edges among them, and their
in-degrees in the whole graph: nodes at the border of a subgraph have lost neighbours, and would be weighted wrongly.
`neighbourhood` returns exactly that.
"""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, replace
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
from ipal.learners.second_pass import whole_reach
from ipal.system.files import written_whole

if TYPE_CHECKING:  # for annotations only: importing it takes seconds
    from torch_geometric.data import Data

__all__ = ["Neighbourhood", "Predictions", "neighbourhood", "predict", "write_csv"]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions for some nodes.

    Probabilities are a softmax over the known classes; they add up to one also for a node of an unknown class. Only
    those of the method `analytic` are calibrated.
    """

    classes: Labels
    """In the order in which they were learned."""
    nodes: Nodes
    """Node numbers in the graph."""
    best: NDArray[np.int64]
    """The most probable class of each node, as an index into `classes`."""
    probabilities: NDArray[np.float32]
    """(nodes, classes)"""
    rejected: NDArray[np.bool_]
    """Which nodes are rejected as of no known class."""

    @property
    def confidence(self) -> NDArray[np.float32]:
        """The largest probability of each node."""
        return np.asarray(self.probabilities.max(axis=1))

    @property
    def labels(self) -> list[Any]:
        """The label of the most probable class of each node; None if rejected."""
        names = self.classes[self.best].tolist()
        return [None if rejected else name for name, rejected in zip(names, self.rejected.tolist(), strict=True)]

    def counts(self) -> dict[str, int]:
        """Number of nodes predicted as each class."""
        counts = np.bincount(self.best[~self.rejected], minlength=len(self.classes))
        return dict(zip(map(str, self.classes.tolist()), counts.tolist(), strict=True))


def predict(
    learner: Learner, graph: "Graph | Data", nodes: Iterable[int] | None = None, *, reject: float = 0.0
) -> Predictions:
    """Predict all nodes of a graph, or `nodes` alone, for which only their neighbourhood is computed.

    Nodes whose largest probability is below `reject` are rejected.
    """
    if not 0 <= reject <= 1:
        raise ConfigError(f"A node is rejected below a probability of 0 to 1, not {reject}.")
    graph = learner.checked(graph if isinstance(graph, Graph) else graph_of(graph))
    asked = np.arange(graph.num_nodes) if nodes is None else _checked_nodes(nodes, graph.num_nodes)
    at = asked
    reach = whole_reach(learner)
    if nodes is not None and reach is not None:
        part = neighbourhood(graph, asked, reach)
        graph, at = part.graph, part.nodes
    with torch.no_grad():
        graph = learner.refined(graph)
        chosen = None if nodes is None else torch.from_numpy(at).to(learner.generator_.device)
        scores, probabilities = learner.scores_and_probabilities(graph, chosen)
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
        raise DataError("Give the nodes as a list of at least one number.")
    if not np.issubdtype(numbers.dtype, np.integer):
        raise DataError(f"Nodes are whole numbers, not {numbers.dtype}.")
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
    """A subgraph that gives the same predictions for some nodes as the whole graph."""

    graph: Graph
    """Its `neighbours.degree` is that of the whole graph."""
    nodes: Nodes
    """The predicted nodes, as numbered in `graph`."""
    origin: Nodes
    """Number of every node of `graph` in the whole graph; ascending."""


def neighbourhood(graph: Graph, nodes: Iterable[int], hops: int) -> Neighbourhood:
    """The subgraph that predictions for `nodes` by a model of `hops` hops depend on (see `second_pass.whole_reach`).

    Nodes with a path of at most `hops` edges to one of `nodes`, the edges among them, and their in-degrees in the whole
    graph, as `degree`.
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
    rows = replace(part.neighbours, whole_degree=graph.neighbours.degree[inside])
    return Neighbourhood(Graph.of(part.x, rows, symmetric=part.symmetric), np.searchsorted(inside, asked), inside)


def _pointing_to(neighbours: Neighbours, nodes: Nodes) -> NDArray[np.int32]:
    """In-neighbours of some nodes, concatenated; reads only their rows."""
    begins = neighbours.indptr[nodes]
    sizes = neighbours.indptr[nodes + 1] - begins
    ends = np.cumsum(sizes)
    places = np.repeat(begins - (ends - sizes), sizes) + np.arange(ends[-1] if len(ends) else 0)
    return np.asarray(neighbours.indices[places])


# ---------------------------------------------------------------------- as a table


def write_csv(predictions: Predictions, path: Path) -> None:
    """Write a CSV file: node, predicted (empty if rejected), confidence, rejected, and `p(CLASS)` for every class.

    Written row by row, atomically.
    """
    found = predictions
    with written_whole(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        table = csv.writer(text, lineterminator="\n")
        table.writerow(
            ["node", "predicted", "confidence", "rejected", *(f"p({name})" for name in found.classes.tolist())]
        )
        columns = found.nodes.tolist(), found.labels, found.confidence.tolist(), found.rejected.tolist()
        for node, label, sure, out, row in zip(*columns, found.probabilities, strict=True):
            numbers = [f"{p:.6g}" for p in row.tolist()]
            table.writerow([node, label, f"{sure:.6g}", "true" if out else "false", *numbers])
        text.detach()  # flushed; the file is closed by its owner
