"""Predictions of a saved model: classes, probabilities, and rejection of nodes of unknown classes."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ipal.data.graph import Graph, Nodes
from ipal.data.labels import Labels
from ipal.data.neighbourhood import Neighbourhood, neighbourhood
from ipal.errors import DataError
from ipal.estimator.learner import Learner
from ipal.estimator.model import Model, model_of
from ipal.estimator.open_world import unknown
from ipal.estimator.open_world.calibration import SMOOTHED
from ipal.system.files import written_whole

if TYPE_CHECKING:  # for annotations only: importing them takes seconds
    from torch_geometric.data import Data

__all__ = ["Neighbourhood", "Predictions", "neighbourhood", "predict", "write_csv"]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions for some nodes.

    Probabilities are over the known classes: they add up to one also for a node of an unknown class.
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
    sets: NDArray[np.bool_] | None = None
    """(nodes, classes): prediction sets, where asked for."""

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
        """Number of nodes predicted as each class.

        Returns
        -------
        dict
        """
        counts = np.bincount(self.best[~self.rejected], minlength=len(self.classes))
        return dict(zip(map(str, self.classes.tolist()), counts.tolist(), strict=True))


def predict(
    learner: Learner | Model,
    graph: "Graph | Data",
    nodes: Iterable[int] | None = None,
    *,
    reject: float | None = None,
    coverage: float | None = None,
) -> Predictions:
    """Predict all nodes of a graph, or some, for which only their neighbourhood is computed.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    graph : Graph or Data or GraphData
        A graph with features and edges.
    nodes : iterable of int, optional
        The nodes to predict. Default: all.
    reject : float, optional
        Share of known nodes that may be lost: nodes that seem to be of no known class are rejected.
    coverage : float, optional
        Also give sets of classes, which hold a node's own class this often.

    Returns
    -------
    Predictions

    Raises
    ------
    DataError
        If nothing can be computed from the features.
    """
    model = model_of(learner)
    graph = model.checked(graph)
    asked = at = np.arange(graph.num_nodes)
    chosen = None
    if nodes is not None:
        part = neighbourhood(graph, nodes, model.reach + (0 if reject is None else SMOOTHED))
        graph, at, asked = part.graph, part.nodes, part.origin[part.nodes]
        chosen = torch.from_numpy(at).to(model.device)
    with torch.no_grad():
        scores, probabilities = model.scores_and_probabilities(graph, chosen)
        best, found = scores.argmax(dim=1).cpu().numpy(), probabilities.float().cpu().numpy()
        novel = np.zeros(len(at), dtype=bool) if reject is None else unknown.rejected(model, graph, reject)[at]
    lost = np.flatnonzero(~np.isfinite(found).all(axis=1))
    if len(lost):
        raise DataError(
            f"The features around node {asked[lost[0]]} are so large (or no numbers) that nothing can be computed from "
            "them: scale features as those that the model was trained on."
        )
    sets = None if coverage is None else unknown.sets(model, found, coverage)
    return Predictions(model.classes_, asked, best, found, novel, sets)


def write_csv(predictions: Predictions, path: Path, ids: Labels | None = None) -> None:
    """Write a CSV file: node, predicted (empty if rejected), confidence, rejected, and `p(CLASS)` for every class.

    With prediction sets also `set`, their classes separated by |. `ids` are what nodes are called, where that is not
    their number. Written row by row, atomically.
    """
    with written_whole(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        table = csv.writer(text, lineterminator="\n")
        names = list(map(str, predictions.classes.tolist()))
        more = ["set"] * (predictions.sets is not None)
        table.writerow(["node", "predicted", "confidence", "rejected", *more, *(f"p({name})" for name in names)])
        called = predictions.nodes if ids is None else ids[predictions.nodes]
        columns = called.tolist(), predictions.labels, predictions.confidence.tolist(), predictions.rejected.tolist()
        for place, (node, label, sure, out) in enumerate(zip(*columns, strict=True)):
            numbers = [f"{p:.6g}" for p in predictions.probabilities[place].tolist()]
            members = [] if predictions.sets is None else ["|".join(compress(names, predictions.sets[place]))]
            table.writerow([node, label, f"{sure:.6g}", "true" if out else "false", *members, *numbers])
        text.detach()  # flushed; the file is closed by its owner
